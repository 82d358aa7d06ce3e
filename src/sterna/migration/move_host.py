"""A node as its moves see it.  `migration/node_move_host.py` is one, made of the node's broker and router."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from sterna.migration.messages import Message
from sterna.migration.move_counters import MoveCounters
from sterna.migration.settings import MigrationSettings
from sterna.vocabulary.identity import Stamp, VersionVector


class HostedSession(Protocol):
    """A session of this node's broker."""

    @property
    def client_id(self) -> bytes: ...
    @property
    def number(self) -> int:
        """Under which this node owns it; 0 if it ends with its connection."""

    @property
    def user(self) -> str | None: ...
    @property
    def connection(self) -> object | None: ...
    @property
    def came(self) -> tuple[int, str, int, int] | None:
        """Our next offset when it came from another node, which one, and how far that had come."""


class HostStreams(Protocol):
    """How far the messages of other nodes have been read."""

    @property
    def vector(self) -> VersionVector: ...
    def is_read(self, origin: str, stamp: Stamp) -> bool: ...
    def count_as_read(self, origin: str, stamp: Stamp) -> None: ...
    def needed(self, origin: str, stamp: Stamp, by: list[str]) -> None: ...


class HostPaths(Protocol):
    @property
    def origins(self) -> list[str]:
        """Nodes that can be reached."""


class HostRouter(Protocol):
    """The ways to other nodes."""

    @property
    def streams(self) -> HostStreams: ...
    @property
    def paths(self) -> HostPaths: ...
    @property
    def has_links(self) -> bool: ...
    def links(self) -> list[str]: ...
    def link_to(self, origin: str) -> str | None:
        """The neighbour through which it is reached, if it is."""

    def tell(self, links: list[str], body: bytes) -> None:
        """Say something about owners to neighbours."""

    def when_heard(self, action: Callable[[], None]) -> None:
        """Once every node that can be reached has heard what was said before, or did not answer in time."""


class MoveHost(Protocol):
    @property
    def node(self) -> str: ...
    @property
    def settings(self) -> MigrationSettings: ...
    @property
    def counters(self) -> MoveCounters: ...
    @property
    def router(self) -> HostRouter: ...
    @property
    def sessions(self) -> Mapping[bytes, HostedSession]: ...
    @property
    def now(self) -> float: ...
    @property
    def wall(self) -> float: ...
    def report(self, event: str, **fields: object) -> None:
        """Tell the operator."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """After so many seconds; lost in a crash."""

    def once(self, is_so: Callable[[], bool], action: Callable[[], None]) -> None:
        """When it is so: now, or after the turn that made it so; lost in a crash."""

    def send(self, node: str, message: Message) -> None:
        """It may be lost, and does not overtake what was said before by the same way."""

    def when_answered(self, action: Callable[[VersionVector], None]) -> None:
        """Once every node that can be reached has heard what was said before: how far had their messages come then?
        Nodes that do not answer in time are missing in it."""

    def frontier(self) -> Stamp:
        """The last of our own messages that has been delivered."""

    def has_read(self, node: str, stamp: Stamp) -> None:
        """A node says how far we have read it, by the way its messages take: a restart is to know."""
