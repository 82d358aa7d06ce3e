"""Clients whose sessions nobody keeps: one identifier is connected at one node, as one broker would have it.

Such a session has no owner to ask.  Everybody is told who has come and when, and the later one stays.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.broker.session.session import Session
from sterna.migration import messages
from sterna.migration.messages import ClaimEntry, Claims
from sterna.migration.move_host import MoveHost

#: Of the client identifiers the broker makes up, which nobody else has.
MADE_UP = b"auto-"
#: Clients that come within this time are told of together.
GATHER_S = 0.05


class TransientClaims:
    def __init__(
        self, host: MoveHost, take_over: Callable[[bytes], None], yield_to_first: Callable[[bytes], None]
    ) -> None:
        """`take_over`: a client of ours is served elsewhere.  `yield_to_first`: another user had its identifier."""
        self._host = host
        self._take_over = take_over
        self._yield_to_first = yield_to_first
        self._router = host.router
        #: Clients -> when they came, as all nodes are told.
        self._came: dict[bytes, float] = {}
        self._due: list[ClaimEntry] = []
        #: Clients of which we have said that they were here before those of other users.
        self._standing: dict[bytes, None] = {}

    def opened(self, client: bytes, user: str | None) -> None:
        if not client.startswith(MADE_UP):
            self._came[client] = max(self._host.wall, self._came.get(client, 0.0))
            if self._router.has_links:
                self._claim(client, user)

    def came(self, client: bytes) -> float:
        """When; 0 if it is not here."""
        return self._came.get(client, 0.0)

    def ended(self, client: bytes) -> None:
        self._came.pop(client, None)
        self._standing.pop(client, None)

    def _claim(self, client: bytes, user: str | None, *, stands: bool = False) -> None:
        """Tell everybody, together with those who come at nearly the same time."""
        if not self._due:
            self._host.later(GATHER_S, self._tell)
        self._due.append((client, self._came[client], user, stands))

    def _tell(self) -> None:
        due, self._due = self._due, []
        for start in range(0, len(due), messages.OWNERS_A_FRAME):
            claims = Claims(self._host.node, due[start : start + messages.OWNERS_A_FRAME])
            self._router.tell(self._router.links(), messages.encode(claims))

    def claimed(self, node: str, client: bytes, wall: float, user: str | None, stands: bool) -> None:
        """A client of this name has come to another node."""
        session = self._host.sessions.get(client)
        if session is None or session.number or session.connection is None:
            return
        ours = self._came.get(client, 0.0)
        if session.user not in (None, user):
            self._settle_users(node, session, wall, stands=stands)
            return
        if (wall, node) > (ours, self._host.node):
            self._take_over(client)
        elif ours:
            self._claim(client, session.user)  # it has a clock that is behind: the later claim counts

    def _settle_users(self, node: str, session: Session, wall: float, *, stands: bool) -> None:
        """Another user has come to another node under the same name.  The one that was here when its node
        heard of the other stays, and its node says so.  If both nodes do, the earlier one; only then clocks matter."""
        client = session.client_id
        ours = self._came.get(client, 0.0)
        if stands and (client not in self._standing or (wall, node) < (ours, self._host.node)):
            self._yield_to_first(client)
        elif not stands:
            self._standing[client] = None
            self._host.counters.identifiers_kept += 1
            self._claim(client, session.user, stands=True)
