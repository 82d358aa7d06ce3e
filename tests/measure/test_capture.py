"""Packets turned into an account: segments in order, repeated or missing, and the filter the kernel runs."""

from __future__ import annotations

import socket
import struct

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.ports import free_port
from sterna.measure.harness.processes import wait_until
from sterna.measure.load import packets
from sterna.measure.wire.byte_account import DATAGRAMS, HEADERS, REPEATED
from sterna.measure.wire.capture import SYN, TCP, UDP, Accounts, Capture, Watched, may_capture, port_filter, read_packet
from sterna.measure.wire.conversations import MqttReader
from sterna.measure.wire.relay import Relays

BROKER, CLIENT = 2883, 45678
PUBLISH = packets.publish("sensor/01/val", b"1700000000000", 2, 7)
PUBREC = packets.acknowledgements(packets.PUBREC, [7])
HEADER_BYTES = 14 + 20 + 32


def frame(source: int, target: int, sequence: int, payload: bytes = b"", flags: int = 0, protocol: int = TCP) -> bytes:
    if protocol == TCP:
        # Twelve bytes of options, as Linux has them.
        segment = struct.pack(">HHIIBBHHH12x", source, target, sequence, 0, 8 << 4, flags, 0, 0, 0) + payload
    else:
        segment = struct.pack(">HHHH", source, target, 8 + len(payload), 0) + payload
    local = b"\x7f\0\0\1"
    ip = struct.pack(">BBHIBBH", 0x45, 0, 20 + len(segment), 0, 64, protocol, 0) + local + local
    return bytes(12) + b"\x08\x00" + ip + segment


@pytest.fixture
def accounts() -> Accounts:
    return Accounts({"bridges": Watched(frozenset({BROKER}), MqttReader)})


def test_a_packet_with_a_publication_counts_whole_and_its_acknowledgement_as_control(accounts: Accounts) -> None:
    accounts.take(frame(CLIENT, BROKER, 99, flags=SYN))
    accounts.take(frame(CLIENT, BROKER, 100, PUBLISH))
    accounts.take(frame(BROKER, CLIENT, 500, PUBREC))
    ledger = accounts.ledgers["bridges"]
    assert (ledger.publish, ledger.control) == (HEADER_BYTES + 32, 2 * HEADER_BYTES + 4)
    assert ledger.kinds == {HEADERS: 3 * HEADER_BYTES, "PUBLISH": 32, "PUBREC": 4}
    assert (ledger.packets, ledger.publish_packets, ledger.publication_bytes) == (3, 1, 32)


def test_what_tcp_sends_again_is_counted_but_not_read_twice(accounts: Accounts) -> None:
    for _ in range(2):
        accounts.take(frame(CLIENT, BROKER, 100, PUBLISH))
    ledger = accounts.ledgers["bridges"]
    assert ledger.kinds["PUBLISH"] == 32
    assert ledger.kinds[REPEATED] == HEADER_BYTES + 32
    assert ledger.total == 2 * (HEADER_BYTES + 32)


def test_sequence_numbers_may_wrap_around(accounts: Accounts) -> None:
    accounts.take(frame(CLIENT, BROKER, 2**32 - 16, PUBLISH))
    accounts.take(frame(CLIENT, BROKER, 16, PUBLISH))
    assert accounts.ledgers["bridges"].kinds["PUBLISH"] == 64


def test_a_packet_that_was_not_seen_is_noticed(accounts: Accounts) -> None:
    accounts.take(frame(CLIENT, BROKER, 100, PUBLISH))
    with pytest.raises(MeasurementError, match="gap"):
        accounts.take(frame(CLIENT, BROKER, 164, PUBLISH))


def test_datagrams_of_the_same_ports_belong_to_the_network(accounts: Accounts) -> None:
    accounts.take(frame(BROKER, CLIENT, 0, b"ping", protocol=UDP))
    assert accounts.ledgers["bridges"].kinds == {DATAGRAMS: 14 + 20 + 8 + 4}


def test_other_ports_and_other_protocols_are_left_alone(accounts: Accounts) -> None:
    accounts.take(frame(CLIENT, 80, 1, PUBLISH))
    accounts.take(bytes(60))
    assert accounts.ledgers["bridges"].total == 0
    assert read_packet(b"") is None


def passes(program: bytes, packet: bytes) -> bool:
    """A classic BPF machine, as far as the filter uses one."""
    steps = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = index = 0
    while True:
        code, if_true, if_false, k = steps[at]
        at += 1
        match code:
            case 0x28:
                accumulator = int.from_bytes(packet[k : k + 2], "big")
            case 0x30:
                accumulator = packet[k]
            case 0x48:
                accumulator = int.from_bytes(packet[index + k : index + k + 2], "big")
            case 0xB1:
                index = 4 * (packet[k] & 0x0F)
            case 0x15:
                at += if_true if accumulator == k else if_false
            case 0x06:
                return bool(k)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


@pytest.mark.parametrize("count", [1, 2, 20, 100])
def test_the_kernels_filter_passes_exactly_the_ports_in_question(count: int) -> None:
    ports = [3000 + 2 * place for place in range(count)]
    program = port_filter(ports)
    for port in (ports[0], ports[-1]):
        for protocol in (TCP, UDP):
            assert passes(program, frame(port, CLIENT, 0, protocol=protocol))
            assert passes(program, frame(CLIENT, port, 0, protocol=protocol))
    assert not passes(program, frame(CLIENT, 3001, 0))
    assert not passes(program, frame(ports[0], CLIENT, 0, protocol=1))
    assert not passes(program, bytes(60))


def talk(wire: Capture | Relays, server: socket.socket) -> None:
    """A publication one way, its acknowledgement the other, through whatever counts."""
    with socket.create_connection(("127.0.0.1", wire.reach(server.getsockname()[1])), 5) as client:
        peer, _ = server.accept()
        with peer:
            client.sendall(PUBLISH)
            assert peer.recv(100) == PUBLISH
            peer.sendall(PUBREC)
            assert client.recv(100) == PUBREC
            wait_until(lambda: wire.ledgers["bridges"].counts.get("PUBREC") == 1, "both were counted", 10.0)


@pytest.fixture
def server() -> socket.socket:
    """Its port is outside the range from which the system gives strangers theirs: their packets would be counted."""
    return socket.create_server(("127.0.0.1", free_port()))


@pytest.mark.skipif(not may_capture(), reason="capturing packets needs root or CAP_NET_RAW")
def test_real_packets_on_loopback_are_counted_with_their_headers(server: socket.socket) -> None:
    with server, Capture({"bridges": Watched(frozenset({server.getsockname()[1]}), MqttReader)}) as wire:
        talk(wire, server)
    ledger = wire.ledgers["bridges"]
    assert ledger.publish == HEADER_BYTES + len(PUBLISH)
    assert ledger.kinds["PUBREC"] == len(PUBREC)
    assert ledger.total == sum(ledger.kinds.values()) > ledger.publish


def test_relays_count_what_was_written_both_ways(server: socket.socket) -> None:
    with server, Relays({"bridges": Watched(frozenset({server.getsockname()[1]}), MqttReader)}) as wire:
        talk(wire, server)
    ledger = wire.ledgers["bridges"]
    assert ledger.kinds == {"PUBLISH": len(PUBLISH), "PUBREC": len(PUBREC)}
    assert (ledger.publish, ledger.total) == (len(PUBLISH), len(PUBLISH) + len(PUBREC))
