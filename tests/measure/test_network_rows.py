"""Rows of real brokers, small: everything arrives at the other end, and nothing is left running."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sterna.cli.bench import app
from sterna.measure.harness.comparison import RoundPlan
from sterna.measure.harness.rows import ROW_OF_MOSQUITTO, ROW_OF_STERNA, RowSystem, started_row
from sterna.measure.workloads.network import ALONE, BY_NAME, NetworkShape, run_row

BRIEF = RoundPlan(rounds=1, warm_up_s=0.2, measure_s=0.3, short=True)
SYSTEMS = pytest.mark.parametrize("system", [ROW_OF_STERNA, ROW_OF_MOSQUITTO], ids=lambda system: system.name)

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None, reason="mosquitto not installed"
)


@pytest.mark.slow
@needs_mosquitto
@SYSTEMS
@pytest.mark.parametrize("load", ["qos0", "qos1", "qos1-fsync", "paced"])
def test_everything_arrives_at_the_other_end_of_three(system: RowSystem, load: str) -> None:
    measured = run_row(system, BY_NAME[load], NetworkShape(3, "remote"), BRIEF)
    assert measured.lost == 0
    assert measured.delivered > 50
    assert measured.broker_cpu_s > 0


@pytest.mark.slow
@needs_mosquitto
@SYSTEMS
@pytest.mark.parametrize("shape", [ALONE, NetworkShape(3, "local")], ids=lambda shape: shape.name)
def test_subscribers_may_be_where_the_publishers_are(system: RowSystem, shape: NetworkShape) -> None:
    measured = run_row(system, BY_NAME["qos1"], shape, BRIEF)
    assert measured.lost == 0
    assert measured.delivered > 50


@pytest.mark.slow
@needs_mosquitto
@SYSTEMS
def test_a_row_has_a_process_each_and_none_of_them_outlives_the_block(system: RowSystem) -> None:
    with started_row(system, 3, BY_NAME["qos0"], core=None) as row:
        assert len(set(row.pids)) == 3
        assert row.near != row.far
        assert all(Path(f"/proc/{pid}").exists() for pid in row.pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in row.pids)


@pytest.mark.slow
@needs_mosquitto
def test_a_quick_run_prints_one_json_document_and_talks_on_stderr() -> None:
    arguments = ["network", "--quick", "--load", "qos0", "--nodes", "1", "--nodes", "3", "--json"]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert [(cell["nodes"], cell["place"]) for cell in told["cells"]] == [(1, "local"), (3, "local"), (3, "remote")]
    assert [hop["nodes"] for hop in told["hops"]] == [3]
    assert "round 1/1" in ran.stderr


def test_what_there_is_no_load_or_row_of_is_refused_with_what_there_is() -> None:
    for arguments, known in ((["--load", "nonesuch"], "qos1-fsync"), (["--nodes", "4"], "1, 3 and 5")):
        ran = CliRunner().invoke(app, ["network", *arguments])
        assert ran.exit_code == 2
        assert known in ran.stderr
