"""QoS 0 at saturation: publishers send pre-built blocks as long as their lane has room.

The loop is closed: a lane never has more than `window` messages on their way, so no broker is pushed into dropping, and
what is measured is the cost of delivering.  If something is lost all the same, the count at the end shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, cycle

from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClient, LoadClients
from sterna.measure.load.framing import FixedStream, SequenceSample
from sterna.measure.load.shapes import Lane, Saturation

SAMPLE_EVERY = 32
"""One read in so many is searched for gaps in the sequence."""
TURN_S_MAX = 0.005
DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
TOPIC_OFFSET = 4
"""Where the topic begins in a packet."""


class _Traffic:
    """One lane at work."""

    def __init__(self, clients: LoadClients, number: int, lane: Lane, load: Saturation) -> None:
        self.sent = 0
        self.delivered = 0
        self._fan = lane.fan
        self._load = load
        topic = lane.publishers[0][0]
        messages = max(load.block, len(lane.publishers[0]))
        for index, filters in enumerate(lane.subscribers):
            client = clients.connect(f"sub-{number}-{index}")
            client.subscribe(filters, 0)
            sample = SequenceSample(packets.payload_offset(topic), messages, lane.step)
            _SaturatedSubscriber(self, clients, client, FixedStream(packets.publish_bytes(topic)), sample)
        publishers = []
        for index, topics in enumerate(lane.publishers):
            client = clients.connect(f"pub-{number}-{index}")
            clients.watch_silent(client)
            publishers.append((client, stock(index, topics, messages, load.block, lane.numbers)))
        self._publishers = len(publishers)
        self._turns = cycle(publishers)

    def fill(self) -> None:
        """Send blocks, publisher after publisher, while the lane has room."""
        for _ in range(self._publishers):
            if self.sent - self.delivered // self._fan + self._load.block > self._load.window:
                return
            client, stock = next(self._turns)
            if not client.blocked:
                client.send(next(stock))
                self.sent += self._load.block

    def expected(self) -> int:
        return self.sent * self._fan


class _SaturatedSubscriber:
    def __init__(
        self, traffic: _Traffic, clients: LoadClients, client: LoadClient, stream: FixedStream, sample: SequenceSample
    ) -> None:
        self._traffic = traffic
        self._clients = clients
        self._client = client
        self._stream = stream
        self._sample = sample
        self._reads = 0
        clients.watch(client, self.read)

    def read(self) -> None:
        end = self._client.read(self._clients.view)
        stream = self._stream
        before = stream.messages
        places = stream.take(self._clients.buffer, end)
        self._traffic.delivered += stream.messages - before
        self._reads += 1
        if self._reads % SAMPLE_EVERY == 0:
            self._sample.check(self._clients.buffer, places)


class SaturatedLoad:
    """All lanes of the workload."""

    def __init__(self, clients: LoadClients, load: Saturation) -> None:
        self._clients = clients
        self._lanes = [_Traffic(clients, number, lane, load) for number, lane in enumerate(load.lanes)]

    @property
    def published(self) -> int:
        return sum(lane.sent for lane in self._lanes)

    @property
    def delivered(self) -> int:
        return sum(lane.delivered for lane in self._lanes)

    @property
    def owed(self) -> int:
        """Deliveries that published messages still wait for."""
        return sum(lane.expected() - lane.delivered for lane in self._lanes)

    def run(self, until: float) -> None:
        while time.perf_counter() < until:
            for lane in self._lanes:
                lane.fill()
            self._clients.turn(TURN_S_MAX)

    def drain(self, until: float) -> None:
        while self.owed and time.perf_counter() < until:
            self._clients.turn(TURN_S_MAX)


def stock(
    publisher: int, topics: tuple[str, ...], messages: int, block: int, numbers: int
) -> Iterator[bytes | bytearray]:
    """A publisher's blocks, over and over; with another number in place of `*` each time around."""
    cut = blocks(publisher, topics, messages, block)
    places = {tuple(place for place, letter in enumerate(topic) if letter == "*") for topic in topics}
    assert len(places) == 1, "the topics of a publisher are open at the same place"
    (open_at,) = places
    if not open_at:
        return cycle(cut)
    return _renewed([bytearray(one) for one in cut], packets.publish_bytes(topics[0]), open_at, numbers)


def _renewed(cut: list[bytearray], size: int, open_at: tuple[int, ...], numbers: int) -> Iterator[bytearray]:
    """One assignment per digit for all packets of a block: as cheap for the generator as blocks that stay the same."""
    for number in cycle(range(numbers)) if numbers else count():
        rest = number
        for one in cut:
            rest = number
            for place in open_at:
                rest, digit = divmod(rest, len(DIGITS))
                one[TOPIC_OFFSET + place :: size] = DIGITS[digit : digit + 1] * (len(one) // size)
            yield one
        assert not rest, "there are no numbers left"


def blocks(publisher: int, topics: tuple[str, ...], messages: int, block: int) -> list[bytes]:
    """A publisher's whole cycle of `messages` numbered messages, cut into writes of `block`."""
    assert messages % block == 0, "the cycle must be a whole number of blocks"
    cycle_ = [
        packets.publish(topics[number % len(topics)], packets.payload(publisher, number)) for number in range(messages)
    ]
    return [b"".join(cycle_[start : start + block]) for start in range(0, messages, block)]
