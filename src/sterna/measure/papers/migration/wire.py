"""Bytes and packets of a move, read from the wire: the paper's tables 6.5 to 6.7, and the load on clients by QoS.

The switch between the places shows every packet.  Sizes are those of whole packets, with the headers of Ethernet, IP
and TCP, as in the paper.  One client at a time is moved, with one subscription, and publishers at both nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import NamedTuple

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.wire.capture import ETHERNET_BYTES, IPV4, SYN, CapturedPacket, read_packet
from sterna.measure.wire.conversations import MoveLinkReader, MqttReader, WirePiece, WireReader

PACKETS_MAX = 1_000_000
BEFORE_S = 1.2
"""So long before a move is what the time around it is compared with,"""
AROUND_S = 0.1
AFTER_S = 1.0
"""which begins and ends so much before and after it."""
_ETHERNET = bytes(ETHERNET_BYTES - 2) + IPV4.to_bytes(2, "big")
MQTT_PACKETS = ("CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP")
DELIVERY = MQTT_PACKETS[2:]
PAPER_MQTT = dict(zip(MQTT_PACKETS, (96, 70, 70, 74, 70, 70, 70), strict=True))
"""Its table 6.5, in bytes."""
PAPER_MOVE = {"MIGRATE": 935, "MIGACK": 163, "MIGTO": 177, "MIGTOACK": 147, "MIGSYNC": 336, "MIGSYNCACK": 149}
"""Its table 6.6; MIGRATE with six subscriptions, MIGSYNC with two.
Their names mean other things here: docs/papers.md."""
PAPER_PER_MESSAGE = {0: (1, 70), 1: (2, 144), 2: (4, 280)}
"""Its table 6.7: packets and bytes of a message, by QoS."""


class PacketSize(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    paper_bytes: int | None
    count: int
    packet_bytes: float
    """Of the whole packet, mean,"""
    own_bytes: float
    """of which this much is the word itself."""


class WireMove(msgspec.Struct, frozen=True, kw_only=True):
    """One move."""

    kind: str
    qos: int
    words: dict[str, int]
    """Of the move, between the nodes: how often each was said."""
    packets: int
    """That carried them,"""
    bytes: int
    """whole."""
    client_per_s: float
    """Bytes between client and nodes, to and fro, a second before the move."""
    client_extra: float
    """Bytes around the move beyond those of as long a time before."""
    publish_per_s: float
    """PUBLISH packets to the client before the move,"""
    publish_around_per_s: float
    """and around it."""
    message_packets: float
    """Of MQTT to and from the client per message before the move,"""
    message_bytes: float
    """and the packets that carried them, whole."""


class MoveWire(msgspec.Struct, frozen=True, kw_only=True):
    moves: list[WireMove]
    sizes: list[PacketSize]
    """Of words of moves, by name,"""
    mqtt: list[PacketSize]
    """and of packets between a plain client of MQTT 3.1.1 and nodes."""


class SeenPacket(NamedTuple):
    """One packet and what was complete with it."""

    at: float
    size: int
    is_link: bool
    is_client: bool
    pieces: list[WirePiece]


class WireLog:
    """A tap; `read` makes sense of what it has heard."""

    def __init__(self, client_place: int, links: int, clients: int) -> None:
        self._client_place = client_place
        self._links = links
        self._clients = clients
        self._packets: list[tuple[float, int, int, bytes]] = []

    def __call__(self, at: float, source: int, target: int, packet: bytes) -> None:
        if len(self._packets) < PACKETS_MAX:
            self._packets.append((at, source, target, packet))

    def read(self) -> list[SeenPacket]:
        if len(self._packets) >= PACKETS_MAX:
            raise MeasurementError(f"more than {PACKETS_MAX:,} packets passed")
        streams: dict[tuple[object, object], _WireStream] = {}
        found = []
        for at, source, target, data in self._packets:
            packet = read_packet(_ETHERNET + data)
            if packet is None:
                continue
            ports = packet.source[1], packet.target[1]
            is_link = self._links in ports
            is_client = self._client_place in (source, target) and self._clients in ports
            if is_link or is_client:
                reader: Callable[[], WireReader] = MoveLinkReader if is_link else MqttReader
                ends = packet.source, packet.target
                if ends not in streams or packet.flags & SYN:
                    streams[ends] = _WireStream(reader())
                found.append(SeenPacket(at, packet.size, is_link, is_client, streams[ends].take(packet)))
        return found


class _WireStream:
    """One direction of a connection, in the order of its bytes."""

    def __init__(self, reader: WireReader) -> None:
        self._reader = reader
        self._next: int | None = None

    def take(self, packet: CapturedPacket) -> list[WirePiece]:
        if packet.flags & SYN:
            self._next = packet.sequence + 1 & 0xFFFF_FFFF
            return []
        if not packet.payload or (self._next is not None and packet.sequence != self._next):
            return []  # nothing, or sent again
        self._next = packet.sequence + len(packet.payload) & 0xFFFF_FFFF
        return self._reader.feed(packet.payload)


def account(seen: Sequence[SeenPacket], kind: str, qos: int, ordered: float, ended: float) -> WireMove:
    """The cost of one move, from the order until its end on both sides."""
    begin, end = ordered - AROUND_S, ended + AFTER_S
    said = [one for one in seen if one.is_link and ordered <= one.at <= end and any(map(_is_word, one.pieces))]
    words: dict[str, int] = {}
    for one in said:
        for piece in filter(_is_word, one.pieces):
            words[piece.kind] = words.get(piece.kind, 0) + 1
    before = [one for one in seen if one.is_client and begin - BEFORE_S <= one.at < begin]
    around = [one for one in seen if one.is_client and begin <= one.at < end]
    client_per_s = sum(one.size for one in before) / BEFORE_S
    messages = max(1, _published(before))
    full = [one for one in before if any(piece.kind in DELIVERY for piece in one.pieces)]
    return WireMove(
        kind=kind,
        qos=qos,
        words=words,
        packets=len(said),
        bytes=sum(one.size for one in said),
        client_per_s=client_per_s,
        client_extra=sum(one.size for one in around) - client_per_s * (end - begin),
        publish_per_s=_published(before) / BEFORE_S,
        publish_around_per_s=_published(around) / (end - begin),
        message_packets=sum(piece.kind in DELIVERY for one in full for piece in one.pieces) / messages,
        message_bytes=sum(one.size for one in full) / messages,
    )


def _published(seen: Sequence[SeenPacket]) -> int:
    return sum(piece.kind == "PUBLISH" for one in seen for piece in one.pieces)


def _is_word(piece: WirePiece) -> bool:
    return piece.kind.startswith("MIG") or piece.kind in ("PULL", "ABSENT")


def sizes(
    seen: Sequence[SeenPacket], paper: dict[str, int], is_wanted: Callable[[SeenPacket, WirePiece], bool]
) -> list[PacketSize]:
    """Of packets that carry such a thing, and perhaps others."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in seen:
        wanted = [piece for piece in one.pieces if is_wanted(one, piece)]
        for piece in wanted:
            found.setdefault(piece.kind, []).append((one.size, piece.size))
    return [
        PacketSize(
            name=name,
            paper_bytes=paper.get(name),
            count=len(each),
            packet_bytes=mean(size for size, _ in each),
            own_bytes=mean(own for _, own in each),
        )
        for name, each in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def is_word_of_a_move(one: SeenPacket, piece: WirePiece) -> bool:
    return one.is_link and _is_word(piece)


def is_mqtt_packet(one: SeenPacket, piece: WirePiece) -> bool:
    return one.is_client and piece.kind in MQTT_PACKETS
