"""Which nodes start and stop: nothing cycles, patience holds, floors, ceilings and overload."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptation.pictures import after, gateway, off, picture, worker
from adaptation.test_pressure import place_at, two_edges
from sterna.adaptation.deciding import PassOutcome, decide
from sterna.adaptation.picture import Flow, Load, Picture, WorkerNodeState
from sterna.adaptation.pressure import MODELS
from sterna.adaptation.reasons import Left, Move, Resume, Rule, Start, Stop
from sterna.adaptation.settings import AdaptationTuning, problems

AT_ONCE = AdaptationTuning(steady_s=0.0, cool_down_s=0.0, high_s=0.0, calm_s=0.0, young_s=0.0, pressure="seed")
SEED = AdaptationTuning(selection="seed", scaling="seed", pressure="seed")


def starts(outcome: PassOutcome) -> list[str]:
    return [one.worker for one in outcome.decisions if isinstance(one, Start)]


def stops(outcome: PassOutcome) -> list[str]:
    return [one.worker for one in outcome.decisions if isinstance(one, Stop)]


def why(outcome: PassOutcome, name: str) -> list[Rule]:
    return [one.reason.rule for one in outcome.about(name)]


@pytest.mark.parametrize(("up", "running"), [(1.2, {"A", "B", "cloud"}), (5.0, {"A", "cloud"}), (13.5, {"cloud"})])
@pytest.mark.parametrize("tuning", [AT_ONCE, SEED], ids=["steady", "seed"])
def test_the_threshold_chooses_the_scenario_of_section_6_1(
    up: float, running: set[str], tuning: AdaptationTuning
) -> None:
    one = two_edges()
    for now in range(10):
        one = after(one, decide(one, replace(tuning, up=up, down=up / 2)).decisions, 2.0 + now)
    assert {name for name, each in one.workers.items() if each.is_serving} == running


def test_figures_6_2_and_6_3_one_gateway_is_not_enough_and_two_are() -> None:
    """A cloud, an edge, and gateways that would gain 50 ms: log10 of it is 1.7, the threshold 2."""

    def town(near_edge: int) -> Picture:
        near = [gateway(f"e{n}", "cloud", {"cloud": 60.0, "edge": 10.0}) for n in range(near_edge)]
        far = [gateway(f"c{n}", "cloud", {"cloud": 10.0, "edge": 60.0}) for n in range(3 - near_edge)]
        return picture([worker("cloud", fixed=True), off("edge")], near + far)

    assert not decide(town(1), AT_ONCE).decisions
    first = decide(town(2), AT_ONCE)
    assert [type(one) for one in first.decisions] == [Start]
    then = decide(after(town(2), first.decisions, 2.0), AT_ONCE)
    assert [(one.gateway, one.target) for one in then.decisions if isinstance(one, Move)] == [
        ("e0", "edge"),
        ("e1", "edge"),
    ]
    at_rest = after(after(town(2), first.decisions, 2.0), then.decisions, 3.0)
    assert not decide(at_rest, AT_ONCE).decisions


def test_the_node_of_a_start_is_not_stopped_in_the_same_pass() -> None:
    """The paper's listing looks for a stop right after a start."""
    one = two_edges()
    assert starts(decide(one, AT_ONCE)) == ["A"]
    assert not stops(decide(one, AT_ONCE))


@st.composite
def towns(draw: st.DrawFn) -> Picture:
    """Nodes have any load and messages go anywhere; neither changes by what is decided."""
    names = [f"w{number}" for number in range(draw(st.integers(2, 5)))]
    milliseconds = st.integers(1, 200).map(float)
    gateways = [
        gateway(f"g{number}", names[0], {name: draw(milliseconds) for name in names}, draw(st.integers(1, 5)))
        for number in range(draw(st.integers(0, 8)))
    ]
    states = [
        WorkerNodeState.SERVING,
        *(draw(st.sampled_from([WorkerNodeState.SERVING, WorkerNodeState.OFF])) for _ in names[1:]),
    ]
    loads = st.builds(
        Load, st.sampled_from([0.0, 0.3, 0.5, 0.9]), st.sampled_from([0.0, 0.3]), st.sampled_from([0, 2e6])
    )
    workers = [
        worker(name, state, fixed=name == "w0", load=draw(loads)) for name, state in zip(names, states, strict=True)
    ]
    ends = st.lists(st.sampled_from([one.name for one in gateways]), unique=True) if gateways else st.just([])
    flows = tuple(
        Flow(f"t{number}", dict.fromkeys(draw(ends), 1.0), frozenset(draw(ends)))
        for number in range(draw(st.integers(0, 3)))
    )
    return replace(picture(workers, gateways), flows=flows)


