"""The whole benchmark against a real Mosquitto, small; and that nothing is left running."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sterna.cli.bench import app
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import BROKERS, MOSQUITTO, started
from sterna.measure.harness.comparison import RoundPlan, compare
from sterna.measure.load.connections import LoadClients
from sterna.measure.load.generator import measure_idle
from sterna.measure.load.shapes import Idle
from sterna.measure.workloads.brokers import BY_NAME, case, run_once

BRIEF = RoundPlan(rounds=1, warm_up_s=0.2, measure_s=0.3, short=True)

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None, reason="mosquitto not installed"
)


@pytest.mark.slow
@needs_mosquitto
@pytest.mark.parametrize(
    "name", ["fan-out", "fan-in", "qos1", "qos2", "qos2-fsync", "wildcards", "new-topics", "fan-out-10k"]
)
def test_mosquitto_delivers_everything(name: str) -> None:
    measured = run_once(MOSQUITTO, BY_NAME[name], BRIEF)
    assert measured.lost == 0
    assert measured.delivered > 0
    assert measured.cpu_us_per_message is not None
    assert 0.1 < measured.cpu_us_per_message < 500


@pytest.mark.slow
@needs_mosquitto
def test_idle_connections_are_weighed() -> None:
    with started(MOSQUITTO, BY_NAME["idle"], core=None) as running:
        clients = LoadClients(running.port)
        measured = measure_idle(clients, Idle(connections=500, before=50), running.pid)
        clients.close()
    assert measured.kib_per_connection is not None
    assert 0.1 < measured.kib_per_connection < 10


@pytest.mark.slow
@needs_mosquitto
def test_a_quick_run_prints_one_json_document_and_talks_on_stderr() -> None:
    ran = CliRunner().invoke(app, ["brokers", "--subject", "mosquitto", "--quick", "--workload", "fan-in", "--json"])
    assert ran.exit_code == 0, ran.stderr
    (row,) = json.loads(ran.stdout)["rows"]
    assert row["workload"] == "fan-in"
    assert 0.2 < row["ratio"] < 5
    assert row["subject"]["lost"] == row["peer"]["lost"] == 0
    assert "round 1/1" in ran.stderr


@needs_mosquitto
def test_a_broker_that_dies_ends_the_run() -> None:
    with started(MOSQUITTO, BY_NAME["qos1"], core=None) as running:
        clients = LoadClients(running.port)
        clients.watch_silent(clients.connect("witness"))
        os.kill(running.pid, signal.SIGKILL)
        with pytest.raises((MeasurementError, ConnectionError), match=r"closed the connection|reset"):
            clients.turn(10.0)
        clients.close()


@needs_mosquitto
def test_a_broker_and_its_directory_are_gone_when_the_block_fails() -> None:
    pid, directory = 0, Path()

    def measure_something_that_fails() -> None:
        nonlocal pid, directory
        with started(MOSQUITTO, BY_NAME["qos1"], core=None) as running:
            pid = running.pid
            directory = Path(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[2]).parent
            assert directory.is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_something_that_fails()
    assert not Path(f"/proc/{pid}").exists()
    assert not directory.exists()


@needs_mosquitto
def test_a_broker_that_does_not_start_is_a_row_with_its_last_words() -> None:
    broken = replace(MOSQUITTO, settings=lambda workload, port, directory: "no_such_setting true\n")
    with pytest.raises(MeasurementError, match="did not start"), started(broken, BY_NAME["qos1"], core=None):
        pytest.fail("a broker with a broken configuration answered")
    said: list[str] = []
    (result,) = compare([case((broken, MOSQUITTO), BY_NAME["qos1"], BRIEF)], BRIEF, said.append)
    assert result.failure is not None
    assert "no_such_setting" in result.failure
    assert any("failed" in line for line in said)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    for arguments in (["--peer", "nonesuch"], ["--workload", "nonesuch"]):
        ran = CliRunner().invoke(app, ["brokers", *arguments])
        assert ran.exit_code == 2
        assert "nonesuch" in ran.stderr
    assert set(BROKERS) == {"sterna", "mosquitto", "mosquitto-nodelay"}
