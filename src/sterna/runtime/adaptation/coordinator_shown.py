"""The word of a coordinator to people: its state, said on a control topic for the dashboards of nodes.

It is said every `EVERY_S`, less often where the pressure takes long to find: at most a fiftieth of the time goes there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sterna.adaptation.shown import (
    DECISIONS_SHOWN,
    WORKERS_SHOWN,
    ShownCoordinator,
    ShownDecision,
    ShownWorker,
    to_word,
)
from sterna.adaptation.topics import SHOWN, control_topic
from sterna.runtime.adaptation.coordinator_pages import pressure, status

if TYPE_CHECKING:
    from sterna.runtime.adaptation.coordinator_server import CoordinatorServer

EVERY_S = 1.0
SHARE = 50
TEXT_MAX = 500


class SaysForPeople:
    def __init__(self, server: CoordinatorServer, network: str) -> None:
        self._server = server
        self._topic = control_topic(network, SHOWN, server.core.leadership.name)
        self._next = 0.0

    def tick(self, now: float) -> None:
        if now < self._next:
            return
        began = time.monotonic()
        word = to_word(shown(status(self._server), pressure(self._server)))
        self._next = now + max(EVERY_S, SHARE * (time.monotonic() - began))
        self._server.line.say(self._topic, word)


def shown(told: dict[str, Any], pressed: dict[str, Any]) -> ShownCoordinator:
    """Of what the coordinator's pages say; workers that have a node or feel pressure first."""
    values: dict[str, float | None] = {**pressed["workers"], **pressed["nodes"]}

    def rank(row: dict[str, Any]) -> tuple[bool, float, str]:
        return row["state"] == "off", -(values.get(row["worker"]) or 0.0), row["worker"]

    workers = [_worker(row, values) for row in sorted(told["workers"], key=rank)[:WORKERS_SHOWN]]
    same = ("coordinator", "region", "leads", "leader", "term", "acts", "dry_run", "frozen", "gateways", "unserved")
    return ShownCoordinator(
        **{name: told[name] for name in same},
        model=pressed["model"],
        up=pressed["up"],
        down=pressed["down"],
        orders=len(told["orders"]),
        workers=workers,
        lost=told["lost"][:WORKERS_SHOWN],
        decisions=[
            ShownDecision(one["seconds_ago"], one["decision"][:TEXT_MAX], one["not_ordered"][:TEXT_MAX])
            for one in told["decisions"][:DECISIONS_SHOWN]
        ],
    )


def _worker(row: dict[str, Any], values: dict[str, float | None]) -> ShownWorker:
    name = row["worker"]
    same = ("worker", "site", "state", "fixed", "gateways", "others", "cpu")
    return ShownWorker(
        **{key: row[key] for key in same},
        pressure=values.get(name),
        is_needed=name in values and values[name] is None,
        trouble=row["trouble"][:TEXT_MAX],
    )
