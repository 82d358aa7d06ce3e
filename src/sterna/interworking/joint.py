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
from sterna.interworking.counters import AttachmentCounters
from sterna.interworking.echoes import ExpectedEchoes
from sterna.interworking.fences import ROOT
from sterna.interworking.marks import Marks
from sterna.interworking.poison import Poison
from sterna.interworking.ports import StoredValue
from sterna.interworking.proxy.witness import Witness
from sterna.interworking.retained import CommonValues, RetainedComparison, UnheardValues
from sterna.interworking.storms import StormGuard
from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.client_packets import encode_publish
from sterna.mqtt.framing import packet_end
from sterna.mqtt.packets import MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, encode_acknowledgement

_PASSING: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
_COMPLETING: Final = frozenset((PUBACK, PUBCOMP))
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

    def answered(self, packet_id: int) -> None:
        """The foreign broker has a message that is not our own broker's: a fence, or a value that it lacked."""

    def crossed(self, topic: bytes) -> None:
        """A retained message came from the foreign broker while one of ours was on its way there."""

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
        common: CommonValues,
        taken_out: dict[int, int],
        counters: AttachmentCounters,
        witness: Witness | None = None,
    ) -> None:
        """`wanted`: may a message on this topic come in from the foreign broker?  `taken_out`: identifiers of its
        publications at QoS 2 that were taken out and not released yet, with that of our message of which it is the
        echo, or 0.  `witness`: in proxy mode."""
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
        self._common = common
        #: The flag of a live message tells whether it is retained; if not, only stored messages have it.
        self._keeps_flag = abilities.retain_kept
        #: While retained messages are compared; None otherwise.
        self.comparison: RetainedComparison | None = None
        #: While values are read that a new session of ours has not heard; None otherwise.
        self.unheard: UnheardValues | None = None
        #: A bridge has subscribed, and is sent stored messages like live ones.
        self.awaits_stored = False
        #: An earlier connection may have subscribed, too, unconfirmed: stored messages may wait in the session.
        self.may_have_asked = False
        #: Until the foreign broker's retained messages are known, and its clients are back, publications of our own
        #: broker wait here.
        self.is_settling = True
        self.is_held_out = False
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        #: Publications of ours that the foreign broker has not acknowledged: packet identifier -> topic.
        self.outstanding: dict[int, bytes] = {}
        #: Publications of the foreign broker that our own has not completed: a fence may wait behind them.
        self.incoming: set[int] = set()
        self._taken_out = taken_out
        #: Identifiers of our own broker's publications at QoS 2 that were kept back.
        self._kept_back: set[int] = set()
        #: Acknowledgements of the foreign broker that wait for the echo, by identifier of the message; and those that
        #: wait for the release of the echo, by identifier of the echo.
        self._held: dict[int, bytes] = {}
        self._held_until_release: dict[int, bytes] = {}
        self._passing: list[bytes] = []
        #: The identifier of our message of which the packet at hand is the echo; 0: none, or it has none.
        self._echo_of = 0
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
                del self._taken_out[packet_id]
                self._hands.to_broker(encode_acknowledgement(PUBCOMP, packet_id, 0, self._version))
                if packet_id in self._held_until_release:
                    self._passing.append(self._held_until_release.pop(packet_id))
                return True
        elif packet_id in self.outstanding:
            self._acknowledged(kind, packet_id, data[body + 2] if stop - body > 2 else 0)
        elif kind == PUBACK:
            self._hands.answered(packet_id)
            return True
        if self._echoes is not None and kind in (PUBACK, PUBCOMP):
            self._acknowledged_to_own(self._echoes, packet_id, data[start:stop])
        else:
            self._passing.append(data[start:stop])
        return True

    def _acknowledged_to_own(self, echoes: ExpectedEchoes, packet_id: int, acknowledgement: bytes) -> None:
        """HOT.  Our own broker hears of it when the echo cannot come any more."""
        unreleased = [echo for echo, ours in self._taken_out.items() if ours == packet_id]
        if unreleased:
            self._held_until_release[unreleased[0]] = acknowledgement
        elif echoes.is_still_expected(packet_id):
            self._held[packet_id] = acknowledgement
        else:
            self._passing.append(acknowledgement)

    def release(self, packet_ids: Iterable[int]) -> None:
        """The echoes of these messages will not come."""
        for packet_id in packet_ids:
            if packet_id in self._held:
                self._passing.append(self._held.pop(packet_id))

    def release_all(self) -> None:
        """The connection has ended.  Our own broker may know of messages at QoS 1 that the foreign one acknowledged, or
        they would come twice.  Those at QoS 2 stay in flight: after a crash nobody else would know of their echoes."""
        waiting = (*self._held.values(), *self._held_until_release.values())
        self._passing += [one for one in waiting if one[0] >> 4 == PUBACK]
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
        packet_id = self._echo_of = 0
        if qos:
            packet_id, place = wire.read_two(data, place, stop)
        if qos == 2 and packet_id in self._taken_out:
            reason = "repeated"
        else:
            reason = self._reason_against(first, packet_id, topic, data, place, stop)
        if not reason:
            if qos:
                self.incoming.add(packet_id)
            return True
        self._counters.held_back[reason] += 1
        if qos:
            if qos == 2:
                self._taken_out[packet_id] = self._taken_out.get(packet_id) or self._echo_of
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
        if self._marks is not None and self._marks.is_ours(topic, data, start, place):
            return "has-our-mark"
        payload = data[place:stop]
        if first & 1 and not self._keeps_flag:
            return "stored"  # `reader.py` reads these
        if self._echoes is not None and self._is_echo(self._echoes, first, packet_id, topic, payload):
            return "echo"
        verdict = self._storms.came_in(topic, payload, self.now)
        if verdict.begins:
            self._counters.storms += 1
            self._hands.storm(topic, verdict.begins)
        if verdict.is_held:
            return "storm"
        if self.unheard is not None:
            self.unheard.came(topic)
        if first & 1:
            return self._retained_comes_in(topic, payload)
        if not payload:
            self._common.came_empty(topic)
        if not self._keeps_flag:
            self._common.lacking.discard(topic)
            if self.comparison is not None:
                self.comparison.came_without_flag(topic)
        return ""

    def _retained_comes_in(self, topic: bytes, payload: bytes) -> str:
        comparison = self.comparison
        if comparison is not None:
            if self.awaits_stored and (comparison.was_read(topic, payload) or self._common.is_coming(topic, payload)):
                return "stored"  # sent for the subscription: a bridge cannot ask for live messages alone
            if self.may_have_asked and comparison.is_known_here(topic, payload):
                return "stored"
            comparison.came_live(topic, payload)
        if topic in self.outstanding.values() and not self._common.has_gone(topic, payload):
            self._hands.crossed(topic)
        self._common.came_in(topic, payload)
        return ""

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
        self._echo_of = found
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

    # -- values that the foreign broker lacks --

    def value_for_broker(self, value: StoredValue, packet_id: int) -> bytes:
        """The packet that sets a retained value there."""
        topic, payload, qos = value.topic, value.payload, 1 if packet_id else 0
        self._common.went_out(topic, payload)
        self._storms.went_out(topic, payload, self.now)
        if self._echoes is not None and self._wanted(topic):
            self._echoes.expect_value(topic, payload, qos)
        self._counters.injected += 1
        properties = value.properties
        if value.expiry_s is not None:
            properties += bytes((prop.MESSAGE_EXPIRY,)) + value.expiry_s.to_bytes(4, "big")
        if self._marks is not None:
            properties += self._marks.mark(topic)
        return encode_publish(
            topic, payload, self._version, qos=qos, packet_id=packet_id, retain=self._retain, properties=properties
        )

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
            if (self.is_settling or self.is_held_out) and kind in (PUBLISH, PUBREL):
                self._wait(data[position:stop])
            elif kind == PUBLISH:
                passing.append(self._goes_out(data[position], data, position, body, stop))
            elif kind in _PASSING:
                packet_id = data[body] << 8 | data[body + 1]
                if kind == PUBREL and packet_id in self._kept_back:
                    self._kept_back.discard(packet_id)
                    self._hands.answer_own(encode_acknowledgement(PUBCOMP, packet_id, 0, self._version))
                else:
                    if kind in _COMPLETING:
                        self.incoming.discard(packet_id)
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
        """In proxy mode: publications of our own broker wait for clients of the foreign one that come back to it."""
        self.is_held_out = True

    def let_out(self) -> None:
        """No longer."""
        self.is_held_out = False
        self._send_waiting()

    def settled(self) -> None:
        """The foreign broker's retained messages are known."""
        self.is_settling = False
        self._send_waiting()

    def _wait(self, packet: bytes) -> None:
        is_bounded = packet[0] >> 4 != PUBLISH or packet[0] & 0x06  # by our own broker
        if is_bounded or len(self._waiting) < WAITING_MAX:
            self._waiting.append(packet)
            self.waiting_bytes += len(packet)
        else:
            self._counters.not_injected["no-room"] += 1

    def _send_waiting(self) -> None:
        """Publications that waited go to the foreign broker, unless there is another reason to wait."""
        if not self.is_settling and not self.is_held_out:
            waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
            self.from_own(b"".join(waiting))

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
        if first & 1 and not self._common.is_current(topic, payload):
            first &= 0xFE  # it comes late, or waited: the broker is not to retain it in the place of a newer one
        if first & 1:
            self._common.went_out(topic, payload)
            if self.comparison is not None:
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
            return data[start:stop] if first == data[start] else bytes((first,)) + data[start + 1 : stop]
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
        if first & 0x09 == 1 and self.comparison is not None and self.comparison.is_theirs(topic, payload):
            return "retained-same"
        return ""

    def _keep_back(self, qos: int, packet_id: int) -> None:
        """Answer our own broker in the foreign one's place."""
        if qos == 2:
            self._kept_back.add(packet_id)
        if qos:
            kind = PUBACK if qos == 1 else PUBREC
            self._hands.answer_own(encode_acknowledgement(kind, packet_id, 0, self._version))
