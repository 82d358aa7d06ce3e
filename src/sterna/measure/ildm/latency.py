"""The l-clients, a process of its own: one publisher and its subscribers on a topic that nobody else uses."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from struct import Struct

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.measurement import percentile
from sterna.measure.harness.processes import WorkerProcess, serve
from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClient, LoadClients
from sterna.measure.load.framing import FixedStream

GRACE_S = 60.0
LAST_S = 1.0
"""How long a last message may take."""
_STAMP = Struct(">QI")


class LatencyJob(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    publisher: int
    """Port."""
    subscribers: tuple[int, ...]
    every_s: float
    seconds: float


class LatencyLog(msgspec.Struct, frozen=True, kw_only=True):
    sent: int
    due: int
    latency_us: list[float]
    """Of each delivery."""

    @property
    def p50_ms(self) -> float | None:
        return percentile(sorted(self.latency_us), 0.5) / 1e3 if self.latency_us else None

    @property
    def p99_ms(self) -> float | None:
        return percentile(sorted(self.latency_us), 0.99) / 1e3 if self.latency_us else None


class LClients:
    """At work from construction on."""

    def __init__(self, job: LatencyJob) -> None:
        self._job = job
        self._worker = WorkerProcess("sterna.measure.ildm.latency", job)

    def result(self) -> LatencyLog:
        return self._worker.result(LatencyLog, "the l-clients", self._job.seconds + GRACE_S)

    def stop(self) -> None:
        self._worker.stop()


def measure(job: LatencyJob) -> LatencyLog:
    found: list[float] = []
    with closing(LoadClients(job.publisher)) as clients:
        for index, port in enumerate(job.subscribers):
            client = clients.connect_to(port, f"l-sub-{index}")
            client.subscribe((job.topic,), 0)
            _watch(clients, client, job.topic, found)
        publisher = clients.connect_to(job.publisher, "l-pub")
        clients.watch_silent(publisher)
        sent = _publish(clients, publisher, job, found)
    return LatencyLog(sent=sent, due=sent * len(job.subscribers), latency_us=found)


def _watch(clients: LoadClients, client: LoadClient, topic: str, found: list[float]) -> None:
    stream, offset = FixedStream(packets.publish_bytes(topic)), packets.payload_offset(topic)

    def read() -> None:
        end = client.read(clients.view)
        now = time.perf_counter_ns()
        for place in stream.take(clients.buffer, end):
            found.append((now - _STAMP.unpack_from(clients.buffer, place + offset)[0]) / 1e3)

    clients.watch(client, read)


def _publish(clients: LoadClients, publisher: LoadClient, job: LatencyJob, found: Sequence[float]) -> int:
    packet = bytearray(packets.publish(job.topic, packets.payload(0, 0)))
    begin, sent = time.monotonic(), 0
    while (now := time.monotonic()) < begin + job.seconds:
        if now >= begin + sent * job.every_s:
            _STAMP.pack_into(packet, packets.payload_offset(job.topic), time.perf_counter_ns(), sent)
            publisher.send(packet)
            sent += 1
        clients.turn(max(0.0, begin + sent * job.every_s - time.monotonic()))
    until = time.monotonic() + LAST_S
    while len(found) < sent * len(job.subscribers) and time.monotonic() < until:
        clients.turn(0.05)
    if not sent:
        raise MeasurementError("the l-clients sent nothing; measure longer")
    return sent


if __name__ == "__main__":
    sys.exit(serve(LatencyJob, measure))
