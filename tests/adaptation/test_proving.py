"""Leaders ask for the answers that their decisions lack."""

from __future__ import annotations

from dataclasses import replace

from adaptation.pictures import gateway, off, picture, worker
from adaptation.talk import Talk
from sterna.adaptation.measuring import MeasuringTuning, Phase
from sterna.adaptation.picture import KnownWorker, Picture
from sterna.adaptation.proving import AGAIN_S, ASKED_MAX, FEW, Proofs
from sterna.adaptation.reasons import Judgement, Left, Rule, reason
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.words import FOUND_MAX, Measure, SentCoordinate, WorkerPlace
from sterna.overlay.coordinates import Coordinate

SELDOM = MeasuringTuning(base_s=600.0, unsure_s=600.0)
MANY = [worker(f"w{number:02}") for number in range(FEW + 1)]


def at(milliseconds: float) -> Coordinate:
    return Coordinate((milliseconds / 1000, 0.0, 0.0, 0.0), 1e-5, 0.05)


def asked(proofs: Proofs, one: Picture, *judgements: Judgement) -> dict[str, list[str]]:
    return {name: [worker.name for worker in workers] for name, workers in proofs.due(one, judgements).items()}


def unproved(subject: str, target: str = "") -> Left:
    return Left(subject, reason(Rule.UNPROVED, target=target) if target else reason(Rule.UNPROVED, needed=3))


def test_a_gateway_is_asked_about_the_target_it_might_move_to() -> None:
    one = picture(MANY, [gateway("g", "w00", {"w00": 9.0}), gateway("h", "w00", {"w00": 9.0})])
    proofs = Proofs(witnesses=3)
    stays = Left("h", reason(Rule.AT_OPTIMUM, target="w02"))
    assert asked(proofs, one, unproved("g", "w01"), stays) == {"g": ["w01"]}
    assert asked(proofs, one, unproved("g", "w01")) == {}, "it is being asked"
    later = replace(one, now=one.now + AGAIN_S)
    assert asked(proofs, later, unproved("g", "w01")) == {"g": ["w01"]}, "it did not answer"
    assert asked(proofs, later, unproved("g", "gone"), unproved("nobody", "w01")) == {}


def test_the_nearest_gateways_that_have_not_measured_a_worker_are_its_witnesses() -> None:
    gateways = [gateway(f"g{ms}", "w00", {}, coordinate=at(ms)) for ms in (5, 10, 20, 40)]
    gateways[0] = replace(gateways[0], measured=gateway("", "", {"edge": 5.0}).measured)
    one = picture([*MANY, off("edge", coordinate=at(0))], gateways)
    assert asked(Proofs(witnesses=2), one, unproved("edge")) == {"g10": ["edge"], "g20": ["edge"]}


def test_where_there_are_few_workers_every_gateway_measures_each_of_them() -> None:
    few: list[KnownWorker] = MANY[:FEW]
    gateways = [gateway("g", "w00", {"w00": 1.0}), gateway("h", "w00", {one.name: 1.0 for one in few})]
    assert asked(Proofs(3), picture(few, gateways)) == {"g": [one.name for one in few[1:]]}
    assert asked(Proofs(3), picture(MANY, gateways)) == {}


def test_a_pass_asks_a_bounded_number_of_gateways() -> None:
    one = picture(MANY[:2], [gateway(f"g{number}", "w00", {}) for number in range(2 * ASKED_MAX)])
    proofs = Proofs(3)
    first = asked(proofs, one)
    assert len(first) == ASKED_MAX
    assert len(asked(proofs, one)) == ASKED_MAX
    assert asked(proofs, one) == {}


def test_a_settled_gateway_moves_to_a_new_node_without_waiting_for_its_next_cycle() -> None:
    talk = Talk()
    tuning = AdaptationTuning(scaling="off", pass_s=1.0, steady_s=0.0)
    talk.add_worker("cloud", at(0), "serving", fixed=True)
    talk.add_coordinator("boss", tuning)
    settled = talk.add_gateway(
        "g", "cloud", {"cloud": 90.0, "edge": 2.0}, MeasuringTuning(base_s=600.0, unsure_s=600.0)
    )
    talk.run(30)
    cycles = settled.measuring.cycles
    assert settled.measuring.phase is Phase.RESTING
    talk.said.clear()
    talk.add_worker("edge", at(90), "serving")
    talk.run(10)
    assert talk.heard("Measure") == [("boss", "g", "Measure")]
    assert talk.heard("MoveGateway") == [("boss", "cloud", "MoveGateway")]
    assert settled.measuring.cycles == cycles


def test_workers_named_during_a_cycle_are_measured_after_it() -> None:
    talk = Talk()
    for number in range(FEW + 2):
        talk.add_worker(f"w{number}", at(10 * number), "serving" if number == 0 else "off", fixed=number == 0)
    talk.add_coordinator("boss", AdaptationTuning(scaling="off"))
    talk.run(8)
    one = talk.add_gateway("g", "w0", {f"w{number}": 5.0 + number for number in range(FEW + 2)}, SELDOM)
    while one.measuring.phase is not Phase.MEASURING_RANDOM:
        talk.run(0.01)
    named = WorkerPlace("w9", "w9", SentCoordinate.of(at(90)))
    assert one.measuring.asked(Measure((named,) * FOUND_MAX), talk.now) == []
    while not talk.heard("GatewayReport"):
        talk.run(0.01)
    talk.said.clear()
    talk.run(3)
    assert {worker for _, worker, what in talk.said if what == "ping"} == {"w9"}
    assert len(talk.heard("GatewayReport")) == 1


def test_pauses_double_while_nothing_is_new_and_begin_again_when_a_way_changes() -> None:
    """Next to a worker the relative error stays large: that alone is no reason to measure on and on."""
    talk = Talk()
    talk.add_worker("near", at(0), "serving", fixed=True)
    talk.add_worker("far", at(50))
    talk.add_coordinator("boss", AdaptationTuning(scaling="off"))
    talk.run(8)
    one = talk.add_gateway("g", "near", {"near": 0.4, "far": 180.0})
    talk.run(900)
    settled = one.measuring.cycles
    assert one.measuring.interval_s >= 160
    talk.run(600)
    assert one.measuring.cycles - settled <= 4
    talk.trips["g", "near"] = 0.120
    before = one.measuring.cycles
    one.measuring.hurry(talk.now)
    talk.run(60)
    assert one.measuring.cycles - before >= 2, "the second one follows soon"
