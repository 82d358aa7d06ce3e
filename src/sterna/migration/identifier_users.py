"""One client identifier, two users at two nodes: the first user keeps it."""

from __future__ import annotations

from functools import partial

from sterna.broker.session.connection import ConnectionState
from sterna.broker.session.session import Session
from sterna.migration import messages
from sterna.migration.directory import Directory, Whose
from sterna.migration.messages import Owners
from sterna.migration.move_host import MoveHost
from sterna.mqtt.reasons import Reason

ANOTHER_USERS = "this client identifier belongs to another user"


class IdentifierUsers:
    def __init__(self, host: MoveHost, directory: Directory) -> None:
        self._host = host
        self._directory = directory
        #: Clients whose sessions have just begun here: another node may yet say that another user has the identifier.
        self._newcomers: dict[bytes, Session] = {}

    def opened(self, session: Session) -> None:
        if session.user is None:
            return  # anybody's: nobody else's identifier
        self._newcomers[session.client_id] = session
        self._host.later(self._host.settings.patience_s, partial(self._is_no_newcomer, session.client_id))

    def _is_no_newcomer(self, client: bytes) -> None:
        self._newcomers.pop(client, None)

    def belongs_to_another(self, client: bytes, user: str | None) -> bool:
        is_elsewhere = self._directory.get(client)[0] not in ("", self._host.node)
        return is_elsewhere and self._directory.whose(client).user not in (None, user)

    def has_another(self, session: Session, owner: str) -> bool:
        """One without a user is anybody's, as on one node."""
        whose = self._directory.whose(session.client_id)
        return bool(owner or whose.stands) and session.user is not None and whose.user != session.user

    def settle(self, session: Session, number: int, before: Whose | None, came_at: float, *, is_fresh: bool) -> None:
        """Another node says that another user has this identifier.

        One who is about to be let in goes; so does one against whom that stands.  One who is here already stays if the
        other one is about to be let in, however the clocks differ, and else if it came first.
        """
        client, theirs = session.client_id, self._directory.whose(session.client_id)
        connection = session.connection
        is_in = connection is None or connection.state == ConnectionState.CONNECTED
        is_newcomer = self._newcomers.get(client) is session and not is_in
        since = before.since if before is not None and before.user == session.user else session.number
        ours = Whose(session.user, since or int(came_at * 1000), True)
        if theirs.stands or is_newcomer or not (is_fresh or ours.was_before(theirs)):
            self.yield_to_first(session, is_newcomer=is_newcomer)
            return
        host = self._host
        host.counters.identifiers_kept += 1
        if session.number:
            session.number = number + 1
            host.broker.log.touched(session)
        # A session that nobody keeps has no owner; that it stands is to be heard ahead of the answer to any probe.
        self._directory.learn(client, host.node if session.number else "", number + 1, *ours)
        owners = Owners([self._directory.entry(client)], is_fresh=True)
        host.router.tell(host.router.links(), messages.encode(owners))

    def yield_to_first(self, session: Session, *, is_newcomer: bool = False) -> None:
        """Another user had its identifier before."""
        self._host.counters.identifiers_given_up += 1
        self._newcomers.pop(session.client_id, None)
        session.number = 0  # it is not for us to say that nobody owns it
        if is_newcomer:
            session.will = None  # its client was never let in
        if session.connection is not None:
            session.connection.fail(Reason.NOT_AUTHORIZED, ANOTHER_USERS)
        self._host.broker.lifecycle.end_session(session)
