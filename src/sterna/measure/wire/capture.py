"""Bytes between brokers, measured on the wire: packets on loopback, copied by the kernel, headers and all.

Needs the right to open packet sockets (root, or CAP_NET_RAW).  The kernel filters by port, so that other
traffic on loopback costs nothing; a packet that was not copied in time ends the experiment.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from sterna.measure.errors import MeasurementError
from sterna.measure.wire.byte_account import ByteAccount
from sterna.measure.wire.conversations import WireReader

ETHERNET_BYTES = 14
IPV4 = 0x0800
TCP, UDP = 6, 17
SYN = 0x02
EVERY_PROTOCOL = 0x0003
BUFFER_BYTES = 32 * 1024 * 1024
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_OUTGOING = 4
LOOK_S = 0.1
SEQUENCE_MASK = 0xFFFF_FFFF
PACKET_BYTES_MAX = 1 << 17


@dataclass(frozen=True, slots=True)
class Watched:
    """The connections of one network: those with one of these ports at either end."""

    ports: frozenset[int]
    reader: Callable[[], WireReader]


class CapturedPacket(NamedTuple):
    """A captured packet, as far as it matters."""

    size: int
    protocol: int
    source: tuple[bytes, int]
    target: tuple[bytes, int]
    flags: int
    sequence: int
    payload: bytes


def read_packet(data: bytes) -> CapturedPacket | None:
    """An Ethernet frame with IPv4 and TCP or UDP in it; None for anything else."""
    if len(data) < ETHERNET_BYTES + 28 or int.from_bytes(data[12:14], "big") != IPV4:
        return None
    start = ETHERNET_BYTES
    words, protocol = data[start] & 0x0F, data[start + 9]
    end = start + int.from_bytes(data[start + 2 : start + 4], "big")
    segment = start + 4 * words
    hosts = data[start + 12 : start + 16], data[start + 16 : start + 20]
    ports = struct.unpack_from(">HH", data, segment)
    source, target = (hosts[0], ports[0]), (hosts[1], ports[1])
    if protocol == TCP and len(data) >= segment + 20:
        payload = data[segment + 4 * (data[segment + 12] >> 4) : end]
        sequence = int.from_bytes(data[segment + 4 : segment + 8], "big")
        return CapturedPacket(len(data), protocol, source, target, data[segment + 13], sequence, payload)
    if protocol == UDP:
        return CapturedPacket(len(data), protocol, source, target, 0, 0, data[segment + 8 : end])
    return None


class TcpDirection:
    """One direction of one connection, put together from its segments."""

    def __init__(self, reader: WireReader) -> None:
        self._reader = reader
        self._expected: int | None = None

    def take(self, packet: CapturedPacket, ledger: ByteAccount) -> None:
        if packet.flags & SYN:
            self._expected = (packet.sequence + 1) & SEQUENCE_MASK
        elif packet.payload:
            expected = packet.sequence if self._expected is None else self._expected
            if packet.sequence != expected:
                self._out_of_place(packet, expected, ledger)
                return
            self._expected = (expected + len(packet.payload)) & SEQUENCE_MASK
        ledger.packet(packet.size, len(packet.payload), self._reader.feed(packet.payload) if packet.payload else [])

    def _out_of_place(self, packet: CapturedPacket, expected: int, ledger: ByteAccount) -> None:
        if (expected - packet.sequence) & SEQUENCE_MASK > SEQUENCE_MASK // 2:
            raise MeasurementError("the capture has a gap: a packet between brokers was not seen")
        ledger.repeated(packet.size)


class Accounts:
    """Packets sorted to the network and the connection they belong to."""

    def __init__(self, watched: dict[str, Watched]) -> None:
        self.ledgers = {name: ByteAccount() for name in watched}
        self._watched = watched
        self._owner = {port: name for name, network in watched.items() for port in network.ports}
        self._flows: dict[tuple[tuple[bytes, int], tuple[bytes, int]], TcpDirection] = {}

    def take(self, data: bytes) -> None:
        packet = read_packet(data)
        if packet is None:
            return
        name = self._network_of(packet)
        if name is None:
            return
        if packet.protocol == UDP:
            self.ledgers[name].datagram(packet.size)
            return
        ends = packet.source, packet.target
        if ends not in self._flows or packet.flags & SYN:
            self._flows[ends] = TcpDirection(self._watched[name].reader())
        self._flows[ends].take(packet, self.ledgers[name])

    def _network_of(self, packet: CapturedPacket) -> str | None:
        return self._owner.get(packet.source[1]) or self._owner.get(packet.target[1])


class Capture:
    """`with Capture(networks) as wire:` counts from there to the end of the block."""

    method = "packets copied from the loopback interface, headers included (Ethernet, IP, TCP)"

    def __init__(self, watched: dict[str, Watched]) -> None:
        self._accounts = Accounts(watched)
        self.ledgers = self._accounts.ledgers
        self._socket = _packet_socket(sorted(port for network in watched.values() for port in network.ports))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        missed = _missed(self._socket)
        self._socket.close()
        if error is None:
            self.check()
            if missed:
                raise MeasurementError(f"{missed} packets were not copied in time; the machine is too busy")

    def check(self) -> None:
        """Raise what went wrong in the meantime, if anything did."""
        if self._failure is not None:
            raise MeasurementError(f"the capture failed: {self._failure}") from self._failure

    def reach(self, port: int) -> int:
        """Where to connect so that what is said to this port is counted: right there."""
        return port

    def _run(self) -> None:
        self._socket.settimeout(LOOK_S)
        try:
            while True:
                with suppress(TimeoutError):
                    while True:
                        data, address = self._socket.recvfrom(PACKET_BYTES_MAX)
                        # On loopback every packet is seen twice: when it is sent and when it is received.
                        if address[2] == _OUTGOING:
                            self._accounts.take(data)
                if self._stopping.is_set():
                    return
        except Exception as error:
            self._failure = error


def may_capture() -> bool:
    """Whether this process has the right to."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except (OSError, AttributeError):
        return False
    return True


def _packet_socket(ports: Iterable[int]) -> socket.socket:
    # Without a protocol nothing is received until the filter stands.
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    program = port_filter(list(ports))
    held = ctypes.create_string_buffer(program, len(program))
    found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(held)))
    with suppress(PermissionError):
        found.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
    found.bind(("lo", EVERY_PROTOCOL))
    return found


def port_filter(ports: list[int]) -> bytes:
    """A classic BPF program that passes IPv4 TCP and UDP packets from or to one of these ports."""
    count = len(ports)
    assert 0 < count <= 100, "jumps reach 255 instructions"
    accept = 9 + 2 * count
    program: list[tuple[int, int, int, int]] = [
        (0x28, 0, 0, 12),  # the Ethernet type
        (0x15, 0, accept - 3, IPV4),
        (0x30, 0, 0, ETHERNET_BYTES + 9),  # the protocol
        (0x15, 1, 0, TCP),
        (0x15, 0, accept - 6, UDP),
        (0xB1, 0, 0, ETHERNET_BYTES),  # the length of the IP header
        (0x48, 0, 0, ETHERNET_BYTES),  # the port it comes from
        *((0x15, accept - (8 + place), 0, port) for place, port in enumerate(ports)),
        (0x48, 0, 0, ETHERNET_BYTES + 2),  # the port it goes to
        *((0x15, accept - (9 + count + place), 0, port) for place, port in enumerate(ports)),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, PACKET_BYTES_MAX),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _missed(packet_socket: socket.socket) -> int:
    statistics = packet_socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
    missed: int = struct.unpack("II", statistics)[1]
    return missed
