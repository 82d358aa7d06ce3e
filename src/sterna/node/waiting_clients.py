"""Clients that have connected and wait for their sessions, for as long as a step of a move may take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sterna.broker.connection import Connection, State
from sterna.mqtt.reasons import Reason

if TYPE_CHECKING:
    from sterna.node.moving import Moving


class Parked(NamedTuple):
    """A client that waits for its session."""

    connection: Connection
    user: str | None
    then: Callable[[], None]


class WaitingClients:
    def __init__(self, moving: Moving) -> None:
        self._moving = moving
        self._parked: dict[bytes, list[Parked]] = {}

    def __contains__(self, client: bytes) -> bool:
        return client in self._parked

    def everybody(self) -> list[bytes]:
        return list(self._parked)

    def park(self, client: bytes, parked: Parked) -> None:
        self._parked.setdefault(client, []).append(parked)
        self._moving.later(self._moving.settings.patience_s, partial(self._too_long, client, parked))

    def still_there(self, client: bytes) -> list[Parked]:
        parked = [one for one in self._parked.get(client, ()) if one.connection.state != State.CLOSED]
        if parked:
            self._parked[client] = parked
        else:
            self._parked.pop(client, None)
        return parked

    def release(self, client: bytes) -> None:
        for parked in self._parked.pop(client, ()):
            if parked.connection.state != State.CLOSED:
                parked.then()

    def fail(self, client: bytes, code: int, reason: str) -> None:
        for parked in self._parked.pop(client, ()):
            parked.connection.fail(code, reason)

    def _too_long(self, client: bytes, parked: Parked) -> None:
        waiting = self._parked.get(client, [])
        if parked in waiting:
            waiting.remove(parked)
            parked.connection.fail(Reason.SERVER_UNAVAILABLE, "its session could not be brought here in time")
