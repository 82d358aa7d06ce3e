"""The busiest topics of this node by their first levels: which gateways publish to them, and which have readers.

Counted from the first question until `LEASE_S` after the last; before and after it costs nothing.  Of more than
`SAMPLED_MAX` pieces a second one of n is looked at, by uneven steps, and counts for those passed over.
"""

from __future__ import annotations

from typing import Final

LEVELS: Final = 2
"""First levels of a topic that are its prefix."""
PREFIXES_MAX: Final = 64
"""Prefixes that are counted; a new one takes the place of the one with the fewest messages."""
PUBLISHERS_MAX: Final = 64
"""Gateways that are counted of one prefix."""
SAMPLES_MAX: Final = 4
"""Topics of one prefix whose readers are looked up."""
TOPIC_BYTES_MAX: Final = 512
"""Longer topics are passed over."""
SAMPLED_MAX: Final = 200
ROUND_S: Final = 2.0
LEASE_S: Final = 30.0
FORGOTTEN: Final = 0.01
"""Messages a second below which a prefix is forgotten."""


class CountedFlow:
    """One prefix: what came in this round, and rates of the rounds before."""

    __slots__ = ("by_gateway", "came", "per_s", "rates", "topics")

    def __init__(self) -> None:
        self.came = 0
        #: Gateway -> messages of its clients in this round, ...
        self.by_gateway: dict[str, int] = {}
        self.per_s = 0.0
        #: ... and a second.
        self.rates: dict[str, float] = {}
        #: The last topics that were met.
        self.topics: list[bytes] = []

    def turn_over(self, round_s: float) -> None:
        """Half of a rate is that of the last round."""
        self.per_s = _mean(self.per_s, self.came / round_s)
        names = [*self.rates, *(name for name in self.by_gateway if name not in self.rates)]
        rates = {name: _mean(self.rates.get(name, 0.0), self.by_gateway.get(name, 0) / round_s) for name in names}
        kept = sorted((name for name, rate in rates.items() if rate >= FORGOTTEN), key=lambda name: -rates[name])
        self.rates = {name: rates[name] for name in kept[:PUBLISHERS_MAX]}
        self.came = 0
        self.by_gateway = {}


class TopicFlows:
    def __init__(self, now: float) -> None:
        self.flows: dict[bytes, CountedFlow] = {}
        self.asked_at = now
        self._turned_at = now
        self._stride = 1
        self._skip = 0
        self._weight = 1
        self._dice = 1
        self._seen = 0

    def saw(self, topic: bytes, gateway: str, messages: int) -> None:
        """HOT.  A piece of so many messages, of a client of this gateway, if it is of one."""
        self._seen += 1
        if self._skip:
            self._skip -= 1
            return
        self._count(topic, gateway, messages * self._weight)
        if self._stride > 1:
            self._dice = (self._dice * 1103515245 + 12345) & 0x7FFFFFFF
            self._skip = (self._dice >> 8) % (2 * self._stride - 1)
        self._weight = self._skip + 1

    def _count(self, topic: bytes, gateway: str, messages: int) -> None:
        if topic.startswith(b"$") or len(topic) > TOPIC_BYTES_MAX:
            return
        prefix = b"/".join(topic.split(b"/", LEVELS)[:LEVELS])
        flow = self.flows.get(prefix)
        if flow is None:
            self._make_room()
            flow = self.flows[prefix] = CountedFlow()
        flow.came += messages
        if gateway and (gateway in flow.by_gateway or len(flow.by_gateway) < PUBLISHERS_MAX):
            flow.by_gateway[gateway] = flow.by_gateway.get(gateway, 0) + messages
        if topic not in flow.topics:
            flow.topics = [topic, *flow.topics[: SAMPLES_MAX - 1]]

    def _make_room(self) -> None:
        if len(self.flows) >= PREFIXES_MAX:
            least = min(self.flows, key=lambda prefix: self.flows[prefix].per_s + self.flows[prefix].came)
            del self.flows[least]

    def turn_over(self, now: float) -> None:
        """A round is over."""
        round_s = max(now - self._turned_at, 0.001)
        self._turned_at = now
        self._stride = max(1, int(self._seen / (SAMPLED_MAX * round_s)))
        self._seen = self._skip = 0
        self._weight = 1
        for flow in self.flows.values():
            flow.turn_over(round_s)
        self.flows = {prefix: flow for prefix, flow in self.flows.items() if flow.per_s >= FORGOTTEN}


def _mean(before: float, now: float) -> float:
    return (before + now) / 2
