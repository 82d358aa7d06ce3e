"""The switch between places: groups reach everybody, slow cables take their time, cut ones carry nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.switch import Cables, Switch
from sterna.measure.wire.capture import Watched
from sterna.measure.wire.conversations import MqttReader
from sterna.measure.wire.switched import ETHERNET_HEADER, Switched

PLACES = 3
PATIENCE_S = 60.0


def packet(source: int, target: str, size: int = 100, protocol: int = 17) -> bytes:
    """IPv4 with a UDP header of no meaning."""
    head = bytes([0x45, 0]) + size.to_bytes(2, "big") + bytes(5) + bytes([protocol]) + bytes(2)
    return (head + socket.inet_aton(f"198.18.0.{source + 1}") + socket.inet_aton(target)).ljust(size, b"\0")


class Wires:
    def __init__(self, ends: list[socket.socket], tapped: list[tuple[int, int, bytes]]) -> None:
        self.ends = ends
        self.tapped = tapped

    def send(self, data: bytes, source: int) -> None:
        self.ends[source].send(data)

    def receive(self, place: int) -> bytes:
        return self.ends[place].recv(2048)


@contextmanager
def switched(cables: Cables) -> Iterator[Wires]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(PLACES)]
    tapped: list[tuple[int, int, bytes]] = []
    for device, end in pairs:
        device.setblocking(False)
        end.settimeout(PATIENCE_S)
    switch = Switch(
        [device.fileno() for device, _ in pairs], lambda *_: 0.0, cables, lambda _at, *one: tapped.append(one)
    )
    switch.start()
    try:
        yield Wires([end for _, end in pairs], tapped)
    finally:
        switch.stop()
        for pair in pairs:
            for one in pair:
                one.close()


def test_a_packet_goes_to_its_place_and_one_to_a_group_to_all_others() -> None:
    with switched(Cables()) as wires:
        alone, everybody = packet(0, "198.18.0.2"), packet(0, "239.255.83.84", 120)
        wires.send(alone, 0)
        wires.send(everybody, 0)
        assert [wires.receive(1), wires.receive(1)] == [alone, everybody]
        assert wires.receive(2) == everybody
        assert wires.tapped == [(0, 1, alone), (0, -1, everybody)], "each is counted once"


def test_a_cut_cable_carries_nothing_either_way_until_it_is_mended() -> None:
    cables = Cables()
    with switched(cables) as wires:
        cables.cut(1)
        wires.send(packet(0, "198.18.0.2"), 0)
        wires.send(packet(1, "198.18.0.1"), 1)
        wires.send(packet(0, "239.255.83.84"), 0)
        wires.send(later := packet(0, "198.18.0.3", 60), 0)
        assert [wires.receive(2), wires.receive(2)] == [packet(0, "239.255.83.84"), later], "all before it was handled"
        cables.mend(1)
        wires.send(mended := packet(2, "198.18.0.2", 70), 2)
        assert wires.receive(1) == mended


def test_a_slow_cable_passes_packets_one_after_the_other() -> None:
    cables = Cables(bits_per_s=1e6)
    assert cables.through(0, 1, 125, now=10.0) == pytest.approx(10.002), "1 ms on each of the two cables"
    assert cables.through(0, 2, 125, now=10.0) == pytest.approx(10.003), "it waits for the first on the shared one"
    assert cables.through(2, 0, 125, now=10.0) == pytest.approx(10.002), "the other way is free"
    assert Cables().through(0, 1, 10**9, now=10.0) == 10.0


def test_only_packets_within_a_network_and_to_its_group_count() -> None:
    wire = Switched({"ours": Watched(frozenset(), MqttReader), "other": Watched(frozenset(), MqttReader)})
    wire.belong({"198.18.0.1": "ours", "198.18.0.2": "ours", "198.18.0.3": "other"})
    for data in (packet(0, "198.18.0.2"), packet(0, "239.255.83.84"), packet(0, "198.18.0.3"), packet(8, "198.18.0.1")):
        wire.tap(0.0, 0, -1, data)
    assert wire.ledgers["ours"].total == 2 * (100 + len(ETHERNET_HEADER))
    assert wire.ledgers["ours"].kinds == {"datagrams of the overlay": 228}
    assert wire.ledgers["other"].total == 0


def test_what_cannot_be_accounted_for_ends_the_experiment() -> None:
    wire = Switched({"ours": Watched(frozenset(), MqttReader)})
    wire.belong({"198.18.0.1": "ours", "198.18.0.2": "ours"})
    segment = bytes(12) + bytes([0x50, 0x18]) + bytes(6)
    begun = packet(0, "198.18.0.2", 40, protocol=6)[:20] + segment
    wire.tap(0.0, 0, -1, begun.replace(b"\x00\x28", b"\x00\x2e", 1) + b"\x30\xff\xff\xff\xff\xff")
    with pytest.raises(MeasurementError, match="not MQTT"):
        wire.check()
