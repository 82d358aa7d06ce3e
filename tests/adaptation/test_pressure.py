"""Pressure: the paper's examples, its three properties as metamorphic tests, and what the models are for."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptation.pictures import gateway, off, picture, worker
from sterna.adaptation.picture import Flow, KnownWorker, Picture, PictureRoundTrips, WorkerNodeState
from sterna.adaptation.pressure import MODELS, Pressure, Pressures, shortens_a_flow
from sterna.overlay.coordinates import Coordinate


def of_workers(one: Picture, model: str = "seed", value: str = "gateways") -> dict[str, Pressure]:
    return Pressures(PictureRoundTrips(one), model, value, usable_error=0.6).of_workers()


def of_nodes(one: Picture, model: str = "seed") -> dict[str, Pressure]:
    return Pressures(PictureRoundTrips(one), model, "gateways", usable_error=0.6).of_nodes()


def two_edges(near_a: int = 10, near_b: int = 1) -> Picture:
    """Section 6.1: gateways 10 ms from their edge and 30 ms from the cloud."""
    a = [gateway(f"a{n}", "cloud", {"A": 10.0, "B": 60.0, "cloud": 30.0}) for n in range(near_a)]
    b = [gateway(f"b{n}", "cloud", {"A": 60.0, "B": 10.0, "cloud": 30.0}) for n in range(near_b)]
    return picture([worker("cloud", fixed=True), off("A"), off("B")], a + b)


def test_the_example_of_section_6_1() -> None:
    found = of_workers(two_edges())
    assert found["A"].value == pytest.approx(13.0, abs=0.05)
    assert found["B"].value == pytest.approx(1.3, abs=0.05)
    assert (found["A"].gateways, found["B"].gateways) == (10, 1)
    means = {
        scenario: sum(10 if edge in running else 30 for edge in "A" * 10 + "B") / 11
        for scenario, running in ((1, "AB"), (2, "A"), (3, ""), (4, "B"))
    }
    assert means == pytest.approx({1: 10.0, 2: 11.8, 3: 30.0, 4: 28.2}, abs=0.05), "the paper prints 32 for the last"


def test_one_by_two_orders_presses_as_two_by_one() -> None:
    one = picture([worker("c"), off("w")], [gateway("g", "c", {"c": 101.0, "w": 1.0})])
    two = picture([worker("c"), off("w")], [gateway(f"g{n}", "c", {"c": 11.0, "w": 1.0}) for n in range(2)])
    assert of_workers(one)["w"].value == pytest.approx(2.0)
    assert of_workers(two)["w"].value == pytest.approx(2.0)


def test_the_scale_between_continents_and_the_public_program() -> None:
    """Ten gateways in us-east on a node in eu-central: 180 ms by the paper's data."""
    gateways = [gateway(f"g{n}", "eu", {"eu": 180.8, "us": 1.0}) for n in range(10)]
    one = picture([worker("eu"), off("us")], gateways)
    assert of_workers(one)["us"].value == pytest.approx(22.5, abs=0.1)
    assert of_workers(one, "ln-sum")["us"].value == pytest.approx(7.5, abs=0.1)


def test_a_gain_below_a_millisecond_presses_nobody_and_a_tie_neither() -> None:
    one = picture(
        [worker("c"), off("w")], [gateway("g", "c", {"c": 1.9, "w": 1.0}), gateway("h", "c", {"c": 5, "w": 5})]
    )
    assert of_workers(one)["w"].value == 0.0
    assert of_workers(one)["w"].gateways == 1


def test_many_small_gains_count_for_the_benefit_as_they_do_for_people() -> None:
    crowd = picture([worker("c"), off("w")], [gateway(f"g{n}", "c", {"c": 1.9, "w": 1.0}) for n in range(1000)])
    lone = picture([worker("c"), off("w")], [gateway("g", "c", {"c": 101.0, "w": 1.0})])
    assert of_workers(crowd)["w"].value == 0.0 < of_workers(lone)["w"].value
    assert of_workers(crowd, "benefit")["w"].value == pytest.approx(900.0)
    assert of_workers(lone, "benefit")["w"].value == pytest.approx(100.0)


def test_the_benefit_counts_weight_and_price() -> None:
    ms = {"c": 11.0, "w": 1.0}
    one = picture([worker("c"), off("w", price=2.0)], [gateway("g", "c", ms, 6)])
    assert of_workers(one, "benefit", "deliveries")["w"].value == pytest.approx(30.0)


