"""A publisher for the benchmark, a process of its own: messages of one size at QoS 1, at a rate or as fast as they go.

Messages that are sent at once make a group of the node's journal, more or less, so
`burst` says how big the journal's frames become.
"""

from __future__ import annotations

import sys
import time

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.processes import serve
from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClients

TOPICS = 100
PAYLOAD_BYTES = 100
SENSORS = 10
CYCLE = 20_000
"""Packet identifiers 1 to CYCLE are used in turn; more than any window."""
TURN_S_MAX = 0.05
SILENCE_S_MAX = 30.0


class PublisherLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The messages to publish."""

    messages: int
    rate: int = 0
    """Messages a second; 0: as fast as they are acknowledged."""
    window: int = 16_384
    """Messages without an acknowledgement, at most."""
    burst: int = 1
    """Messages are sent when there are so many to send and not before."""
    lines: int = 0
    """Instead of 100 topics and 100 bytes: so many lines of ten sensors each, which say numbers."""


class PublisherJob(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    load: PublisherLoad


class Published(msgspec.Struct, frozen=True, kw_only=True):
    acknowledged: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.acknowledged / self.seconds


class FeedPublisher:
    def __init__(self, port: int, load: PublisherLoad) -> None:
        assert load.burst <= load.window < CYCLE, "an identifier must be free again before its next use"
        self._load = load
        self._clients = LoadClients(port)
        self._client = self._clients.connect("bench-publisher")
        self._clients.watch(self._client, self._read)
        topics = [f"bench/pipe/{number:02}" for number in range(TOPICS)]
        filling = bytes(PAYLOAD_BYTES - 9)
        if load.lines:
            topics = [f"bench/{line:03}/{sensor}" for sensor in range(SENSORS) for line in range(load.lines)]
            filling = b""
        cycle = [
            packets.publish(topics[number % len(topics)], b"%09d" % number + filling, 1, number + 1)
            for number in range(CYCLE)
        ]
        self._size = len(cycle[0])
        self._packets = memoryview(b"".join(cycle))
        self._sent = 0
        self._answer_bytes = 0

    @property
    def _acknowledged(self) -> int:
        return self._answer_bytes // packets.ACKNOWLEDGEMENT_BYTES

    def run(self) -> Published:
        load = self._load
        begin = heard = time.perf_counter()
        while self._acknowledged < load.messages:
            now = time.perf_counter()
            due = min(load.messages, int((now - begin) * load.rate)) if load.rate else load.messages
            self._send(min(due, self._acknowledged + load.window) - self._sent)
            before = self._acknowledged
            self._clients.turn(self._patience_s(now - begin))
            if self._acknowledged > before or self._acknowledged == self._sent:
                heard = now
            elif now - heard > SILENCE_S_MAX:
                raise MeasurementError(f"the node has acknowledged nothing for {SILENCE_S_MAX:g} s")
        return Published(acknowledged=self._acknowledged, seconds=time.perf_counter() - begin)

    def _patience_s(self, elapsed_s: float) -> float:
        """Until the next message is due, or something is heard."""
        if not self._load.rate:
            return TURN_S_MAX
        # A millisecond is what a poll can wait at least.
        return min(TURN_S_MAX, max(0.001, (self._sent + 1) / self._load.rate - elapsed_s))

    def _send(self, most: int) -> None:
        if self._client.blocked or most < min(self._load.burst, self._load.messages - self._sent):
            return
        while most > 0:
            place = self._sent % CYCLE
            count = min(most, CYCLE - place)
            self._client.send(self._packets[place * self._size : (place + count) * self._size])
            self._sent += count
            most -= count

    def _read(self) -> None:
        self._answer_bytes += self._client.read(self._clients.view)

    def close(self) -> None:
        self._clients.close()


def publish(job: PublisherJob) -> Published:
    publisher = FeedPublisher(job.port, job.load)
    done = publisher.run()
    publisher.close()
    return done


if __name__ == "__main__":
    sys.exit(serve(PublisherJob, publish))
