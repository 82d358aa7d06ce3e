"""EX-V2: whom a gateway must measure to find its neighbour.  Mixes of ten workers, five samples of each, by round.

Six mixes are the thesis'.  The seventh is ours: of the six closest, three are those of the gateway's coordinate and
three those of the nearest worker that has answered so far, by its coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from random import Random
from typing import Final, NamedTuple

import msgspec

from sterna.measure.papers.coordinates.world import Participant, Shape, World
from sterna.overlay.vivaldi_settings import VivaldiSettings

TRAINING_RUNS = 300
ROUNDS = 5
SAMPLES = 5

Least = dict[str, float]
"""The last round trip to each worker that was measured."""
Part = Callable[[World, Participant, Least, Random], list[Participant]]


class PeerMix(NamedTuple):
    """Parts are measured one after the other, so that the closest are those of the coordinate by then."""

    title: str
    parts: tuple[Part, ...]
    static: bool = False
    """Chosen once, in the first round."""


def _some(kind: str, count: int) -> Part:
    def choose(world: World, gateway: Participant, least: Least, rng: Random) -> list[Participant]:
        return rng.sample({"cloud": world.clouds, "edge": world.edges, "any": world.workers}[kind], count)

    return choose


def _closest(count: int) -> Part:
    def choose(world: World, gateway: Participant, least: Least, rng: Random) -> list[Participant]:
        here = gateway.vivaldi.coordinate
        return sorted(world.workers, key=lambda one: here.distance_s(one.vivaldi.coordinate))[:count]

    return choose


def _closest_to_the_nearest(count: int) -> Part:
    """Those around the nearest that has answered, which have not been asked yet."""

    def choose(world: World, gateway: Participant, least: Least, rng: Random) -> list[Participant]:
        nearest = min(world.workers, key=lambda one: least.get(one.name, 1e9)).vivaldi.coordinate
        unknown = [one for one in world.workers if one.name not in least] or world.workers
        return sorted(unknown, key=lambda one: nearest.distance_s(one.vivaldi.coordinate))[:count]

    return choose


MIXES: Final = {
    "static": PeerMix("5 static cloud, 5 static edge", (_some("cloud", 5), _some("edge", 5)), static=True),
    "dynamic": PeerMix("5 dynamic cloud, 5 dynamic edge", (_some("cloud", 5), _some("edge", 5))),
    "cloud+closest": PeerMix("5 dynamic cloud, 5 closest", (_some("cloud", 5), _closest(5))),
    "edge+closest": PeerMix("5 dynamic edge, 5 closest", (_some("edge", 5), _closest(5))),
    "5+5": PeerMix("5 dynamic, 5 closest", (_some("any", 5), _closest(5))),
    "4+6": PeerMix("4 dynamic, 6 closest", (_some("any", 4), _closest(6))),
    "4+3+3": PeerMix(
        "4 dynamic, 3 closest, 3 of the nearest", (_some("any", 4), _closest(3), _closest_to_the_nearest(3))
    ),
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


def trained(seed: int, settings: VivaldiSettings, shape: Shape) -> World:
    """Workers that have measured each other for a while."""
    world = World(seed, settings, shape)
    for _ in range(TRAINING_RUNS):
        for worker in world.workers:
            world.measure(worker, world.another_worker(worker))
    return world


def neighbours(world: World, mix: PeerMix, seed: int) -> list[RoundResult]:
    """Gateways join, and look for their neighbour round by round."""
    rng = Random(f"{seed}/{mix.title}")
    chosen: dict[tuple[str, int], list[Participant]] = {}
    least: dict[str, Least] = {gateway.name: {} for gateway in world.gateways}
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
        results.append(_judged(world, least))
    return results


def _judged(world: World, least: dict[str, Least]) -> RoundResult:
    squares, right, region, chosen = 0.0, 0, 0, 0
    for gateway in world.honest:
        here = gateway.vivaldi.coordinate
        estimates = {one.name: here.distance_s(one.vivaldi.coordinate) for one in world.workers}
        found = min(estimates, key=estimates.__getitem__)
        true = min(world.workers, key=lambda one: world.true_s(gateway, one))
        squares += (estimates[found] - world.true_s(gateway, true)) ** 2
        right += found == true.name
        region += found.split("/")[0] == gateway.at.region
        chosen += min(least[gateway.name], key=least[gateway.name].__getitem__) == true.name
    count = len(world.honest)
    return RoundResult(
        rmse_ms=1000 * sqrt(squares / count), neighbour=right / count, region=region / count, chosen=chosen / count
    )
