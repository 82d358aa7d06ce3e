"""Pictures for tests: round trips are given in milliseconds, and measured by every gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sterna.adaptation.picture import KnownGateway, KnownWorker, Measured, Picture, Weight, WorkerNodeState
from sterna.adaptation.reasons import Move, Resume, Start, Stop
from sterna.overlay.coordinates import Coordinate

PLACED = Coordinate(error=0.1)


def worker(name: str, state: WorkerNodeState = WorkerNodeState.SERVING, **more: object) -> KnownWorker:
    return replace(KnownWorker(name, PLACED, state=state, since=-1e6), **more)  # type: ignore[arg-type]


def off(name: str, **more: object) -> KnownWorker:
    return replace(worker(name, WorkerNodeState.OFF), **more)  # type: ignore[arg-type]


def gateway(name: str, node: str, ms: Mapping[str, float], weight: int = 1, **more: object) -> KnownGateway:
    measured = {other: Measured(distance / 1000, 0.0) for other, distance in ms.items()}
    whole = KnownGateway(name, PLACED, measured, node, Weight(weight, weight, float(weight)))
    return replace(whole, **more)  # type: ignore[arg-type]


def picture(workers: list[KnownWorker], gateways: list[KnownGateway], now: float = 1.0) -> Picture:
    """Gateways and nodes say the same of a node."""
    named = {one.name: one for one in sorted(workers, key=lambda one: one.name)}
    for name, one in named.items():
        serves = {each.name: each.weight for each in gateways if each.node == name}
        named[name] = replace(one, serves=serves)
    by_name = {one.name: one for one in sorted(gateways, key=lambda one: one.name)}
    return Picture(now, named, by_name, fresh_s=1e9)


def after(before: Picture, decisions: object, now: float) -> Picture:
    """The picture when all of it has been done, at once."""
    assert isinstance(decisions, tuple)
    nodes = {one.gateway: one.target for one in decisions if isinstance(one, Move)}
    states = {one.worker: WorkerNodeState.SERVING for one in decisions if isinstance(one, Start | Resume)}
    states |= {one.worker: WorkerNodeState.OFF for one in decisions if isinstance(one, Stop)}
    workers = [replace(one, state=states.get(one.name, one.state)) for one in before.workers.values()]
    gateways = [replace(one, node=nodes.get(one.name, one.node)) for one in before.gateways.values()]
    serving = [one.name for one in workers if one.is_serving]
    if serving:
        # A node that stopped has sent its gateways to their next best.
        gateways = [
            one
            if one.node in serving
            else replace(one, node=min(serving, key=lambda name: (one.measured[name].round_trip_s, name)))
            for one in gateways
        ]
    return replace(picture(workers, gateways, now), standing=before.standing, flows=before.flows)