@settings(max_examples=300, deadline=None)
@given(towns(), st.sampled_from([20.0, 100.0, 300.0]))
def test_under_constant_input_starts_and_stops_end(one: Picture, up: float) -> None:
    tuning = replace(AT_ONCE, pressure="benefit", up=up, down=up / 2, busy_bytes_per_s=1e6)
    for number in range(60):
        decisions = decide(one, tuning).decisions
        if not decisions:
            return
        one = after(one, decisions, 2.0 + number)
    raise AssertionError(f"it goes on: {decisions}")


def test_patience_before_a_start_and_before_a_stop() -> None:
    tuning = replace(AT_ONCE, high_s=10.0, calm_s=100.0, up=5.0, down=1.5)
    crowd, nobody = two_edges(), two_edges(near_a=0, near_b=0)
    for now, expected in ((1.0, []), (10.9, []), (11.0, ["A"])):
        crowd = replace(crowd, now=now)
        outcome = decide(crowd, tuning)
        assert starts(outcome) == expected
        crowd = replace(crowd, standing=outcome.standing)
    nobody = replace(nobody, workers={**nobody.workers, "A": worker("A")})
    for now, expected in ((1.0, []), (100.9, []), (101.0, ["A"])):
        nobody = replace(nobody, now=now)
        outcome = decide(nobody, tuning)
        assert stops(outcome) == expected
        nobody = replace(nobody, standing=outcome.standing)


def test_noisy_load_starts_one_node_and_stops_it_once() -> None:
    """A crowd that comes and goes every two minutes, for an hour: the paper's rule follows every time."""

    def acts(tuning: AdaptationTuning) -> int:
        one, count = two_edges(near_a=10, near_b=0), 0
        for now in range(0, 3600, 15):
            there = now < 3000 and now // 60 % 2 == 0
            running = {name: each.state for name, each in one.workers.items()}
            gateways = list(two_edges(near_a=10, near_b=0).gateways.values()) if there else []
            workers = [replace(each, state=running[name]) for name, each in one.workers.items()]
            node = "A" if running["A"] is WorkerNodeState.SERVING else "cloud"
            named = [replace(each, node=node) for each in gateways]
            now_one = replace(picture(workers, named, float(now)), standing=one.standing)
            outcome = decide(now_one, tuning)
            count += len(starts(outcome)) + len(stops(outcome))
            one = replace(after(now_one, outcome.decisions, float(now)), standing=outcome.standing)
        return count

    assert acts(replace(SEED, up=5.0, down=1.5)) > 40
    assert acts(AdaptationTuning(pressure="seed", up=5.0, down=1.5)) <= 2


@pytest.mark.parametrize(
    ("changed", "tuning", "rule"),
    [
        ({"barred_until": 9.0}, AT_ONCE, Rule.BARRED),
        ({"site": "s"}, replace(AT_ONCE, ceilings={"s": 0}), Rule.CEILING),
        ({"state": WorkerNodeState.STOPPING}, AT_ONCE, Rule.ONE_AT_A_TIME),
    ],
)
def test_a_worker_that_may_not_start_says_why(changed: dict[str, object], tuning: AdaptationTuning, rule: Rule) -> None:
    one = two_edges()
    one = replace(one, workers={**one.workers, "A": off("A", **changed)})
    outcome = decide(one, replace(tuning, up=5.0, down=1.0))
    assert not starts(outcome)
    assert why(outcome, "A") == [rule]


