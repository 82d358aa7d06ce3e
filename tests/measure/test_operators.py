"""The benchmark of expressions: its load is what it says, its figures are judged as they should be, and it runs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from sterna.measure import figures
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.measurement import Measurement
from sterna.measure.load import packets
from sterna.measure.load.numbers import BLOCK, PUBLISHERS, TOPICS, SmallPackets, blocks, topic
from sterna.measure.workloads.operators import bench as operators
from sterna.measure.workloads.operators.in_node import judge_average, judge_bystanders


def measured(per_second: float, cpu_us: float, lost: int = 0) -> Measurement:
    delivered = int(per_second)
    return Measurement(
        seconds=1.0, published=delivered, delivered=delivered, lost=lost, broker_cpu_s=cpu_us * delivered / 1e6
    )


def test_the_load_is_one_number_on_every_topic_in_turn() -> None:
    written = b"".join(blocks(number)[0] for number in range(PUBLISHERS))
    found = re.findall(rb"\x30.\x00\x07(../../t)(\d+\.\d\d)", written, re.DOTALL)
    assert [name.decode() for name, _ in found] == [topic(number) for number in range(TOPICS)]
    assert len({name for name, _ in found}) == TOPICS == BLOCK * PUBLISHERS
    assert all(0 <= float(payload) < 1000 for _, payload in found)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_results_are_counted_however_they_are_cut(piece: int) -> None:
    data = b"".join(packets.publish("$AVG/$A", b"%.*f" % (number % 9, number / 7)) for number in range(50))
    stream = SmallPackets()
    for start in range(0, len(data), piece):
        stream.take(data[start : start + piece])
    assert stream.messages == 50


def test_anything_but_results_ends_the_run() -> None:
    with pytest.raises(MeasurementError, match="0x40"):
        SmallPackets().take(b"\x40\x02\x00\x01")


@pytest.mark.parametrize(
    ("rate", "lost", "verdict"), [(50_000, 0, "reached"), (49_999, 0, "missed"), (90_000, 1, "missed")]
)
def test_the_rate_counts_if_nothing_was_lost(rate: int, lost: int, verdict: str) -> None:
    rows = judge_average([measured(rate, 10.0, lost)], [measured(500_000, 1.0)], [measured(40_000, 20.0)])
    assert [row.verdict for row in rows] == [verdict, "shown", "shown"]
    assert [row.ratio for row in rows] == [pytest.approx(rate / 40_000), pytest.approx(2.0), pytest.approx(20.0)]


def test_the_rate_is_by_the_clock_whatever_else_runs() -> None:
    busy = Measurement(seconds=4.0, delivered=160_000, broker_cpu_s=0.9, broker_waited_s=3.0)
    row = judge_average([busy], [measured(500_000, 1.0)], [measured(40_000, 20.0)])[0]
    assert (row.figure, row.verdict) == (40_000, "missed")
    assert "5.62 us of CPU for each; the broker was at work for 22% of the time." in row.remarks


@pytest.mark.parametrize(("with_them", "verdict"), [(1.1, "reached"), (1.11, "missed")])
def test_bystanders_are_judged_by_the_median_of_pairs(with_them: float, verdict: str) -> None:
    costs = [1.0, with_them, 5.0, 4.0, 1.2, 3.0]
    row = judge_bystanders([measured(1_000_000, cost) for cost in costs])
    assert row.verdict == verdict
    assert [row.ratio, row.figure, row.beside] == pytest.approx([with_them, 3.0, 1.2])


def test_a_part_that_fails_is_a_row_that_says_so() -> None:
    def fails(say: object, quick: bool) -> list[figures.FigureRow]:
        raise MeasurementError("no broker")

    report = operators.run({"node": fails}, lambda line: None, quick=True)
    assert report.failed
    assert report.rows[0].summary == "failed: no broker"


@pytest.mark.slow
def test_the_node_part_runs_and_is_told_and_drawn(tmp_path: Path) -> None:
    report = operators.run({"node": operators.PARTS["node"]}, lambda line: None, quick=True)
    assert [row.name for row in report.rows] == ["average", "average-cpu", "plain-cpu", "bystanders"]
    assert all(row.figure for row in report.rows)
    assert not report.failed
    out = io.StringIO()
    figures.report(report).as_table(Console(file=out, width=120))
    assert "bystanders" in out.getvalue()
    figures.report(report).as_plot(tmp_path / "operators.png")
    assert (tmp_path / "operators.png").read_bytes().startswith(b"\x89PNG")
