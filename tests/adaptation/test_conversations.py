"""The conversations of the paper's figures, message for message, and what becomes of them when somebody is gone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby

import msgspec
import pytest

from adaptation.talk import DEFAULT, Talk
from sterna.adaptation.coordinating import CoordinatingTuning
from sterna.adaptation.measuring import MeasuringTuning, Phase
from sterna.adaptation.picture import RefusedReport, ReportStamp
from sterna.adaptation.reasons import Move, Start
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.words import (
    FindClosest,
    Found,
    GatewayReport,
    MoveGateway,
    OrderAnswer,
    OrderState,
    SignedWord,
    StartNode,
    Trip,
    WorkerReport,
)
from sterna.overlay.coordinates import Coordinate

QUICK = AdaptationTuning(
    pass_s=1.0, steady_s=0.0, cool_down_s=2.0, high_s=0.0, calm_s=60.0, young_s=10.0, pressure="seed", up=2.0, down=1.0
)
OFTEN = MeasuringTuning(base_s=2.0, max_s=4.0)


def at(milliseconds: float) -> Coordinate:
    return Coordinate((milliseconds / 1000, 0.0, 0.0, 0.0), 1e-5, 0.05)


def regions(count: int) -> Talk:
    talk = Talk()
    for number in range(count):
        talk.add_worker(f"w{number:02}", at(10.0 * number), "serving" if number == 0 else "off", fixed=number == 0)
    return talk


def test_figure_5_1_a_gateway_asks_measures_asks_measures_and_reports() -> None:
    talk = regions(20)
    talk.add_coordinator("boss")
    talk.run(4)
    trips = {f"w{number:02}": 3 + abs(10.0 * number - 150) for number in range(20)}
    talk.said.clear()
    gateway = talk.add_gateway("g", "w00", trips)
    while not talk.heard("GatewayReport"):
        talk.run(0.01)
    about = [one for one in talk.said if "g" in one[:2]]
    shape = [(kind, list(group)) for kind, group in groupby(about, lambda one: one[2])]
    assert [(kind, len(group)) for kind, group in shape if kind != "ping"] == [
        ("FindRandom", 1),
        ("Found", 1),
        ("FindClosest", 1),
        ("Found", 1),
        ("GatewayReport", 1),
    ]
    assert [kind for kind, _ in shape[2::3]] == ["ping", "ping"]
    random, closest = shape[2][1], shape[5][1]
    assert sorted(Counter(worker for _, worker, _ in random).values()) == [5, 5, 5, 5]
    pings = Counter(worker for _, worker, _ in closest)
    assert len(pings) == 6
    known = {worker for _, worker, _ in random}
    assert all(count == (2 if worker in known else 5) for worker, count in pings.items()), "two suffice to look again"
    assert gateway.measuring.phase is Phase.RESTING
    boss = talk.coordinators["boss"][0]
    told = boss.observations.picture(talk.now).gateways["g"]
    assert told.coordinate == gateway.vivaldi.coordinate
    assert {name for _, name, _ in random + closest} == set(told.measured)
    for name, measured in told.measured.items():
        assert measured.round_trip_s == pytest.approx(trips[name] / 1000)


def test_after_three_cycles_the_nearest_workers_are_those_that_are_near() -> None:
    talk = regions(20)
    talk.add_coordinator("boss")
    talk.run(4)
    trips = {f"w{number:02}": 3 + abs(10.0 * number - 150) for number in range(20)}
    gateway = talk.add_gateway("g", "w00", trips, OFTEN)
    talk.run(20)
    talk.said.clear()
    while gateway.measuring.phase is not Phase.MEASURING_CLOSEST:
        talk.run(0.01)
    assert "w15" in {worker for sender, worker, what in talk.said if (sender, what) == ("g", "ping")}
    assert gateway.measuring.nodes == ("w15:1883", "w00:1883"), "one was started beside it, and is nearest"


def test_the_closest_workers_are_those_that_are_as_far_from_others_as_the_gateway() -> None:
    """A gateway whose coordinate is wrong finds its neighbour by its round trips; half of the workers are new to it."""
    talk = regions(20)
    boss = talk.add_coordinator("boss")
    talk.run(4)

    def found(word: FindClosest) -> list[str]:
        ((_, _, answer),) = boss.came(SignedWord("g", "eu", ReportStamp(1, 1), word, at(0)), talk.now)
        assert isinstance(answer, Found)
        return [one.name for one in answer.workers]

    by_its_place = [f"w{number:02}" for number in range(6)]
    assert found(FindClosest(6)) == by_its_place
    assert found(FindClosest(6, "nobody")) == by_its_place
    assert found(FindClosest(6, "w15", (Trip("w15", 0.002), Trip("w19", 0.042)))) == ["w15", *by_its_place[:5]]
    trips = (Trip("w19", 0.052), Trip("w00", 0.142), Trip("w12", 0.022), Trip("w15", 0.012))
    names = found(FindClosest(6, "w15", trips))
    assert set(names[:3]) == {"w13", "w14", "w16"}
    assert names[3] == "w15"
    assert len(set(names)) == 6


def edge_town(talk: Talk) -> None:
    """A cloud and an edge; gateways beside the edge would gain 50 ms, whose logarithm is 1.7."""
    talk.add_worker("cloud", at(0), "serving", fixed=True)
    talk.add_worker("edge", at(50))


def test_figure_6_2_one_gateway_is_not_enough_for_a_node() -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK)
    talk.add_gateway("g1", "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN)
    talk.run(30)
    assert not talk.heard("StartNode", "StopNode", "MoveGateway")
    assert boss.leadership.is_leading
    assert boss.counts["passes"] >= 25


def test_figure_6_3_two_gateways_start_a_node_and_are_moved_to_it() -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK)
    for name in ("g1", "g2"):
        talk.add_gateway(name, "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN)
    talk.run(30)
    assert talk.heard("StartNode", "StopNode", "MoveGateway", "OrderAnswer") == [
        ("boss", "edge", "StartNode"),
        ("edge", "boss", "OrderAnswer"),
        ("boss", "cloud", "MoveGateway"),
        ("boss", "cloud", "MoveGateway"),
        ("cloud", "boss", "OrderAnswer"),
        ("cloud", "boss", "OrderAnswer"),
    ]
    assert talk.workers["edge"].carried_out == [StartNode()]
    assert talk.workers["cloud"].carried_out == [MoveGateway("g1", "edge"), MoveGateway("g2", "edge")]
    assert [type(one.decision) for one in boss.made if not one.ordered] == [Start, Move, Move]
    picture = boss.observations.picture(talk.now)
    assert {one.node for one in picture.gateways.values()} == {"edge"}


def test_an_order_that_a_worker_does_not_hear_is_said_again_and_not_given_twice() -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK)
    talk.workers["edge"].is_deaf = True
    for name in ("g1", "g2"):
        talk.add_gateway(name, "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN)
    while not talk.heard("StartNode"):
        talk.run(0.1)
    talk.run(4)
    assert len(talk.heard("StartNode")) >= 4
    assert [one["id"] for one in boss.orders.view()] == [1]
    talk.workers["edge"].is_deaf = False
    talk.run(20)
    assert talk.workers["edge"].carried_out == [StartNode()]


@pytest.mark.parametrize("act", [False, True])
def test_a_dry_run_and_a_frozen_coordinator_decide_and_order_nothing(act: bool) -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK, replace(DEFAULT, act=act))
    if act:
        boss.freeze(True)
    for name in ("g1", "g2"):
        talk.add_gateway(name, "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN)
    talk.run(30)
    assert not talk.heard("StartNode", "StopNode", "MoveGateway")
    assert {(type(one.decision), one.ordered) for one in boss.made} == {(Start, "frozen" if act else "dry run")}


def test_without_a_coordinator_nothing_changes_and_gateways_measure_on() -> None:
    talk = Talk()
    edge_town(talk)
    talk.add_coordinator("boss", replace(QUICK, up=1e6))
    gateways = [talk.add_gateway(name, "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN) for name in ("g1", "g2")]
    talk.run(20)
    del talk.coordinators["boss"]
    cycles = [one.measuring.cycles for one in gateways]
    states = {name: worker.state for name, worker in talk.workers.items()}
    talk.run(60)
    assert all(one.measuring.cycles > before + 5 for one, before in zip(gateways, cycles, strict=True))
    assert {name: worker.state for name, worker in talk.workers.items()} == states
    for _ in range(100):
        if gateways[0].measuring.phase is Phase.RESTING:
            break
        talk.run(1)
    assert gateways[0].measuring.measured.keys() == {"cloud", "edge"}


def test_a_standby_goes_on_where_the_leader_stopped_and_repeats_no_order() -> None:
    talk = Talk()
    edge_town(talk)
    both = {name: talk.add_coordinator(name, QUICK) for name in ("a", "b")}
    for name in ("g1", "g2"):
        talk.add_gateway(name, "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN)
    while not talk.heard("StartNode"):
        talk.run(0.1)
    (leader,) = [name for name, one in both.items() if one.leadership.is_leading]
    del talk.coordinators[leader]
    talk.run(30)
    assert talk.workers["edge"].carried_out == [StartNode()]
    assert talk.workers["cloud"].carried_out == [MoveGateway("g1", "edge"), MoveGateway("g2", "edge")]


def test_with_default_settings_the_standby_acts_within_ten_seconds_of_the_leaders_death() -> None:
    talk = Talk()
    edge_town(talk)
    both = {name: talk.add_coordinator(name, AdaptationTuning(), CoordinatingTuning()) for name in ("a", "b")}
    talk.run(60)
    (leader,) = [name for name, one in both.items() if one.leadership.is_leading]
    (standby,) = set(both) - {leader}
    del talk.coordinators[leader]
    died_at = talk.now
    while not both[standby].leadership.may_act(talk.now):
        talk.run(0.1)
    talk.run(both[standby].tuning.pass_s)
    assert talk.now - died_at <= 10.0


def test_a_coordinator_that_starts_again_has_the_same_picture_after_two_reports() -> None:
    talk = Talk()
    edge_town(talk)
    first = talk.add_coordinator("boss", replace(QUICK, up=1e6))
    for name in ("g1", "g2"):
        talk.add_gateway(name, "cloud", {"cloud": 60.0, "edge": 10.0}, MeasuringTuning(base_s=1.0, max_s=1.0))
    talk.run(30)
    before = first.observations.picture(talk.now)
    del talk.coordinators["boss"]
    second = talk.add_coordinator("boss", replace(QUICK, up=1e6))
    talk.run(15)
    after = second.observations.picture(talk.now)
    assert {name: (one.state, one.serves) for name, one in after.workers.items()} == {
        name: (one.state, one.serves) for name, one in before.workers.items()
    }
    assert {name: (one.node, set(one.measured)) for name, one in after.gateways.items()} == {
        name: (one.node, set(one.measured)) for name, one in before.gateways.items()
    }
    assert second.leadership.term >= first.leadership.term


def test_a_gateway_behind_a_wall_for_datagrams_measures_by_tcp() -> None:
    talk = Talk()
    edge_town(talk)
    talk.add_coordinator("boss", replace(QUICK, up=1e6))
    gateway = talk.add_gateway("g", "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN)
    gateway.blocks_udp = True
    talk.run(20)
    assert talk.heard("ping-tcp")
    assert gateway.measuring.measured == pytest.approx({"cloud": 0.06, "edge": 0.01})


def test_the_pause_between_cycles_grows_as_the_error_falls_and_a_surprise_shortens_it() -> None:
    talk = Talk()
    edge_town(talk)
    talk.add_coordinator("boss", replace(QUICK, up=1e6))
    gateway = talk.add_gateway("g", "cloud", {"cloud": 60.0, "edge": 10.0}, MeasuringTuning(base_s=2.0, max_s=60.0))
    first = gateway.measuring.interval_s
    talk.run(300)
    assert first == 2.0
    assert gateway.measuring.interval_s > 10.0
    talk.trips.update({("g", "cloud"): 0.01, ("g", "edge"): 0.06})
    cycles = gateway.measuring.cycles
    while gateway.measuring.cycles == cycles:
        talk.run(0.1)
    assert gateway.measuring.due_at - talk.now <= 2.0


# -- bad input --


def letter(sender: str, word: object, place: Coordinate | None, stamp: ReportStamp, region: str = "eu") -> SignedWord:
    return SignedWord(sender, region, stamp, word, place)  # type: ignore[arg-type]


def test_reports_that_make_no_sense_are_refused_by_reason_and_nothing_moves() -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK)
    talk.run(5)
    before = boss.observations.picture(talk.now)
    report = WorkerReport("", "serving", 0.0, "", "")
    nan, far = float("nan"), 1e6
    for number, (sender, word, place) in enumerate(
        [
            ("bad", report, Coordinate((nan,) * 4, 0.0, 0.5)),
            ("bad", report, Coordinate((far,) * 4, 0.0, 0.5)),
            ("bad", report, Coordinate((0.1,) * 3, 0.0, 0.5)),
            ("bad", msgspec.structs.replace(report, cpu=nan), at(1)),
            ("cloud", report, at(1)),
            ("g", GatewayReport((Trip("edge", -1.0),)), at(1)),
            ("g", GatewayReport((Trip("edge", 11.0),)), at(1)),
            ("g", GatewayReport((Trip("edge", nan),)), at(1)),
        ]
    ):
        boss.came(letter(sender, word, place, ReportStamp(0, number)), talk.now)
    assert boss.observations.refusals == {
        RefusedReport.COORDINATE: 2,
        RefusedReport.DIMENSIONS: 1,
        RefusedReport.NUMBERS: 1,
        RefusedReport.OLD: 1,
        RefusedReport.ROUND_TRIP: 3,
    }
    after = boss.observations.picture(talk.now)
    assert (after.workers, after.gateways) == (before.workers, before.gateways)
    assert boss.came(letter("g", FindClosest(3), Coordinate((nan,) * 4, 0.0, 0.5), ReportStamp(0, 99)), talk.now)
    assert boss.counts["questions-without-place"] >= 1
    boss.came(letter("x", report, at(1), ReportStamp(1, 1), region="us"), talk.now)
    assert "x" not in boss.observations.picture(talk.now).workers


def test_a_gateway_that_lies_moves_only_itself() -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK)
    for name in ("g1", "g2"):
        talk.add_gateway(name, "cloud", {"cloud": 10.0, "edge": 60.0}, OFTEN)
    talk.workers["cloud"].serves["liar"] = 1
    lie = GatewayReport((Trip("edge", 0.001), Trip("cloud", 9.0)))
    for number in range(30):
        boss.came(letter("liar", lie, at(50), ReportStamp(1, number)), talk.now)
        talk.run(1)
    carried = [one for worker in talk.workers.values() for one in worker.carried_out]
    assert {one.gateway for one in carried if isinstance(one, MoveGateway)} <= {"liar"}
    picture = boss.observations.picture(talk.now)
    assert {picture.gateways[name].node for name in ("g1", "g2")} == {"cloud"}


def test_answers_to_orders_that_nobody_gave_change_nothing() -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK)
    talk.run(5)
    boss.came(letter("edge", OrderAnswer(77, 1, OrderState.DONE), at(1), ReportStamp(1, 10_000)), talk.now)
    assert not boss.orders.outcomes


def test_a_worker_that_vanishes_is_no_candidate_and_nobody_is_moved_on_hearsay() -> None:
    talk = Talk()
    edge_town(talk)
    boss = talk.add_coordinator("boss", QUICK)
    for name in ("g1", "g2"):
        talk.add_gateway(name, "cloud", {"cloud": 60.0, "edge": 10.0}, OFTEN)
    talk.run(30)
    talk.said.clear()
    talk.workers["edge"].alive = False
    talk.run(30)
    assert boss.observations.picture(talk.now).lost == {"edge"}
    assert not talk.heard("StartNode", "StopNode", "MoveGateway")
