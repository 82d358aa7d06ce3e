"""A broker in name only: forwards QoS 0 packets of exact topics without looking at them, and can be told to misbehave.

It shows that the generator notices what a good broker never does, and how fast the generator is when the broker is not.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from struct import unpack_from

from sterna.measure.load.packets import CONNACK_ACCEPTED

Forward = Callable[[bytes, int], bytes]
"""Given the packets about to be forwarded and the size of each, what is sent instead."""


def faithfully(packets: bytes, size: int) -> bytes:
    return packets


class ShamBroker:
    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._clients: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}
        self._subscribers: dict[bytes, list[socket.socket]] = {}
        self.stopped = threading.Event()

    def serve(self) -> None:
        while not self.stopped.is_set():
            for descriptor, _ in self._epoll.poll(0.05):
                if descriptor == self._listener.fileno():
                    client, _ = self._listener.accept()
                    self._clients[client.fileno()] = client
                    self._tails[client.fileno()] = b""
                    self._epoll.register(client, select.EPOLLIN)
                else:
                    self._read(descriptor)

    def close(self) -> None:
        self._epoll.close()
        for one in (self._listener, *self._clients.values()):
            one.close()

    def _read(self, descriptor: int) -> None:
        client = self._clients[descriptor]
        try:
            data = client.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._epoll.unregister(client)
        elif data[0] == 0x10 and not self._tails[descriptor]:
            client.sendall(CONNACK_ACCEPTED)
        elif data[0] == 0x82 and not self._tails[descriptor]:
            (length,) = unpack_from(">H", data, 4)
            self._subscribers.setdefault(data[6 : 6 + length], []).append(client)
            client.sendall(b"\x90\x03" + data[2:4] + b"\x00")
        else:
            self._publish(descriptor, self._tails[descriptor] + data)

    def _publish(self, descriptor: int, data: bytes) -> None:
        size = data[1] + 2
        whole = len(data) // size * size
        self._tails[descriptor] = data[whole:]
        (length,) = unpack_from(">H", data, 2)
        forwarded = self._forward(data[:whole], size)
        for subscriber in self._subscribers[data[4 : 4 + length]]:
            with suppress(ConnectionError):
                subscriber.sendall(forwarded)


@contextmanager
def sham_broker(forward: Forward = faithfully) -> Iterator[int]:
    """The port of a sham broker that lives in a thread for the length of the block."""
    broker = ShamBroker(forward)
    thread = threading.Thread(target=broker.serve, daemon=True)
    thread.start()
    try:
        yield broker.port
    finally:
        broker.stopped.set()
        thread.join(10)
        broker.close()
