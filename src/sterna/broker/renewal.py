"""Passwords and access rules that change while clients are connected: at once for everybody, whoever is in already.

A client whose password entry is gone or another, or whose way in is closed, is disconnected.  Everybody else stays and
has the rights of the new rules from that moment on: subscriptions stay too, and bring only topics that may still be
read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sterna.broker.authentication import Authenticator
from sterna.broker.authorization import AccessList
from sterna.broker.connection import Connection
from sterna.broker.inheritance import owner_of
from sterna.broker.outbox import WaitingRoom
from sterna.broker.session import Session
from sterna.mqtt.reasons import Reason

if TYPE_CHECKING:
    from sterna.broker.broker import Broker

CREDENTIALS_CHANGED: Final = "its user, password or way in was removed or changed"

#: Sessions without a connection that get their new rights in one turn.
AWAY_A_TURN: Final = 1000


class Renewal:
    __slots__ = ("_broker", "_edition")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Counts access lists, so that work on an earlier one stops.
        self._edition = 0

    def is_still_welcome(self, connection: Connection) -> bool:
        accepted = connection.accepted
        if accepted is None:
            return True  # nobody has asked yet who it is
        peer = connection.peer
        allowed = peer.entrance.anonymous
        return not peer.is_outdated and self._broker.authenticator.still_accepts(accepted, anonymous_allowed=allowed)

    def apply(self, authenticator: Authenticator, access: AccessList) -> int:
        """From here on these decide; how many clients were disconnected because of it."""
        broker = self._broker
        broker.authenticator = authenticator
        if not access.is_like(broker.access):
            self._change_rights(access)
        unwelcome = [
            session.connection
            for session in broker.sessions.values()
            if session.connection is not None and not self.is_still_welcome(session.connection)
        ]
        for connection in unwelcome:
            connection.fail(Reason.NOT_AUTHORIZED, CREDENTIALS_CHANGED)
        return len(unwelcome)

    def _change_rights(self, access: AccessList) -> None:
        """Of whom it makes a difference to now, now; of sessions whose clients are away, in the turns that follow."""
        broker = self._broker
        broker.access = access
        self._edition += 1
        away: list[bytes] = []
        for session in broker.sessions.values():
            if session.connection is None and session.outbox.transport is None:
                away.append(session.client_id)
            else:
                self._renew(session)
        broker.routes.forget_all()
        if away:
            broker.turns.ask(partial(self._renew_some, away, self._edition))

    def _renew_some(self, away: list[bytes], edition: int) -> bool:
        """What waits for them is asked about again when it is sent, so they may come back before it is their turn."""
        if edition != self._edition:
            return True
        broker = self._broker
        for client_id in away[-AWAY_A_TURN:]:
            session = broker.sessions.get(client_id)
            if session is not None and session.connection is None:
                self._renew(session)
        del away[-AWAY_A_TURN:]
        if not away:
            broker.routes.forget_all()
        return not away

    def _renew(self, session: Session) -> None:
        broker = self._broker
        session.permissions = broker.access.for_identity(session.user, owner_of(session.client_id)[0].decode())
        if session.connection is not None:
            session.connection.allowed = None if session.permissions.unrestricted else set()
        room = session.outbox.transport
        if isinstance(room, WaitingRoom) and not session.permissions.unrestricted:
            room.give_up()  # nobody can tell any more what is in there
        if broker.records is not None:
            broker.records.carried(session)
