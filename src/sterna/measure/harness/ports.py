"""Ports for brokers that are started side by side.

They are taken from outside the range the system picks from for connections: a port from inside may be in use again,
as somebody's outgoing connection, by the time the broker gets to it.  Until then nobody listens on it, so others
that look for ports this way must see that it is taken: a name stands for it, which goes with this process.
"""

from __future__ import annotations

import atexit
import random
import socket
import sys
from collections import deque

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.exclusive import claim

FIRST, LAST = 10_000, 32_000
ATTEMPTS = 1000
NAMES_MAX = 256
"""Names this process holds; those of the oldest ports are let go, as their brokers will be listening by now."""

_names: deque[socket.socket] = deque()
_given: set[int] = set()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports nobody has right now, all different, for TCP and UDP alike."""
    dice = random.SystemRandom()
    found: list[int] = []
    for _ in range(ATTEMPTS):
        if len(found) == count:
            return found
        port = dice.randrange(FIRST, LAST)
        if take_port(port, host):
            found.append(port)
    raise MeasurementError(f"no {count} free ports between {FIRST} and {LAST} on {host}")


def free_port() -> int:
    return free_ports(1)[0]


def take_port(port: int, host: str = "127.0.0.1") -> bool:
    """This very port, if nobody has it and nobody is about to."""
    return port not in _given and _is_free(host, port) and _take_name(port)


@atexit.register
def _let_go() -> None:
    while _names:
        _names.pop().close()


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        # As brokers do: connections that ended a moment ago are nobody.
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tcp.bind((host, port))
            udp.bind((host, port))
        except OSError:
            return False
        return True


def _take_name(port: int) -> bool:
    """False if another process is about to use this port."""
    if sys.platform == "linux":
        name = claim(f"port-{port}")
        if name is None:
            return False
        _names.append(name)
        if len(_names) > NAMES_MAX:
            _names.popleft().close()
    _given.add(port)
    return True
