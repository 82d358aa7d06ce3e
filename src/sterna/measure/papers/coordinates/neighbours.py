"""EX-V2: whom a gateway must measure to find its neighbour.  Mixes of ten workers, five samples of each, by round.

Six mixes are the thesis'.  The seventh is what a coordinator answers (`adaptation/resembling.py`): of the six, three
are new to the gateway, and all are as far from the measured workers as the gateway is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt
from random import Random
from typing import Final, NamedTuple

import msgspec

from sterna.adaptation.resembling import to_measure
from sterna.measure.papers.coordinates.world import CoordinateWorld, Participant, WorldShape
from sterna.overlay.vivaldi_settings import VivaldiSettings

TRAINING_RUNS = 300
ROUNDS = 5
SAMPLES = 5

Least = dict[str, float]
"""The last round trip to each worker that was measured."""
Part = Callable[[CoordinateWorld, Participant, Least, Random], list[Participant]]


class PeerMix(NamedTuple):
    """Parts are measured one after the other, so that the closest are those of the coordinate by then."""

    title: str
    parts: tuple[Part, ...]
    static: bool = False
    """Chosen once, in the first round."""


def _some(kind: str, count: int) -> Part:
    def choose(world: CoordinateWorld, gateway: Participant, least: Least, rng: Random) -> list[Participant]:
        return rng.sample({"cloud": world.clouds, "edge": world.edges, "any": world.workers}[kind], count)

    return choose


def _closest(count: int) -> Part:
    def choose(world: CoordinateWorld, gateway: Participant, least: Least, rng: Random) -> list[Participant]:
        here = gateway.vivaldi.coordinate
        return sorted(world.workers, key=lambda one: here.distance_s(one.vivaldi.coordinate))[:count]

    return choose


def _as_shipped(count: int) -> Part:
    """Those that a coordinator names to a gateway with these round trips."""

    def choose(world: CoordinateWorld, gateway: Participant, least: Least, rng: Random) -> list[Participant]:
        named = {one.name: one for one in world.workers}
        places = {name: one.vivaldi.coordinate for name, one in named.items()}
        names = to_measure(least, places, min(least, key=least.__getitem__), count)
        return [named[name] for name in names]

    return choose


MIXES: Final = {
    "static": PeerMix("5 static cloud, 5 static edge", (_some("cloud", 5), _some("edge", 5)), static=True),
    "dynamic": PeerMix("5 dynamic cloud, 5 dynamic edge", (_some("cloud", 5), _some("edge", 5))),
    "cloud+closest": PeerMix("5 dynamic cloud, 5 closest", (_some("cloud", 5), _closest(5))),
    "edge+closest": PeerMix("5 dynamic edge, 5 closest", (_some("edge", 5), _closest(5))),
    "5+5": PeerMix("5 dynamic, 5 closest", (_some("any", 5), _closest(5))),
    "4+6": PeerMix("4 dynamic, 6 closest", (_some("any", 4), _closest(6))),
    "shipped": PeerMix("4 dynamic, 6 by round trips", (_some("any", 4), _as_shipped(6))),
}


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """After one round, over honest gateways."""

    rmse_ms: float
    """Between the estimated distance to the worker thought nearest and the true one to the one that is."""
    neighbour: float
    """Share of gateways to which the right worker is the nearest by the coordinates alone, as in the thesis."""
    region: float
    chosen: float
    """Share whose nearest worker among those that answered is the right one: what our coordinator goes by."""


def trained(seed: int, settings: VivaldiSettings, shape: WorldShape) -> CoordinateWorld:
    """Workers that have measured each other for a while."""
    world = CoordinateWorld(seed, settings, shape)
    for _ in range(TRAINING_RUNS):
        for worker in world.workers:
            world.measure(worker, world.another_worker(worker))
    return world


def neighbours(world: CoordinateWorld, mix: PeerMix, seed: int) -> list[RoundResult]:
    """Gateways join, and look for their neighbour round by round."""
    rng = Random(f"{seed}/{mix.title}")
    chosen: dict[tuple[str, int], list[Participant]] = {}
    least: dict[str, Least] = {gateway.name: {} for gateway in world.gateways}
    nearest = {one.name: min(world.workers, key=partial(world.true_s, one)) for one in world.honest}
    results = []
    for _ in range(ROUNDS):
        for gateway in world.gateways:
            known = least[gateway.name]
            for place in enumerate(mix.parts):
                key = (gateway.name, place[0])
                if not mix.static or key not in chosen:
                    chosen[key] = place[1](world, gateway, known, rng)
                for peer in chosen[key]:
                    known[peer.name] = world.measure(gateway, peer, SAMPLES)
        results.append(_judged(world, least, nearest))
    return results


def _judged(world: CoordinateWorld, least: dict[str, Least], nearest: Mapping[str, Participant]) -> RoundResult:
    squares, right, region, chosen = 0.0, 0, 0, 0
    for gateway in world.honest:
        here = gateway.vivaldi.coordinate
        estimates = {one.name: here.distance_s(one.vivaldi.coordinate) for one in world.workers}
        found = min(estimates, key=estimates.__getitem__)
        true = nearest[gateway.name]
        squares += (estimates[found] - world.true_s(gateway, true)) ** 2
        right += found == true.name
        region += found.split("/")[0] == gateway.at.region
        chosen += min(least[gateway.name], key=least[gateway.name].__getitem__) == true.name
    count = len(world.honest)
    return RoundResult(
        rmse_ms=1000 * sqrt(squares / count), neighbour=right / count, region=region / count, chosen=chosen / count
    )
