"""Reads the values that a foreign broker retains, on a connection of its own.

There a stored message has the retain flag and a live one has not, at every level of MQTT.  On the connection of the
session they could not be told apart: No Local and the bridge bit keep the flag of live messages, too, and messages that
waited for the session come between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sterna.interworking.foreign_line import CONNACK, SUBACK, ForeignLine
from sterna.interworking.greeting import refusal
from sterna.interworking.ports import ForeignTimer, ForeignWorld, StoredValue
from sterna.interworking.probe import GRACE_S, Caller
from sterna.mqtt import client_packets as encode
from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.packets import MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, encode_acknowledgement
from sterna.mqtt.server_packets import decode_connack

_SUBSCRIBE_ID: Final = 1
USER_PROPERTIES_MAX: Final = 1000


class RetainedReader(ForeignLine):
    def __init__(
        self,
        world: ForeignWorld,
        caller: Caller,
        version: int,
        packet_bytes: int,
        filters: Sequence[tuple[bytes, int]],
        found: Callable[[StoredValue], None],
        done: Callable[[], None],
        ended: Callable[[str], None],
        fence: bytes = b"",
    ) -> None:
        """`caller.topic` is for the message that ends the reading.  `fence`: a packet for a session that does not hear
        what it sends itself."""
        super().__init__(world, packet_bytes, ended)
        self._caller = caller
        self._version = version
        self._filters = [*filters, (caller.topic, 0)]
        self._found = found
        self._done = done
        self._fence = fence
        self._grace: ForeignTimer | None = None
        self._came_in_grace = False
        #: Identifiers of messages at QoS 2 that were taken and not released.
        self._taken: set[int] = set()

    def begin(self) -> None:
        self._caller.greet(self, self._version, clean=True)

    def packet(self, first: int, data: bytes, start: int, body: int, stop: int) -> None:
        kind = first >> 4
        if kind == CONNACK:
            answer = decode_connack(data, body, stop, self._version)
            if answer.code:
                self.fail(refusal(answer, self._version))
                return
            self.write(encode.encode_subscribe(_SUBSCRIBE_ID, self._filters, self._version))
            self._await_end()
        elif kind == SUBACK:
            self.write(self._fence + encode.encode_publish(self._caller.topic, self._caller.client_id, self._version))
        elif kind == PUBLISH:
            self._message(first, data, body, stop)
        elif kind == PUBREL:
            packet_id, _ = wire.read_two(data, body, stop)
            self._taken.discard(packet_id)
            self.write(encode_acknowledgement(PUBCOMP, packet_id, 0, self._version))

    def _await_end(self) -> None:
        self.await_answer(self._caller.answer_s, f"the end of retained messages, on {self._caller.topic.decode()},")

    def _message(self, first: int, data: bytes, body: int, stop: int) -> None:
        topic, place = wire.read_binary(data, body, stop)
        qos, packet_id = first >> 1 & 3, 0
        if qos:
            packet_id, place = wire.read_two(data, place, stop)
            self.write(encode_acknowledgement(PUBACK if qos == 1 else PUBREC, packet_id, 0, self._version))
        values, properties = prop.NONE, b""
        if self._version == MQTT_5:
            values, properties, place = prop.read_properties(data, place, stop, "PUBLISH", USER_PROPERTIES_MAX)
        if topic == self._caller.topic:
            if data[place:stop] == self._caller.client_id and self._grace is None:
                self._wait_for_stragglers()
            return
        if not first & 1 or (qos == 2 and packet_id in self._taken):
            return
        if qos == 2:
            self._taken.add(packet_id)
        self._came_in_grace = True
        if self._grace is None:
            self._await_end()
        self._found(StoredValue(topic, data[place:stop], qos, properties, values.get(prop.MESSAGE_EXPIRY)))

    def _wait_for_stragglers(self) -> None:
        """A broker with several threads may send stored messages later."""
        self.answered()
        self._came_in_grace = False
        self._grace = self._world.later(GRACE_S, self._finish)

    def _finish(self) -> None:
        if self._came_in_grace:
            self._wait_for_stragglers()
            return
        self.close(encode.DISCONNECT_BYTES)
        self._done()

    def close(self, farewell: bytes = b"") -> None:
        if self._grace is not None:
            self._grace.cancel()
        super().close(farewell)
