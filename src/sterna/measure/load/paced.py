"""QoS 0 at a fixed rate, each message stamped with the moment it was sent.

Publisher and subscriber live in one process, so one clock times the way there.  The loop spins instead of sleeping: the
generator's own wake-up is not in the latency, and messages leave when they are due.  Time with nothing to do is
counted, and tells how busy the generator really was.
"""

from __future__ import annotations

import time
from array import array
from struct import Struct

from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClient, LoadClients
from sterna.measure.load.framing import FixedStream
from sterna.measure.load.shapes import Lane, Paced

LATE_NS = 1_000_000
"""A message sent this much after its time was late."""
TURN_S_MAX = 0.005
_STAMP = Struct(">Q")


class _PacedPublisher:
    def __init__(self, client: LoadClient, topic: str, fan: int) -> None:
        self.client = client
        self.fan = fan
        self._offset = packets.payload_offset(topic)
        self._packet = bytearray(packets.publish(topic, packets.payload(0, 0)))

    def send(self) -> None:
        _STAMP.pack_into(self._packet, self._offset, time.perf_counter_ns())
        self.client.send(self._packet)


class PacedLoad:
    """All lanes of the workload; publishers take turns."""

    def __init__(self, clients: LoadClients, load: Paced) -> None:
        self._clients = clients
        self._gap_ns = 1_000_000_000 // load.rate
        self._publishers = self._interleave([self._open(number, lane) for number, lane in enumerate(load.lanes)])
        self.published = 0
        self.delivered = 0
        self._expected = 0
        self._due_ns = 0
        self.start_samples()

    @staticmethod
    def _interleave(lanes: list[list[_PacedPublisher]]) -> list[_PacedPublisher]:
        return [publisher for turn in zip(*lanes, strict=True) for publisher in turn]

    def _open(self, number: int, lane: Lane) -> list[_PacedPublisher]:
        topic = lane.publishers[0][0]
        for index, filters in enumerate(lane.subscribers):
            client = self._clients.connect(f"sub-{number}-{index}")
            client.subscribe(filters, 0)
            self._watch(client, FixedStream(packets.publish_bytes(topic)), packets.payload_offset(topic))
        publishers = []
        for index, (topic,) in enumerate(lane.publishers):
            client = self._clients.connect(f"pub-{number}-{index}")
            self._clients.watch_silent(client)
            publishers.append(_PacedPublisher(client, topic, lane.fan))
        return publishers

    def _watch(self, client: LoadClient, stream: FixedStream, payload_offset: int) -> None:
        buffer, view = self._clients.buffer, self._clients.view

        def read() -> None:
            end = client.read(view)
            now = time.perf_counter_ns()
            before = stream.messages
            for place in stream.take(buffer, end):
                self.latency_ns.append(now - _STAMP.unpack_from(buffer, place + payload_offset)[0])
            self.delivered += stream.messages - before

        self._clients.watch(client, read)

    def start_samples(self) -> None:
        """Forget what was seen while warming up."""
        self.latency_ns = array("Q")
        self.late = 0
        self.idle_ns = 0

    @property
    def owed(self) -> int:
        return self._expected - self.delivered

    def run(self, until: float) -> None:
        until_ns = int(until * 1e9)
        now = time.perf_counter_ns()
        self._due_ns = self._due_ns or now
        while now < until_ns:
            worked = self._clients.turn(0) + self._send_what_is_due(now)
            before, now = now, time.perf_counter_ns()
            if not worked:
                self.idle_ns += now - before

    def _send_what_is_due(self, now: int) -> int:
        before = self.published
        while self._due_ns <= now:
            publisher = self._publishers[self.published % len(self._publishers)]
            publisher.send()
            self.published += 1
            self._expected += publisher.fan
            self.late += now - self._due_ns > LATE_NS
            self._due_ns += self._gap_ns
        return self.published - before

    def drain(self, until: float) -> None:
        while self.owed and time.perf_counter() < until:
            self._clients.turn(TURN_S_MAX)
