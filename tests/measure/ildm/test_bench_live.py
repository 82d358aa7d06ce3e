"""The benchmark with real brokers, as short as it goes: limits, latency, transfers, costs and a picture."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.foreign_brokers import FOREIGN, installed
from sterna.measure.harness.rows import wait_until_joined
from sterna.measure.ildm import small_hosts
from sterna.measure.ildm.cell import CellRunner, Plan
from sterna.measure.ildm.model import transfers
from sterna.measure.ildm.scenario import LatencyPlace, LoadPlace, Scenario, built_in
from sterna.measure.ildm.small_hosts import can_confine, confined
from sterna.measure.ildm.systems import ALGORITHMS, SYSTEMS, cooperating, missing_kinds, single

BENCH = [sys.executable, "-m", "sterna", "bench", "ildm"]
SCENARIO = """about = "two nodes"
nodes = 2
[latency]
topic = "l"
publisher = 1
subscribers = [1, 2]
[[place]]
node = 1
topic = "t"
publishers = 2
subscribers = 1
[[place]]
node = 2
topic = "t"
publishers = 0
subscribers = 1
"""
needs_mosquitto = pytest.mark.skipif(not FOREIGN["mosquitto"][1](), reason="mosquitto is not installed")


def row_of(*brokers: str) -> Scenario:
    """A row with a subscriber at each end; without names the brokers are the usual ones."""
    nodes = len(brokers)
    places = (LoadPlace(1, "t", 1, 1), LoadPlace(nodes, "t", 0, 1))
    return Scenario("a row", nodes, LatencyPlace("l", 1, (nodes,)), places, brokers if any(brokers) else ())


@pytest.mark.slow
@needs_mosquitto
def test_a_scenario_of_ones_own_is_measured_through_both_systems(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(SCENARIO)
    words = [
        *BENCH,
        "--quick",
        "--brokers",
        "none",
        "--scenario",
        str(file),
        "--json",
        "--png",
        str(tmp_path / "p.png"),
    ]
    run = subprocess.run([*words, "--logs", str(tmp_path / "logs")], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    cells = {(cell["system"], cell["algorithm"]): cell for cell in document["cells"]}
    assert set(cells) == {("proxy", "SF"), ("reference", "SF")}
    for cell in cells.values():
        assert cell["egress"] == pytest.approx(2 * cell["ingress"], rel=0.1)
        assert cell["duplicated"] == 0
        assert None not in cell["latency_half_ms"]
        assert all(cost > 0 for cost in cell["cpu_us"].values())
        assert 0 <= cell["transfers"] - cell["transfers_due"] <= 200, cell["transfers_due"]
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert len(list((tmp_path / "logs").rglob("received.csv"))) == sum(len(cell["runs"]) for cell in cells.values())


@pytest.mark.slow
@needs_mosquitto
def test_without_control_groups_the_limit_is_in_cpu_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_hosts, "_root", lambda: None)
    plan = Plan(measure_s=0.5, cut_s=0.1, latency_s=0.5)
    with single(FOREIGN["mosquitto"][0]) as running:
        cell = CellRunner(running, built_in("fan1"), plan, print).measure("mosquitto", "fan1", "-")
    assert not cell.is_confined
    assert cell.egress == pytest.approx(cell.cpu_limit)
    assert len(cell.runs) == 3, "nothing was searched for"


@pytest.mark.skipif(not can_confine(), reason="no right to make control groups")
def test_a_small_host_gets_its_share_and_no_more() -> None:
    with ExitStack() as stack:
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        stack.callback(process.wait)
        stack.callback(process.kill)
        with confined("test", [process.pid], 0.1):
            begin, before = time.monotonic(), meter.cpu_ns(process.pid)
            time.sleep(1.0)
            used = (meter.cpu_ns(process.pid) - before) / 1e9 / (time.monotonic() - begin)
        assert used < 0.2
        group = Path("/sys/fs/cgroup/cpu") / f"sterna-ildm-{os.getpid()}-test"
        assert not group.exists()
        assert process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_broker_that_is_installed_starts_and_delivers(name: str) -> None:
    kinds = installed()
    if name not in kinds:
        pytest.skip(f"{name} is not installed")
    plan = Plan(measure_s=0.5, cut_s=0.1, latency_s=0.5, search="bisect", share=0.2)
    with single(kinds[name]) as running:
        cell = CellRunner(running, built_in("fan1"), plan, print).measure(name, "fan1", "-")
    assert cell.egress > 0
    assert name in kinds[name].describe()


@pytest.mark.slow
def test_a_row_of_nodes_delivers_under_both_strategies() -> None:
    for algorithm in ALGORITHMS:
        with cooperating(SYSTEMS["sterna"], row_of("", ""), algorithm) as running:
            wait_until_joined("sterna", running.ports[0], running.ports[1:])
            assert len(running.ports) == len(running.hosts) == 2


@pytest.mark.slow
@needs_mosquitto
@pytest.mark.parametrize("name", ["proxy", "reference"])
def test_brokers_of_different_kinds_cooperate(name: str) -> None:
    with cooperating(SYSTEMS[name], row_of("mosquitto", "sterna"), "SF") as running:
        assert [host.name for host in running.hosts] == ["mosquitto1", "sterna2", "node1", "node2"]
        assert [host.role for host in running.hosts] == ["broker", "broker", "node", "node"]
        wait_until_joined(name, running.ports[0], running.ports[1:])
        counted = running.stop_and_count()
        assert counted is not None
        assert counted > 0


@pytest.mark.slow
def test_transfers_between_nodes_are_counted_message_by_message() -> None:
    """Though nodes hand on whole batches."""
    plan = Plan(measure_s=0.5, cut_s=0.1, latency_s=0.5, search="bisect", share=0.2)
    scenario = built_in("B")
    with cooperating(SYSTEMS["sterna"], scenario, "SF") as running:
        runner = CellRunner(running, scenario, plan, print)
        runner.measure_gently()
        counted = running.stop_and_count()
    assert counted is not None
    assert 0 <= counted - runner.published * transfers(scenario, "SF") <= 200


def test_kinds_that_are_not_installed_are_named() -> None:
    assert missing_kinds(("sterna", "emqx", "sterna")) == ["emqx"]
    starting = cooperating(SYSTEMS["proxy"], row_of("emqx"), "SF")
    with pytest.raises(MeasurementError, match="emqx: not installed"), starting:
        pass


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--search", "guess"], "no search 'guess'; known: twentieths, bisect"),
        (["--systems", "x"], "no system 'x'; known: sterna, proxy, reference"),
        (["--patterns", "E"], "no pattern 'E'; known: A, B, C, D, mixed"),
        (["--brokers", "emqx"], "no broker 'emqx'; known: "),
        (["--scenario", "/nowhere.toml"], "/nowhere.toml cannot be read"),
        (["--share", "7"], "--share"),
    ],
)
def test_bad_options_are_named(words: list[str], says: str) -> None:
    run = subprocess.run([*BENCH, *words], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert says in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_a_missing_broker_is_named() -> None:
    if shutil.which("rabbitmq-server", path="/usr/sbin:/usr/bin"):
        pytest.skip("it is installed here")
    run = subprocess.run([*BENCH, "--brokers", "rabbitmq"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "rabbitmq is not installed" in run.stderr
