"""The t-clients of a scenario: they publish at one interval, log each message sent and received, and wait for the rest.

Publishers take turns, evenly over the interval.  Each payload holds its publisher and its number.  A publisher whose
socket takes no more holds its message back, as one that blocks would; such a run does not pass.

The generator must be cheaper than the system it measures.  It works once in a millisecond: it sends everything that is
due, with one call for each publisher, then reads everything that has come, with one call for each subscriber.  Packets
that came are kept as they are, and looked at when the run is over.
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

TURN_NS = 1_000_000
LATE_NS = 20_000_000
"""A message sent so much after its time was late."""
QUIET_S = 1.5
"""Nothing came for so long: what is missing is lost."""
DRAIN_S_MAX = 20.0
BURST_MAX = 1000
"""Messages in one turn; subscribers are read in between."""
_ID = Struct(">II")
_NUMBER = Struct(">I")
_NUMBER_OFFSET = 4


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
    """Packets of one size."""

    __slots__ = ("_rest", "_unpack", "client", "index", "size")

    def __init__(self, client: LoadClient, index: int, topic: str) -> None:
        self.client = client
        self.index = index
        self.size = packets.publish_bytes(topic)
        offset = packets.payload_offset(topic)
        self._unpack = Struct(f">{offset}xII{self.size - offset - 8}x")
        self._rest = b""

    def read(self, buffer: memoryview) -> bytes:
        """HOT.  Whole packets."""
        end = self.client.read(buffer)
        data = self._rest + buffer[:end] if self._rest else bytes(buffer[:end])
        whole = len(data) - len(data) % self.size
        self._rest = data[whole:]
        return data[:whole]

    def identities(self, data: bytes, first_number: int) -> tuple[array[int], array[int]]:
        """Publishers and numbers in whole packets, less those of an earlier run that was given up."""
        if data[0 :: self.size].count(packets.PUBLISH[0]) != len(data) // self.size:
            raise MeasurementError(f"{self.client.name}: got a packet that is no PUBLISH of this load")
        found = array("I", chain.from_iterable(self._unpack.iter_unpack(data)))
        publishers, numbers = found[::2], found[1::2]
        if numbers and min(numbers) < first_number:
            kept = [pair for pair in zip(publishers, numbers, strict=True) if pair[1] >= first_number]
            publishers, numbers = (array("I", (pair[place] for pair in kept)) for place in (0, 1))
        return publishers, numbers


class _Publisher:
    __slots__ = ("_offset", "_packets", "_size", "_view", "client", "number")

    def __init__(self, client: LoadClient, topic: str, index: int) -> None:
        self.client = client
        self.number = 0
        self._size = packets.publish_bytes(topic)
        self._offset = packets.payload_offset(topic)
        one = bytearray(packets.publish(topic, packets.payload(0, 0)))
        _ID.pack_into(one, self._offset, index, 0)
        self._packets = one * BURST_MAX
        self._view = memoryview(self._packets)

    def send(self, count: int) -> None:
        """HOT."""
        place = self._offset + _NUMBER_OFFSET
        for number in range(self.number, self.number + count):
            _NUMBER.pack_into(self._packets, place, number)
            place += self._size
        self.client.send(self._view[: count * self._size])
        self.number += count


class TClients:
    """Connected and subscribed; `close` ends them."""

    def __init__(self, scenario: Scenario, ports: Sequence[int]) -> None:
        self._clients = LoadClients(ports[0])
        self._publishers: list[_Publisher] = []
        self.deliveries: list[int] = []
        """Of a message of each publisher."""
        self.received = 0
        self.owed = 0
        #: When packets were read, by whom, and the packets.
        self._arrivals: list[tuple[int, _Subscriber, bytes]] = []
        self._first_number = 0
        #: Packets of an earlier run may still come.
        self._is_behind = False
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
                    self._publishers.append(_Publisher(client, place.topic, len(self._publishers)))
                    self.deliveries.append(subscribers[place.topic])

    def _read(self, subscriber: _Subscriber) -> None:
        """HOT."""
        data = subscriber.read(self._clients.view)
        if data:
            self._arrivals.append((time.perf_counter_ns(), subscriber, data))
            if self._is_behind:
                self.received += len(subscriber.identities(data, self._first_number)[0])
            else:
                self.received += len(data) // subscriber.size

    def run(self, interval_ms: float, seconds: float) -> LoadRun:
        """HOT.  Publish for so long, then until all has come that comes."""
        self._first_number = max(publisher.number for publisher in self._publishers)
        for publisher in self._publishers:
            publisher.number = self._first_number
        self.received = self.owed = 0
        self._arrivals = []
        log = RawLog()
        run = LoadRun(log, 0, 0, 0)
        gap_ns = interval_ms * 1e6 / len(self._publishers)
        own_ns = time.process_time_ns()
        log.begin_ns = now = time.perf_counter_ns()
        log.end_ns = log.begin_ns + int(seconds * 1e9)
        while now < log.end_ns:
            self._send_due(run, int((now - log.begin_ns) / gap_ns) + 1, now, gap_ns)
            self._clients.turn(0)
            spent = time.perf_counter_ns() - now
            if spent < TURN_NS:
                time.sleep((TURN_NS - spent) / 1e9)
            now = time.perf_counter_ns()
        run.busy = (time.process_time_ns() - own_ns) / (now - log.begin_ns)
        self._drain()
        self._is_behind = self.received < self.owed
        for moment, subscriber, data in self._arrivals:
            log.received(moment, subscriber.index, *subscriber.identities(data, self._first_number))
        return run

    def _send_due(self, run: LoadRun, due: int, now: int, gap_ns: float) -> None:
        """HOT.  The next messages up to the one numbered `due`, each by the publisher whose turn it is."""
        count = min(due - run.offered, BURST_MAX)
        if count <= 0:
            return
        late = int((now - run.log.begin_ns - LATE_NS) / gap_ns) + 1 - run.offered
        run.late += max(0, min(late, count))
        publishers = len(self._publishers)
        each, more = divmod(count, publishers)
        for place in range(min(count, publishers)):
            self._send(run, (run.offered + place) % publishers, each + (place < more), now)
        run.offered += count

    def _send(self, run: LoadRun, index: int, count: int, now: int) -> None:
        """HOT."""
        publisher, log = self._publishers[index], run.log
        if publisher.client.blocked:
            run.held_back += count
            return
        log.sent_ns.extend(array("q", (now,)) * count)
        log.sent_by.extend(array("I", (index,)) * count)
        log.sent_number.extend(range(publisher.number, publisher.number + count))
        publisher.send(count)
        self.owed += self.deliveries[index] * count

    def _drain(self) -> None:
        """Until all has come, and nothing more comes: a repetition may stand for a message that is still under way."""
        deadline = time.monotonic() + DRAIN_S_MAX
        quiet_at = time.monotonic() + QUIET_S
        while time.monotonic() < min(deadline, quiet_at):
            before = self.received
            self._clients.turn(0.02)
            if self.received > before:
                quiet_at = time.monotonic() + QUIET_S
            elif self.received >= self.owed:
                return

    def close(self) -> None:
        self._clients.close()
