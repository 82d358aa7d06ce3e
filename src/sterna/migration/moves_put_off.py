"""Planned moves to a node that had no room for one more: they are tried again for as long as `patience_s`.

Several nodes may send their clients to the same one, which takes `at_once` of them at a time.  Meanwhile the clients
are served where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sterna.migration.move_host import MoveHost
from sterna.migration.move_side import WAITING_MAX, pause_s

#: The pause before the first time it is tried again, as a part of `retry_s`; it is doubled until it is that long.
FIRST_PAUSE = 0.1
PAUSES = 3


class PutOff(NamedTuple):
    target: str
    since: float
    tries: int


class MovesPutOff:
    def __init__(self, host: MoveHost, again: Callable[[bytes, str], None]) -> None:
        """`again`: begin this client's move to that node."""
        self._host = host
        self._again = again
        self._waiting: dict[bytes, PutOff] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def is_put_off(self, client: bytes, target: str, since: float) -> bool:
        """False if it is to be tried no more.  `since`: when the move began, if this is the first time."""
        settings, found = self._host.settings, self._waiting.pop(client, None)
        if found is None or found.target != target:
            found = PutOff(target, since, 0)
        left_s = found.since + settings.patience_s - self._host.now
        if left_s <= 0 or len(self._waiting) >= WAITING_MAX * settings.at_once:
            return False
        found = found._replace(tries=found.tries + 1)
        self._waiting[client] = found
        pause = pause_s(settings.retry_s * FIRST_PAUSE, min(found.tries - 1, PAUSES))
        self._host.later(min(pause, left_s), partial(self._is_due, client, found))
        return True

    def forget(self, client: bytes) -> str | None:
        """The node that it was to go to, if it was put off."""
        found = self._waiting.pop(client, None)
        return found.target if found is not None else None

    def _is_due(self, client: bytes, one: PutOff) -> None:
        if self._waiting.get(client) is one:
            self._again(client, one.target)
