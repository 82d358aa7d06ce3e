"""The client's CONNECT, decoded so that it can be sent again: to another node, or with other options.

The client's requests reach the node byte for byte, with two exceptions.  The session is asked to outlive the connection
between gateway and node, which does not concern the client.  Topic aliases are not negotiated, because they would mean
nothing to the next node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sterna.mqtt import packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_3_1_1, MQTT_5
from sterna.mqtt.properties import READERS, Properties, write_properties
from sterna.mqtt.reasons import Reason

CLEAN = 0x02
WILL = 0x04
_WILL_FLAGS = 0x3C
_PASSWORD_FLAG = 0x40
_USER_FLAG = 0x80
_OURS = frozenset({prop.SESSION_EXPIRY, prop.RECEIVE_MAXIMUM, prop.TOPIC_ALIAS_MAXIMUM})
"""Properties of CONNECT in which the gateway has a say."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The request of one client, and the pieces of its CONNECT."""

    version: int
    client_id: bytes
    #: The client named none: this one is the gateway's.
    assigned: bool
    clean: bool
    keep_alive_s: int
    #: How long the client wants its session to outlive the connection; of no meaning in 3.1.1.
    expiry_s: int
    receive_maximum: int
    #: It proves who it is by an exchange that nobody can repeat for it.
    exchanges: bool
    flags: int
    properties: bytes
    will: bytes
    credentials: bytes
    is_3_1: bool = False
    is_bridge: bool = False

    @property
    def is_transient(self) -> bool:
        """Does the client want its session to end with its connection?"""
        return self.expiry_s == 0 if self.version == MQTT_5 else self.clean

    def connect(self, *, clean: bool, expiry_s: int, window: int) -> bytes:
        """The packet, with another start and end of the session."""
        flags = self.flags & ~CLEAN | (CLEAN if clean else 0)
        # MQTT 3.1 does not say whether there was a session, so nodes are spoken to in 3.1.1.
        level = self.version | packets.BRIDGE if self.is_bridge else self.version
        body = b"\x00\x04MQTT" + bytes((level, flags)) + wire.two(self.keep_alive_s)
        if self.version == MQTT_5:
            ours: Properties = {prop.SESSION_EXPIRY: expiry_s} if expiry_s else {}
            most = min(self.receive_maximum, window) if window else self.receive_maximum
            if most < 65535:
                ours[prop.RECEIVE_MAXIMUM] = most
            section = write_properties(ours)[1:] + self.properties  # two or three properties: their length is one byte
            body += wire.variable(len(section)) + section
        return packets.packet(0x10, body + wire.binary(self.client_id) + self.will + self.credentials)

    def in_3_1_1(self) -> Wish:
        """The same client to a broker of 3.1.1, which is to judge its name and password and nothing else."""
        return replace(self.without_will(), version=MQTT_3_1_1, clean=True, properties=b"", expiry_s=0)

    def named(self, client_id: bytes) -> Wish:
        """The same under another name, and with no password."""
        flags, user = self.flags & ~_PASSWORD_FLAG, b""
        if flags & _USER_FLAG:
            name, _ = wire.read_binary(self.credentials, 0, len(self.credentials))
            user = wire.binary(name)
        return replace(self, client_id=client_id, flags=flags, credentials=user)

    def without_will(self) -> Wish:
        return replace(self, flags=self.flags & ~_WILL_FLAGS, will=b"")


def read_wish(data: bytes, body: int, stop: int, user_properties_max: int, name_if_none: bytes) -> Wish:
    """The CONNECT whose body is `data[body:stop]`, or a ProtocolError."""
    asked = packets.decode_connect(data, body, stop, user_properties_max)
    _, position = wire.read_binary(data, body, stop)
    flags = data[position + 1]
    if asked.is_3_1:
        flags = _flags_without_3_1(asked, flags)
    position += 4
    kept = b""
    if asked.version == MQTT_5:
        kept, position = _without_ours(data, position, stop)
    _, position = wire.read_binary(data, position, stop)
    after_will = position
    if asked.will is not None:
        if asked.version == MQTT_5:
            length, after_will = wire.read_variable(data, position, stop)
            after_will += length
        for _ in ("topic", "payload"):
            _, after_will = wire.read_binary(data, after_will, stop)
    # 3.1.1 gives a name only to those who want no session; the others are the node's to refuse.
    assigned = not asked.client_id and (asked.version == MQTT_5 or asked.clean_start)
    return Wish(
        asked.version,
        name_if_none if assigned else asked.client_id,
        assigned,
        asked.clean_start,
        asked.keep_alive_s,
        asked.properties.get(prop.SESSION_EXPIRY, 0),
        asked.properties.get(prop.RECEIVE_MAXIMUM, 65535),
        prop.AUTHENTICATION_METHOD in asked.properties,
        flags,
        kept,
        data[position:after_will],
        data[after_will:stop],
        is_3_1=asked.is_3_1,
        is_bridge=asked.is_bridge,
    )


def _flags_without_3_1(asked: packets.Connect, flags: int) -> int:
    """As 3.1.1 wants them: nothing announced that is missing, and no bits that mean nothing."""
    kept = CLEAN | (_WILL_FLAGS if asked.will is not None else 0)
    kept |= (0x80 if asked.username is not None else 0) | (0x40 if asked.password is not None else 0)
    return flags & kept


def _without_ours(data: bytes, position: int, end: int) -> tuple[bytes, int]:
    """The properties as they are, but for those that are ours to set."""
    length, position = wire.read_variable(data, position, end)
    stop = position + length
    kept = []
    while position < stop:
        start = position
        identifier, position = wire.read_variable(data, position, stop)
        _, position = READERS[identifier](data, position, stop)
        if identifier not in _OURS:
            kept.append(data[start:position])
    return b"".join(kept), stop


def goodbye(version: int, code: int, expiry_s: int) -> bytes:
    """DISCONNECT for the node: what becomes of the session is as the client wished it."""
    if version != MQTT_5:
        return b"\xe0\x00"
    return packets.packet(0xE0, bytes((code,)) + write_properties({prop.SESSION_EXPIRY: expiry_s}))


def refusal(version: int, code: int) -> bytes:
    """CONNACK of the gateway's own."""
    return packets.encode_connack(version, False, code)


def dismissal(version: int, code: int) -> bytes:
    """DISCONNECT for the client, which only MQTT 5 has."""
    return packets.encode_disconnect(code) if version == MQTT_5 else b""


#: Refusals that another node, or the same one later, may not repeat.  Clients do not hear of them before CONNACK: some
#: libraries never try again after a CONNACK that refuses them, but all of them do after a connection that was closed.
PASSING = frozenset(
    {
        Reason.UNSPECIFIED_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Reason.SERVER_UNAVAILABLE,
        Reason.SERVER_BUSY,
        Reason.SERVER_SHUTTING_DOWN,
        Reason.KEEP_ALIVE_TIMEOUT,
        Reason.CONNECTION_RATE_EXCEEDED,
        Reason.MAXIMUM_CONNECT_TIME,
        Reason.USE_ANOTHER_SERVER,
        Reason.SERVER_MOVED,
    }
)
