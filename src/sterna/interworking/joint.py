"""The joint between two sessions: the foreign broker's, on the wire, and its session at our own broker.

Packets pass as they are, identifiers and DUP included: what our own broker sends its session is a client's publication
at the foreign broker, and the foreign broker's acknowledgements are that client's.  So each side's own session keeps
every promise, and the joint keeps none.  It only looks at publications, takes out those that must not pass, and answers
for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from sterna.interworking.abilities import Abilities
from sterna.interworking.counters import Counters
from sterna.interworking.echoes import ExpectedEchoes
from sterna.interworking.fences import ROOT
from sterna.interworking.marks import Marks
from sterna.interworking.poison import Poison
from sterna.interworking.proxy.witness import Witness
from sterna.interworking.retained import Found, RetainedComparison
from sterna.interworking.storms import StormGuard
from sterna.mqtt import wire
from sterna.mqtt.framing import packet_end
from sterna.mqtt.packets import MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, encode_acknowledgement

_PASSING: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
_REFUSED: Final = 0x80
_DUP: Final = 0x08
PACKET_BYTES_MAX: Final = 268_435_460
#: Messages at QoS 0 that wait for clients of the foreign broker to come back.
WAITING_MAX: Final = 1000


class Hands(Protocol):
    """The takers of packets and events from the joint."""

    def to_broker(self, data: bytes) -> None:
        """Packets for the foreign broker."""

    def to_own(self, data: bytes) -> None:
        """Packets for our own broker, now."""

    def answer_own(self, data: bytes) -> None:
        """Packets for our own broker, soon: it is in the middle of sending."""

    def fence(self, topic: bytes, payload: bytes) -> None:
        """A fence came through the foreign broker."""

    def fence_from_own(self, topic: bytes, payload: bytes) -> None:
        """A fence came through our own network: the foreign broker is part of it."""

    def storm(self, topic: bytes, seconds: float) -> None: ...
    def refused(self, topic: bytes, code: int) -> None:
        """The foreign broker does not take a message."""

    def set_aside(self, topic: bytes) -> None:
        """A message is given up: the foreign broker cannot bear it."""


class Joint:
    def __init__(
        self,
        abilities: Abilities,
        hands: Hands,
        wanted: Callable[[bytes], bool],
        marks: Marks,
        echoes: ExpectedEchoes,
        storms: StormGuard,
        poison: Poison,
        taken_out: set[int],
        counters: Counters,
        witness: Witness | None = None,
    ) -> None:
        """`wanted`: may a message on this topic come in from the foreign broker?  `taken_out`: identifiers of its
        publications at QoS 2 that were taken out and not released yet.  `witness`: in proxy mode."""
        self._version = abilities.version
        self._hands = hands
        self._wanted = wanted
        self._marks = marks if abilities.user_properties else None
        self._echoes = echoes if abilities.echoes and not abilities.user_properties else None
        self._storms = storms
        self._poison = poison
        self._counters = counters
        self._witness = witness
        self._retain = abilities.retain_available
        #: While retained messages are compared; None otherwise.
        self.comparison: RetainedComparison | None = None
        #: Messages with the retain flag that come now are those the foreign broker had stored.
        self.is_stored = False
        #: Publications of ours that the foreign broker has not acknowledged: packet identifier -> topic.
        self.outstanding: dict[int, bytes] = {}
        self._taken_out = taken_out
        #: Identifiers of our own broker's publications at QoS 2 that were kept back.
        self._kept_back: set[int] = set()
        #: Acknowledgements of the foreign broker that wait for the echo, by identifier of the message; and those that
        #: wait for the release of the echo, by identifier of the echo.
        self._held: dict[int, bytes] = {}
        self._held_until_release: dict[int, bytes] = {}
        self._passing: list[bytes] = []
        #: In proxy mode: publications of our own broker, while clients of the foreign one come back to it; else None.
        self._waiting: list[bytes] | None = None
        self.now = 0.0

    # -- from the foreign broker --

    def from_broker(self, first: int, data: bytes, start: int, body: int, stop: int) -> bool:
        """HOT.  One packet of the foreign broker; False if it is none that passes between the sessions."""
        kind = first >> 4
        if kind == PUBLISH:
            if self._comes_in(first, data, body, stop):
                self._counters.taken += 1
                packet = data[start:stop]
                if self._witness is not None:
                    packet = self._witnessed(self._witness, packet, first, data, body, stop)
                self._passing.append(packet)
            return True
        if kind not in _PASSING:
            return False
        packet_id, _ = wire.read_two(data, body, stop)
        if kind == PUBREL:
            if packet_id in self._taken_out:
                self._taken_out.discard(packet_id)
                self._hands.to_broker(encode_acknowledgement(PUBCOMP, packet_id, 0, self._version))
                if packet_id in self._held_until_release:
                    self._passing.append(self._held_until_release.pop(packet_id))
                return True
        elif packet_id in self.outstanding:
            self._acknowledged(kind, packet_id, data[body + 2] if stop - body > 2 else 0)
        elif kind == PUBACK:
            return True  # of a fence
        echoes = self._echoes
        if echoes is not None and kind in (PUBACK, PUBCOMP) and echoes.is_still_expected(packet_id):
            self._held[packet_id] = data[start:stop]
            return True
        self._passing.append(data[start:stop])
        return True

    def release(self, packet_ids: Iterable[int]) -> None:
        """The echoes of these messages will not come."""
        for packet_id in packet_ids:
            if packet_id in self._held:
                self._passing.append(self._held.pop(packet_id))

    def release_all(self) -> None:
        """The connection has ended: our own broker may know of everything that the foreign one acknowledged."""
        self._passing += [*self._held.values(), *self._held_until_release.values()]
        self._held.clear()
        self._held_until_release.clear()
        self.flush()

    def flush(self) -> None:
        """HOT.  All packets of a piece of input have been looked at."""
        passing = self._passing
        if passing:
            self._passing = []
            self._hands.to_own(passing[0] if len(passing) == 1 else b"".join(passing))

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        self._poison.answered()
        if kind == PUBREC and code < _REFUSED:
            return
        topic = self.outstanding.pop(packet_id)
        if code >= _REFUSED:
            self._counters.not_injected["refused"] += 1
            self._hands.refused(topic, code)

    def _comes_in(self, first: int, data: bytes, body: int, stop: int) -> bool:
        topic, place = wire.read_binary(data, body, stop)
        qos = first >> 1 & 3
        packet_id = 0
        if qos:
            packet_id, place = wire.read_two(data, place, stop)
        if qos == 2 and packet_id in self._taken_out:
            reason = "repeated"
        else:
            reason = self._reason_against(first, packet_id, topic, data, place, stop)
        if not reason:
            return True
        self._counters.held_back[reason] += 1
        if qos:
            if qos == 2:
                self._taken_out.add(packet_id)
            self._hands.to_broker(encode_acknowledgement(PUBACK if qos == 1 else PUBREC, packet_id, 0, self._version))
        return False

    def _reason_against(self, first: int, packet_id: int, topic: bytes, data: bytes, place: int, stop: int) -> str:
        """HOT.  Why a message of the foreign broker must not come in; empty if it may."""
        start = place
        if self._version == MQTT_5:
            length, place = wire.read_variable(data, place, stop)
            start, place = place, place + length
            if place > stop:
                raise wire.malformed("properties run past the end of the packet")
        if topic.startswith(ROOT):
            self._hands.fence(topic, data[place:stop])
            return "fence"
        if not self._wanted(topic):
            return "not-asked-for"
        comparison = self.comparison
        payload = data[place:stop] if comparison is not None or self._echoes is not None else b""
        is_ours = self._marks is not None and self._marks.is_ours(topic, data, start, place)
        if comparison is not None and self.is_stored and first & 1:
            # Also if it has our mark: the network may have lost it.
            found = comparison.theirs(topic, payload)
            return "" if found is Found.NEW else found
        if is_ours:
            return "has-our-mark"
        if self._echoes is not None and self._is_echo(self._echoes, first, packet_id, topic, payload):
            return "echo"
        verdict = self._storms.came_in(topic, data[place:stop], self.now)
        if verdict.begins:
            self._counters.storms += 1
            self._hands.storm(topic, verdict.begins)
        return "storm" if verdict.is_held else ""

    def _witnessed(self, witness: Witness, packet: bytes, first: int, data: bytes, body: int, stop: int) -> bytes:
        """HOT.  The packet, with the retain flag of the publication that it is, which plain 3.1.1 loses."""
        topic, place = wire.read_binary(data, body, stop)
        qos = first >> 1 & 3
        packet_id = 0
        if qos:
            packet_id, place = wire.read_two(data, place, stop)
        if self._version == MQTT_5:
            length, place = wire.read_variable(data, place, stop)
            place += length
        sight = witness.seen(topic, data[place:stop], qos, packet_id)
        if sight is None or not sight.retain or first & 1:
            return packet
        return bytes((first | 1,)) + packet[1:]

    def _is_echo(self, echoes: ExpectedEchoes, first: int, packet_id: int, topic: bytes, payload: bytes) -> bool:
        """HOT."""
        qos = first >> 1 & 3
        if qos == 1 and first & _DUP and echoes.is_repetition(packet_id, payload):
            return True
        found = echoes.is_echo(topic, payload)
        if found is None:
            return False
        if qos == 1:
            echoes.remember(packet_id, payload)
        acknowledgement = self._held.pop(found, None)
        if acknowledgement is not None:
            if qos == 2:
                # Until then the echo may come again, after a crash of ours too: we must still know it.
                self._held_until_release[packet_id] = acknowledgement
            else:
                self._passing.append(acknowledgement)
        return True

    # -- from our own broker --

    def from_own(self, data: bytes) -> list[bytes]:
        """HOT.  Whole packets of our own broker; those among them that are no part of the exchange."""
        passing: list[bytes] = []
        others: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            body, stop = packet_end(data, position, PACKET_BYTES_MAX)
            assert body, "our own broker writes whole packets"
            kind = data[position] >> 4
            if kind == PUBLISH and self._waiting is not None:
                self._wait(self._waiting, data[position:stop])
            elif kind == PUBLISH:
                passing.append(self._goes_out(data[position], data, position, body, stop))
            elif kind in _PASSING:
                packet_id = data[body] << 8 | data[body + 1]
                if kind == PUBREL and packet_id in self._kept_back:
                    self._kept_back.discard(packet_id)
                    self._hands.answer_own(encode_acknowledgement(PUBCOMP, packet_id, 0, self._version))
                else:
                    passing.append(data[position:stop])
                    if self._witness is not None and kind in (PUBACK, PUBREC):
                        self._witness.safe(packet_id)
            else:
                others.append(data[position:stop])
            position = stop
        joined = b"".join(passing)
        if joined:
            self._hands.to_broker(joined)
        return others

    def hold_out(self) -> None:
        """Publications of our own broker are to wait."""
        self._waiting = []

    def _wait(self, waiting: list[bytes], packet: bytes) -> None:
        if packet[0] & 0x06 or len(waiting) < WAITING_MAX:
            waiting.append(packet)  # our own broker bounds those at QoS 1 and 2
        else:
            self._counters.not_injected["no-room"] += 1

    @property
    def is_held_out(self) -> bool:
        return self._waiting is not None

    def let_out(self) -> None:
        """No longer: those that waited go first."""
        waiting, self._waiting = self._waiting or [], None
        for packet in waiting:
            body, stop = packet_end(packet, 0, PACKET_BYTES_MAX)
            self._hands.to_broker(self._goes_out(packet[0], packet, 0, body, stop))

    def _goes_out(self, first: int, data: bytes, start: int, body: int, stop: int) -> bytes:
        """HOT.  The packet for the foreign broker; empty if there is none."""
        topic, place = wire.read_binary(data, body, stop)
        qos = first >> 1 & 3
        packet_id = 0
        if qos:
            packet_id, place = wire.read_two(data, place, stop)
        section, size = place, 0
        if self._version == MQTT_5:
            size, place = wire.read_variable(data, place, stop)
        properties = data[place : place + size]
        payload = data[place + size : stop]
        reason = self._reason_to_keep_back(first, packet_id, topic, properties, payload)
        if reason:
            if reason != "retained-same":
                self._counters.not_injected[reason] += 1
            self._keep_back(qos, packet_id)
            return b""
        if first & 1 and self.comparison is not None:
            self.comparison.sent(topic, payload)
        self._storms.went_out(topic, payload, self.now)
        if self._echoes is not None and self._wanted(topic):
            self._echoes.expect(topic, payload, qos, packet_id, again=bool(first & _DUP))
        if qos:
            self.outstanding[packet_id] = topic
            self._poison.sent(packet_id, topic)
        self._counters.injected += 1
        if not self._retain:
            first &= 0xFE
        if self._marks is None:
            return bytes((first,)) + data[start + 1 : stop] if not self._retain else data[start:stop]
        properties += self._marks.mark(topic)
        content = data[body:section] + wire.variable(len(properties)) + properties + payload
        return bytes((first,)) + wire.variable(len(content)) + content

    def _reason_to_keep_back(self, first: int, packet_id: int, topic: bytes, properties: bytes, payload: bytes) -> str:
        if topic.startswith(ROOT):
            self._hands.fence_from_own(topic, payload)
            return "fence"
        if packet_id and self._poison.is_set_aside(packet_id, topic):
            self._hands.set_aside(topic)
            return "set-aside"
        if self._marks is not None and self._marks.is_ours(topic, properties, 0, len(properties)):
            return "has-our-mark"
        is_compared = self.comparison is not None and first & 0x09 == 1
        if is_compared and self.comparison is not None and self.comparison.is_theirs(topic, payload):
            return "retained-same"
        return ""

    def _keep_back(self, qos: int, packet_id: int) -> None:
        """Answer our own broker in the foreign one's place."""
        if qos == 2:
            self._kept_back.add(packet_id)
        if qos:
            kind = PUBACK if qos == 1 else PUBREC
            self._hands.answer_own(encode_acknowledgement(kind, packet_id, 0, self._version))
