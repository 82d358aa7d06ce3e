"""Bytes between brokers at a distance: every packet that passes the switch between their places, headers and all.

Packets count for a network if both ends are places of it, those to a multicast group if the sender is.  Clients are
elsewhere, so their packets do not count.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from sterna.measure.errors import MeasurementError
from sterna.measure.wire.capture import Accounts, CapturedPacket, Watched

ETHERNET_HEADER = bytes(12) + b"\x08\x00"
"""Tunnel devices carry bare IP packets; on a cable each would have this before it."""
GROUPS = range(224, 240)


class SwitchAccounts(Accounts):
    """`places` are the networks by the addresses of their brokers."""

    def __init__(self, watched: dict[str, Watched], places: dict[str, str]) -> None:
        super().__init__(watched)
        self._places = {socket.inet_aton(host): name for host, name in places.items()}

    def _network_of(self, packet: CapturedPacket) -> str | None:
        name, host = self._places.get(packet.source[0]), packet.target[0]
        return name if host[0] in GROUPS or self._places.get(host) == name else None


class Switched:
    """`with Switched(networks) as wire:`; `wire.tap` is to be given to the switch."""

    method = "packets that passed the switch between brokers, headers included (Ethernet, IP, TCP)"

    def __init__(self, watched: dict[str, Watched]) -> None:
        self._watched = watched
        self._accounts = SwitchAccounts(watched, {})
        self._failure: Exception | None = None
        self.ledgers = self._accounts.ledgers

    def belong(self, places: dict[str, str]) -> None:
        """Which network is at which address; before anything is sent."""
        self._accounts = SwitchAccounts(self._watched, places)
        self.ledgers = self._accounts.ledgers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.check()

    def check(self) -> None:
        if self._failure is not None:
            raise MeasurementError(f"the count failed: {self._failure}") from self._failure

    def reach(self, port: int) -> int:
        return port

    def tap(self, _at: float, _source: int, _target: int, packet: bytes) -> None:
        """Called by the switch, in its thread."""
        if self._failure is None:
            try:
                self._accounts.take(ETHERNET_HEADER + packet)
            except Exception as error:
                self._failure = error
