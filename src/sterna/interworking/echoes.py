"""Expected echoes: a plain 3.1.1 broker sends our own messages back to us, and nothing in them says so.

A message that was sent is expected back, by topic and payload.  An arrival that matches is the echo.  Equal messages of
a client of the foreign broker are interchangeable with echoes, so the count stays right.

An expectation ends with a fence that was sent after the foreign broker had acknowledged the message: what that passes
on comes before the fence.  Until the echo or the fence is here, our own broker is not told of the acknowledgement.  So
the messages whose echoes are missing are those in flight in its journal, and are known after a crash, too.

Some brokers pass on what is published at QoS 0 by another way than the rest (RabbitMQ): such a message is bounded by a
fence at QoS 0 only, and others by one at QoS 1.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: Messages at QoS 0 expected at once; past it the oldest topic's are written off, and may then come in a second time.
EXPECTED_MAX: Final = 100_000
#: Echoes at QoS 1 whose repetition would be recognised.
REMEMBERED_MAX: Final = 1000


class _Expected:
    __slots__ = ("digest", "is_loose", "packet_id", "serial")

    def __init__(self, digest: int, packet_id: int, serial: int, is_loose: bool) -> None:
        """`is_loose`: it was published at QoS 0."""
        self.digest = digest
        self.is_loose = is_loose
        self.packet_id = packet_id
        #: 0 until the foreign broker has acknowledged the message.
        self.serial = serial


class ExpectedEchoes:
    __slots__ = ("_count", "_open", "_repeats", "_serial", "_topics", "overflowed")

    def __init__(self) -> None:
        self._topics: dict[bytes, deque[_Expected]] = {}
        #: By packet identifier, those at QoS 1 and 2 whose exchange is not over for our own broker.
        self._open: dict[int, _Expected] = {}
        #: Packet identifiers of echoes at QoS 1 -> digest.
        self._repeats: dict[int, int] = {}
        self._serial = 0
        self._count = 0
        self.overflowed = 0

    def __len__(self) -> int:
        return self._count

    @property
    def serial(self) -> int:
        """Of the last message that was acknowledged, or sent at QoS 0."""
        return self._serial

    def expect(self, topic: bytes, payload: bytes, qos: int = 0, packet_id: int = 0, *, again: bool = False) -> None:
        """HOT.  It is about to be sent.  `again`: it may have been sent before, under the same identifier."""
        digest = hash(payload)
        if qos == 2 and packet_id in self._open:
            return  # the foreign broker recognises it
        if qos == 1 and (again or packet_id in self._open):
            # The foreign broker may pass it on once more, and we hear both.
            before = self._open.pop(packet_id, None)
            if before is None:
                self._add(topic, _Expected(digest, 0, self._next(), False))
            else:
                before.packet_id, before.serial = 0, self._next()
        entry = _Expected(digest, packet_id, 0 if qos else self._next(), not qos)
        if qos:
            self._open[packet_id] = entry
        self._add(topic, entry)

    def expect_value(self, topic: bytes, payload: bytes, qos: int) -> None:
        """A retained value of which our own broker waits for no acknowledgement is about to be sent."""
        self._add(topic, _Expected(hash(payload), 0, self._next(), not qos))

    def may_have_gone(self, topic: bytes, payload: bytes, qos: int, packet_id: int) -> None:
        """It is in flight in the journal, and may have been sent before a crash of ours."""
        if packet_id not in self._open:
            self.expect(topic, payload, qos, packet_id)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _add(self, topic: bytes, entry: _Expected) -> None:
        waiting = self._topics.get(topic)
        if waiting is None:
            waiting = self._topics[topic] = deque()
        waiting.append(entry)
        self._count += 1
        if self._count > EXPECTED_MAX:
            self._write_off_oldest()

    def is_still_expected(self, packet_id: int) -> bool:
        """HOT.  The foreign broker acknowledged it: is its echo still to come?"""
        entry = self._open.get(packet_id)
        if entry is None:
            return False
        entry.serial = self._next()
        return True

    def is_echo(self, topic: bytes, payload: bytes) -> int | None:
        """HOT.  The packet identifier of the message whose echo this is (0: it had none), None if it is no echo."""
        waiting = self._topics.get(topic)
        if waiting is None:
            return None
        digest = hash(payload)
        for place, entry in enumerate(waiting):
            if entry.digest == digest:
                del waiting[place]
                self._count -= 1
                if not waiting:
                    del self._topics[topic]
                self._open.pop(entry.packet_id, None)
                return entry.packet_id
        return None

    def is_repetition(self, packet_id: int, payload: bytes) -> bool:
        """A message at QoS 1 that the foreign broker sends again: was it an echo?"""
        return self._repeats.get(packet_id) == hash(payload)

    def remember(self, packet_id: int, payload: bytes) -> None:
        """An echo at QoS 1, whose acknowledgement may not arrive."""
        self._repeats.pop(packet_id, None)
        self._repeats[packet_id] = hash(payload)
        if len(self._repeats) > REMEMBERED_MAX:
            del self._repeats[next(iter(self._repeats))]

    def fence_came_back(self, serial: int, *, is_loose: bool) -> tuple[dict[bytes, int], list[int]]:
        """A fence is here that was sent when `serial` was the last (`is_loose`: at QoS 0): how many echoes never came
        on which topic, and the packet identifiers among them."""
        missing: dict[bytes, int] = {}
        found: list[int] = []
        for topic in list(self._topics):
            waiting = self._topics[topic]
            gone = {entry for entry in waiting if 0 < entry.serial <= serial and entry.is_loose == is_loose}
            if not gone:
                continue
            kept = deque(entry for entry in waiting if entry not in gone)
            found += [entry.packet_id for entry in waiting if entry in gone and entry.packet_id]
            missing[topic] = len(waiting) - len(kept)
            if kept:
                self._topics[topic] = kept
            else:
                del self._topics[topic]
        for packet_id in found:
            self._open.pop(packet_id, None)
        self._count -= sum(missing.values())
        return missing, found

    def clear(self) -> None:
        """The foreign broker has lost its session: nothing comes back any more."""
        self._topics.clear()
        self._open.clear()
        self._repeats.clear()
        self._count = 0

    def _write_off_oldest(self) -> None:
        topic = next(iter(self._topics))
        written_off = self._topics.pop(topic)
        for entry in written_off:
            self._open.pop(entry.packet_id, None)
        self._count -= len(written_off)
        self.overflowed += len(written_off)
