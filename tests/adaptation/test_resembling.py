"""Neighbours are found by round trips: the worker beside a gateway is as far from the others as the gateway is."""

from __future__ import annotations

from random import Random

import pytest

from sterna.adaptation.resembling import COMPARED_MAX, LEAST, resembling, to_measure
from sterna.overlay.coordinates import Coordinate

WORKERS = {f"w{x}{y}": Coordinate((0.1 * x, 0.1 * y), 0.001) for x in range(6) for y in range(6)}


def trips_from(place: Coordinate, names: list[str]) -> dict[str, float]:
    return {name: place.distance_s(WORKERS[name]) for name in names}


@pytest.mark.parametrize("seed", range(20))
def test_four_random_round_trips_are_enough_in_a_plane_without_noise(seed: int) -> None:
    rng = Random(seed)
    there = rng.choice(list(WORKERS))
    beside = Coordinate(tuple(at + rng.uniform(-0.01, 0.01) for at in WORKERS[there].vector), 0.001)
    measured = ["w00", "w50", "w05", *rng.sample([name for name in WORKERS if name != there], 2)]
    trips = trips_from(beside, measured)
    among = [name for name in WORKERS if name not in trips]
    best = there if there in among else min(trips, key=trips.__getitem__)
    assert best in (*resembling(trips, WORKERS, among, 1), *trips)


def test_too_few_round_trips_tell_nothing() -> None:
    here = WORKERS["w23"]
    few = trips_from(here, list(WORKERS)[: LEAST - 1])
    assert list(resembling(few, WORKERS, WORKERS, 6)) == []
    assert to_measure(few, WORKERS, "w01", 6) == ["w01"]
    assert to_measure({"unknown": 0.1}, WORKERS, "unknown", 6) == []


def test_half_of_them_are_new_and_the_nearest_is_measured_again() -> None:
    here = WORKERS["w23"]
    trips = trips_from(here, ["w22", "w00", "w55", "w05", "w23"])
    names = to_measure(trips, WORKERS, "w23", 6)
    assert len(set(names)) == len(names) == 6
    assert not set(names[:3]) & set(trips)
    assert names[3] == "w23"


def test_the_longest_of_many_round_trips_are_left_out() -> None:
    """One that is far and wrong does not matter beside those that are near."""
    here = WORKERS["w23"]
    trips = trips_from(here, list(WORKERS)[: COMPARED_MAX + 8])
    sound = list(resembling(trips, WORKERS, WORKERS, 3))
    farthest = max(trips, key=trips.__getitem__)
    assert list(resembling({**trips, farthest: 9.0}, WORKERS, WORKERS, 3)) == sound
