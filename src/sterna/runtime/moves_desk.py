"""Clients that move, for people and programs: who is where, what is on its way, and orders to move somebody."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any, Protocol

from sterna.broker.broker import Broker
from sterna.node.moving import Moving

CLIENTS_SHOWN = 1000
"""A network may have a million."""


class WorkingServer(Protocol):
    broker: Broker

    def after_work(self) -> None: ...


class MovesDesk:
    def __init__(self, moving: Moving, server: WorkingServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._moving = moving
        self._server = server
        self._clock = clock

    def clients(self) -> list[dict[str, Any]]:
        """Sessions of this node, then those that others are known to own; so many at most."""
        moving, broker = self._moving, self._server.broker
        found = [
            {
                "client": session.name(),
                "node": moving.node,
                "connected": session.connection is not None,
                "persistent": session.persistent,
                "subscriptions": len(session.subscriptions),
                "inflight": len(session.inflight),
                "queued": len(session.queue),
                "number": session.number,
            }
            for session in islice(broker.sessions.values(), CLIENTS_SHOWN)
            if not (session.is_remains or session.is_arriving)
        ]
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
