"""Backpressure: publishers are not read from while the journal is too far behind."""

from __future__ import annotations

from typing import Final, Protocol

from sterna.journal.journal import Journal

#: Weight of the open group at which publishers are no longer read from until the journal has caught up.
BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024


class PausableClient(Protocol):
    reading_paused: bool

    def pause(self) -> None:
        """Read nothing more from the client."""

    def listen(self) -> None:
        """Read on, unless something else speaks against it."""


class Backpressure:
    __slots__ = ("_journal", "_paused")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._paused: list[PausableClient] = []

    def overloaded(self) -> bool:
        return self._journal.pending_bytes > BACKLOG_BYTES_MAX

    @property
    def is_pausing(self) -> bool:
        """Is any client not read from?"""
        return bool(self._paused)

    def pause(self, client: PausableClient) -> None:
        """Take nothing more from this client until the journal has caught up."""
        if not client.reading_paused:
            client.reading_paused = True
            client.pause()
            self._paused.append(client)

    def resume(self) -> None:
        paused, self._paused = self._paused, []
        for client in paused:
            client.reading_paused = False
            client.listen()
