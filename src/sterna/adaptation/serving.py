"""A worker's account of whom its node serves: rates out of the node's totals, and the busiest topics, for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sterna.adaptation.words import FLOW_GATEWAYS_MAX, FLOWS_MAX, Served, ServedFlow

SMOOTHED_S = 10.0
"""A rate is that of about so long: weights that change with each look would move gateways to and fro."""
TOPIC_SHOWN = 200


class ServedTotals(NamedTuple):
    """A gateway, as the node's page has it."""

    gateway: str
    clients: int
    subscriptions: int
    deliveries: int
    """Since each of its clients connected: a client that leaves takes its own away."""


class ServedTopic(NamedTuple):
    topic: str
    publishers: Mapping[str, float]
    readers: Sequence[str]


class _Total(NamedTuple):
    value: int
    per_s: float


class ServingRates:
    def __init__(self) -> None:
        self._totals: dict[str, _Total] = {}
        self._bytes: _Total | None = None
        self._looked_at: float | None = None

    def look(self, gateways: Sequence[ServedTotals], node_bytes: int, now: float) -> tuple[tuple[Served, ...], float]:
        """Gateways with their deliveries per second, and the bytes per second of the node."""
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        self._totals = {one.gateway: _next(self._totals.get(one.gateway), one.deliveries, passed_s) for one in gateways}
        self._bytes = _next(self._bytes, node_bytes, passed_s)
        served = tuple(
            Served(one.gateway, one.clients, one.subscriptions, self._totals[one.gateway].per_s) for one in gateways
        )
        return served, self._bytes.per_s


def _next(before: _Total | None, value: int, passed_s: float) -> _Total:
    if before is None or passed_s <= 0:
        return _Total(value, before.per_s if before is not None else 0.0)
    share = min(passed_s / SMOOTHED_S, 1.0)
    lately = max(value - before.value, 0) / passed_s
    return _Total(value, round(before.per_s + share * (lately - before.per_s), 3))


def served_flows(topics: Sequence[ServedTopic], served: Sequence[Served]) -> tuple[ServedFlow, ...]:
    """Gateways by their places in the report, or long names would be said again with each topic."""
    places = {one.gateway: place for place, one in enumerate(served)}
    found = []
    for one in topics[:FLOWS_MAX]:
        publishers = tuple(
            (places[name], max(1, round(60 * rate))) for name, rate in one.publishers.items() if name in places
        )
        readers = tuple(places[name] for name in one.readers if name in places)
        if publishers or readers:
            found.append(
                ServedFlow(one.topic[:TOPIC_SHOWN], publishers[:FLOW_GATEWAYS_MAX], readers[:FLOW_GATEWAYS_MAX])
            )
    return tuple(found)
