"""A node as its moves see it.  `node/node_move_host.py` is one, made of the node's broker and router.

Only the calls that moves make are named here, so that a reader sees what a move can do to a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sterna.broker.commitments import Commitments
from sterna.broker.flow_page import FlowPages
from sterna.broker.network import Keeper
from sterna.broker.packets.handshake import ConnectHandshake
from sterna.broker.session.session import Session
from sterna.broker.transfer.broker_parts import BrokerParts
from sterna.broker.work_budget import Turns
from sterna.migration.messages import Evacuate, Message
from sterna.migration.move_counters import MoveCounters
from sterna.migration.settings import MigrationSettings
from sterna.mqtt.message import Message as Publication
from sterna.routing.probes import Answers
from sterna.vocabulary.identity import Stamp, VersionVector


class HostBroker(BrokerParts, Protocol):
    """The node's broker."""

    @property
    def commitments(self) -> Commitments: ...
    @property
    def flow_pages(self) -> FlowPages: ...
    @property
    def handshake(self) -> ConnectHandshake: ...
    @property
    def turns(self) -> Turns: ...
    def attach_keeper(self, keeper: Keeper) -> None:
        """From here on `keeper` makes sure that one node owns a session."""

    def between_groups(self, action: Callable[[], None]) -> None:
        """When everything that is safe has been delivered, and nothing is on its way to be: now, or soon."""

    def report(self, event: str, **fields: Any) -> None: ...
    def tell(self, event: str, fields: dict[str, Any]) -> None: ...


class HostStreams(Protocol):
    """How far the messages of other nodes have been read."""

    @property
    def vector(self) -> VersionVector: ...
    def is_read(self, origin: str, stamp: Stamp) -> bool: ...
    def in_step(self, origin: str) -> bool:
        """Does nothing of it come late, or never?"""

    def passed(self, origin: str, stamp: Stamp) -> None:
        """Its messages up to there are not for us, or have come otherwise."""

    def read_anew(self, origin: str) -> None: ...
    def read_for_one(
        self,
        origin: str,
        have: VersionVector,
        filters: list[bytes],
        action: Callable[[list[Publication] | None], None],
    ) -> None:
        """A page for one session that has less than this node; None: it is too long, or not there."""

    def give_up(self, origin: str, before: str, stamp: Stamp, waited_s: float) -> None:
        """A publisher is read at `origin`, though it has said more at another node than we could read."""

    def needed(self, origin: str, stamp: Stamp, by: list[str]) -> None: ...


class HostPaths(Protocol):
    @property
    def origins(self) -> list[str]:
        """Nodes that can be reached."""

    @property
    def open_origins(self) -> list[str]:
        """Those that take clients."""

    @property
    def goes_ahead(self) -> bool:
        """Does news of a way go ahead of the messages that take it?"""

    def link_to(self, origin: str) -> str | None: ...
    def clients_of(self, origin: str) -> str:
        """Where clients reach that node; empty: nobody knows."""

    def version_of(self, origin: str) -> int:
        """The newest version of links that it understands."""


class HostOutbound(Protocol):
    """Our own messages on their way."""

    def held(self) -> list[bytes]:
        """Topics whose QoS 0 messages wait."""

    def is_holding(self, topic: bytes) -> bool: ...


class HostStrategy(Protocol):
    def everything(self) -> bool:
        """Do all links always want everything?"""


class HostRouter(Protocol):
    """The ways to other nodes."""

    @property
    def streams(self) -> HostStreams: ...
    @property
    def paths(self) -> HostPaths: ...
    @property
    def own(self) -> HostOutbound: ...
    @property
    def strategy(self) -> HostStrategy: ...
    @property
    def has_links(self) -> bool: ...
    def links(self) -> list[str]: ...
    def link_to(self, origin: str) -> str | None:
        """The neighbour through which it is reached, if it is."""

    def tell(self, links: list[str], body: bytes) -> None:
        """Say something about owners to neighbours."""

    def close_to_clients(self, closed: bool) -> None:
        """Whether others are to send us clients."""

    def announce_pending(self) -> None:
        """News about us goes out now, ahead of what is said next."""

    def loose_vector(self) -> VersionVector:
        """The last body of loose messages of each origin, ourselves included, that our clients have been given."""

    def when_heard(self, action: Callable[[], None]) -> None:
        """Once every node that can be reached has heard what was said before, or did not answer in time."""

    def when_answered(self, action: Callable[[Answers], None]) -> None:
        """The same, and tell how far they had come, and which of those nodes have all that this one has sent."""


class MoveHost(Protocol):
    receive: Callable[[str, bytes], None]
    """Takes messages of this node to itself."""

    @property
    def node(self) -> str: ...
    @property
    def settings(self) -> MigrationSettings: ...
    @property
    def counters(self) -> MoveCounters: ...
    @property
    def grace_s(self) -> float:
        """How long a session waits for the client that was to come with it."""

    @property
    def epoch(self) -> int:
        """Which start of this node it is."""

    @property
    def broker(self) -> HostBroker: ...
    @property
    def router(self) -> HostRouter: ...
    @property
    def sessions(self) -> Mapping[bytes, Session]: ...
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

    def order(self, node: str, message: Evacuate) -> None:
        """Have another node be emptied, or no longer."""

    def look_again(self) -> None:
        """At the end of a turn: has something come about that `once` waits for?"""

    def epoch_of(self, node: str) -> int | None:
        """Which start of another node we have heard of; None: it cannot be reached."""

    def has_heard_lately(self, node: str) -> bool:
        """Is it a neighbour whose link lives?"""

    def digests_of_paths(self) -> dict[str, int]:
        """Each node that can be reached, and a digest that changes with the way to it."""

    def vector(self) -> VersionVector:
        """How far we have read every node, ourselves included."""

    def heard_up_to(self) -> VersionVector:
        """A session that begins to listen now has heard nothing up to here."""

    def take_over(self, session: Session) -> None:
        """Its client is served elsewhere: end the connection it has here."""
