"""Moves of clients, for the admin port: where each client is, moves under way, and orders to move or evacuate.

A lone node is a network of one: it has all clients, and no other node to move them to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any, Protocol

from sterna.broker.broker import Broker
from sterna.broker.inspection import client_row, own_sessions
from sterna.migration.drain_proof import DrainProof, prove_drain
from sterna.migration.gateway_moves import GatewayMove, GatewayPage, move_gateway, summaries
from sterna.migration.move_counters import MoveCounters
from sterna.migration.move_manager import MoveManager
from sterna.vocabulary.errors import MigrationError

ALONE = "this node is alone, its configuration has no [network] table"
CLIENTS_SHOWN = 1000
"""A network may have a million."""


class MoveApi(Protocol):
    """Questions and orders of the admin port about clients."""

    def clients(self) -> list[dict[str, Any]]:
        """So many at most."""

    def migrations(self) -> dict[str, Any]: ...

    def move(self, client: str, to: str) -> dict[str, Any]:
        """Begin; MigrationError if it cannot be."""

    def evacuate(self, node: str, rate: float | None, *, stop: bool) -> dict[str, Any]: ...

    def gateways(self, after: str, *, flows: bool = False) -> GatewayPage: ...

    def move_gateway(self, gateway: str, to: str) -> GatewayMove: ...

    async def prove_drain(self, readers_behind: Callable[[], int]) -> DrainProof:
        """`readers_behind`: messages that named readers of the feed have not committed."""


class WorkingServer(Protocol):
    broker: Broker

    def after_work(self) -> None: ...


def own_clients(broker: Broker, node: str) -> list[dict[str, Any]]:
    """Those whose sessions are at this node."""
    return [client_row(session, node) for session in islice(own_sessions(broker), CLIENTS_SHOWN)]


class LoneMoveApi:
    """That of a node without a network."""

    def __init__(self, broker: Broker, node: str) -> None:
        self._broker = broker
        self._node = node

    def clients(self) -> list[dict[str, Any]]:
        return own_clients(self._broker, self._node)

    def migrations(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"leaving": [], "arriving": [], "moved": [], "not_moved": [], "evacuation": None}
        return {"node": self._node, **nothing, "counters": asdict(MoveCounters())}

    def move(self, client: str, to: str) -> dict[str, Any]:
        raise MigrationError(f"there is no node {to} to move {client} to: {ALONE}")

    def evacuate(self, node: str, rate: float | None, *, stop: bool) -> dict[str, Any]:
        raise MigrationError(f"there is no node to move clients to: {ALONE}")

    def gateways(self, after: str, *, flows: bool = False) -> GatewayPage:
        return summaries(self._broker, self._node, after, flows=flows)

    def move_gateway(self, gateway: str, to: str) -> GatewayMove:
        raise MigrationError(f"there is no node {to} to move clients of {gateway} to: {ALONE}")

    async def prove_drain(self, readers_behind: Callable[[], int]) -> DrainProof:
        raise MigrationError(f"nobody else has what this node has: {ALONE}")


class NetworkMoveApi:
    def __init__(self, moving: MoveManager, server: WorkingServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._moving = moving
        self._server = server
        self._clock = clock

    def clients(self) -> list[dict[str, Any]]:
        """Sessions of this node, then those that others are known to own; so many at most."""
        moving, broker = self._moving, self._server.broker
        found = own_clients(broker, moving.node)
        elsewhere = (
            {"client": client.decode(), "node": owner, "number": number, "persistent": True}
            for client, (owner, number) in broker.state.owners.items()
            if owner not in ("", moving.node)
        )
        return [*found, *islice(elsewhere, CLIENTS_SHOWN - len(found))]

    def migrations(self) -> dict[str, Any]:
        moving, now = self._moving, self._server.broker.now
        evacuation = moving.plans.evacuation
        return {
            "node": moving.node,
            "leaving": [
                {
                    "client": client.decode(),
                    "to": one.target,
                    "state": one.state,
                    "by_plan": one.by_plan,
                    "seconds": round(now - one.started_at, 3),
                }
                for client, one in moving.departures.items()
            ],
            "arriving": [
                {
                    "client": client.decode(),
                    "from": one.source,
                    "state": one.state,
                    "by_plan": one.by_plan,
                    "seconds": round(now - one.started_at, 3),
                }
                for client, one in moving.arrivals.items()
            ],
            "moved": [
                {
                    "client": one.client.decode(),
                    "to": one.target,
                    "took_s": round(one.took_s, 3),
                    "seconds": round(now - one.at, 3),
                }
                for one in moving.moved
            ],
            "not_moved": [
                {
                    "client": one.client.decode(),
                    "to": one.target,
                    "reason": one.reason,
                    "seconds": round(now - one.at, 3),
                }
                for one in moving.plans.not_moved
            ],
            "evacuation": None
            if evacuation is None
            else {
                "total": evacuation.total,
                "left": len(self._server.broker.sessions),
                "moved": evacuation.moved,
                "sent_away": evacuation.sent_away,
                "failed": evacuation.failed,
                "staying": len(evacuation.staying),
                "rate": evacuation.rate,
            },
            "counters": asdict(moving.counters),
        }

    def move(self, client: str, to: str) -> dict[str, Any]:
        """Begin; MigrationError if it cannot be."""
        self._server.broker.at(self._clock())
        node = self._moving.plans.move(client.encode(), to)
        self._server.after_work()
        return {"client": client, "to": to, "begun_at": node}

    def evacuate(self, node: str, rate: float | None, *, stop: bool) -> dict[str, Any]:
        self._server.broker.at(self._clock())
        if node != self._moving.node:
            self._moving.plans.evacuate_elsewhere(node, rate, stops=stop)
            self._server.after_work()
            return {"told": node}
        if stop:
            self._moving.plans.stay()
        else:
            self._moving.plans.evacuate(rate or self._moving.settings.rate)
        self._server.after_work()
        return self.migrations()

    def gateways(self, after: str, *, flows: bool = False) -> GatewayPage:
        return summaries(self._server.broker, self._moving.node, after, flows=flows)

    def move_gateway(self, gateway: str, to: str) -> GatewayMove:
        self._server.broker.at(self._clock())
        outcome = move_gateway(self._moving, gateway, to)
        self._server.after_work()
        return outcome

    async def prove_drain(self, readers_behind: Callable[[], int]) -> DrainProof:
        proved: asyncio.Future[DrainProof] = asyncio.get_running_loop().create_future()

        def told(proof: DrainProof) -> None:
            if not proved.done():
                proved.set_result(proof)

        self._work(lambda: prove_drain(self._moving, readers_behind, told))
        return await proved

    def _work(self, act: Callable[[], None]) -> None:
        self._server.broker.at(self._clock())
        act()
        self._server.after_work()
