"""The t-clients of a scenario: they publish at one interval, log each message sent and received, and wait for the rest.

Publishers take turns, evenly over the interval.  Each payload holds its publisher and its number.  A publisher whose
socket takes no more holds its message back, as one that blocks would; such a run does not pass.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from struct import Struct

from sterna.measure.errors import MeasurementError
from sterna.measure.ildm.indexes import RawLog
from sterna.measure.ildm.scenario import Scenario
from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClient, LoadClients

TURN_S = 0.001
LATE_NS = 20_000_000
"""A message sent so much after its time was late."""
QUIET_S = 1.5
"""Nothing came for so long: what is missing is lost."""
DRAIN_S_MAX = 20.0
BURST_MAX = 200
"""Messages in one turn; subscribers are read in between."""
_ID = Struct(">II")


@dataclass(slots=True)
class LoadRun:
    """One run of the load: its log and its counts."""

    log: RawLog
    offered: int
    late: int
    held_back: int
    """Not sent, as the socket took no more."""
    busy: float = 0.0
    """Share of the time that the generator was at work."""


class _Subscriber:
    """Lifts the identities out of packets of one size."""

    __slots__ = ("_index", "_rest", "_size", "_unpack", "client")

    def __init__(self, client: LoadClient, index: int, topic: str) -> None:
        self.client = client
        self._index = index
        self._size = packets.publish_bytes(topic)
        offset = packets.payload_offset(topic)
        self._unpack = Struct(f">{offset}xII{self._size - offset - 8}x")
        self._rest = b""

    def read(self, buffer: memoryview, log: RawLog) -> int:
        """HOT."""
        end = self.client.read(buffer)
        now = time.perf_counter_ns()
        data = self._rest + buffer[:end] if self._rest else bytes(buffer[:end])
        size = self._size
        count = len(data) // size
        whole = count * size
        self._rest = data[whole:]
        if data[0:whole:size].count(packets.PUBLISH[0]) != count:
            raise MeasurementError(f"{self.client.name}: got a packet that is no PUBLISH of this load")
        found = array("I", chain.from_iterable(self._unpack.iter_unpack(data[:whole])))
        numbers = found[1::2]
        if count and min(numbers) < log.first_number:
            found, numbers = _without_stragglers(found, log.first_number)
            count = len(numbers)
        log.received_from.extend(found[::2])
        log.received_number.extend(numbers)
        log.received_ns.extend(array("q", [now]) * count)
        log.received_by.extend(array("I", [self._index]) * count)
        return count


def _without_stragglers(found: array[int], first_number: int) -> tuple[array[int], array[int]]:
    """Pairs of publisher and number, less those of an earlier run that was given up."""
    pairs = [(found[place], found[place + 1]) for place in range(0, len(found), 2) if found[place + 1] >= first_number]
    kept = array("I", chain.from_iterable(pairs))
    return kept, kept[1::2]


class _Publisher:
    __slots__ = ("_offset", "_packet", "client", "number")

    def __init__(self, client: LoadClient, topic: str) -> None:
        self.client = client
        self.number = 0
        self._offset = packets.payload_offset(topic)
        self._packet = bytearray(packets.publish(topic, packets.payload(0, 0)))

    def send(self, index: int) -> None:
        _ID.pack_into(self._packet, self._offset, index, self.number)
        self.client.send(self._packet)
        self.number += 1


class TClients:
    """Connected and subscribed; `close` ends them."""

    def __init__(self, scenario: Scenario, ports: Sequence[int]) -> None:
        self._clients = LoadClients(ports[0])
        self._publishers: list[_Publisher] = []
        self.deliveries: list[int] = []
        """Of a message of each publisher."""
        self.received = 0
        self.owed = 0
        self._log = RawLog()
        try:
            self._subscribe(scenario, ports)
            self._open_publishers(scenario, ports)
        except BaseException:
            self.close()
            raise

    def _subscribe(self, scenario: Scenario, ports: Sequence[int]) -> None:
        index = 0
        for place in scenario.places:
            for _ in range(place.subscribers):
                client = self._clients.connect_to(ports[place.node - 1], f"t-sub-{index}")
                client.subscribe((place.topic,), 0)
                subscriber = _Subscriber(client, index, place.topic)
                self._clients.watch(client, lambda one=subscriber: self._read(one))  # type: ignore[misc]
                index += 1

    def _open_publishers(self, scenario: Scenario, ports: Sequence[int]) -> None:
        """In turn from each place, so that a node's publishers do not all send at once."""
        subscribers = scenario.subscribers
        for turn in range(max(place.publishers for place in scenario.places)):
            for place in scenario.places:
                if turn < place.publishers:
                    client = self._clients.connect_to(ports[place.node - 1], f"t-pub-{len(self._publishers)}")
                    self._clients.watch_silent(client)
                    self._publishers.append(_Publisher(client, place.topic))
                    self.deliveries.append(subscribers[place.topic])

    def _read(self, subscriber: _Subscriber) -> None:
        self.received += subscriber.read(self._clients.view, self._log)

    def run(self, interval_ms: float, seconds: float) -> LoadRun:
        """HOT.  Publish for so long, then until all has come that comes."""
        log = self._log = RawLog(first_number=max(publisher.number for publisher in self._publishers))
        for publisher in self._publishers:
            publisher.number = log.first_number
        self.received = self.owed = 0
        run = LoadRun(log, 0, 0, 0)
        gap_ns = interval_ms * 1e6 / len(self._publishers)
        own_ns = time.process_time_ns()
        log.begin_ns = now = time.perf_counter_ns()
        log.end_ns = log.begin_ns + int(seconds * 1e9)
        while now < log.end_ns:
            due = int((now - log.begin_ns) / gap_ns) + 1
            for _ in range(min(due - run.offered, BURST_MAX)):
                self._send_next(run, gap_ns)
            self._clients.turn(0 if due > run.offered else TURN_S)
            now = time.perf_counter_ns()
        run.busy = (time.process_time_ns() - own_ns) / (now - log.begin_ns)
        self._drain()
        return run

    def _send_next(self, run: LoadRun, gap_ns: float) -> None:
        """HOT."""
        index = run.offered % len(self._publishers)
        publisher = self._publishers[index]
        now = time.perf_counter_ns()
        run.late += now - run.log.begin_ns - run.offered * gap_ns > LATE_NS
        run.offered += 1
        if publisher.client.blocked:
            run.held_back += 1
            return
        run.log.sent_ns.append(now)
        run.log.sent_by.append(index)
        run.log.sent_number.append(publisher.number)
        publisher.send(index)
        self.owed += self.deliveries[index]

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S_MAX
        quiet_at = time.monotonic() + QUIET_S
        while self.received < self.owed and time.monotonic() < min(deadline, quiet_at):
            before = self.received
            self._clients.turn(0.02)
            if self.received > before:
                quiet_at = time.monotonic() + QUIET_S

    def close(self) -> None:
        self._clients.close()
