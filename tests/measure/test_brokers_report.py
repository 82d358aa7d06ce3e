"""The report judges, says where we are behind, and keeps its JSON shape."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from sterna.measure.harness.brokers import MOSQUITTO, STERNA
from sterna.measure.harness.comparison import Compared, RoundPlan
from sterna.measure.harness.measurement import Measurement, Summary, summarise
from sterna.measure.report import MeasurementReport
from sterna.measure.workloads import brokers
from sterna.measure.workloads.brokers import BY_NAME, BrokersDocument, WorkloadRow, document

PAIR = (STERNA, MOSQUITTO)
MACHINE: dict[str, str | int | bool] = {"cpu": "a CPU", "cores": 2, "kernel": "6", "python": "3.11", "pinned": True}


def summary(workload: str, value: float, **changed: Any) -> Summary:
    """A broker whose figure for the workload is `value`."""
    figure = BY_NAME[workload].figure
    own: dict[str, Any] = (
        {"broker_cpu_s": value / 1000} if figure == "cpu_us_per_message" else {figure: value, "latency_p50_us": 1.0}
    )
    return summarise(figure, [Measurement(**{"seconds": 1.0, "published": 100, "delivered": 1000, **own, **changed})])


def result(workload: str, ours: float, theirs: float, **changed: Any) -> WorkloadRow:
    subject, peer = summary(workload, ours, **changed), summary(workload, theirs, **changed)
    return brokers.judge(BY_NAME[workload], Compared(subject=subject, peer=peer), PAIR)


def report(*rows: WorkloadRow) -> MeasurementReport:
    versions = {"sterna": "sterna 1", "mosquitto": "mosquitto 2"}
    return brokers.report(document(PAIR, versions, MACHINE, RoundPlan(), list(rows)))


def text(told: MeasurementReport) -> str:
    out = io.StringIO()
    told.as_table(Console(file=out, width=160))
    return out.getvalue()


def test_a_ratio_is_peer_over_ours_and_judged_by_the_target() -> None:
    reached, missed = result("fan-in", 2.0, 5.0), result("fan-in", 4.0, 5.0)
    assert (reached.ratio, reached.verdict, reached.slower) == (2.5, "reached", False)
    assert (missed.ratio, missed.verdict, missed.slower) == (1.25, "missed", False)


def test_latency_may_be_half_as_much_again_and_is_then_still_behind() -> None:
    row = result("latency", 140.0, 100.0)
    assert (row.verdict, row.slower) == ("reached", True)
    assert result("latency", 160.0, 100.0).verdict == "missed"


def test_memory_is_judged_by_its_ceiling_not_by_the_peer() -> None:
    row = result("idle", 11.0, 1.0)
    assert (row.verdict, row.slower) == ("reached", True)
    assert result("idle", 13.0, 14.0).verdict == "missed"


def test_without_a_target_the_figure_is_shown_with_what_the_peer_does_not_promise() -> None:
    row = result("qos1-fsync", 20.0, 5.0)
    assert row.verdict == "shown"
    assert any("before anything is on disk" in remark for remark in row.remarks)


def test_a_failed_workload_is_a_row_and_fails_the_report() -> None:
    failed = brokers.judge(BY_NAME["qos1"], Compared(failure="sterna did not start"), PAIR)
    told = report(failed, result("fan-in", 1.0, 3.0))
    assert told.failed
    assert isinstance(told.document, BrokersDocument)
    assert [row.verdict for row in told.document.rows] == ["failed", "reached"]
    assert "sterna did not start" in text(told)


def test_the_table_says_where_we_are_behind_and_what_not_to_trust() -> None:
    told = text(report(result("fan-in", 6.0, 5.0, lost=7, late=50), result("qos1", 1.0, 2.0, generator_busy=1.0)))
    assert "Where sterna is behind mosquitto: fan-in (0.83x)." in told
    assert "Targets missed: fan-in." in told
    assert "sterna: 7 deliveries lost." in told
    assert "fan-in: sterna: disturbed" in told
    assert "qos1: sterna: generator-bound" in told


def test_the_json_document_keeps_its_shape() -> None:
    told = json.loads(report(result("fan-in", 2.0, 5.0)).as_json())
    assert set(told) == {
        *("benchmark", "subject", "peer", "versions", "machine", "rounds", "warm_up_s", "measure_s", "rows")
    }
    (row,) = told["rows"]
    assert set(row) == {
        *("workload", "summary", "unit", "ratio", "target", "verdict", "slower", "remarks", "subject", "peer")
    }
    assert (row["workload"], row["ratio"], row["target"], row["verdict"]) == ("fan-in", 2.5, ">= 2x", "reached")
    assert set(row["subject"]) == set(row["peer"]) == set(Summary.__struct_fields__)
    assert row["subject"]["figure"] == 2.0
    assert set(row["subject"]["rounds"][0]) == set(Measurement.__struct_fields__)
