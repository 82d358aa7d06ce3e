"""Sessions that clients at other nodes wait for while as many as may be are on their way already.

They go as others arrive.  A node that asks gives up when it has waited for `patience_s`; then it is not answered any
more.  If a session's client has come to yet another node since, or is back, the node that asked is told.
"""

from __future__ import annotations

from typing import NamedTuple

from sterna.migration.messages import MigRefuse, Pull
from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import CLIENT_IS_BACK

#: Sessions asked for, of which that is remembered; others are asked for again.
PULLS_MAX = 10_000


class WaitingPull(NamedTuple):
    source: str
    pull: Pull
    was_called: bool
    """The client had been sent away from here."""
    since: float
    epoch: int | None
    """Of the start of the node that asks."""


class WaitingPulls:
    def __init__(self, host: MoveHost) -> None:
        self._host = host
        #: By client, in the order in which they were asked for.
        self._waiting: dict[bytes, WaitingPull] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, source: str, pull: Pull, *, was_called: bool) -> None:
        known = self._waiting.get(pull.client)
        epoch = self._host.epoch_of(source)
        if known is not None and known.source == source:
            was_called = was_called or known.was_called
            if (known.pull.number, known.epoch) == (pull.number, epoch):
                return  # it is only said again
        elif known is not None:
            self.client_is_back(pull.client)
        self._drop_stale()
        if len(self._waiting) - (pull.client in self._waiting) < PULLS_MAX:
            self._waiting.pop(pull.client, None)
            self._waiting[pull.client] = WaitingPull(source, pull, was_called, self._host.now, epoch)

    def client_is_back(self, client: bytes) -> None:
        """It has come here, or elsewhere, since it was at the node that asks."""
        found = self._waiting.pop(client, None)
        if found is not None:
            self._host.send(found.source, MigRefuse(client, found.pull.number, CLIENT_IS_BACK))

    def next(self) -> WaitingPull | None:
        """The one that has waited longest and still does, no longer in line."""
        self._drop_stale()
        return self._waiting.pop(next(iter(self._waiting))) if self._waiting else None

    def _drop_stale(self) -> None:
        """From the front: they are in the order of their age."""
        while self._waiting:
            client, first = next(iter(self._waiting.items()))
            if not self._is_stale(first):
                return
            del self._waiting[client]

    def _is_stale(self, one: WaitingPull) -> bool:
        """Has the node given up, is it gone, or did another start of it ask?"""
        host = self._host
        is_late = host.now - one.since >= host.settings.patience_s
        return is_late or host.router.link_to(one.source) is None or host.epoch_of(one.source) != one.epoch