@pytest.mark.parametrize(
    ("changed", "tuning", "rule"),
    [
        ({"fixed": True}, AT_ONCE, Rule.FIXED),
        ({"site": "s"}, replace(AT_ONCE, floors={"s": 1}), Rule.FLOOR),
        ({"since": 0.5}, replace(AT_ONCE, young_s=60.0), Rule.YOUNG),
    ],
)
def test_a_node_that_may_not_stop_says_why(changed: dict[str, object], tuning: AdaptationTuning, rule: Rule) -> None:
    one = two_edges(0, 0)
    one = replace(one, workers={**one.workers, "A": off("A", state=WorkerNodeState.SERVING, **changed)})
    outcome = decide(one, tuning)
    assert not stops(outcome)
    assert why(outcome, "A") == [rule]


def test_no_start_without_witnesses() -> None:
    near, far = place_at(0), place_at(300)
    gateways = [gateway(f"g{n}", "c", {"c": 300.0}, coordinate=near) for n in range(5)]
    one = picture([worker("c", coordinate=far), off("w", coordinate=near)], gateways)
    assert why(decide(one, AT_ONCE), "w") == [Rule.UNPROVED]
    measured = [gateway(f"g{n}", "c", {"c": 300.0, "w": 1.0}, coordinate=near) for n in range(3)]
    enough = picture([worker("c", coordinate=far), off("w", coordinate=near)], gateways[3:] + measured)
    assert starts(decide(enough, AT_ONCE)) == ["w"]


def test_one_that_nobody_reaches_does_not_keep_the_next_best_from_starting() -> None:
    near, nearly, far = place_at(0), place_at(2), place_at(300)
    gateways = [gateway(f"g{n}", "c", {"c": 300.0, "v": 2.0}, coordinate=near) for n in range(5)]
    workers = [worker("c", coordinate=far), off("w", coordinate=near), off("v", coordinate=nearly)]
    assert starts(decide(picture(workers, gateways), AT_ONCE)) == ["v"]


def test_several_crowds_get_their_nodes_in_one_pass() -> None:
    sites = "ABC"
    gateways = [
        gateway(f"{site}{n}", "cloud", {"cloud": 30.0, **{other: 1.0 if other == site else 90.0 for other in sites}})
        for site in sites
        for n in range(4)
    ]
    one = picture([worker("cloud", fixed=True), *map(off, sites)], gateways)
    assert sorted(starts(decide(one, AT_ONCE))) == ["A", "B", "C"]
    assert len(starts(decide(one, replace(AT_ONCE, starts_at_once=2)))) == 2


def hot_site(
    cpu: float, second: WorkerNodeState = WorkerNodeState.OFF, bytes_per_s: float = 0.0, **more: object
) -> Picture:
    ms = {"first": 2.0, "second": 2.0, "cloud": 80.0}
    gateways = [gateway(f"g{n}", "first", ms) for n in range(10)]
    workers = [
        worker("first", load=Load(cpu=cpu, bytes_per_s=bytes_per_s), site="s"),
        worker("second", second, site="s", **more),
        worker("cloud", fixed=True),
    ]
    return picture(workers, gateways)


def test_an_overloaded_node_gets_a_second_one_beside_it() -> None:
    outcome = decide(hot_site(0.95), AT_ONCE)
    assert starts(outcome) == ["second"]
    assert why(outcome, "second") == [Rule.OVERLOAD]
    assert not starts(decide(hot_site(0.5), AT_ONCE))
    assert not starts(decide(hot_site(0.95), SEED)), "the paper's pressure does not know load"
    assert not starts(decide(hot_site(0.95, WorkerNodeState.STARTING), AT_ONCE)), "help is on its way"


def test_bytes_are_load_where_the_operator_says_how_many_are_too_many() -> None:
    thin = replace(AT_ONCE, busy_bytes_per_s=1e6)
    outcome = decide(hot_site(0.1, bytes_per_s=1.1e6), thin)
    assert (starts(outcome), why(outcome, "second")) == (["second"], [Rule.OVERLOAD])
    assert not starts(decide(hot_site(0.1, bytes_per_s=0.9e6), thin))
    assert not starts(decide(hot_site(0.1, bytes_per_s=1e12), AT_ONCE)), "without the setting they decide nothing"


