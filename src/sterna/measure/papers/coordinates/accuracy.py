"""EX-V1: how the error of estimates falls with the number of measurements."""

from __future__ import annotations

from math import sqrt

import msgspec

from sterna.measure.papers.coordinates.world import CoordinateWorld, WorldShape
from sterna.overlay.vivaldi_settings import VivaldiSettings

RUNS = 300
EVERY = 10
SHOWN = (50, 100, 200, 300)


class AccuracyRun(msgspec.Struct, frozen=True, kw_only=True):
    """One seed: the root mean square error over all pairs of workers, in milliseconds, by the runs of each."""

    rmse_ms: dict[int, float]
    pairs: dict[int, list[tuple[float, float]]] = {}
    """True and estimated round trips in milliseconds, at the counts that are drawn."""


def accuracy(seed: int, settings: VivaldiSettings, shape: WorldShape, *, keep_pairs: bool = False) -> AccuracyRun:
    """Each worker measures a random other in each run; where some lie, gateways measure too."""
    world = CoordinateWorld(seed, settings, shape)
    pairs = [(one, other) for place, one in enumerate(world.workers) for other in world.workers[:place]]
    truth = [world.true_s(one, other) for one, other in pairs]
    found: dict[int, float] = {}
    kept: dict[int, list[tuple[float, float]]] = {}
    for count in range(1, RUNS + 1):
        for worker in world.workers:
            world.measure(worker, world.another_worker(worker))
        if shape.liars:
            for gateway in world.gateways:
                world.measure(gateway, world.rng.choice(world.workers))
        if count % EVERY == 0:
            estimates = [one.vivaldi.coordinate.distance_s(other.vivaldi.coordinate) for one, other in pairs]
            wrong = zip(estimates, truth, strict=True)
            found[count] = 1000 * sqrt(sum((guess - real) ** 2 for guess, real in wrong) / len(pairs))
            if keep_pairs and count in SHOWN:
                kept[count] = [(1000 * real, 1000 * guess) for guess, real in zip(estimates, truth, strict=True)]
    return AccuracyRun(rmse_ms=found, pairs=kept)
