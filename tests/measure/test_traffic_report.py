"""Figures, targets and tables of the traffic experiment, from made-up measurements."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from sterna.measure.errors import MeasurementError
from sterna.measure.papers.traffic import report as traffic_report
from sterna.measure.papers.traffic.experiment import TrafficPlan, TrafficSample, check, systems_of
from sterna.measure.papers.traffic.systems import MOSQUITTO

PLAN = TrafficPlan(
    strategies=("subscription-flooding",), overlays=("spanning-tree",), localities=(50, 100), rounds=3,
    capture=True, at_a_distance=False,
)  # fmt: skip
OURS = "subscription-flooding, tree"


def sample(system: str, locality: int, number: int, publish: int, control: int, delivered: int = 5000) -> TrafficSample:
    return TrafficSample(
        system=system, locality=locality, round=number, publishers=(0,) * 20, subscribers=(1,) * 5,
        needed_copies=1000, delivered=delivered, expected=5000, publish=publish, control=control,
        total=publish + control, packets=10, publish_packets=publish // 100, publication_bytes=publish // 2,
        kinds={"PUBLISH": publish}, counts={"PUBLISH": publish // 100},
        cpu_percent=(1.0 + number, 2.0, 0.5, 0.25, 0.125), resident_mib=(50.0, 51.0, 52.0, 53.0, 54.0),
    )  # fmt: skip


def samples(publish: int, control: int) -> list[TrafficSample]:
    """Three rounds, the second far off; Mosquitto always at 1,000 and 2,000."""
    found = []
    for number, factor in enumerate((1, 10, 1)):
        found += [sample(MOSQUITTO, locality, number, 1000, 2000) for locality in PLAN.localities]
        found.append(sample(OURS, 50, number, publish * factor, control))
        found.append(sample(OURS, 100, number, 0, control))
    return found


def report(publish: int, control: int) -> traffic_report.TrafficDocument:
    return traffic_report.document(PLAN, {"sterna": "sterna 1"}, samples(publish, control))


def test_figures_are_medians_over_the_rounds() -> None:
    figures = report(900, 500).figures[0]
    assert (figures.system, figures.locality) == (OURS, 50)
    assert (figures.publish, figures.total, figures.total_min, figures.total_max) == (900, 1400, 1400, 9500)


def verdicts(told: traffic_report.TrafficDocument) -> dict[tuple[int, str], bool]:
    return {(target.locality, target.text): target.reached for target in told.targets}


def test_every_target_is_judged_at_every_locality() -> None:
    assert verdicts(report(900, 500)) == {
        (50, "publish forwarding below bridges"): True,
        (50, "all bytes below bridges"): True,
        (50, "all bytes below the paper's"): True,
        (100, "publish forwarding is 0"): True,
        (100, "publish forwarding below bridges"): True,
        (100, "all bytes below bridges"): True,
        (100, "all bytes below the paper's"): True,
    }


@pytest.mark.parametrize(
    ("publish", "control", "missed"),
    [(1000, 500, "publish forwarding below bridges"), (900, 2100, "all bytes below bridges")],
)
def test_as_much_as_bridges_is_a_target_missed_and_said_so(publish: int, control: int, missed: str) -> None:
    told = report(publish, control)
    assert verdicts(told)[50, missed] is False
    out = io.StringIO()
    traffic_report.report(told).as_table(Console(file=out, width=200))
    assert f"Missed: {missed}, {OURS} at 50 %" in out.getvalue()
    assert "1,011,320" in out.getvalue(), "the paper's figures stand beside ours"


def test_messages_that_did_not_arrive_are_counted() -> None:
    some = [*samples(900, 500), sample(MOSQUITTO, 50, 3, 1000, 2000, delivered=4990)]
    assert traffic_report.document(PLAN, {}, some).lost == 10


def test_the_document_for_machines_can_be_read_back() -> None:
    told = report(900, 500)
    assert msgspec.json.decode(msgspec.json.encode(told), type=traffic_report.TrafficDocument) == told


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "traffic.png"
    traffic_report.report(report(900, 500)).as_plot(file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_tree_that_forms_by_itself_cannot_be_measured_through_relays() -> None:
    with pytest.raises(MeasurementError, match="needs root"):
        check(TrafficPlan(overlays=("spanning-tree",), capture=False, at_a_distance=False))


def test_a_tree_as_loud_as_the_papers_is_a_target_missed() -> None:
    assert verdicts(report(900, 1_394_550 - 900))[50, "all bytes below the paper's"] is False
    assert verdicts(report(900, 1_394_549 - 900))[50, "all bytes below the paper's"] is True


def test_the_load_of_each_broker_stands_beside_the_papers() -> None:
    told = report(900, 500)
    assert told.figures[0].cpu_percent == (2.0, 2.0, 0.5, 0.25, 0.125)
    assert told.figures[0].resident_mib == (54.0, 53.0, 52.0, 51.0, 50.0)
    out = io.StringIO()
    traffic_report.report(told).as_table(Console(file=out, width=200))
    assert "54  53  52  51  50" in out.getvalue()
    assert "147.3  145.9  144.3  143.6  139.2" in out.getvalue(), "table 6.3 of the paper"


def test_publication_flooding_is_compared_on_one_overlay_only() -> None:
    names = [system.name for system in systems_of(TrafficPlan(capture=True))]
    assert names == [
        "subscription-flooding, tree", "advertisement, tree", "publication-flooding, static",
        "subscription-flooding, static", "advertisement, static", MOSQUITTO,
    ]  # fmt: skip
