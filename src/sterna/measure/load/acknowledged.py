"""QoS 1 and 2 between pairs of one publisher and one subscriber.

A publisher keeps `window` messages unanswered; a subscriber answers everything it has read in one write.  Answers to a
publisher must come in order (MQTT-4.6.0), so they are compared with a pre-built cycle; the sequence numbers of every
delivered message are checked the same way, a column of bytes at a time.
"""

from __future__ import annotations

import time

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets
from sterna.measure.load.connections import READ_BYTES_MAX, LoadClient, LoadClients
from sterna.measure.load.framing import PacketRun, answers, runs
from sterna.measure.load.packets import ACKNOWLEDGEMENT_BYTES, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from sterna.measure.load.shapes import Acknowledged

CYCLE = 1000
"""Packet ids 1 to CYCLE are used in turn; far more than a window, so an id is free again long before its next use."""
MOST_AT_ONCE = READ_BYTES_MAX // ACKNOWLEDGEMENT_BYTES
"""Packets that one read can hold at most, so slices of the pre-built cycles never need to wrap."""
TURN_S_MAX = 0.005


class _PacketReader:
    """Reads whole packets of known sizes; keeps an incomplete one for the next read."""

    def __init__(self, clients: LoadClients, client: LoadClient, sizes: dict[int, int]) -> None:
        self._clients = clients
        self.client = client
        self._sizes = sizes
        self._tail = b""

    def read(self) -> list[PacketRun]:
        kept = len(self._tail)
        buffer = self._clients.buffer
        end = kept + self.client.read(self._clients.view[kept:])
        buffer[:kept] = self._tail
        found = runs(buffer, end, self._sizes)
        self._tail = bytes(buffer[found[-1].end if found else 0 : end])
        return found


class _AcknowledgedPublisher:
    """Sends, and on every answer sends on."""

    def __init__(self, clients: LoadClients, client: LoadClient, topic: str, load: Acknowledged) -> None:
        headers = (PUBACK,) if load.qos == 1 else (PUBREC, PUBCOMP)
        self._reader = _PacketReader(clients, client, dict.fromkeys(headers, ACKNOWLEDGEMENT_BYTES))
        self._answered = dict.fromkeys(headers, 0)
        self._last = headers[-1]
        self._buffer = clients.buffer
        self._load = load
        self._size = packets.publish_bytes(topic, load.qos)
        ids = range(1, CYCLE + 1)
        messages = b"".join(packets.publish(topic, packets.payload(0, n - 1), load.qos, n) for n in ids)
        self._messages = memoryview(messages + messages[: load.window * self._size])
        self.sent = 0
        self.stopped = False
        clients.watch(client, self.read)

    @property
    def done(self) -> int:
        return self._answered[self._last]

    def start(self) -> None:
        self._reader.client.send(self._next())

    def read(self) -> None:
        out = b"".join([self._answer(run) for run in self._reader.read()])
        out += self._next()
        if out:
            self._reader.client.send(out)

    def _answer(self, run: PacketRun) -> bytes:
        """Check the run against the order in which the messages were sent; PUBREC is answered, the others are not."""
        position = self._answered[run.header]
        given = self._buffer[run.start : run.end]
        if given != _cycle(run.header, position, run.packets):
            raise MeasurementError(f"{self._reader.client.name}: 0x{run.header:02x} out of order after {position}")
        self._answered[run.header] = position + run.packets
        return _cycle(PUBREL, position, run.packets) if run.header == PUBREC else b""

    def _next(self) -> memoryview:
        room = 0 if self.stopped else self._load.window - (self.sent - self.done)
        start = self.sent % CYCLE * self._size
        self.sent += room
        return self._messages[start : start + room * self._size]


