"""Network coordinates: they come to rest, come near the true distances, and take no nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import dist, inf, nan, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.overlay.coordinates import DIMENSIONS, ERROR_MAX, FAR_S, Coordinate, Vivaldi, VivaldiSettings

ORIGIN = Coordinate()
Truth = Callable[[int, int], float]


def settled(
    count: int, truth: Truth, *, rounds: int = 300, seed: int = 1, settings: VivaldiSettings | None = None
) -> list[Vivaldi]:
    """Nodes that measure a random other each, round by round."""
    rng = Random(seed)
    nodes = [Vivaldi(Random(f"{seed}/{number}"), settings or VivaldiSettings()) for number in range(count)]
    for _ in range(rounds):
        for number, node in enumerate(nodes):
            other = rng.choice([one for one in range(count) if one != number])
            node.measured(nodes[other].coordinate, truth(number, other))
    return nodes


def relative_errors(nodes: list[Vivaldi], truth: Truth) -> list[float]:
    pairs = [(a, b) for a in range(len(nodes)) for b in range(a)]
    return sorted(
        abs(nodes[a].coordinate.distance_s(nodes[b].coordinate) - truth(a, b)) / truth(a, b) for a, b in pairs
    )


def median(values: list[float]) -> float:
    return values[len(values) // 2]


def on_a_line(a: int, b: int) -> float:
    return 0.010 * abs(a - b)


def on_a_grid(a: int, b: int) -> float:
    return 0.010 * dist(divmod(a, 5), divmod(b, 5))


def leaves_of_a_star(a: int, b: int) -> float:
    """Every way leads over two access links of 30 ms in all; the middle is nothing."""
    return 0.030 + 0.001 * abs(a - b) / 20


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("count", "truth", "typical", "worst"),
    [(10, on_a_line, 0.02, 0.25), (25, on_a_grid, 0.03, 0.35), (20, leaves_of_a_star, 0.12, 0.6)],
    ids=["line", "grid", "star"],
)
def test_estimates_come_near_the_true_distances(
    count: int, truth: Truth, typical: float, worst: float, seed: int
) -> None:
    errors = relative_errors(settled(count, truth, seed=seed), truth)
    assert median(errors) <= typical
    assert errors[-1] <= worst


def test_a_constant_distance_comes_to_rest() -> None:
    one, other = Vivaldi(Random(1)), Vivaldi(Random(2))
    for _ in range(500):
        one.measured(other.coordinate, 0.050)
        other.measured(one.coordinate, 0.050)
    before = one.coordinate
    one.measured(other.coordinate, 0.050)
    assert one.coordinate.distance_s(other.coordinate) == pytest.approx(0.050, rel=0.001)
    assert dist(before.vector, one.coordinate.vector) < 1e-6
    assert one.coordinate.error < 0.01


def test_one_step_is_the_one_of_the_algorithm() -> None:
    """By hand: both errors 1.5, so the weight is a half; 100 ms apart, 40 measured."""
    node = Vivaldi(Random(1), VivaldiSettings(gravity_s=0.0))
    other = Coordinate((0.1, 0.0, 0.0, 0.0), 0.0, ERROR_MAX)
    node.coordinate = Coordinate((0.0,) * DIMENSIONS, 0.0, ERROR_MAX)
    node.measured(other, 0.040)
    assert node.coordinate.vector == pytest.approx((0.0075, 0, 0, 0))  # 0.25 * 0.5 * 60 ms towards it
    assert node.coordinate.error == pytest.approx(1.5)  # 1.5 * 0.125 + 1.5 * 0.875: wrong by 150 %
    assert node.coordinate.height == VivaldiSettings().height_least_s


def test_a_newcomer_hardly_moves_those_who_have_settled() -> None:
    nodes = settled(10, on_a_line)
    before = [node.coordinate for node in nodes]
    newcomer = Vivaldi(Random(99))
    for number, node in enumerate(nodes * 10):
        node.measured(newcomer.coordinate, 0.045)
        newcomer.measured(before[number % 10], 0.045)
    moved = [dist(earlier.vector, node.coordinate.vector) for earlier, node in zip(before, nodes, strict=True)]
    assert max(moved) < 0.045 / 4


def test_gravity_keeps_the_crowd_at_the_origin_and_without_it_nothing_does() -> None:
    def middle(settings: VivaldiSettings) -> float:
        nodes = settled(8, on_a_line, rounds=100, settings=settings)
        for node in nodes:
            shifted = tuple(at + 1.0 for at in node.coordinate.vector)
            node.coordinate = replace(node.coordinate, vector=shifted)
        rng = Random(3)
        for _ in range(40_000):
            number, other = rng.sample(range(8), 2)
            nodes[number].measured(nodes[other].coordinate, on_a_line(number, other))
        centre = [sum(node.coordinate.vector[axis] for node in nodes) / 8 for axis in range(DIMENSIONS)]
        return sqrt(sum(at * at for at in centre))

    pulled, left = middle(VivaldiSettings(gravity_s=5.0)), middle(VivaldiSettings(gravity_s=0.0))
    assert pulled < 0.5 < left


def test_the_same_dice_give_the_same_coordinates() -> None:
    one, other = settled(6, on_a_grid, rounds=50), settled(6, on_a_grid, rounds=50)
    assert [node.coordinate for node in one] == [node.coordinate for node in other]


@pytest.mark.parametrize(
    "nonsense",
    [
        replace(ORIGIN, vector=(nan, 0.0, 0.0, 0.0)),
        replace(ORIGIN, vector=(inf, 0.0, 0.0, 0.0)),
        replace(ORIGIN, vector=(1e9, 0.0, 0.0, 0.0)),
        replace(ORIGIN, vector=(0.0,) * (DIMENSIONS + 1)),
        replace(ORIGIN, height=nan),
        replace(ORIGIN, height=-0.001),
        replace(ORIGIN, height=FAR_S + 1),
        replace(ORIGIN, error=nan),
        replace(ORIGIN, error=-0.1),
        replace(ORIGIN, error=ERROR_MAX + 0.1),
    ],
)
def test_a_coordinate_that_cannot_be_is_refused_and_counted(nonsense: Coordinate) -> None:
    node = Vivaldi(Random(1))
    node.measured(nonsense, 0.010)
    assert (node.coordinate, node.refused) == (ORIGIN, 1)


@pytest.mark.parametrize("round_trip", [nan, inf, -inf, -0.001, FAR_S + 0.001])
def test_a_round_trip_that_cannot_be_is_refused_and_counted(round_trip: float) -> None:
    node = Vivaldi(Random(1))
    node.measured(ORIGIN, round_trip)
    assert (node.coordinate, node.refused) == (ORIGIN, 1)


numbers = st.floats(width=32)


@given(st.lists(st.tuples(st.tuples(*[numbers] * DIMENSIONS), numbers, numbers, numbers), max_size=30))
def test_whatever_comes_a_coordinate_stays_sound(
    samples: list[tuple[tuple[float, ...], float, float, float]],
) -> None:
    node = Vivaldi(Random(1))
    for vector, height, error, round_trip in samples:
        node.measured(Coordinate(vector, height, error), round_trip)
        assert node.coordinate.is_sound


def test_a_fleet_with_one_that_sends_nonsense_for_ever_stays_right() -> None:
    rng = Random(5)
    nodes = [Vivaldi(Random(number)) for number in range(8)]
    liar = replace(ORIGIN, vector=(nan,) * DIMENSIONS)
    for _ in range(3000):
        number, other = rng.sample(range(8), 2)
        nodes[number].measured(nodes[other].coordinate, on_a_line(number, other))
        nodes[number].measured(liar, 0.010)
    assert median(relative_errors(nodes, on_a_line)) < 0.05
