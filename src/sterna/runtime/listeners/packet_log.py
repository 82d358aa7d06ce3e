"""A log of clients' connections, packet by packet, for `log.level = "debug"`.

It stands between a transport and its connection, so that it costs nothing where it is off.  Payloads, passwords and
wills are never shown (`mqtt/packet_text.py`).
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from sterna.broker.session.outbox import Transport
from sterna.broker.tracing import WatchedTransport
from sterna.mqtt.packet_text import PacketDescriber, PacketSpeaker

log = logging.getLogger("sterna.packets")


class ClientConnection(Protocol):
    """The server of one client."""

    def feed(self, data: bytes) -> None: ...
    def lost(self) -> None: ...
    def congested(self) -> None: ...
    def writable(self) -> None: ...
    def fail(self, code: int, reason: str) -> None: ...
    def charge(self, elsewhere: int) -> None:
        """The transport holds so many bytes of it that are not whole yet; they count until the client is let in."""


def is_wanted() -> bool:
    return log.isEnabledFor(logging.DEBUG)


class PacketLog(PacketSpeaker):
    """One connection's."""

    __slots__ = ("address", "received", "sent")

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.received = _LoggedStream(self, "packet received")
        self.sent = _LoggedStream(self, "packet sent")


class _LoggedStream(PacketDescriber):
    """One direction of it."""

    def __init__(self, owner: PacketLog, event: str) -> None:
        super().__init__(owner, self._say)
        self._owner = owner
        self._event = event
        #: Bytes that were not looked at may have ended anywhere: nobody can tell any more where a packet begins.
        self._is_lost = False

    def feed(self, data: bytes) -> None:
        if self._is_lost or not is_wanted():
            self._is_lost = True
            self.forget()
            return
        super().feed(data)

    def _say(self, fields: dict[str, Any]) -> None:
        owner = self._owner
        log.debug(self._event, extra={**fields, "client": owner.client, "address": owner.address})


def logged_transport(transport: Transport, packet_log: PacketLog) -> Transport:
    return WatchedTransport(transport, packet_log.sent.feed)


class LoggedConnection:
    """A connection that is fed through a log; everything else is its own."""

    __slots__ = ("_feed", "_received", "charge", "congested", "fail", "lost", "writable")

    def __init__(self, connection: ClientConnection, packet_log: PacketLog) -> None:
        self._received = packet_log.received
        self._feed = connection.feed
        self.lost = connection.lost
        self.congested = connection.congested
        self.writable = connection.writable
        self.fail = connection.fail
        self.charge = connection.charge

    def feed(self, data: bytes) -> None:
        self._received.feed(data)
        self._feed(data)
