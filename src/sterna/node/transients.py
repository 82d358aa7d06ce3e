"""Clients whose sessions nobody keeps: one identifier is connected at one node, as one broker would have it.

Such a session has no owner to ask.  Everybody is told who has come and when, and the later one stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.migration import messages
from sterna.migration.messages import ClaimEntry, Claims

if TYPE_CHECKING:
    from sterna.node.moving import Moving

#: Of the client identifiers the broker makes up, which nobody else has.
MADE_UP = b"auto-"
#: Clients that come within this time are told of together.
GATHER_S = 0.05


class Transients:
    def __init__(self, moving: Moving) -> None:
        self._moving = moving
        self._broker = moving.broker
        self._router = moving.router
        #: Clients -> when they came, as all nodes are told.
        self._came: dict[bytes, float] = {}
        self._due: list[ClaimEntry] = []

    def opened(self, client: bytes, user: str | None) -> None:
        if not client.startswith(MADE_UP):
            self._came[client] = max(self._broker.wall, self._came.get(client, 0.0))
            if self._router.has_links:
                self._claim(client, user)

    def ended(self, client: bytes) -> None:
        self._came.pop(client, None)

    def _claim(self, client: bytes, user: str | None) -> None:
        """Tell everybody, together with those who come at nearly the same time."""
        if not self._due:
            self._moving.later(GATHER_S, self._tell)
        self._due.append((client, self._came[client], user))

    def _tell(self) -> None:
        due, self._due = self._due, []
        for start in range(0, len(due), messages.OWNERS_A_FRAME):
            claims = Claims(self._moving.node, due[start : start + messages.OWNERS_A_FRAME])
            self._router.tell(self._router.links(), messages.encode(claims))

    def claimed(self, node: str, client: bytes, wall: float, user: str | None) -> None:
        """A client of this name has come to another node."""
        session = self._broker.sessions.get(client)
        if session is None or session.number or session.connection is None or session.user != user:
            return
        ours = self._came.get(client, 0.0)
        if (wall, node) > (ours, self._moving.node):
            self._moving.take_over(session)
        elif ours:
            self._claim(client, session.user)  # it has a clock that is behind: the later word counts
