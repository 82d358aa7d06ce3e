"""The report: cells held against the single broker, the model and the targets, each said to be reached or missed."""

from __future__ import annotations

import msgspec
import pytest

from sterna.measure.ildm.cell import Cell
from sterna.measure.ildm.model import Costs
from sterna.measure.ildm.report import IldmDocument, report, targets
from sterna.measure.report import machine


def cell(system: str, pattern: str, algorithm: str, egress: float, **more: object) -> Cell:
    plain = Cell(
        system=system,
        pattern=pattern,
        algorithm=algorithm,
        is_confined=True,
        interval_ms=10.0,
        ingress=egress / 10,
        egress=egress,
        loss_rate=0.0,
        duplicated=0,
        cpu_limit=egress,
        busiest="node1",
        cpu_us={"node1": 11.0},
        gentle_cpu_us={"node1": 22.0},
        latency_half_ms=(1.0, 2.0),
        latency_limit_ms=(3.0, None),
    )
    return msgspec.structs.replace(plain, **more)


def document(*cells: Cell) -> IldmDocument:
    return IldmDocument(
        benchmark="ildm",
        versions={"sterna": "sterna x"},
        machine=machine(),
        quick=False,
        is_confined=True,
        share=0.02,
        node_factor=7,
        search="bisect",
        measure_s=1.0,
        cells=list(cells),
        costs={"sterna": Costs(taken=1.0, given=1.0)},
        failures=[],
    )


SINGLE = cell("sterna", "single", "-", 1000.0)


def test_rows_are_held_against_their_broker_alone() -> None:
    told = targets(
        document(
            SINGLE,
            cell("sterna", "C", "SF", 4400.0),
            cell("sterna", "D", "SF", 3000.0),
            cell("sterna", "B", "SF", 1900.0),
        )
    )
    assert "Reached: sterna: C with SF at least 4.3x one broker (4.40x)." in told
    assert "Missed: sterna: every cell at least 2x (B SF 1.90x)." in told
    assert "Reached: sterna: C > D > B under SF (4.40x, 3.00x, 1.90x)." in told


def test_loss_transfers_and_rivals_are_judged() -> None:
    told = targets(
        document(
            SINGLE,
            cell("sterna", "C", "SF", 4400.0, loss_rate=0.01, gentle_cpu_us={"node1": 30.0}),
            cell("reference", "C", "SF", 2000.0, transfers=100, transfers_due=90, gentle_cpu_us={"node1": 20.0}),
            cell("reference", "B", "SF", 2000.0, transfers=80, transfers_due=90),
        )
    )
    assert "Missed: loss 0 at the limit (sterna C SF)." in told
    assert "Missed: transfers are what the placement says (B SF 80 (-10))." in told


def test_a_node_in_front_of_a_broker_is_held_against_the_broker_alone() -> None:
    alone = cell("mosquitto", "single", "-", 1000.0)
    told = targets(document(alone, cell("proxy", "A", "SF", 890.0, latency_half_ms=(1.4, 2.0))))
    assert "Missed: proxy: a node takes at most 10% of its broker's limit (A 0.89x)." in told
    assert "Reached: proxy: and adds at most 0.5 ms (p50) (+0.40 ms)." in told


def test_our_nodes_are_held_against_the_papers_in_front_of_the_same_brokers() -> None:
    ours = cell("proxy", "C", "SF", 4000.0, gentle_cpu_us={"broker1": 50.0, "node1": 30.0})
    rival = cell("reference", "C", "SF", 4400.0, gentle_cpu_us={"broker1": 5.0, "node1": 40.0})
    told = targets(document(SINGLE, ours, rival))
    assert "Missed: a higher limit than with the literal PF and SF in every cell (C SF)." in told
    assert "Reached: less CPU of nodes per publication, too (all)." in told


def test_the_model_is_beside_the_measurement() -> None:
    found = document(SINGLE, cell("sterna", "C", "SF", 100_000.0), cell("sterna", "C", "PF", 1.0))
    assert found.predicted(found.cells[1]) == pytest.approx(0.02e6 / 11 * 5 * 10)
    told = targets(found)[-1]
    assert told.startswith("Missed: measured within 15% of the model")
    assert "sterna C PF 0.00" in told


def test_limits_of_the_generator_are_not_judged() -> None:
    late = cell("sterna", "C", "SF", 10.0, marks=["messages were sent late"])
    told = targets(document(SINGLE, late, cell("sterna", "B", "SF", 5000.0)))
    assert told[0] == "Not judged: sterna, as the generator was too slow or late in C SF."
    assert not any("one broker" in one for one in told)
    assert "C SF" not in told[-1]


def test_nothing_measured_is_a_failure_and_marks_are_explained() -> None:
    assert report(document()).failed
    made = report(document(cell("sterna", "single", "-", 10.0, marks=["noisy", "starved: x"])))
    assert not made.failed
    assert any("N a longer interval failed" in note for note in made.notes)
