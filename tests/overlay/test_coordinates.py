"""Network coordinates: they come to rest, come near the true distances, and take no nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import cos, dist, inf, nan, pi, sin, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.overlay.coordinates import DIMENSIONS, ERROR_MAX, FAR_S, Coordinate
from sterna.overlay.vivaldi import PEERS_MAX, RefusedSample, Vivaldi
from sterna.overlay.vivaldi_settings import DEFAULT, IN_THE_TREE, PAPER, PRESETS, VivaldiSettings

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
            node.measured(nodes[other].coordinate, truth(number, other), str(other))
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


def on_a_circle(a: int, b: int) -> float:
    """Around a middle that is as far as its neighbours are: the way through is as the crow flies."""
    one, other = (2 * pi * number / 20 for number in (a, b))
    return 0.100 * dist((cos(one), sin(one)), (cos(other), sin(other)))


def in_two_camps(a: int, b: int) -> float:
    """Near each other on one side, far from all of the other."""
    return 0.002 if a % 2 == b % 2 else 0.100


def leaves_of_a_star(a: int, b: int) -> float:
    """Every way leads over two access links of 30 ms in all; the middle is nothing."""
    return 0.030 + 0.001 * abs(a - b) / 20


def long_access_links(a: int, b: int) -> float:
    """Access links of 30 ms each, and a middle that is nothing."""
    return 0.060


@pytest.mark.parametrize("preset", [DEFAULT, PAPER, IN_THE_TREE], ids=["default", "paper", "tree"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("count", "truth", "typical", "worst"),
    [
        (10, on_a_line, 0.05, 0.60),
        (25, on_a_grid, 0.05, 0.45),
        (20, on_a_circle, 0.05, 0.60),
        (20, in_two_camps, 0.05, 0.90),
        (20, leaves_of_a_star, 0.12, 0.60),
    ],
    ids=["line", "grid", "circle", "split", "star"],
)
def test_estimates_come_near_the_true_distances(
    count: int, truth: Truth, typical: float, worst: float, seed: int, preset: VivaldiSettings
) -> None:
    errors = relative_errors(settled(count, truth, seed=seed, settings=preset), truth)
    assert median(errors) <= typical
    assert errors[-1] <= worst


def root_mean_square_s(nodes: list[Vivaldi], truth: Truth) -> float:
    pairs = [(a, b) for a in range(len(nodes)) for b in range(a)]
    squares = [(nodes[a].coordinate.distance_s(nodes[b].coordinate) - truth(a, b)) ** 2 for a, b in pairs]
    return sqrt(sum(squares) / len(squares))


@pytest.mark.parametrize("seed", range(3))
def test_heights_take_access_links_that_no_space_can(seed: int) -> None:
    def error_of(**changed: object) -> float:
        settings = replace(IN_THE_TREE, **changed)  # type: ignore[arg-type]
        return root_mean_square_s(settled(20, long_access_links, seed=seed, settings=settings), long_access_links)

    high, flat = error_of(dimensions=2), error_of(dimensions=3, heights=False)
    steep = error_of(dimensions=2, height_step="plane")
    assert high < flat / 3
    assert steep > flat / 3, "the step of ether and serf settles too: the setting is not needed"


@pytest.mark.parametrize("truth", [on_a_line, on_a_grid, on_a_circle, in_two_camps])
def test_nobody_who_sees_all_of_it_at_once_would_do_much_better(truth: Truth) -> None:
    """The springs of the whole network, relaxed together from where the nodes got to, hardly move."""
    nodes = settled(12, truth, rounds=1000, settings=IN_THE_TREE)
    reached = root_mean_square_s(nodes, truth) ** 2
    for _ in range(300):
        before = [node.coordinate for node in nodes]
        for number, node in enumerate(nodes):
            for other, there in enumerate(before):
                if other != number:
                    node.coordinate = replace(node.coordinate, error=0.02)
                    node.measured(replace(there, error=ERROR_MAX), truth(number, other))
    best = root_mean_square_s(nodes, truth) ** 2
    assert reached <= 1.5 * best + 0.0005**2


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
    node = Vivaldi(Random(1), VivaldiSettings(gravity_s=0.0, adjustment_window=0))
    other = Coordinate((0.1, 0.0, 0.0, 0.0), 0.0, ERROR_MAX)
    node.coordinate = Coordinate((0.0,) * DIMENSIONS, 0.0, ERROR_MAX)
    node.measured(other, 0.040)
    assert node.coordinate.vector == pytest.approx((0.0075, 0, 0, 0))  # 0.25 * 0.5 * 60 ms towards it
    assert node.coordinate.error == pytest.approx(1.5)  # 1.5 * 0.125 + 1.5 * 0.875: wrong by 150 %
    assert node.coordinate.height == VivaldiSettings().height_least_s


@pytest.mark.parametrize(("height_step", "whole"), [("whole", 0.140), ("plane", 0.100)])
def test_a_step_moves_the_height_with_the_place(height_step: str, whole: float) -> None:
    """By hand: 100 ms + 10 + 30 apart, 200 measured; errors 0.5, 0.25: two thirds; push 0.25 * 2/3 * 60 = 10 ms."""
    node = Vivaldi(Random(1), VivaldiSettings(gravity_s=0.0, adjustment_window=0, height_step=height_step))
    node.coordinate = Coordinate((0.0, 0.0, 0.0, 0.0), 0.010, 0.5)
    node.measured(Coordinate((0.1, 0.0, 0.0, 0.0), 0.030, 0.25), 0.200)
    assert node.coordinate.vector == pytest.approx((-0.010 * 0.1 / whole, 0, 0, 0))
    assert node.coordinate.height == pytest.approx(0.010 + 0.040 * 0.010 / whole)
    assert node.coordinate.error == pytest.approx(0.3 / 6 + 0.5 * 5 / 6)  # wrong by 30 %, gain 1/6


def test_the_error_is_relative_and_taken_before_the_move() -> None:
    node = Vivaldi(Random(1), VivaldiSettings(gravity_s=0.0, adjustment_window=0, error_gain=1.0))
    node.coordinate = Coordinate((0.0,) * DIMENSIONS, 0.0, 0.4)
    node.measured(Coordinate((0.05, 0.0, 0.0, 0.0), 0.0, 0.0), 0.100)
    assert node.coordinate.error == pytest.approx(0.5)


def test_the_median_of_three_keeps_one_slow_answer_out() -> None:
    filtered = Vivaldi(Random(1), VivaldiSettings(adjustment_window=0))
    plain = Vivaldi(Random(1), VivaldiSettings(adjustment_window=0, median_of=1))
    there = Coordinate((0.1, 0.0, 0.0, 0.0), 1e-5, 0.1)
    for node in (filtered, plain):
        for _ in range(200):
            node.measured(there, 0.100, "a")
        node.measured(there, 5.0, "a")
    assert filtered.coordinate.distance_s(there) == pytest.approx(0.100, rel=0.01)
    assert plain.coordinate.distance_s(there) > 0.12


def test_the_median_is_that_of_one_peer_and_so_many_peers_are_kept() -> None:
    node = Vivaldi(Random(1))
    for number in range(3 * PEERS_MAX):
        node.measured(ORIGIN, 0.010, str(number))
    assert len(node._samples) == PEERS_MAX
    assert all(len(samples) == 1 for samples in node._samples.values())


def test_the_adjustment_is_half_the_mean_of_what_remains() -> None:
    """Never moving, so that the remainder stays: 100 ms apart, 110 measured, window of 4, one and then all of it."""
    still = VivaldiSettings(move_gain=1e-12, gravity_s=0.0, median_of=1, adjustment_window=4)
    node = Vivaldi(Random(1), still)
    node.coordinate = Coordinate((0.0,) * DIMENSIONS, 0.0, 0.4)
    there = Coordinate((0.1, 0.0, 0.0, 0.0), 0.0, 0.4)
    node.measured(there, 0.110)
    first = node.coordinate.adjustment
    for _ in range(9):
        node.measured(there, 0.110)
    assert [first, node.coordinate.adjustment] == pytest.approx([0.010 / 8, 0.005], rel=0.01)
    assert node.coordinate.distance_s(replace(there, adjustment=0.005)) == pytest.approx(0.110, rel=0.01)
    assert node.coordinate.distance_s(replace(there, adjustment=-1.0)) == node.coordinate.raw_distance_s(there)


def test_gravity_pulls_by_the_square_of_the_distance() -> None:
    node = Vivaldi(Random(1), VivaldiSettings(gravity_s=10.0, adjustment_window=0, height_least_s=0.0))
    node.coordinate = Coordinate((1.0, 0.0, 0.0, 0.0), 0.0, 0.0)
    node.measured(Coordinate((0.5, 0.0, 0.0, 0.0), 0.0, 0.5), 0.5)
    assert node.coordinate.vector == pytest.approx((1.0 - 0.1**2, 0, 0, 0))


def samples_until_placed(node: Vivaldi, others: list[Vivaldi]) -> int:
    """Until the median estimate is within a tenth."""
    rng = Random(8)
    for count in range(1, 2000):
        number = rng.randrange(len(others))
        node.measured(others[number].coordinate, on_a_grid(30, number), str(number))
        wrong = sorted(
            abs(node.coordinate.distance_s(other.coordinate) / on_a_grid(30, at) - 1) for at, other in enumerate(others)
        )
        if median(wrong) < 0.1:
            return count
    raise AssertionError("it never found its place")


def test_a_remembered_coordinate_saves_most_of_the_samples() -> None:
    others = settled(25, on_a_grid)
    first = Vivaldi(Random(3))
    fresh = samples_until_placed(first, others)
    for _ in range(10):
        for number, other in enumerate(others):
            first.measured(other.coordinate, on_a_grid(30, number), str(number))
    again = samples_until_placed(Vivaldi(Random(4), remembered=first.coordinate), others)
    forgetful = samples_until_placed(Vivaldi(Random(3), IN_THE_TREE, remembered=first.coordinate), others)
    assert again < fresh / 2
    assert forgetful > fresh / 2


def test_a_remembered_coordinate_that_cannot_be_is_refused() -> None:
    node = Vivaldi(Random(1), remembered=replace(ORIGIN, height=nan))
    assert (node.coordinate, node.refusals) == (ORIGIN, {RefusedSample.COORDINATE: 1})


def test_without_heights_that_of_a_remembered_coordinate_is_forgotten() -> None:
    remembered = replace(ORIGIN, height=0.02)
    assert Vivaldi(Random(1), remembered=remembered).coordinate.height == 0.02
    flat = VivaldiSettings(heights=False)
    assert Vivaldi(Random(1), flat, remembered=remembered).coordinate.height == flat.height_least_s


def test_presets_are_named() -> None:
    assert PRESETS == {"default": DEFAULT, "seed": PAPER}
    assert (PAPER.dimensions, PAPER.median_of, PAPER.adjustment_window, PAPER.gravity_s) == (8, 1, 0, 0.0)


def test_a_newcomer_hardly_moves_those_who_have_settled() -> None:
    """A hundred samples, while its error is the largest there is, move them by less than 1 % of their mean distance."""
    nodes = settled(10, on_a_line)
    before = [node.coordinate for node in nodes]
    apart_s = sum(on_a_line(a, b) for a in range(10) for b in range(a)) / 45
    newcomer = Vivaldi(Random(99))
    assert newcomer.coordinate.error == ERROR_MAX
    for sample in range(100):
        number = sample % 10
        round_trip_s = on_a_line(number, 0) + 0.005
        nodes[number].measured(newcomer.coordinate, round_trip_s, "newcomer")
        newcomer.measured(nodes[number].coordinate, round_trip_s, str(number))
    moved = [dist(earlier.vector, node.coordinate.vector) for earlier, node in zip(before, nodes, strict=True)]
    assert sum(moved) / 10 < 0.01 * apart_s
    assert max(moved) < 0.03 * apart_s


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
        replace(ORIGIN, vector=()),
        replace(ORIGIN, adjustment=nan),
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
