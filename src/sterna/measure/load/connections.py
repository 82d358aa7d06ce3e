"""The generator's clients: non-blocking sockets on one epoll, all reading into one shared buffer.

One `LoadClient` is one MQTT 3.1.1 connection.  The handshake blocks, unmeasured; after `Clients.watch` nothing does.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from functools import partial

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets

HANDSHAKE_S_MAX = 10.0
READ_BYTES_MAX = 256 * 1024
EVENTS_MAX = 512
SUBSCRIBER = "sub-"
"""How the names of subscribers begin in every load."""


class LoadClient:
    """One connection; what the kernel does not take at once waits in `_unsent`."""

    __slots__ = ("_blocked", "_unsent", "name", "socket")

    def __init__(self, port: int, name: str, blocked: list[LoadClient]) -> None:
        self.name = name
        self._blocked = blocked
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=HANDSHAKE_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unsent = b""

    def introduce(self, *, clean: bool) -> None:
        self._ask(packets.connect(self.name, clean=clean), packets.CONNACK_ACCEPTED, "CONNECT")

    def subscribe(self, filters: Sequence[str], qos: int) -> None:
        self._ask(packets.subscribe(1, filters, qos), packets.suback(1, filters, qos), "SUBSCRIBE")

    def _ask(self, question: bytes, wanted: bytes, what: str) -> None:
        self.socket.sendall(question)
        answer = b""
        while len(answer) < len(wanted):
            part = self.socket.recv(len(wanted) - len(answer))
            if not part:
                break
            answer += part
        if answer != wanted:
            raise MeasurementError(f"{self.name}: {what} was answered with {answer[:8].hex()}, not {wanted[:8].hex()}")

    @property
    def blocked(self) -> bool:
        return bool(self._unsent)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send in order, now or as soon as the kernel takes it (`flush`)."""
        if self._unsent:
            self._unsent += data
            return
        try:
            taken = self.socket.send(data)
        except BlockingIOError:
            taken = 0
        if taken < len(data):
            self._unsent = bytes(data[taken:])
            self._blocked.append(self)

    def flush(self) -> None:
        rest, self._unsent = self._unsent, b""
        self.send(rest)

    def read(self, buffer: memoryview) -> int:
        """Bytes now in `buffer`, 0 if there were none after all."""
        try:
            count = self.socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        if not count:
            raise MeasurementError(f"{self.name}: the broker closed the connection")
        return count


class LoadClients:
    """Everyone connected to one broker, or to both ends of a row of them, and the buffer they read into."""

    def __init__(self, near: int, far: int = 0) -> None:
        """Ports; with `far`, subscribers are connected there and everybody else to `near`."""
        self._near = near
        self._far = far or near
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._all: list[LoadClient] = []
        self._blocked: list[LoadClient] = []
        self.buffer = bytearray(READ_BYTES_MAX)
        self.view = memoryview(self.buffer)

    def connect(self, name: str, *, clean: bool = True) -> LoadClient:
        return self.connect_to(self._far if name.startswith(SUBSCRIBER) else self._near, name, clean=clean)

    def connect_to(self, port: int, name: str, *, clean: bool = True) -> LoadClient:
        client = LoadClient(port, name, self._blocked)
        self._all.append(client)
        client.introduce(clean=clean)
        return client

    def watch(self, client: LoadClient, reader: Callable[[], None]) -> None:
        """Call `reader` whenever the client has something to read."""
        client.socket.setblocking(False)
        self._readers[client.socket.fileno()] = reader
        self._epoll.register(client.socket, select.EPOLLIN)

    def watch_silent(self, client: LoadClient) -> None:
        """For QoS 0 publishers: the broker has nothing to say to them but goodbye."""
        self.watch(client, partial(_nothing_expected, client, self.view))

    def turn(self, timeout_s: float) -> int:
        """Read the clients that are ready, push on those that were blocked; return how many were ready."""
        ready = self._epoll.poll(timeout_s, EVENTS_MAX)
        for descriptor, _ in ready:
            self._readers[descriptor]()
        blocked = self._blocked[:]
        self._blocked.clear()
        for client in blocked:
            client.flush()
        return len(ready)

    def close(self) -> None:
        self._epoll.close()
        for client in self._all:
            client.socket.close()


def _nothing_expected(client: LoadClient, buffer: memoryview) -> None:
    if client.read(buffer):
        raise MeasurementError(f"{client.name}: a publisher at QoS 0 was sent a packet")
