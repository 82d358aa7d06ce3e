"""The bytes between two brokers, sorted by kind by a listener.

A reader is fed one direction of one connection and tells, piece by piece, what kind of thing passed, how many bytes
it had and whether it carried messages of clients.  Nothing is believed: bytes that do not line up end the experiment,
because a count that might be wrong is worth nothing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sterna.measure.errors import MeasurementError
from sterna.migration import messages
from sterna.overlay import handshake
from sterna.overlay.batches import (
    FAREWELL,
    MAC_BYTES,
    PLAIN,
    BrokenBatch,
    Unfolder,
    frame_head,
    frames_in,
    read_head,
)
from sterna.routing import link_frames
from sterna.routing.link_frames import Frame

MQTT_KINDS = (
    "reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip
PUBLISH = 3
LENGTH_BYTES_MAX = 4
BATCH_BYTES_MAX = 1 << 24


class WirePiece(NamedTuple):
    kind: str
    size: int
    publication: bool = False
    """It carries messages of clients."""


class WireReader(Protocol):
    def feed(self, data: bytes) -> list[WirePiece]:
        """The pieces these bytes complete."""


class MqttReader:
    """Packets of an MQTT 3.1.1 connection, such as one of Mosquitto's bridges."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[WirePiece]:
        self._data += data
        pieces = []
        while (size := _packet_bytes(self._data)) is not None and size <= len(self._data):
            pieces.append(_mqtt_piece(self._data[:size]))
            self._data = self._data[size:]
        return pieces


def _packet_bytes(data: bytes) -> int | None:
    """Size of the first packet, as soon as it can be told."""
    length = 0
    for place, byte in enumerate(data[1 : 1 + LENGTH_BYTES_MAX]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return 2 + place + length
    if len(data) > LENGTH_BYTES_MAX:
        raise MeasurementError("what passes on a bridge is not MQTT: a packet without a length")
    return None


def _mqtt_piece(packet: bytes) -> WirePiece:
    kind = packet[0] >> 4
    if kind == PUBLISH and not _is_news_of_the_broker(packet):
        return WirePiece("PUBLISH", len(packet), True)
    return WirePiece("PUBLISH of $SYS" if kind == PUBLISH else MQTT_KINDS[kind], len(packet))


def _is_news_of_the_broker(packet: bytes) -> bool:
    """Bridges tell the other side that they are there, in the form of a message."""
    start = next(place for place in range(1, len(packet)) if packet[place] < 0x80) + 1
    return packet[start + 2 : start + 6] == b"$SYS"


class LinkReader:
    """Handshake, then batches of frames: a link between two of our nodes."""

    def __init__(self) -> None:
        self._data = b""
        self._has_shaken_hands = False
        self._unfolder = Unfolder(BATCH_BYTES_MAX)

    def feed(self, data: bytes) -> list[WirePiece]:
        self._data += data
        pieces: list[WirePiece] = []
        while (found := self._next()) is not None:
            pieces.extend(found)
        return pieces

    def _next(self) -> list[WirePiece] | None:
        try:
            return self._batch() if self._has_shaken_hands else self._handshake()
        except BrokenBatch as error:
            raise MeasurementError(f"what passes on a link does not line up: {error}") from None

    def _handshake(self) -> list[WirePiece] | None:
        try:
            found = handshake.first_message(self._data)
        except handshake.HandshakeError as error:
            raise MeasurementError(f"what passes on a link is no handshake: {error}") from None
        if found is None:
            return None
        kind, body = found
        # The last word of either side before its batches.
        self._has_shaken_hands = kind in (handshake.PROOF, handshake.WELCOME)
        size = handshake.HEAD_BYTES + len(body)
        self._data = self._data[size:]
        return [WirePiece("handshake", size)]

    def _batch(self) -> list[WirePiece] | None:
        found = read_head(self._data, 0)
        if found is None or len(self._data) < found[3] + MAC_BYTES + found[0]:
            return None
        length, what, _, middle = found
        head = middle + MAC_BYTES
        body, self._data = self._data[head : head + length], self._data[head + length :]
        if what == FAREWELL:
            return [WirePiece("farewell", head + length)]
        if what != PLAIN:
            body = self._unfolder.unfold(what, body)
        if not length:
            return [WirePiece("keep-alive or acknowledgement", head)]
        return [WirePiece("heads of batches", head), *_shrunk(self._frame_pieces(body), len(body), length)]

    def _frame_pieces(self, batch: bytes) -> list[WirePiece]:
        return [
            WirePiece(
                self._named(kind, body), len(frame_head(kind, len(body))) + len(body), _carries_messages(kind, body)
            )
            for kind, body in frames_in(batch, 0, len(batch))
        ]

    def _named(self, kind: int, body: bytes) -> str:
        return Frame(kind).name


class MoveLinkReader(LinkReader):
    """The same, with the words of moves called by their names."""

    def _named(self, kind: int, body: bytes) -> str:
        if kind == Frame.LETTER:
            letter = link_frames.decode(body, link_frames.Letter)
            if letter.about == link_frames.About.MOVES:
                return type(messages.decode(letter.body)).__name__.upper()
        return super()._named(kind, body)


def _shrunk(pieces: list[WirePiece], plain: int, deflated: int) -> list[WirePiece]:
    """Frames of a batch that was deflated or told by a difference take their share of it."""
    shrunk, given, seen = [], 0, 0
    for piece in pieces:
        seen += piece.size
        upto = round(deflated * seen / plain)
        shrunk.append(piece._replace(size=upto - given))
        given = upto
    return shrunk


def _carries_messages(kind: int, body: bytes) -> bool:
    if kind == Frame.PAGE:
        page = link_frames.decode(body, link_frames.Page)
        return bool(page.messages or page.retained)
    return kind in (Frame.SEQUENCED, Frame.LOOSE)
