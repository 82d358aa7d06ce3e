"""The half of an attachment that faces our own broker: one client there, which speaks for the foreign broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sterna.interworking.abilities import Abilities
from sterna.interworking.foreign_line import CONNACK, SUBACK
from sterna.interworking.joint import Joint
from sterna.interworking.ports import ForeignTimer, ForeignWorld, Output, OwnBroker, OwnConnection
from sterna.mqtt import client_packets as encode
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import BRIDGE, DISCONNECT, MQTT_3_1_1, MQTT_5
from sterna.mqtt.properties import Properties
from sterna.mqtt.server_packets import decode_connack, decode_granted

FOREVER = 0xFFFFFFFF
#: Publications that wait until the foreign broker's retained messages are known; at more our own broker sends no more.
WAITING_BYTES_MAX = 1024 * 1024
_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = 65535, 65534


class OwnListener(Protocol):
    def own_opened(self) -> None:
        """Our own broker has opened the session."""

    def own_subscribed(self) -> None:
        """It has answered every request to subscribe."""

    def own_ended(self, reason: str) -> None:
        """Our own broker has ended the connection."""


class OwnSide:
    """The transport of that client, as our own broker sees it: bytes written to it go to the foreign broker."""

    def __init__(
        self,
        world: ForeignWorld,
        own: OwnBroker,
        abilities: Abilities,
        joint: Joint,
        wire: Callable[[], Output | None],
        listener: OwnListener,
        *,
        margin: int,
    ) -> None:
        """`wire`: the connection to the foreign broker.  `margin`: bytes that the joint may add to a packet."""
        self._world = world
        self._own = own
        self._abilities = abilities
        self._joint = joint
        self._wire = wire
        self._listener: OwnListener | None = listener
        self._margin = margin
        self._owed: list[bytes] = []
        self._paying: ForeignTimer | None = None
        self._connection: OwnConnection | None = None
        self._asked = 0

    @property
    def is_asking(self) -> bool:
        return self._asked > 0

    def open(self) -> None:
        abilities = self._abilities
        version = abilities.version
        # Less than the foreign broker takes at once: a fence, and a value that it lacked, are to have room, too.
        most = max(abilities.receive_maximum - 2, 1)
        values: Properties = {prop.SESSION_EXPIRY: FOREVER, prop.RECEIVE_MAXIMUM: most}
        if abilities.packet_bytes:
            values[prop.MAXIMUM_PACKET_SIZE] = max(abilities.packet_bytes - self._margin, 64)
        # As a bridge, for 3.1.1 has no other word for No Local.
        level = MQTT_5 if version == MQTT_5 else BRIDGE | MQTT_3_1_1
        self._connection = self._own.open(self)
        self.feed(encode.encode_connect(level, self._own.client_id, clean=False, keep_alive_s=0, values=values))

    def subscribe(self, filters: Sequence[tuple[bytes, int]]) -> None:
        self._asked += 1
        self.feed(encode.encode_subscribe(_SUBSCRIBE_ID, filters, self._abilities.version))

    def unsubscribe(self, filters: Sequence[bytes]) -> None:
        self.feed(encode.encode_unsubscribe(_UNSUBSCRIBE_ID, filters, self._abilities.version))

    def feed(self, data: bytes) -> None:
        """HOT.  Packets of the foreign broker, as its client."""
        if self._connection is not None:
            self._connection.feed(data)

    def answer(self, data: bytes) -> None:
        """The same, but not while our own broker is sending."""
        self._owed.append(data)
        if self._paying is None:
            self._paying = self._world.later(0.0, self._pay)

    def _pay(self) -> None:
        self._paying = None
        owed, self._owed = self._owed, []
        self.feed(b"".join(owed))

    def settled(self) -> None:
        """Publications that waited go to the foreign broker."""
        self._joint.settled()
        self.congested(now=False)

    def congested(self, *, now: bool) -> None:
        if self._connection is None:
            return
        if now:
            self._connection.congested()
        else:
            self._connection.writable()

    def end(self) -> None:
        """The foreign broker is gone."""
        connection, self._connection = self._connection, None
        self._listener = None
        if self._paying is not None:
            self._paying.cancel()
            self._paying = None
        if connection is not None:
            connection.lost()

    # -- what our own broker asks of a transport --

    def write(self, data: bytes) -> None:
        """HOT."""
        if self._listener is None:
            return
        for packet in self._joint.from_own(data):
            self._other(packet)
        if self._joint.waiting_bytes > WAITING_BYTES_MAX:
            self.congested(now=True)

    def _other(self, packet: bytes) -> None:
        kind = packet[0] >> 4
        listener = self._listener
        if listener is None:
            return
        version = self._abilities.version
        if kind == CONNACK:
            answer = decode_connack(packet, _body(packet), len(packet), version)
            if answer.code:
                listener.own_ended(f"our own node refuses the session (0x{answer.code:02x})")
            else:
                listener.own_opened()
        elif kind == SUBACK:
            _, codes = decode_granted(packet, _body(packet), len(packet), version)
            if max(codes, default=0) >= 0x80:
                listener.own_ended("our own node refuses to_broker in [interworking]; see [limits]")
                return
            self._asked -= 1
            if not self._asked:
                listener.own_subscribed()
        elif kind == DISCONNECT:
            listener.own_ended(f"our own node ends the session (0x{packet[2] if len(packet) > 2 else 0:02x})")

    def close(self) -> None:
        if self._listener is not None:
            self._listener.own_ended("our own node ended the session")

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        if (output := self._wire()) is not None:
            output.pause_reading()

    def resume_reading(self) -> None:
        if (output := self._wire()) is not None:
            output.resume_reading()

    def get_write_buffer_size(self) -> int:
        output = self._wire()
        return output.get_write_buffer_size() if output is not None else 0


def _body(packet: bytes) -> int:
    """Where the body begins."""
    place = 1
    while packet[place] & 0x80:
        place += 1
    return place + 1
