"""Clients that have connected and wait for their sessions, for as long as a step of a move may take.

Then their connections are closed without a CONNACK, in MQTT 3.1.1 and 5 alike: they are to try again, and some
libraries do not after a CONNACK that refuses them (`Handshake.refusal`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sterna.broker.session.connection import Connection, ConnectionState
from sterna.migration.directory import Directory
from sterna.migration.move_host import MoveHost
from sterna.migration.node_absence import NodeAbsence
from sterna.mqtt.reasons import Reason

#: A client that may have a new session soon waits so much longer for that.
EXTRA_S = 5.0


class Parked(NamedTuple):
    """A client that waits for its session."""

    connection: Connection
    user: str | None
    greet: Callable[[], None]
    """Let it in before its session is there;"""
    then: Callable[[], None]
    """let it have its session."""


class WaitingClients:
    def __init__(self, host: MoveHost, directory: Directory, absence: NodeAbsence) -> None:
        self._host = host
        self._directory = directory
        self._absence = absence
        self._parked: dict[bytes, list[Parked]] = {}

    def __contains__(self, client: bytes) -> bool:
        return client in self._parked

    def everybody(self) -> list[bytes]:
        return list(self._parked)

    def park(self, client: bytes, parked: Parked) -> None:
        self._parked.setdefault(client, []).append(parked)
        self._host.later(self._host.settings.patience_s, partial(self._too_long, client, parked))

    def still_there(self, client: bytes) -> list[Parked]:
        parked = [one for one in self._parked.get(client, ()) if one.connection.state != ConnectionState.CLOSED]
        if parked:
            self._parked[client] = parked
        else:
            self._parked.pop(client, None)
        return parked

    def release(self, client: bytes) -> None:
        for parked in self._parked.pop(client, ()):
            if parked.connection.state != ConnectionState.CLOSED:
                parked.then()

    def greet(self, client: bytes, user: str | None) -> None:
        """Its session is on its way here, and belongs to this user.  Gateways' clients are served elsewhere."""
        parked = self.still_there(client)
        newest = parked[-1] if parked else None
        if newest is not None and not newest.connection.gateway and user in (None, newest.user):
            newest.greet()

    def only_second(self, client: bytes) -> bool:
        """Is it still served through other connections, so that no session need be brought here?"""
        return all(parked.connection.is_second for parked in self._parked.get(client, ()))

    def fail_second(self, client: bytes) -> None:
        """The session does not come: where its client is served nothing has changed."""
        for parked in [one for one in self._parked.get(client, ()) if one.connection.is_second]:
            parked.connection.fail(Reason.SERVER_UNAVAILABLE, "its session stays where it is")
        self.still_there(client)

    def fail(self, client: bytes, code: int, reason: str) -> None:
        for parked in self._parked.pop(client, ()):
            parked.connection.fail(code, reason)

    def _too_long(self, client: bytes, parked: Parked) -> None:
        waiting = self._parked.get(client, [])
        if parked not in waiting or parked.connection.state == ConnectionState.CLOSED:
            return
        owner, _ = self._directory.get(client)
        is_lost = owner not in ("", self._host.node) and self._host.router.link_to(owner) is None
        left_s = self._absence.left_s(owner) if is_lost else math.inf
        if 0 < left_s <= EXTRA_S:
            self._host.later(left_s + EXTRA_S / 10, partial(self._too_long, client, parked))
            return
        waiting.remove(parked)
        lost = f"its session is on node {owner}, which cannot be reached"
        reason = lost if is_lost else "its session could not be brought here in time"
        parked.connection.fail(Reason.SERVER_UNAVAILABLE, reason)
