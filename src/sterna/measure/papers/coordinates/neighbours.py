"""EX-V2: whom a gateway must measure to find its neighbour.  Six mixes of ten workers, five samples of each, by round."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from random import Random
from typing import Final, NamedTuple

import msgspec

from sterna.measure.papers.coordinates.world import Participant, World
from sterna.overlay.vivaldi_settings import VivaldiSettings
from sterna.simulation.geography import Wan

TRAINING_RUNS = 300
ROUNDS = 10
SAMPLES = 5

Part = Callable[[World, Participant, Random], list[Participant]]


class PeerMix(NamedTuple):
    """Parts are measured one after the other, so that the closest are those of the coordinate by then."""

    title: str
    parts: tuple[Part, ...]
    static: bool = False
    """Chosen once, in the first round."""


def _some(kind: str, count: int) -> Part:
    def choose(world: World, gateway: Participant, rng: Random) -> list[Participant]:
        return rng.sample({"cloud": world.clouds, "edge": world.edges, "any": world.workers}[kind], count)

    return choose


def _closest(count: int) -> Part:
    def choose(world: World, gateway: Participant, rng: Random) -> list[Participant]:
        here = gateway.vivaldi.coordinate
        return sorted(world.workers, key=lambda one: here.distance_s(one.vivaldi.coordinate))[:count]

    return choose


MIXES: Final = {
    "static": PeerMix("5 static cloud, 5 static edge", (_some("cloud", 5), _some("edge", 5)), static=True),
    "dynamic": PeerMix("5 dynamic cloud, 5 dynamic edge", (_some("cloud", 5), _some("edge", 5))),
    "cloud+closest": PeerMix("5 dynamic cloud, 5 closest", (_some("cloud", 5), _closest(5))),
    "edge+closest": PeerMix("5 dynamic edge, 5 closest", (_some("edge", 5), _closest(5))),
    "5+5": PeerMix("5 dynamic, 5 closest", (_some("any", 5), _closest(5))),
    "4+6": PeerMix("4 dynamic, 6 closest", (_some("any", 4), _closest(6))),
}


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """After one round, over honest gateways."""

    rmse_ms: float
    """Between the estimated distance to the worker thought nearest and the true one to the one that is."""
    neighbour: float
    """Share of gateways that think the right worker the nearest."""
    region: float
    measured: float
    """Share that would choose the right one by what they measured, and by estimates where they did not."""


def trained(seed: int, settings: VivaldiSettings, wan: Wan = "one-way", liars: float = 0.0) -> World:
    """Workers that have measured each other for a while."""
    world = World(seed, settings, wan, liars)
    for _ in range(TRAINING_RUNS):
        for worker in world.workers:
            while (other := world.rng.choice(world.workers)) is worker:
                pass
            world.measure(worker, other)
    return world


def neighbours(world: World, mix: PeerMix, seed: int, *, mutual: bool = False) -> list[RoundResult]:
    """Gateways join, and look for their neighbour round by round."""
    rng = Random(f"{seed}/{mix.title}")
    chosen: dict[tuple[str, int], list[Participant]] = {}
    least: dict[str, dict[str, float]] = {gateway.name: {} for gateway in world.gateways}
    results = []
    for _ in range(ROUNDS):
        for gateway in world.gateways:
            for number, part in enumerate(mix.parts):
                if mix.static and (gateway.name, number) in chosen:
                    peers = chosen[gateway.name, number]
                else:
                    peers = chosen[gateway.name, number] = part(world, gateway, rng)
                for peer in peers:
                    _sample(world, gateway, peer, least[gateway.name], mutual=mutual)
        results.append(_judged(world, least))
    return results


def _sample(world: World, gateway: Participant, peer: Participant, least: dict[str, float], *, mutual: bool) -> None:
    trips = []
    for _ in range(SAMPLES):
        trips.append(world.geography.round_trip_s(gateway.at, peer.at, world.rng))
        gateway.vivaldi.measured(peer.told, trips[-1], peer.name)
        if mutual:
            peer.vivaldi.measured(gateway.told, trips[-1], gateway.name)
    least[peer.name] = min(trips)


def _judged(world: World, least: dict[str, dict[str, float]]) -> RoundResult:
    squares, right, region, chosen = 0.0, 0, 0, 0
    for gateway in world.honest:
        here = gateway.vivaldi.coordinate
        estimates = {one.name: here.distance_s(one.vivaldi.coordinate) for one in world.workers}
        found = min(estimates, key=estimates.__getitem__)
        true = min(world.workers, key=lambda one: world.true_s(gateway, one))
        known = {**estimates, **least[gateway.name]}
        squares += (estimates[found] - world.true_s(gateway, true)) ** 2
        right += found == true.name
        region += found.split("/")[0] == gateway.at.region
        chosen += min(known, key=known.__getitem__) == true.name
    count = len(world.honest)
    return RoundResult(
        rmse_ms=1000 * sqrt(squares / count), neighbour=right / count, region=region / count, measured=chosen / count
    )
