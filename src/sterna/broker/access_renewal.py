"""Replaces passwords and access rules while clients are connected, with effect at once.

A client whose password entry was removed or changed, or whose way in was closed, is disconnected.  All others stay and
have the rights of the new rules from that moment on.  Their subscriptions stay too, and bring only topics that they may
still read.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sterna.broker.access.access_control import AccessControl
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.beginning import owner_of
from sterna.broker.delivery.delivery_audit import AuditRecords
from sterna.broker.delivery.routes import Routes
from sterna.broker.session.connection import Connection
from sterna.broker.session.outbox import WaitingRoom
from sterna.broker.session.session import Session
from sterna.broker.work_budget import Turns
from sterna.mqtt.reasons import Reason

CREDENTIALS_CHANGED: Final = "its user, password or way in was removed or changed"

#: Sessions without a connection that get their new rights in one turn.
AWAY_A_TURN: Final = 1000


class AccessRenewal:
    __slots__ = ("_access", "_edition", "_routes", "_sessions", "_turns", "records")

    def __init__(self, access: AccessControl, sessions: dict[bytes, Session], routes: Routes, turns: Turns) -> None:
        self._access = access
        self._sessions = sessions
        self._routes = routes
        self._turns = turns
        #: Notes for an audit; None if none are taken.
        self.records: AuditRecords | None = None
        #: Counts access lists, so that work on an earlier one stops.
        self._edition = 0

    def is_still_welcome(self, connection: Connection) -> bool:
        accepted = connection.accepted
        if accepted is None:
            return True  # nobody has asked yet who it is
        peer = connection.peer
        if peer.is_ours:
            return True
        allowed = peer.entrance.anonymous
        return not peer.is_outdated and self._access.authenticator.still_accepts(accepted, anonymous_allowed=allowed)

    def apply(self, authenticator: Authenticator, rules: AccessList) -> int:
        """From here on these decide; how many clients were disconnected because of it."""
        self._access.authenticator = authenticator
        if not rules.is_like(self._access.rules):
            self._change_rights(rules)
        unwelcome = [
            session.connection
            for session in self._sessions.values()
            if session.connection is not None and not self.is_still_welcome(session.connection)
        ]
        for connection in unwelcome:
            connection.fail(Reason.NOT_AUTHORIZED, CREDENTIALS_CHANGED)
        return len(unwelcome)

    def _change_rights(self, rules: AccessList) -> None:
        """Of whom it makes a difference to now, now; of sessions whose clients are away, in the turns that follow."""
        self._access.rules = rules
        self._edition += 1
        away: list[bytes] = []
        for session in self._sessions.values():
            if session.connection is None and session.outbox.transport is None:
                away.append(session.client_id)
            else:
                self._renew(session)
        self._routes.forget_all()
        if away:
            self._turns.ask(partial(self._renew_some, away, self._edition))

    def _renew_some(self, away: list[bytes], edition: int) -> bool:
        """Messages that wait for them are asked about again when sent, so they may come back before their turn."""
        if edition != self._edition:
            return True
        for client_id in away[-AWAY_A_TURN:]:
            session = self._sessions.get(client_id)
            if session is not None and session.connection is None:
                self._renew(session)
        del away[-AWAY_A_TURN:]
        if not away:
            self._routes.forget_all()
        return not away

    def _renew(self, session: Session) -> None:
        session.permissions = self._access.rules.for_identity(session.user, owner_of(session.client_id)[0].decode())
        if session.connection is not None:
            session.connection.allowed = None if session.permissions.unrestricted else set()
        room = session.outbox.transport
        if isinstance(room, WaitingRoom) and not session.permissions.unrestricted:
            room.give_up()  # nobody can tell any more what is in there
        if self.records is not None:
            self.records.carried(session)
