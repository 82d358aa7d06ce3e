"""What a listener makes of the bytes between brokers: MQTT packets and frames of links, cut anywhere."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets
from sterna.measure.wire.conversations import LinkReader, MqttReader, WirePiece, WireReader
from sterna.overlay.channel import Channel
from sterna.overlay.link import Link
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.link_table import Links
from sterna.routing import link_frames
from sterna.routing.link_frames import Frame

LONG = b"\x30\xc8\x01" + b"\x00\x05a/b/c" + bytes(193)
BRIDGE = [
    (packets.connect("bridge", clean=True), WirePiece("CONNECT", 20)),
    (packets.subscribe(1, ["#"], 2), WirePiece("SUBSCRIBE", 8)),
    (b"\x31\x0a\x00\x07$SYS/xx1", WirePiece("PUBLISH of $SYS", 12)),
    (packets.publish("sensor/01/val", b"1700000000000", 2, 7), WirePiece("PUBLISH", 32, True)),
    (packets.acknowledgements(packets.PUBREL, [7]), WirePiece("PUBREL", 4)),
    (LONG, WirePiece("PUBLISH", 203, True)),
    (b"\xc0\x00", WirePiece("PINGREQ", 2)),
]


def read(reader: WireReader, data: bytes, cuts: list[int]) -> list[WirePiece]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [piece for i in range(len(places) - 1) for piece in reader.feed(data[places[i] : places[i + 1]])]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_mqtt_packets_are_told_apart_wherever_they_are_cut(cuts: list[int]) -> None:
    assert read(MqttReader(), b"".join(packet for packet, _ in BRIDGE), cuts) == [piece for _, piece in BRIDGE]


def test_what_has_no_length_is_not_taken_for_mqtt() -> None:
    with pytest.raises(MeasurementError, match="not MQTT"):
        MqttReader().feed(b"\x30\xff\xff\xff\xff\x00")


class Wire:
    """One end of a connection; what is written is kept and handed to the other end on demand."""

    def __init__(self) -> None:
        self.said = b""
        self._handed = 0

    def write(self, data: bytes) -> None:
        self.said += data

    def news(self) -> bytes:
        fresh = self.said[self._handed :]
        self._handed = len(self.said)
        return fresh

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


class User:
    """Takes whatever comes."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []

    def session_started(self, link: Link) -> None: ...
    def session_ended(self, link: Link, reason: str) -> None: ...
    def connection_lost(self, link: Link) -> None: ...
    def link_relieved(self, link: Link) -> None: ...
    def report(self, event: str, **fields: object) -> None: ...
    def accepts(self, peer: str) -> str | None:
        return None

    def stands_by(self, peer: str) -> str | None:
        return None

    def frames(self, link: Link, frames: list[tuple[int, bytes]]) -> None:
        self.taken += frames


def page(messages: list[bytes]) -> bytes:
    return link_frames.encode(link_frames.Page("a", 1, ["b"], (1, 1), True, 0, messages, [], None))


FRAMES: list[tuple[int, bytes, bool]] = [
    (Frame.ANNOUNCE, b"who", False),
    (Frame.SEQUENCED, b"m" * 70, True),
    (Frame.LOOSE, b"l" * 70_000, True),
    (Frame.PAGE, page([]), False),
    (Frame.PAGE, page([b"message"]), True),
]


def conversation() -> tuple[Wire, Wire]:
    """A real handshake between two ends, frames of every sort from the one that dialled, a farewell."""
    ends = []
    for node in ("a", "b"):
        settings = LinkSettings(network="n", node=node, epoch=1, strategy="advertisement", key=b"k" * 16)
        ends.append(Links(settings, User(), now=lambda: 0.0, schedule=lambda at, action: None, rng=Random(node)))
    wires = Wire(), Wire()
    channels: list[Channel] = [ends[0].dialled(wires[0], "b:1"), ends[1].accept(wires[1], "a:1")]
    for _ in range(3):
        channels[1].feed(wires[0].news())
        channels[0].feed(wires[1].news())
    link = ends[0].links["b"]
    for kind, body, _ in FRAMES:
        link.send(kind, body)
        ends[0].flush()
    ends[0].close("b", "enough")
    ends[0].flush()
    return wires


@given(st.lists(st.integers(0, 80_000), max_size=12))
def test_frames_of_a_link_are_told_apart_wherever_they_are_cut(cuts: list[int]) -> None:
    dialler, _ = conversation()
    pieces = read(LinkReader(), dialler.said, cuts)
    assert sum(piece.size for piece in pieces) == len(dialler.said)
    assert [piece.kind for piece in pieces[:2]] == ["handshake"] * 2
    assert pieces[-1].kind == "farewell"
    frames = [(piece.kind, piece.publication) for piece in pieces if piece.kind in Frame.__members__]
    assert frames == [(Frame(kind).name, carries) for kind, _, carries in FRAMES]


def test_the_other_direction_of_a_link_is_understood_too() -> None:
    _, acceptor = conversation()
    pieces = read(LinkReader(), acceptor.said, [])
    assert sum(piece.size for piece in pieces) == len(acceptor.said)
    assert [piece.kind for piece in pieces[:2]] == ["handshake"] * 2
    assert not any(piece.publication for piece in pieces)


def test_what_is_no_link_is_refused() -> None:
    with pytest.raises(MeasurementError, match="no handshake"):
        LinkReader().feed(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("nonsense", [b"\xff" * 40, b"\x51\x00" + b"\xff" * 40], ids=["no number", "not deflated"])
def test_batches_that_do_not_line_up_end_the_experiment(nonsense: bytes) -> None:
    dialler, _ = conversation()
    reader = LinkReader()
    hello, proof = (piece.size for piece in reader.feed(dialler.said)[:2])
    reader = LinkReader()
    reader.feed(dialler.said[: hello + proof])
    with pytest.raises(MeasurementError, match="does not line up"):
        reader.feed(nonsense)