def test_half_of_the_gateways_go_to_the_second_node() -> None:
    one = after(hot_site(0.95), decide(hot_site(0.95), AT_ONCE).decisions, 2.0)
    for now in range(5):
        one = after(one, decide(one, AT_ONCE).decisions, 3.0 + now)
    counts = sorted(len(one.workers[name].serves) for name in ("first", "second"))
    assert counts[0] >= 4


def test_a_second_node_is_not_stopped_while_the_first_could_not_take_over() -> None:
    def both(cpu: float, bytes_per_s: float = 0.0) -> PassOutcome:
        one = hot_site(cpu, WorkerNodeState.SERVING, bytes_per_s, load=Load(cpu=cpu, bytes_per_s=bytes_per_s))
        names = list(one.gateways)
        halves = [replace(one.gateways[name], node="second" if n % 2 else "first") for n, name in enumerate(names)]
        return decide(picture(list(one.workers.values()), halves), replace(AT_ONCE, busy_bytes_per_s=1e6))

    assert not stops(both(0.45))
    assert Rule.NO_ROOM in why(both(0.45), "second")
    assert Rule.NO_ROOM in why(both(0.1, 0.5e6), "second")
    assert len(stops(both(0.1))) == 1


def test_a_node_is_not_stopped_if_its_gateways_would_go_to_one_that_is_late() -> None:
    """That one would get a second node at once, and so on for ever."""
    workers = [worker("late", fixed=True, load=Load(lag_s=0.3)), worker("w")]
    outcome = decide(picture(workers, [gateway("g", "w", {"late": 3.0, "w": 1.0})]), AT_ONCE)
    assert why(outcome, "w") == [Rule.NO_ROOM]


def test_pressure_that_returns_takes_a_stop_back() -> None:
    one = two_edges()
    one = replace(one, workers={**one.workers, "A": worker("A", WorkerNodeState.LEAVING)})
    outcome = decide(one, AdaptationTuning(pressure="seed"))
    assert [type(each) for each in outcome.decisions if not isinstance(each, Move)] == [Resume]


def test_far_subscribers_get_no_useless_node() -> None:
    workers = [worker("cloud", coordinate=place_at(0), fixed=True), off("edge", coordinate=place_at(100))]
    pubs = [gateway(f"p{n}", "cloud", {"cloud": 100.0, "edge": 1.0}, coordinate=place_at(100)) for n in range(5)]
    subs = [gateway(f"s{n}", "cloud", {"cloud": 1.0, "edge": 100.0}, coordinate=place_at(0)) for n in range(5)]
    flow = Flow("t", {each.name: 1.0 for each in pubs}, frozenset(each.name for each in subs))
    one = replace(picture(workers, pubs + subs), flows=(flow,))
    assert starts(decide(one, replace(SEED, up=2.0, down=1.0))) == ["edge"]
    outcome = decide(one, AT_ONCE)
    assert not starts(outcome)
    assert why(outcome, "edge") == [Rule.NO_GAIN_FOR_TOPICS]


def test_scaling_can_be_off_and_a_pass_says_what_it_left_alone() -> None:
    outcome = decide(two_edges(), replace(AT_ONCE, scaling="off"))
    assert not starts(outcome)
    assert all(isinstance(one, Left) for one in outcome.judgements)


def test_an_empty_picture_asks_for_nothing() -> None:
    assert decide(Picture(1.0, {}, {}), AdaptationTuning()).decisions == ()


@pytest.mark.parametrize(
    ("tuning", "words"),
    [
        (AdaptationTuning(up=1.0, down=1.0), "up above down"),
        (AdaptationTuning(groups_ms=(5.0, 2.0)), "must rise"),
        (AdaptationTuning(groups_ms=()), "must rise"),
        (AdaptationTuning(floors={"s": 3}, ceilings={"s": 1}), "ceiling of at least the floor"),
        (AdaptationTuning(cool_down_s=1.0, pass_s=5.0), "cool_down_s = 10"),
    ],
)
def test_settings_that_cannot_work_are_named_with_the_remedy(tuning: AdaptationTuning, words: str) -> None:
    model = MODELS[tuning.pressure]
    found = problems(tuning, tuning.up or model.up, tuning.down or model.down)
    assert len(found) == 1
    assert words in found[0]
    assert problems(AdaptationTuning(), model.up, model.down) == []
