"""Replaces passwords, access rules and bans while clients are connected, with effect at once.

A client whose password entry was removed or changed, whose way in was closed, or who is banned, is disconnected.  All
others stay and have the rights of the new rules from that moment on.  Their subscriptions stay too, and bring only
topics that they may still read.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sterna.broker.access.access_control import AccessControl
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.beginning import owner_of
from sterna.broker.clock import BrokerClock
from sterna.broker.delivery.delivery_audit import DeliveryNotes
from sterna.broker.delivery.routes import Routes
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.broker.session.outbox import WaitingRoom
from sterna.broker.session.session import Session
from sterna.broker.work_budget import Turns
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError

CREDENTIALS_CHANGED: Final = "its user, password or way in was removed or changed"

#: Sessions without a connection that get their new rights in one turn.
AWAY_A_TURN: Final = 1000


class AccessRenewal:
    __slots__ = ("_access", "_clock", "_edition", "_routes", "_sessions", "_turns", "records")

    def __init__(
        self,
        access: AccessControl,
        sessions: dict[bytes, Session],
        routes: Routes,
        turns: Turns,
        clock: BrokerClock,
    ) -> None:
        self._access = access
        self._clock = clock
        self._sessions = sessions
        self._routes = routes
        self._turns = turns
        #: Notes for an audit; None if none are taken.
        self.records: DeliveryNotes | None = None
        #: Counts access lists, so that work on an earlier one stops.
        self._edition = 0

    def check_ban(self, connection: Connection, client_id: str, user: str | None) -> None:
        """ProtocolError if it is banned; `user` is who it is known or says to be."""
        if connection.peer.is_ours:
            return
        ban = self._access.register.bans.find(client_id, user, connection.peer.address, self._clock.wall)
        if ban is not None:
            # In DISCONNECT the standard has no code for it but this one.
            is_inside = connection.state == ConnectionState.CONNECTED
            code = Reason.ADMINISTRATIVE_ACTION if is_inside else Reason.BANNED
            raise ProtocolError(code, f"{ban.name} is banned" + (f": {ban.reason}" if ban.reason else ""))

    def check_welcome(self, connection: Connection) -> None:
        """ProtocolError if a client that was let in, or is about to be, may not stay."""
        accepted, request, session = connection.accepted, connection.connect, connection.session
        if accepted is None or connection.peer.is_ours:
            return  # nobody has asked yet who it is, or it is ours
        client_id = session.client_id if session is not None else request.client_id if request is not None else b""
        self.check_ban(connection, client_id.decode(), accepted.user)
        peer, authenticator = connection.peer, self._access.authenticator
        allowed = peer.entrance.anonymous
        if peer.is_outdated or not authenticator.still_accepts(accepted, anonymous_allowed=allowed):
            raise ProtocolError(Reason.NOT_AUTHORIZED, CREDENTIALS_CHANGED)

    def apply(self, authenticator: Authenticator, rules: AccessList) -> int:
        """From here on these decide, with what the register says; how many clients were disconnected because of it."""
        before = self._access.rules
        self._access.configure(authenticator, rules)
        return self._take_effect(before)

    def register_changed(self) -> int:
        """The register of bans, users and rules has changed; how many clients were disconnected because of it."""
        before = self._access.rules
        self._access.renew()
        return self._take_effect(before)

    def recovered(self, rules: AccessList) -> None:
        """Sessions were read back with the rights of these rules, which the register may have changed."""
        if self._access.authenticator.asks_hook or not rules.is_like(self._access.rules):
            self._change_rights()

    def _take_effect(self, before: AccessList) -> int:
        if not before.is_like(self._access.rules):
            self._change_rights()
        unwelcome: list[tuple[Connection, ProtocolError]] = []
        for session in self._sessions.values():
            if session.connection is not None:
                try:
                    self.check_welcome(session.connection)
                except ProtocolError as error:
                    unwelcome.append((session.connection, error))
        for connection, why in unwelcome:
            connection.fail(why.code, why.reason)
        return len(unwelcome)

    def _change_rights(self) -> None:
        """Of whom it makes a difference to now, now; of sessions whose clients are away, in the turns that follow."""
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
        granted = session.connection.granted if session.connection is not None else None
        client_id = owner_of(session.client_id)[0].decode()
        session.permissions = self._access.permissions(session.user, client_id, granted)
        if session.connection is not None:
            session.connection.allowed = None if session.permissions.unrestricted else set()
        room = session.outbox.transport
        if isinstance(room, WaitingRoom) and not session.permissions.unrestricted:
            room.give_up()  # nobody can tell any more what is in there
        if self.records is not None:
            self.records.carried(session)