class _AcknowledgedSubscriber:
    """Answers everything at once and checks that every message came, once and in order."""

    def __init__(self, clients: LoadClients, client: LoadClient, topic: str, load: Acknowledged) -> None:
        size = packets.publish_bytes(topic, load.qos)
        self._reader = _PacketReader(clients, client, {PUBLISH[load.qos]: size, PUBREL: ACKNOWLEDGEMENT_BYTES})
        self._buffer = clients.buffer
        self._payload_offset = packets.payload_offset(topic, load.qos)
        self._reply = PUBACK if load.qos == 1 else PUBREC
        self.delivered = 0
        client.subscribe((topic,), load.qos)
        clients.watch(client, self.read)

    def read(self) -> None:
        out = b"".join([self._answer(run) for run in self._reader.read()])
        if out:
            self._reader.client.send(out)

    def _answer(self, run: PacketRun) -> bytearray:
        if run.header == PUBREL:
            return answers(run, self._buffer, 2, PUBCOMP)
        self._check_sequence(run)
        self.delivered += run.packets
        return answers(run, self._buffer, self._payload_offset - 2, self._reply)

    def _check_sequence(self, run: PacketRun) -> None:
        sequence = self._payload_offset + 2
        position = self.delivered % CYCLE
        for column, wanted in ((sequence, _SEQUENCE_HIGH), (sequence + 1, _SEQUENCE_LOW)):
            if run.column(self._buffer, column) != wanted[position : position + run.packets]:
                raise MeasurementError(
                    f"{self._reader.client.name}: lost, repeated or out of order at {self.delivered}"
                )


class AcknowledgedLoad:
    """All pairs of the workload."""

    def __init__(self, clients: LoadClients, load: Acknowledged) -> None:
        self._clients = clients
        self._behind_max = load.behind_max
        topics = [f"bench/pair/{number:02}" for number in range(load.pairs)]
        connect = clients.connect
        self._subscribers = [
            _AcknowledgedSubscriber(clients, connect(f"sub-{n}", clean=load.clean), topic, load)
            for n, topic in enumerate(topics)
        ]
        self._publishers = [
            _AcknowledgedPublisher(clients, connect(f"pub-{n}", clean=load.clean), topic, load)
            for n, topic in enumerate(topics)
        ]
        self._started = False

    @property
    def published(self) -> int:
        return sum(publisher.sent for publisher in self._publishers)

    @property
    def delivered(self) -> int:
        return sum(subscriber.delivered for subscriber in self._subscribers)

    @property
    def owed(self) -> int:
        """Deliveries and final answers that published messages still wait for."""
        sent = self.published
        return max(sent - self.delivered, sent - sum(publisher.done for publisher in self._publishers))

    def run(self, until: float) -> None:
        if not self._started:
            self._started = True
            for publisher in self._publishers:
                publisher.start()
        while time.perf_counter() < until:
            self._clients.turn(TURN_S_MAX)
            if self._behind_max is not None:
                self._hold_back(self._behind_max)

    def _hold_back(self, behind_max: int) -> None:
        """A publisher waits for its subscriber too: measured is what arrives, not what piles up on the way."""
        for publisher, subscriber in zip(self._publishers, self._subscribers, strict=True):
            waits = publisher.sent - subscriber.delivered > behind_max
            if waits != publisher.stopped:
                publisher.stopped = waits
                if not waits:
                    publisher.start()

    def drain(self, until: float) -> None:
        for publisher in self._publishers:
            publisher.stopped = True
        while self.owed and time.perf_counter() < until:
            self._clients.turn(TURN_S_MAX)


def _cycle(header: int, position: int, count: int) -> bytes:
    start = position % CYCLE * ACKNOWLEDGEMENT_BYTES
    return _ANSWERS[header][start : start + count * ACKNOWLEDGEMENT_BYTES]


_IDS = [number % CYCLE + 1 for number in range(CYCLE + MOST_AT_ONCE)]
_ANSWERS = {header: packets.acknowledgements(header, _IDS) for header in (PUBACK, PUBREC, PUBREL, PUBCOMP)}
_SEQUENCE_HIGH = bytes((number - 1) >> 8 for number in _IDS)
_SEQUENCE_LOW = bytes((number - 1) & 0xFF for number in _IDS)
