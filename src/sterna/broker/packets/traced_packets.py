"""The packets of one client on their way to the broker, shown to a trace as they pass.

It takes the place of a connection's handler while a trace is on, so that connections which nobody traces cost nothing.
Compiled with the connection: a class of its own kind could not take that place otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sterna.broker.session.connection import ClientHandler, Connection
from sterna.broker.session.session import Session

if TYPE_CHECKING:
    from sterna.broker.access.identity import Accepted, Refused


class TracedPackets(ClientHandler):
    __slots__ = ("_gone", "_handler", "_kept", "_see")

    def __init__(
        self, handler: ClientHandler, see: Callable[[bytes], None], gone: Callable[[Connection], None]
    ) -> None:
        """`see` is shown every byte once, `gone` told when the connection has ended."""
        self._handler = handler
        self._see = see
        self._gone = gone
        #: Bytes that were seen and come again, with those that follow them.
        self._kept = 0

    def parse(self, connection: Connection, data: bytes) -> None:
        self._see(data[self._kept :])
        self._kept = len(data)
        try:
            self._handler.parse(connection, data)
        finally:
            self._kept = connection.kept_bytes

    def verified(self, connection: Connection, verdict: Accepted | Refused) -> None:
        self._handler.verified(connection, verdict)

    def failed(self, connection: Connection, code: int, reason: str) -> None:
        self._handler.failed(connection, code, reason)

    def lost(self, connection: Connection) -> None:
        self._gone(connection)
        self._handler.lost(connection)

    def writable(self, session: Session) -> None:
        self._handler.writable(session)
