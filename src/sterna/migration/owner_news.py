"""The owners of sessions: the directory, and its changes of this turn, of which every neighbour is told at its end."""

from __future__ import annotations

from collections.abc import Callable

from sterna.migration import messages
from sterna.migration.directory import Directory
from sterna.migration.messages import OwnerEntry, Owners
from sterna.migration.move_host import MoveHost

#: At most so often an operator is told of numbers that cannot be.
IMPOSSIBLE_TOLD_S = 60.0


class OwnerNews:
    def __init__(self, host: MoveHost, directory: Directory) -> None:
        self._host = host
        self._directory = directory
        #: And the link behind which they know already; "": nobody does.
        self._news: list[tuple[OwnerEntry, str]] = []
        #: Clients with new sessions that are not safe yet: nobody is to hear of them.
        self.unsafe: dict[bytes, None] = {}
        self._impossible_told_at = -IMPOSSIBLE_TOLD_S

    def learn(self, client: bytes, node: str, number: int, user: str | None = None, *, noted: bool = False) -> None:
        if self._directory.learn(client, node, number, user, noted=noted):
            self._news.append((self._directory.entry(client), ""))

    def learn_moved(self, client: bytes, target: str, number: int, user: str | None) -> None:
        """The session has gone to that node, and the journal tells of it.  The node has told everybody on the way from
        there to here: it did so before it said that it has the session, or with that."""
        if self._directory.learn(client, target, number, user, noted=True):
            self._news.append((self._directory.entry(client), self._host.router.link_to(target) or ""))

    def learn_new_session(self, client: bytes, number: int, user: str | None) -> None:
        """Nodes that hear of it end their own: not before it is safe that there is this one."""
        self._directory.learn(client, self._host.node, number, user)
        self.unsafe[client] = None

    def is_safe(self, client: bytes, number: int) -> None:
        self.unsafe.pop(client, None)
        if self._directory.get(client) == (self._host.node, number):
            self._news.append((self._directory.entry(client), ""))

    def flush(self, after: Callable[[], list[tuple[str, int, int]]]) -> None:
        """`after`: how far the messages had come of nodes from which clients went."""
        if self._news:
            news, self._news = self._news, []
            links, marks = self._host.router.links(), after()
            know_some = {link for _, link in news if link}
            self._tell([link for link in links if link not in know_some], [entry for entry, _ in news], marks)
            for link in links:
                if link in know_some:
                    self._tell([link], [entry for entry, knowing in news if knowing != link], marks)

    def _tell(self, links: list[str], news: list[OwnerEntry], marks: list[tuple[str, int, int]]) -> None:
        if links:
            for start in range(0, len(news), messages.OWNERS_A_FRAME):
                some = news[start : start + messages.OWNERS_A_FRAME]
                self._host.router.tell(links, messages.encode(Owners(some, marks, is_fresh=True)))

    def is_impossible(self, node: str, client: bytes, number: int) -> bool:
        """Does a node name a number that no clock can have given?  It is not believed, nor passed on."""
        if self._directory.can_be(client, number):
            return False
        host = self._host
        host.counters.impossible += 1
        if host.now >= self._impossible_told_at + IMPOSSIBLE_TOLD_S:
            self._impossible_told_at = host.now
            reason = f"number {number} of an owner; see node {node}, and its clock"
            host.report("a node said what cannot be", node=node, client=client.decode(), reason=reason)
        return True