def test_inverse_distances_need_another_threshold_in_every_region() -> None:
    """Figure 6.1: E1 would save 90 ms and E2 one, and E2's pressure is the higher."""
    one = picture(
        [worker("C1"), worker("C2"), off("E1"), off("E2")],
        [
            *(gateway(f"a{n}", "C1", {"C1": 100.0, "E1": 10.0, "C2": 400.0, "E2": 400.0}) for n in range(5)),
            *(gateway(f"b{n}", "C2", {"C2": 3.0, "E2": 2.0, "C1": 400.0, "E1": 400.0}) for n in range(5)),
        ],
    )
    distance, seed = of_workers(one, "distance"), of_workers(one)
    assert distance["E1"].value < distance["E2"].value
    assert seed["E1"].value > seed["E2"].value == 0.0


def test_a_gateway_that_only_waits_for_its_move_presses_nobody() -> None:
    ms = {"c": 100.0, "near": 1.0, "w": 1.5}
    one = picture([worker("c"), worker("near"), off("w")], [gateway("g", "c", ms)])
    assert of_workers(one)["w"] == Pressure(0.0, 0, 0)
    assert of_nodes(one)["near"].value == pytest.approx(log10(99.0)), (
        "the new node has the worth its gateways will give"
    )
    assert of_nodes(one)["c"].value == 0.0


def test_a_node_that_starts_counts_and_one_that_leaves_does_not() -> None:
    ms = {"c": 100.0, "w": 1.0, "v": 1.0}
    gateways = [gateway("g", "c", ms)]
    starting = picture([worker("c"), worker("w", WorkerNodeState.STARTING), off("v")], gateways)
    assert of_workers(starting)["v"].value == 0.0
    leaving = picture([worker("c"), worker("w", WorkerNodeState.LEAVING), off("v")], gateways)
    assert of_workers(leaving)["v"].value == of_workers(leaving)["w"].value > 1.0


def test_the_last_node_is_worth_everything() -> None:
    one = picture([worker("c"), off("w")], [gateway("g", "c", {"c": 5.0, "w": 900.0})])
    assert of_nodes(one)["c"].value == inf


LOST = Coordinate(error=1.0)


def test_a_gateway_that_does_not_know_where_it_is_presses_by_what_it_measured() -> None:
    """Not on workers that it did not measure, and on nobody if a node runs that might be nearer than it knows."""
    workers = [worker("c"), off("w"), off("v")]

    def pressed(ms: dict[str, float], *more: KnownWorker) -> dict[str, Pressure]:
        return of_workers(picture([*workers, *more], [gateway("g", "c", ms, coordinate=LOST)]), "benefit")

    nothing = Pressure(0.0, 0, 0)
    assert pressed({"w": 1.0}) == {"w": nothing, "v": nothing}
    found = pressed({"c": 90.0, "w": 1.0})
    assert (found["w"].gateways, found["w"].witnesses, found["v"]) == (1, 1, nothing)
    assert found["w"].value == pytest.approx(89.0)
    assert pressed({"c": 90.0, "w": 1.0}, worker("near"))["w"] == nothing


def test_a_node_that_such_a_gateway_had_started_is_worth_as_much() -> None:
    gateways = [gateway("g", "c", {"c": 90.0, "w": 1.0}, coordinate=LOST)]
    before = picture([worker("c"), off("w")], gateways)
    then = picture([worker("c"), worker("w")], gateways)
    assert of_nodes(then)["w"].value == of_workers(before)["w"].value > 1.0
    assert of_nodes(then)["c"].value == 0.0


def test_witnesses_are_those_who_have_measured_it() -> None:
    near, far = Coordinate((0.0, 0.0, 0.0, 0.0), 0.0, 0.1), Coordinate((0.3, 0.0, 0.0, 0.0), 0.0, 0.1)
    ms = {"c": 300.0}
    gateways = [gateway("g", "c", ms, coordinate=near), gateway("h", "c", {**ms, "w": 2.0}, coordinate=near)]
    one = picture([worker("c", coordinate=far), off("w", coordinate=near)], gateways)
    assert of_workers(one)["w"][1:] == (2, 1)


distances_ms = st.floats(1.0, 500.0)


