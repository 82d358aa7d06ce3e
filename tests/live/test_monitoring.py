"""contrib/prometheus and contrib/grafana beside real nodes: promtool accepts the files, a real Prometheus scrapes the
nodes, and every expression of dashboard and alerts asks for metrics that nodes have.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sterna.measure.harness.ports import free_port
from sterna.runtime.admin.metrics import INTERWORKING_METRICS

from .left_out import leave_out
from .networks import LiveNetwork
from .nodes import START_S, wait_until

ROOT = Path(__file__).parents[2]
RULES, DASHBOARD = ROOT / "contrib/prometheus", ROOT / "contrib/grafana/sterna.json"
UNPACKED = ROOT / ".venv/prometheus/usr/bin"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        leave_out(f"{name} is not on this machine: run make .venv/prometheus/installed, or install it")
    return found


def promtool(*words: object, told: bytes | None = None) -> str:
    command = [program("promtool"), *map(str, words)]
    done = subprocess.run(command, input=told, capture_output=True, timeout=120)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def dashboard_expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    told = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    told += [note["expr"] for note in dashboard["annotations"]["list"]]
    values = {"$job": "sterna", "$instance": ".*", "$__rate_interval": "1m", "$__interval": "1m"}
    for name, value in values.items():
        told = [expression.replace(name, value) for expression in told]
    assert len(told) > 30
    return told


def alert_expressions() -> list[str]:
    return re.findall(r"^ +expr: (.+)$", (RULES / "alerts.yml").read_text(), re.MULTILINE)


class Prometheus:
    """Its questions and answers."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def ask(self, page: str, **words: str) -> Any:
        with urllib.request.urlopen(f"{self._address}{page}?{urllib.parse.urlencode(words)}", timeout=240) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask("/api/v1/query", query=expression)["result"]
        return rows

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=240) as answer:
                return int(answer.status) == 200
        except OSError:
            return False


@contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[Prometheus]:
    """The files of contrib/, but for the nodes' addresses and the time between scrapes."""
    shutil.copy(RULES / "alerts.yml", directory)
    text = (RULES / "prometheus.yml").read_text().replace("scrape_interval: 15s", "scrape_interval: 1s")
    text = text.replace("scrape_interval: 1s", "scrape_interval: 1s\n  evaluation_interval: 1s")
    text, found = re.subn(r"targets: \[.*\]", f"targets: {json.dumps(targets)}", text)
    assert found == 1
    (directory / "prometheus.yml").write_text(text)
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/db",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        server = Prometheus(port)
        wait_until(server.is_up, "Prometheus is ready", START_S)
        yield server
    finally:
        process.kill()
        process.wait()


def test_promtool_accepts_the_rules_and_each_alert_fires_when_it_should() -> None:
    assert "SUCCESS" in promtool("check", "rules", RULES / "alerts.yml")
    assert "SUCCESS" in promtool("check", "config", RULES / "prometheus.yml")
    assert "SUCCESS" in promtool("test", "rules", RULES / "alerts.test.yml")


def test_every_alert_is_among_those_that_are_tried() -> None:
    named = set(re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text()))
    tried = set(re.findall(r'alertname="(\w+)"', (RULES / "alerts.test.yml").read_text()))
    assert named == tried


def test_a_real_prometheus_scrapes_nodes_and_knows_every_metric_of_dashboard_and_alerts(tmp_path: Path) -> None:
    program("prometheus")
    with LiveNetwork(tmp_path / "nodes", ("ab",)) as network:
        nodes = list(network.nodes.values())
        promtool("check", "metrics", told=nodes[0].ask("/metrics")[1].encode())
        targets = [f"127.0.0.1:{node.admin_port}" for node in nodes]
        with prometheus(tmp_path, targets) as server:
            wait_until(lambda: len(server.query("sterna_clients_connected")) == 2, "both nodes are scraped", START_S)
            check_expressions(server)
            builds = server.query("sterna_build_info")
            assert sorted(row["metric"]["instance"] for row in builds) == sorted(targets)
            [group] = server.ask("/api/v1/rules")["groups"]
            assert len(group["rules"]) == len(alert_expressions())
            wait_until(lambda: health(server) == {"ok"}, "all rules are evaluated")
            nodes[1].kill()
            wait_until(lambda: "SternaNodeDown" in pending(server), "the alert is on its way", START_S)


def check_expressions(server: Prometheus) -> None:
    known = set(server.ask("/api/v1/metadata"))
    known |= {f"{name}_bucket" for name in known} | {"up"}
    elsewhere = {f"sterna_{metric.name}" for metric in INTERWORKING_METRICS}
    for expression in dashboard_expressions() + alert_expressions():
        server.query(expression)
        asked = set(re.findall(r"\b(?:sterna|process)_\w+|\bup\b", expression))
        assert asked, expression
        assert asked <= known | elsewhere, expression


def health(server: Prometheus) -> set[str]:
    return {rule["health"] for group in server.ask("/api/v1/rules")["groups"] for rule in group["rules"]}


def pending(server: Prometheus) -> set[str]:
    return {alert["labels"]["alertname"] for alert in server.ask("/api/v1/alerts")["alerts"]}
