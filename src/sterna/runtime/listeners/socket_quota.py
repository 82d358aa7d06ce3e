"""Limits on open client sockets: in all, so that descriptors are left for the journal, and per address.

A socket counts from the moment it is accepted, TLS handshake included, until it is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

RESERVED_SHARE = 8
"""One descriptor in so many is kept for files, links and the admin port, at least."""
BACKLOG_MAX = 4096


class Descriptors(NamedTuple):
    """The file descriptors of the process, divided."""

    sockets: int
    """For clients."""
    backlog: int
    """Clients the kernel may hold for one listener: as many may be accepted before the first of them is refused."""


def divided(descriptors: int, others: int) -> Descriptors:
    """`others` is how many descriptors everything but clients may need; they get half of all at the most."""
    reserve = min(max(others, descriptors // RESERVED_SHARE), descriptors // 2)
    return Descriptors(max(1, descriptors - reserve), max(1, min(BACKLOG_MAX, reserve // 2)))


def host_of(address: Any) -> str:
    """Of a socket's peer; empty for a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""


class QuotaLimits(Protocol):
    @property
    def connections_per_address(self) -> int: ...


class SocketQuota:
    def __init__(
        self, most: int, limits: QuotaLimits, refused: Callable[[str], None], emptied: Callable[[], None] = lambda: None
    ) -> None:
        """`refused` counts by reason; `emptied` is told whenever the last socket has closed."""
        self._most = most
        self._limits = limits
        self._refused = refused
        self._emptied = emptied
        self._held: dict[str, int] = {}
        self.open = 0

    def take(self, host: str) -> bool:
        """One more socket of this host; False if it has to be closed at once."""
        held = self._held.get(host, 0)
        if host and held >= self._limits.connections_per_address:
            self._refused("connections-per-address")
            return False
        if self.open >= self._most:
            self._refused("descriptors")
            return False
        self._held[host] = held + 1
        self.open += 1
        return True

    def give_back(self, host: str) -> None:
        left = self._held[host] - 1
        if left:
            self._held[host] = left
        else:
            del self._held[host]
        self.open -= 1
        if not self.open:
            self._emptied()