@given(st.lists(st.tuples(distances_ms, distances_ms), max_size=8), distances_ms, st.sampled_from(sorted(MODELS)))
def test_one_more_gateway_nearby_never_lowers_the_pressure(
    crowd: list[tuple[float, float]], more: float, model: str
) -> None:
    def pressure(pairs: list[tuple[float, float]]) -> float:
        gateways = [gateway(f"g{n}", "c", {"c": cloud, "w": edge}) for n, (cloud, edge) in enumerate(pairs)]
        return of_workers(picture([worker("c"), off("w")], gateways), model)["w"].value

    assert pressure([*crowd, (more + 1.0, more)]) >= pressure(crowd)


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(2, 400)), min_size=1, max_size=8))
def test_ten_times_the_distances_are_one_more_for_every_gateway(pairs: list[tuple[float, float]]) -> None:
    """Property 3 of the paper: thresholds are orders of magnitude, the same everywhere."""

    def pressure(factor: float) -> float:
        gateways = [
            gateway(f"g{n}", "c", {"c": factor * (near + gain), "w": factor * near})
            for n, (near, gain) in enumerate(pairs)
        ]
        return of_workers(picture([worker("c"), off("w")], gateways))["w"].value

    assert pressure(10.0) - pressure(1.0) == pytest.approx(len(pairs))


@given(st.lists(st.tuples(distances_ms, distances_ms), min_size=1, max_size=8), st.sampled_from(["seed", "benefit"]))
def test_the_gain_of_a_worker_becomes_the_worth_of_its_node(pairs: list[tuple[float, float]], model: str) -> None:
    gateways = [gateway(f"g{n}", "c", {"c": cloud, "w": edge}) for n, (cloud, edge) in enumerate(pairs)]
    gain = of_workers(picture([worker("c"), off("w")], gateways), model)["w"].value
    assert of_nodes(picture([worker("c"), worker("w")], gateways), model)["w"].value == pytest.approx(gain)


def place_at(ms: float) -> Coordinate:
    return Coordinate((ms / 1000, 0.0, 0.0, 0.0), 0.0, 0.1)


def test_a_node_far_from_the_subscribers_shortens_nothing() -> None:
    """Publishers beside the edge, subscribers beside the cloud: the way is as long over either."""
    workers = [worker("cloud", coordinate=place_at(0)), off("edge", coordinate=place_at(100))]
    gateways = [
        gateway("pub", "cloud", {"cloud": 100.0, "edge": 1.0}, coordinate=place_at(100)),
        gateway("sub", "cloud", {"cloud": 1.0, "edge": 100.0}, coordinate=place_at(0)),
        gateway("near", "cloud", {"cloud": 100.0, "edge": 1.0}, coordinate=place_at(100)),
    ]
    one = picture(workers, gateways)
    far = replace(one, flows=(Flow("t", {"pub": 10.0}, frozenset({"sub"})),))
    local = replace(one, flows=(Flow("t", {"pub": 10.0}, frozenset({"sub", "near"})),))
    assert not shortens_a_flow(PictureRoundTrips(far), one.workers["edge"], gain_ms=2.0)
    assert shortens_a_flow(PictureRoundTrips(local), one.workers["edge"], gain_ms=2.0)


@pytest.mark.parametrize("estimated_ms", [20.0, 100.0])
def test_a_wrong_estimate_between_nodes_makes_no_gain_of_a_detour(estimated_ms: float) -> None:
    """The publisher's own round trips say that the edge is 99 ms away from the cloud; its coordinate may say 20."""
    workers = [worker("cloud", coordinate=place_at(0)), off("edge", coordinate=place_at(estimated_ms))]
    gateways = [
        gateway("pub", "cloud", {"cloud": 100.0, "edge": 1.0}, coordinate=place_at(100)),
        gateway("sub", "cloud", {"cloud": 1.0, "edge": 100.0}, coordinate=place_at(0)),
    ]
    one = replace(picture(workers, gateways), flows=(Flow("t", {"pub": 10.0}, frozenset({"sub"})),))
    assert shortens_a_flow(PictureRoundTrips(one), one.workers["edge"], gain_ms=2.0) is False


def test_a_gain_is_larger_than_the_estimates_between_nodes_may_be_wrong() -> None:
    """The subscriber's node stays where it is; the new one is between the two, 10 ms nearer by coordinates."""
    workers = [
        worker("west", coordinate=place_at(0)),
        worker("east", coordinate=place_at(200)),
        off("middle", coordinate=place_at(95)),
    ]
    gateways = [
        gateway("pub", "west", {"west": 100.0, "middle": 5.0, "east": 110.0}, coordinate=place_at(100)),
        gateway("sub", "east", {"west": 200.0, "middle": 105.0, "east": 1.0}, coordinate=place_at(200)),
    ]
    one = replace(picture(workers, gateways), flows=(Flow("t", {"pub": 10.0}, frozenset({"sub"})),))
    unsure = replace(one.workers["middle"], coordinate=replace(place_at(95), error=2.5))
    assert shortens_a_flow(PictureRoundTrips(one), one.workers["middle"], gain_ms=2.0)
    assert not shortens_a_flow(PictureRoundTrips(one), unsure, gain_ms=2.0, gain_ratio=0.1)
