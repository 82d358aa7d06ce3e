"""Ports for brokers that are started side by side.

They are taken from outside the range the system picks from for connections: a port from inside may be in use again,
as somebody's outgoing connection, by the time the broker gets to it.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

from sterna.bench.errors import BenchmarkError

FIRST, LAST = 10_000, 32_000
ATTEMPTS = 1000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports nobody has right now, all different, for TCP and UDP alike."""
    dice = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        for _ in range(ATTEMPTS):
            if len(found) == count:
                return found
            port = dice.randrange(FIRST, LAST)
            tcp = stack.enter_context(socket.socket())
            udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            try:
                tcp.bind((host, port))
                udp.bind((host, port))
            except OSError:
                continue
            found.append(port)
    raise BenchmarkError(f"no {count} free ports between {FIRST} and {LAST} on {host}")


def free_port() -> int:
    return free_ports(1)[0]
