"""Which gateway goes where: the paper's cases, a rule that comes to rest, and nobody sent where nobody answers."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptation.pictures import after, gateway, picture, worker
from sterna.adaptation.groups import LatencyGroups
from sterna.adaptation.picture import Picture, PictureRoundTrips, WorkerNodeState
from sterna.adaptation.placement import nodes_by_distance, place
from sterna.adaptation.reasons import Judgement, Left, Move, Rule
from sterna.adaptation.settings import GROUPS_MS, SelectionTuning
from sterna.overlay.coordinates import Coordinate

AT_ONCE = SelectionTuning(steady_s=0.0, cool_down_s=0.0)
SEED = SelectionTuning(selection="seed")
BOTH = pytest.mark.parametrize("tuning", [AT_ONCE, SEED], ids=["steady", "seed"])


def judged(one: Picture, tuning: SelectionTuning = AT_ONCE) -> dict[str, Judgement]:
    judgements = place(PictureRoundTrips(one), tuning).judgements
    return dict(zip(one.gateways, judgements, strict=True))


@pytest.mark.parametrize(
    ("ms", "group"),
    [(0.0, 0), (2.0, 0), (2.001, 1), (5.0, 1), (10.0, 2), (1000.0, 8), (1000.1, 9), (9e9, 9)],
)
def test_a_bound_belongs_to_the_group_below_it(ms: float, group: int) -> None:
    assert LatencyGroups(GROUPS_MS).of(ms / 1000) == group


@BOTH
@pytest.mark.parametrize(
    ("here_ms", "there_ms", "rule"),
    [
        pytest.param(8, 40, Rule.AT_OPTIMUM, id="case 1: at the optimum"),
        pytest.param(40, 8, Rule.LOWER_GROUP, id="case 2: the other is in a lower group"),
        pytest.param(1.5, 1.4, Rule.BALANCED, id="case 3: both in the lowest group"),
        pytest.param(45, 25, Rule.BALANCED, id="both in one group, which is not the lowest"),
    ],
)
def test_the_cases_of_the_paper(here_ms: float, there_ms: float, rule: Rule, tuning: SelectionTuning) -> None:
    one = picture([worker("here"), worker("there")], [gateway("g", "here", {"here": here_ms, "there": there_ms}, 0)])
    judgement = judged(replace(one), tuning)["g"]
    if rule is Rule.BALANCED and tuning is SEED:
        # Nobody has anything to do: the lightest is the nearer one, and the threshold keeps the gateway.
        assert judgement.reason.rule in (Rule.BALANCED, Rule.AT_OPTIMUM)
    else:
        assert judgement.reason.rule is rule
    assert isinstance(judgement, Move) == (rule is Rule.LOWER_GROUP)


@pytest.mark.parametrize(("theta", "moves"), [(0.0, True), (0.1, True), (0.9, False), (1.0, False)])
def test_the_threshold_within_a_group(theta: float, moves: bool) -> None:
    """4 subscribers here, 1 there: 1 + theta * 5 < 4."""
    ms = {"here": 4.0, "there": 3.0}
    gateways = [gateway(f"g{n}", "here", ms) for n in range(4)] + [gateway("h", "there", ms)]
    found = judged(picture([worker("here"), worker("there")], gateways), SelectionTuning(selection="seed", theta=theta))
    assert isinstance(found["g0"], Move) == moves


def two_nodes(here: int, there: int) -> Picture:
    ms = {"here": 4.0, "there": 3.0}
    gateways = [gateway(f"a{n}", "here", ms) for n in range(here)] + [
        gateway(f"b{n}", "there", ms) for n in range(there)
    ]
    return picture([worker("here"), worker("there")], gateways)


def passes_until_rest(one: Picture, tuning: SelectionTuning, most: int) -> int:
    for number in range(most):
        moves = tuple(judgement for judgement in judged(one, tuning).values() if isinstance(judgement, Move))
        if not moves:
            return number
        one = after(one, moves, one.now + 1)
    return most


def test_the_rule_of_the_paper_sends_a_gateway_to_and_fro() -> None:
    assert passes_until_rest(two_nodes(2, 1), SEED, most=50) == 50
    assert passes_until_rest(two_nodes(2, 1), AT_ONCE, most=50) == 0
    assert passes_until_rest(two_nodes(9, 0), AT_ONCE, most=50) == 1


@st.composite
def towns(draw: st.DrawFn) -> Picture:
    names = [f"w{number}" for number in range(draw(st.integers(1, 5)))]
    bounds = st.sampled_from([0.5, 1.9, 2.0, 2.1, 4.9, 5.1, 9.0, 19.0, 21.0, 49.0, 200.0])
    gateways = [
        gateway(
            f"g{number}",
            draw(st.sampled_from(names)),
            {name: draw(bounds) for name in names},
            draw(st.integers(0, 9)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]
    return picture([worker(name) for name in names], gateways)


@settings(max_examples=300, deadline=None)
@given(towns(), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from(["gateways", "subscriptions"]))
def test_with_constant_distances_everybody_comes_to_rest(one: Picture, theta: float, weight: str) -> None:
    tuning = replace(AT_ONCE, theta=theta, weight=weight)
    most = 12 * 10 + 12 * 6
    assert passes_until_rest(one, tuning, most) < most


@settings(max_examples=100, deadline=None)
@given(towns())
def test_no_gateway_goes_to_a_higher_group_and_none_is_nearer_when_it_rests(one: Picture) -> None:
    groups = LatencyGroups(GROUPS_MS)
    for _ in range(200):
        moves = tuple(judgement for judgement in judged(one).values() if isinstance(judgement, Move))
        for move in moves:
            trips = one.gateways[move.gateway].measured
            assert groups.of(trips[move.target].round_trip_s) <= groups.of(trips[move.source].round_trip_s)
        if not moves:
            break
        one = after(one, moves, one.now + 1)
    for each in one.gateways.values():
        best = min(each.measured.values())
        here = each.measured[each.node]
        gain = here.round_trip_s - best.round_trip_s
        assert groups.of(here.round_trip_s) == groups.of(best.round_trip_s) or gain <= max(
            0.001, here.round_trip_s / 10
        )


def test_nobody_goes_where_nobody_has_answered() -> None:
    """By the coordinates `near` is next door, but this gateway has heard nothing of it."""
    near = worker("near", coordinate=Coordinate((0.0, 0.0, 0.0, 0.0), 0.0, 0.1))
    far = worker("far", coordinate=Coordinate((0.2, 0.0, 0.0, 0.0), 0.0, 0.1))
    one = picture([near, far], [gateway("g", "far", {"far": 200.0})])
    assert judged(one)["g"] == Left("g", judged(one)["g"].reason)
    assert judged(one)["g"].reason.rule is Rule.UNPROVED
    stale = replace(picture([near, far], [gateway("g", "far", {"far": 200.0, "near": 1.0})], now=601.0), fresh_s=600.0)
    assert judged(stale)["g"].reason.rule is Rule.UNPROVED
    silent_third = picture([near, far, worker("mid")], [gateway("g", "far", {"far": 200.0, "mid": 30.0})])
    assert isinstance(move := judged(silent_third)["g"], Move)
    assert move.target == "mid", "one that answers is not passed over for one that does not"


def test_a_gateway_that_does_not_know_where_it_is_stays() -> None:
    lost = Coordinate(error=0.9)
    one = picture([worker("a"), worker("b")], [gateway("g", "a", {"b": 1.0}, coordinate=lost)])
    for tuning in (AT_ONCE, SEED):
        assert judged(one, tuning)["g"].reason.rule is Rule.UNPLACED


def test_a_gateway_that_has_measured_its_node_needs_no_coordinate() -> None:
    lost = Coordinate(error=0.9)
    one = picture([worker("a"), worker("b")], [gateway("g", "a", {"a": 90.0, "b": 1.0}, coordinate=lost)])
    for tuning in (AT_ONCE, SelectionTuning(selection="measure-all")):
        assert isinstance(judged(one, tuning)["g"], Move)
    assert judged(one, SEED)["g"].reason.rule is Rule.UNPLACED, "the paper goes by coordinates alone"


def test_a_gateway_of_a_lost_worker_is_left_to_its_node() -> None:
    one = picture([worker("b")], [gateway("g", "a", {"a": 90.0, "b": 1.0}), gateway("h", "", {"b": 1.0})])
    assert {judgement.reason.rule for judgement in judged(one).values()} == {Rule.UNSERVED}


def test_a_wish_must_hold_and_a_mover_rests() -> None:
    tuning = SelectionTuning(steady_s=10.0, cool_down_s=60.0)
    one = picture([worker("a"), worker("b")], [gateway("g", "a", {"a": 90.0, "b": 1.0})], now=100.0)
    first = place(PictureRoundTrips(one), tuning)
    assert (first.judgements[0].reason.rule, first.wishes) == (Rule.UNSTEADY, {"g": ("b", 100.0)})
    for now, rule in ((109.0, Rule.UNSTEADY), (110.0, Rule.LOWER_GROUP)):
        later = replace(one, now=now, standing=replace(one.standing, wishes=first.wishes))
        assert judged(later, tuning)["g"].reason.rule is rule
    moved = picture([worker("a"), worker("b")], [gateway("g", "a", {"a": 90.0, "b": 1.0}, moved_at=60.0)], now=119.0)
    assert judged(moved, tuning)["g"].reason.rule is Rule.COOLING_DOWN


def test_a_small_gain_across_a_bound_moves_nobody() -> None:
    one = picture([worker("a"), worker("b")], [gateway("g", "a", {"a": 5.1, "b": 4.9})])
    assert judged(one)["g"].reason.rule is Rule.SMALL_GAIN
    assert isinstance(judged(one, SEED)["g"], Move)


def test_so_many_go_to_one_node_in_one_pass() -> None:
    gateways = [gateway(f"g{n:02}", "a", {"a": 90.0, "b": 1.0}) for n in range(9)]
    found = judged(picture([worker("a"), worker("b")], gateways), replace(AT_ONCE, moves_at_once=4))
    assert [isinstance(one, Move) for one in found.values()] == [True] * 4 + [False] * 5
    assert found["g08"].reason.rule is Rule.TARGET_BUSY


def test_a_leaving_node_sends_each_gateway_to_its_own_next_best() -> None:
    workers = [worker("a", WorkerNodeState.LEAVING), worker("b"), worker("c")]
    gateways = [
        gateway("g", "a", {"a": 1.0, "b": 10.0, "c": 90.0}, moved_at=0.99),
        gateway("h", "a", {"a": 1.0, "b": 90.0, "c": 10.0}),
        gateway("i", "a", {"a": 1.0}),
    ]
    found = judged(picture(workers, gateways), SelectionTuning())
    assert [one.target for one in found.values() if isinstance(one, Move)] == ["b", "c"]
    assert found["i"].reason.rule is Rule.UNPROVED
    assert nodes_by_distance(PictureRoundTrips(picture(workers, gateways)), gateways[1]) == ["c", "b"]


def test_a_liar_moves_only_itself() -> None:
    def moves(lie: float) -> dict[str, Judgement]:
        honest = [gateway(f"g{n}", "a", {"a": 30.0, "b": 4.0}) for n in range(3)]
        liar = gateway("liar", "a", {"a": 500.0, "b": lie}, 0)
        return judged(picture([worker("a"), worker("b")], [*honest, liar]))

    truth, lied = moves(600.0), moves(0.1)
    assert isinstance(lied["liar"], Move)
    assert {name: truth[name] for name in ("g0", "g1", "g2")} == {name: lied[name] for name in ("g0", "g1", "g2")}


def test_a_record_holds_the_numbers_of_its_rule() -> None:
    found = judged(two_nodes(9, 0))["a0"]
    numbers = {name: float(number) for name, number in found.reason.numbers}
    assert numbers["there"] + numbers["own"] + numbers["theta"] * numbers["total"] < numbers["here"]
    assert found.reason.sentence == "balance: there 0, own 1, theta 0.1, total 9, here 9"
    assert nan not in numbers.values()
