"""The experiment with brokers that move: its statistics, its verdicts, its sweep and its report, on very short runs."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import stdev

import msgspec
import pytest
from rich.console import Console

from sterna.measure.papers.mobile.document import count_wrong_tables, document
from sterna.measure.papers.mobile.report import report
from sterna.measure.papers.mobile.statements import STATEMENTS, judge
from sterna.measure.papers.mobile.statistics import MobileResults, estimate
from sterna.measure.papers.mobile.sweep import MobileSample, in_processes, longest_first, measured
from sterna.simulation.papers.radio_run import CONFIGURATIONS, RunFigures, RunPlan

SPEEDS = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)


def plan(protocol: str, size: str = "C2", speed: float = 8.0, seed: int = 1, *, acks: bool = True) -> RunPlan:
    return RunPlan(
        configuration=size, speed_m_s=speed, protocol=protocol, seed=seed, acks=acks, publish_s=3.0, silence_s=2.0
    )


def test_an_estimate_has_the_confidence_of_students_t() -> None:
    found = estimate([1.0, 2.0, 3.0, None])
    assert found is not None
    assert (found.mean, found.runs) == (2.0, 3)
    assert found.margin == pytest.approx(4.30 * stdev([1, 2, 3]) / 3**0.5)
    assert not found.is_above_zero
    assert estimate([]) is None


@pytest.fixture(scope="module")
def template() -> RunFigures:
    return measured(plan("mft"), None).figures


def made_up(template: RunFigures, protocol: str, size: str, speed: float, seed: int, delivered: int) -> MobileSample:
    """A run with these deliveries of 1000 that were routed."""
    changed = msgspec.structs.replace(
        template, plan=plan(protocol, size, speed, seed), delivered=delivered, routed=1000, delay_s=1.0, hops=2.0
    )
    return MobileSample(figures=changed, cpu_s=1.0)


def test_differences_are_paired_by_seed(template: RunFigures) -> None:
    # The seeds differ by far more than the protocols do.
    samples = [
        made_up(template, protocol, "C2", 8.0, seed, 100 * seed + better)
        for seed in (1, 2, 3)
        for protocol, better in (("mft", 10 + seed % 2), ("aodv", 0))
    ]
    found = MobileResults(samples).difference(lambda run: run.delivered, "mft", "aodv", "C2", 8.0)
    assert found is not None
    assert found.is_above_zero
    assert found.mean == pytest.approx(32 / 3)


def test_statements_are_judged_by_the_runs_there_are(template: RunFigures) -> None:
    less = {size: 50 * place for place, size in enumerate(CONFIGURATIONS)}
    samples = [
        made_up(template, protocol, size, speed, seed, 900 - less[size] - seed + (40 if protocol == "mft" else 0))
        for protocol in ("mft", "aodv")
        for size in CONFIGURATIONS
        for speed in SPEEDS
        for seed in (1, 2)
    ]
    judged = {one.text: one.judgement for one in judge(MobileResults(samples))}
    assert len(judged) == len(STATEMENTS)
    assert judged["the delivery rate falls with the size, for both"] == "holds"
    assert judged["at C32 MFT has the better delivery rate (8 m/s)"] == "holds"
    assert judged["at C32 AODV delivers more messages (8 m/s)"] == "does not hold"
    assert judged["MFT's rate even improves with speed"] == "does not hold"
    assert judged["MFT needs fewer messages than the first approach"] == "not measured"


def test_the_aims_of_the_product_are_judged(template: RunFigures) -> None:
    delivered = {"mft": 800, "aodv": 850, "sterna": 900}
    samples = [
        made_up(template, protocol, size, speed, seed, count - seed)
        for protocol, count in delivered.items()
        for size in CONFIGURATIONS
        for speed in (0.0, 8.0)
        for seed in (1, 2)
    ]
    found = document(samples, [], [], "made up", 1.0)
    assert [one.judgement for one in found.targets] == ["holds", "holds", "does not hold", "holds"]
    pairs = {(one.protocol, one.beside): one.figures["delivered"] for one in found.differences}
    assert {pair: one.mean for pair, one in pairs.items() if one is not None} == {
        ("aodv", "mft"): 50,
        ("sterna", "mft"): 100,
        ("mft", "aodv"): -50,
        ("sterna", "aodv"): 50,
    }
    text = io.StringIO()
    for one in report(found).tables:
        Console(file=text, width=200).print(one)
    assert "Less aodv, on the same positions" in text.getvalue()
    assert "more messages delivered than AODV at every size" in text.getvalue()


def test_the_longest_runs_begin_first() -> None:
    plans = [plan("mft", "C2"), plan("mft", "C32"), plan("aodv", "C32"), plan("aodv", "C2")]
    ordered = [(one.protocol, one.configuration) for one in longest_first(plans)]
    assert ordered == [("aodv", "C32"), ("mft", "C32"), ("aodv", "C2"), ("mft", "C2")]


def test_a_run_that_has_a_record_is_not_done_again(tmp_path: Path) -> None:
    first = measured(plan("mft"), tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(first, cpu_s=1234.0)))
    assert measured(plan("mft"), tmp_path).cpu_s == 1234.0
    assert measured(plan("mft", seed=2), tmp_path).cpu_s != 1234.0


def test_rates_of_wrong_tables_are_those_of_the_protocols() -> None:
    found = {(one.protocol, one.steps): one.wrong for one in count_wrong_tables(30)}
    assert found["mft-printed", "ten cuts and merges, healed"] == 30
    assert 0 < found["mft", "ten cuts and merges, healed"] < 30
    assert found["mft", "one move"] == 0


@pytest.mark.slow
def test_a_sweep_in_processes_ends_in_a_report_and_pictures(tmp_path: Path) -> None:
    plans = [
        plan(protocol, size, speed, seed)
        for protocol in ("mft", "first", "aodv")
        for size in ("C2", "C16")
        for speed in (0.0, 8.0)
        for seed in (1, 2)
    ]
    said: list[str] = []
    records = tmp_path / "records"
    records.mkdir()
    samples = in_processes(plans, records, said.append)
    assert len(samples) == len(plans) == len(list(records.iterdir()))
    assert said[-1] == f"[{len(plans)}/{len(plans)}] runs"
    bare = [
        measured(plan(name, "C16", 8.0, seed, acks=False), None) for name in ("mft", "first", "aodv") for seed in (1,)
    ]
    told = document(samples, bare, count_wrong_tables(5), "short", 1.0)
    made = report(told)
    assert '"experiment": "mobile"' in made.as_json()
    assert {cell.stations for cell in told.cells} == {6, 34}
    assert made.draw is not None
    made.draw(tmp_path / "pictures")
    assert sorted(file.name for file in (tmp_path / "pictures").iterdir()) == [
        f"figure-4-{number}.png" for number in (4, 5, 6, 7, 8)
    ]
