"""The busiest topics with the gateways of their publishers and readers, for those who place nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest

from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.deadlines import Deadlines
from sterna.broker.topic_flows import LEASE_S, ROUND_S, CountedFlow, TopicFlows

FLOWS_SHOWN = 32
READERS_SHOWN = 64
READERS_LOOKED_AT = 1000
"""Recipients of one topic that are asked for their gateway."""


@dataclass(slots=True)
class FlowSummary:
    topic: str
    """The first levels of the topics."""
    per_s: float
    publishers: dict[str, float] = field(default_factory=dict)
    """Gateway -> messages a second of its clients."""
    readers: list[str] = field(default_factory=list)
    """Gateways of clients here that get them."""


class FlowPages:
    def __init__(self, state: BrokerState, clock: BrokerClock, deadlines: Deadlines) -> None:
        self._state = state
        self._clock = clock
        self._deadlines = deadlines

    def ask(self) -> list[FlowSummary]:
        """The busiest first.  The first question begins the counting, and has no answer yet."""
        flows = self._state.counters.flows
        if flows is None:
            flows = self._state.counters.flows = TopicFlows(self._clock.now)
            self._deadlines.at(self._clock.now + ROUND_S, self._round)
        flows.asked_at = self._clock.now
        busiest = nlargest(FLOWS_SHOWN, flows.flows.items(), key=lambda item: item[1].per_s)
        return [self._summary(prefix, flow) for prefix, flow in busiest if flow.per_s]

    def _round(self) -> None:
        flows, now = self._state.counters.flows, self._clock.now
        if flows is None:
            return
        if now - flows.asked_at >= LEASE_S:
            self._state.counters.flows = None
            return
        flows.turn_over(now)
        self._deadlines.at(now + ROUND_S, self._round)

    def _summary(self, prefix: bytes, flow: CountedFlow) -> FlowSummary:
        publishers = {name: round(rate, 3) for name, rate in flow.rates.items()}
        return FlowSummary(prefix.decode("utf-8", "replace"), round(flow.per_s, 3), publishers, self._readers(flow))

    def _readers(self, flow: CountedFlow) -> list[str]:
        found: set[str] = set()
        for topic in flow.topics:
            route = self._state.routes.route(topic)
            sessions = [session for session, _ in route.deliveries[:READERS_LOOKED_AT]]
            for share in route.shares:
                sessions += [session for session, _ in list(share.members.values())[:READERS_LOOKED_AT]]
            found |= {one.connection.gateway for one in sessions if one.connection is not None}
        return sorted(found - {""})[:READERS_SHOWN]
