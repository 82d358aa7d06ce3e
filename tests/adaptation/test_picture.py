"""Pictures: the later report counts, silence ages, nonsense is refused, measured comes before estimated."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from random import Random

import pytest

from sterna.adaptation.picture import (
    GATEWAYS_MAX,
    MEASURED_MAX,
    KnownGateway,
    KnownWorker,
    Load,
    Measured,
    Observations,
    Picture,
    PictureRoundTrips,
    RefusedReport,
    ReportStamp,
    Weight,
    WorkerNodeState,
)
from sterna.overlay.coordinates import Coordinate

FIRST = ReportStamp(1, 1)


def at(*place: float, height: float = 0.0, error: float = 0.1) -> Coordinate:
    return Coordinate(tuple(place) + (0.0,) * (4 - len(place)), height, error)


def observations() -> Observations:
    return Observations(dimensions=4, lost_s=10.0, fresh_s=600.0)


def test_of_two_reports_the_later_one_counts_in_whatever_order_they_come() -> None:
    later, earlier = KnownWorker("w", at(0.2)), KnownWorker("w", at(0.1))
    known = observations()
    assert known.worker_reported(later, ReportStamp(2, 1), now=1.0) is None
    assert known.worker_reported(earlier, ReportStamp(1, 99), now=2.0) is RefusedReport.OLD
    assert known.worker_reported(later, ReportStamp(2, 1), now=3.0) is RefusedReport.OLD
    assert known.picture(4.0).workers == {"w": later}
    assert known.refusals == {RefusedReport.OLD: 2}


def test_a_silent_worker_is_lost_and_its_node_not_said_to_be_off() -> None:
    known = observations()
    known.worker_reported(KnownWorker("w", at(0.1), state=WorkerNodeState.SERVING), FIRST, now=0.0)
    assert known.picture(10.0).serving()
    late = known.picture(10.1)
    assert not late.workers
    assert late.lost == frozenset({"w"})
    known.worker_reported(KnownWorker("w", at(0.1), state=WorkerNodeState.SERVING), ReportStamp(1, 2), now=11.0)
    assert known.picture(11.0).lost == frozenset()


def test_nodes_say_whom_they_serve_and_gateways_do_not() -> None:
    known = observations()
    known.worker_reported(KnownWorker("w", at(0.1), serves={"g": Weight(clients=3)}), FIRST, now=0.0)
    boast = KnownGateway("g", at(0.2), node="elsewhere", weight=Weight(clients=1000))
    known.gateway_reported(boast, FIRST, now=0.0)
    gateway = known.picture(1.0).gateways["g"]
    assert (gateway.node, gateway.weight) == ("w", Weight(clients=3))


def test_a_picture_does_not_depend_on_the_order_of_reports() -> None:
    def made(order: list[int]) -> Picture:
        known = observations()
        for number in order:
            known.worker_reported(KnownWorker(f"w{number}", at(number / 100)), FIRST, now=0.0)
            known.gateway_reported(KnownGateway(f"g{number}", at(number / 50)), FIRST, now=0.0)
        return known.picture(1.0)

    assert made([0, 1, 2, 3]) == made([3, 1, 0, 2])
    assert list(made([3, 1, 0, 2]).workers) == ["w0", "w1", "w2", "w3"]


def test_a_gateway_that_moved_is_remembered_as_long_as_it_reports() -> None:
    known = observations()
    known.gateway_reported(KnownGateway("g", at(0.1)), FIRST, now=0.0)
    known.moved("g", 5.0)
    assert known.picture(6.0).gateways["g"].moved_at == 5.0
    assert known.picture(601.0).gateways == {}
    known.gateway_reported(KnownGateway("g", at(0.1)), ReportStamp(1, 2), now=602.0)
    assert known.picture(603.0).gateways["g"].moved_at == -inf


@pytest.mark.parametrize(
    ("worker", "refusal"),
    [
        (KnownWorker("w", at(nan)), RefusedReport.COORDINATE),
        (KnownWorker("w", at(inf)), RefusedReport.COORDINATE),
        (KnownWorker("w", replace(at(0.1), adjustment=nan)), RefusedReport.COORDINATE),
        (KnownWorker("w", Coordinate((0.0,) * 8)), RefusedReport.DIMENSIONS),
        (KnownWorker("w", at(0.1), load=Load(cpu=nan)), RefusedReport.NUMBERS),
        (KnownWorker("w", at(0.1), load=Load(lag_s=-1.0)), RefusedReport.NUMBERS),
        (KnownWorker("w", at(0.1), price=inf), RefusedReport.NUMBERS),
        (KnownWorker("w", at(0.1), serves={"g": Weight(deliveries_per_s=nan)}), RefusedReport.NUMBERS),
    ],
)
def test_a_worker_that_cannot_be_is_refused_and_counted(worker: KnownWorker, refusal: RefusedReport) -> None:
    known = observations()
    assert known.worker_reported(worker, FIRST, now=0.0) is refusal
    assert known.refusals == {refusal: 1}
    assert known.picture(0.0).workers == {}


@pytest.mark.parametrize("round_trip", [nan, inf, 0.0, -0.001, 10.1])
def test_a_round_trip_that_cannot_be_is_refused_with_its_report(round_trip: float) -> None:
    known = observations()
    told = KnownGateway("g", at(0.1), measured={"w": Measured(round_trip, 0.0)})
    assert known.gateway_reported(told, FIRST, now=0.0) is RefusedReport.ROUND_TRIP
    assert known.picture(0.0).gateways == {}


def test_participants_and_what_they_measured_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GATEWAYS_MAX >= 10_000
    monkeypatch.setattr("sterna.adaptation.picture.GATEWAYS_MAX", 2)
    known = observations()
    trips = {f"w{number}": Measured(0.01, 0.0) for number in range(MEASURED_MAX + 9)}
    for name in ("a", "b"):
        assert known.gateway_reported(KnownGateway(name, at(0.1), measured=trips), FIRST, now=0.0) is None
    assert known.gateway_reported(KnownGateway("c", at(0.1)), FIRST, now=0.0) is RefusedReport.MANY
    assert len(known.picture(0.0).gateways["a"].measured) == MEASURED_MAX


def test_measured_counts_before_estimated_while_it_is_fresh() -> None:
    known = observations()
    known.worker_reported(KnownWorker("w", at(0.1)), FIRST, now=0.0)
    known.gateway_reported(KnownGateway("g", at(0.0), measured={"w": Measured(0.030, 99.0)}), FIRST, now=0.0)
    known.gateway_reported(KnownGateway("g", at(0.0)), ReportStamp(1, 2), now=500.0)
    known.worker_reported(KnownWorker("w", at(0.1)), ReportStamp(1, 2), now=600.0)
    fresh, stale = known.picture(600.0), known.picture(600.1)
    for picture, expected in ((fresh, 0.030), (stale, 0.100)):
        gateway, worker = picture.gateways["g"], picture.workers["w"]
        assert picture.distance_s(gateway, worker) == pytest.approx(expected)
        assert PictureRoundTrips(picture).between_s(gateway, "w") == pytest.approx(expected)


def test_all_distances_are_those_of_the_coordinates() -> None:
    rng = Random(7)

    def somewhere() -> Coordinate:
        place = tuple(rng.uniform(-0.1, 0.1) for _ in range(4))
        return Coordinate(place, rng.uniform(0, 0.02), 0.1, rng.uniform(-0.1, 0.05))

    workers = {f"w{n}": KnownWorker(f"w{n}", somewhere()) for n in range(20)}
    gateways = {f"g{n}": KnownGateway(f"g{n}", somewhere(), {"w3": Measured(0.02, 0.0)}) for n in range(20)}
    picture = Picture(1.0, workers, gateways)
    distances = PictureRoundTrips(picture)
    for gateway in gateways.values():
        row = distances.row(gateway)
        assert list(row) == pytest.approx([picture.distance_s(gateway, worker) for worker in workers.values()])
