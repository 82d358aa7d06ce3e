"""Backpressure: publishers are not read from while the journal is too far behind."""

from __future__ import annotations

from typing import Final

from sterna.broker.session.connection import Connection
from sterna.journal.journal import Journal

#: Weight of the open group at which publishers are no longer read from until the journal has caught up.
BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024


class Backpressure:
    __slots__ = ("_journal", "_paused")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._paused: list[Connection] = []

    def overloaded(self) -> bool:
        return self._journal.pending_bytes > BACKLOG_BYTES_MAX

    @property
    def is_pausing(self) -> bool:
        """Is any client not read from?"""
        return bool(self._paused)

    def pause(self, connection: Connection) -> None:
        """Take nothing more from this client until the journal has caught up."""
        if not connection.reading_paused:
            connection.reading_paused = True
            if not connection.stalled:
                connection.transport.pause_reading()
            self._paused.append(connection)

    def resume(self) -> None:
        paused, self._paused = self._paused, []
        for connection in paused:
            connection.reading_paused = False
            connection.listen()
