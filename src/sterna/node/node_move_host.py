"""A node as its moves see it: its clock, its broker, and the ways to say something to other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from sterna.broker.broker import Broker
from sterna.broker.session.session import Session
from sterna.migration import messages
from sterna.migration.move_counters import MoveCounters
from sterna.migration.settings import MigrationSettings
from sterna.overlay.link_table import Links
from sterna.routing.link_frames import About
from sterna.routing.router import Router
from sterna.vocabulary.identity import Stamp, VersionVector

#: Bytes that a link adds to a message between two nodes.
FRAME_OVERHEAD_BYTES = 512


class ReadingPosition(Protocol):
    """How far this node has read the others, and how far others can read it."""

    def settled_vector(self) -> VersionVector: ...
    def note_vector(self) -> None: ...
    def frontier(self) -> Stamp: ...


def _nobody(source: str, body: bytes) -> None:
    raise AssertionError("a message to this node itself before its moves have begun")


class NodeMoveHost:
    def __init__(
        self,
        node: str,
        broker: Broker,
        router: Router,
        links: Links,
        reading: ReadingPosition,
        settings: MigrationSettings,
    ) -> None:
        self.node = node
        self.broker = broker
        self.router = router
        self.settings = settings
        self.grace_s = settings.patience_s
        self.counters = MoveCounters()
        #: Takes what this node says to itself.
        self.receive: Callable[[str, bytes], None] = _nobody
        self._links = links
        self._reading = reading
        self._awaited: list[tuple[Callable[[], bool], Callable[[], None]]] = []

    @property
    def sessions(self) -> Mapping[bytes, Session]:
        return self.broker.sessions

    @property
    def now(self) -> float:
        return self.broker.now

    @property
    def wall(self) -> float:
        return self.broker.wall

    def report(self, event: str, **fields: object) -> None:
        self.broker.tell(event, fields)

    # -- later --

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.broker.deadlines.at(self.broker.now + seconds, action)

    def once(self, is_so: Callable[[], bool], action: Callable[[], None]) -> None:
        """Do this when it is so: now, or after the turn that made it so."""
        if is_so():
            action()
        else:
            self._awaited.append((is_so, action))

    def look_again(self) -> None:
        """At the end of a turn: has something come about that is waited for?"""
        if self._awaited:
            awaited, self._awaited = self._awaited, []
            for is_so, action in awaited:
                if is_so():
                    self.later(0.0, action)
                else:
                    self._awaited.append((is_so, action))

    # -- other nodes --

    def send(self, node: str, message: messages.Message) -> None:
        body = messages.encode(message)
        if len(body) + FRAME_OVERHEAD_BYTES > self._links.settings.frame_bytes:
            # A link would break under it: the move is given up in the end, and the session stays where it is.
            self.counters.too_big += 1
            self.broker.tell(
                "a session is too big to be moved", {"client": message.client.decode(), "bytes": len(body)}
            )
            return
        if node == self.node:  # the client is back where it was before
            self.later(0.0, partial(self.receive, node, body))
        else:
            self.router.post(node, About.MOVES, body)

    def order(self, node: str, message: messages.Evacuate) -> None:
        self.router.post(node, About.MOVES, messages.encode(message))

    def when_answered(self, action: Callable[[VersionVector], None]) -> None:
        self.router.when_answered(lambda answers: action(answers.frontiers))

    def digests_of_paths(self) -> dict[str, int]:
        return {origin: path.digest for origin, path in self.router.paths.known.items()}

    @property
    def epoch(self) -> int:
        """Which start of this node it is."""
        return self.broker.journal.epoch

    def epoch_of(self, node: str) -> int | None:
        """Which start of another node we have heard of; None: it cannot be reached."""
        path = self.router.paths.known.get(node)
        return None if path is None else path.number[0]

    def has_heard_lately(self, node: str) -> bool:
        """A neighbour, that is; it may vanish at any time, and a link that misses a keep-alive may be dead without
        anybody knowing."""
        link = self._links.links.get(node) if self.router.link_to(node) == node else None
        line = link.line if link is not None and link.connected else None
        silence_s = self._links.settings.keep_alive_s + self.settings.retry_s
        return line is not None and self.broker.now - line.heard <= silence_s

    # -- how far messages have come --

    def vector(self) -> VersionVector:
        """How far we have read every node, ourselves included."""
        journal = self.broker.journal
        return {**self._reading.settled_vector(), self.node: Stamp(journal.epoch, journal.next_offset - 1)}

    def frontier(self) -> Stamp:
        """The last of our own messages that has been delivered."""
        return self._reading.frontier()

    def heard_up_to(self) -> VersionVector:
        """A session that begins to listen now has heard nothing up to here."""
        return {**self.vector(), self.node: self.frontier()}

    def has_read(self, node: str, stamp: Stamp) -> None:
        """It says so itself, by the way its messages take: a restart is to know."""
        self.router.streams.passed(node, stamp)
        self._reading.note_vector()

    # -- clients --

    def take_over(self, session: Session) -> None:
        """Its client is served elsewhere: end the connection it has here."""
        if session.connection is not None:
            self.broker.lifecycle.take_over(session.connection)
