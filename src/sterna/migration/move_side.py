"""The base of both sides of a move: a table of actions, and a timer that repeats messages."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from sterna.migration.move_host import MoveHost
from sterna.migration.tables import ArrivalState, DepartureState, Do, Machine, On, Table

#: How soon something is tried again that the disk did not do.
AGAIN_S = 0.005


#: Why a session stays where it is, though its client was to come to another node;
NOT_COME = "its client did not come there"
#: and as the node says that was to have it.
CLIENT_IS_BACK = "the client is back"
#: Why a node does not take a session now, but may soon; the other node knows it by these words.
TOO_MUCH_ARRIVES = "too much is arriving there"
#: How often a pause is doubled.
DOUBLINGS_MAX = 10


def pause_s(retry_s: float, retries: int) -> float:
    """Before something is said again for so many times."""
    return retry_s * 2.0 ** min(retries, DOUBLINGS_MAX)


#: Moves that wait for their clients, for each that may be under way otherwise.
WAITING_MAX = 16


def has_room(sides: Collection[MoveSide], at_once: int) -> bool:
    """May one more move begin?"""
    if len(sides) < at_once:
        return True
    return len(sides) < WAITING_MAX * at_once and sum(not one.waits_for_client for one in sides) < at_once


class MoveSide:
    #: Of the events that change no state, the one that shows that it goes on.
    progress: On

    def __init__(self, host: MoveHost, table: Table, state: StrEnum, peer: str, number: int) -> None:
        self._host = host
        self._machine = Machine(table, state)
        self._peer = peer
        self.number = number
        self.reason = ""
        self.started_at = self._changed_at = host.now
        self._retries = 0

    @property
    def waits_for_client(self) -> bool:
        """Is there nothing to do until the client has come to the new node?"""
        return self._machine.state in (DepartureState.CALLED, ArrivalState.PREPARED)

    def _is_under_way(self) -> bool:
        raise NotImplementedError

    def _do(self, what: Do) -> None:
        raise NotImplementedError

    def on(self, event: On) -> bool:
        """Something happened; False if it means nothing now."""
        before = self._machine.state
        does = self._machine.on(event)
        if does is None:
            return False
        if self._machine.state is not before or event is self.progress:
            self._changed_at = self._host.now
            self._retries = 0
        for one in does:
            self._do(one)
        return True

    def given_up_because(self) -> str:
        return f"no answer from {self._peer}"

    def trouble(self, reason: str) -> None:
        self.reason = reason
        self.on(On.TROUBLE)

    def path_found(self) -> None:
        """Say it again, and twice more: the other node may not have found the way to us yet; it hears nobody before."""
        retry_s = self._host.settings.retry_s
        self._say_again()
        self._host.later(retry_s / 5, self._say_again)
        self._host.later(retry_s, self._say_again)

    def _say_again(self) -> None:
        if self._is_under_way():
            self.on(On.RETRY)

    def _ask_again_later(self) -> None:
        """Ever more seldom: what is said again may be a page that a thin line has not carried yet."""
        settings = self._host.settings
        left_s = max(settings.retry_s, self._changed_at + settings.patience_s - self._host.now)
        self._host.later(min(pause_s(settings.retry_s, self._retries), left_s), self._tick)
        self._retries += 1

    def _tick(self) -> None:
        """Time has passed: say it again, or give up."""
        if not self._is_under_way():
            return
        if self._host.now - self._changed_at >= self._host.settings.patience_s:
            self.reason = self.reason or self.given_up_because()
            self.on(On.GIVE_UP)
            self._changed_at = self._host.now
        else:
            self.on(On.RETRY)
        self._ask_again_later()
