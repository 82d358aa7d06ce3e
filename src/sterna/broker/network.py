"""Interfaces between a broker and the network it is part of.  A lone broker has no network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sterna.mqtt.message import Message
from sterna.vocabulary.identity import Identity

if TYPE_CHECKING:
    from sterna.broker.session.connection import Connection
    from sterna.broker.session.session import Session


class SubscriptionListener(Protocol):
    """Is told what this broker's clients subscribe to."""

    def gained(self, topic_filter: bytes) -> None:
        """A session has a subscription it did not have."""

    def lost_interest(self, topic_filter: bytes) -> None:
        """A session has no longer a subscription it had."""


class BrokerNetwork(Protocol):
    def publish(self, message: Message) -> None:
        """A message of one of our clients that is safe in the journal."""

    def delivered(self, message: Message) -> None:
        """A message of another node that is safe, and was for members of shared subscriptions here."""

    def publish_loose(self, message: Message) -> None:
        """A message at QoS 0."""

    def publish_run(self, topic: bytes, payloads: list[bytes]) -> None:
        """Several, of one topic that is not shared elsewhere."""

    def loose_mark(self, origin: str) -> Identity | None:
        """See `LooseNumbers`."""

    def wants_elsewhere(self, topic: bytes) -> bool: ...
    def is_shared(self, topic: bytes) -> bool:
        """Does a group with members on other nodes want this topic?"""

    def decide_shares(self, message: Message) -> None:
        """Before a message is written down: set its `shares`, if there is anything to decide."""

    def when_known(self, action: Callable[[], None], *, heard: bool) -> None:
        """Do this once every node that can be reached knows what our clients want now; and, if `heard`, once we have
        what those nodes acknowledged before."""

    def note_vector(self) -> None:
        """Write down how far the other nodes' messages have been read."""

    def caught_up(self) -> None:
        """The journal keeps up again with what comes in."""

    def not_kept(self, message: Message) -> None:
        """A message of another node could not be written down."""


class Keeper(Protocol):
    """Makes sure that one node of all owns a client's session."""

    def is_at_home(self, client_id: bytes, *, clean: bool) -> bool:
        """Is the client's session here and to be served, or nowhere?"""

    def bring(
        self, connection: Connection, user: str | None, greet: Callable[[], None], then: Callable[[], None]
    ) -> None:
        """Have the session of a client that has just come brought here, then go on with its CONNECT.  If that cannot be
        done the connection fails.  `greet`: let it in ahead of its session."""

    def belongs_to_another(self, client_id: bytes, user: str | None) -> bool:
        """Does another node keep a session of this client for another user?"""

    def next_number(self, client_id: bytes) -> int:
        """Of a session that begins here."""

    def opened(self, session: Session) -> bool:
        """A client is about to be let in: True if all nodes have to hear of its session before it does."""

    def welcomed(self, session: Session) -> bool:
        """A client has its CONNACK, and messages are about to flow: False if it is not to be heard yet, but for what it
        acknowledges."""

    def subscribed(self, session: Session, topic_filter: bytes) -> None:
        """A session that outlives its connection has a subscription it did not have."""

    def ended(self, session: Session) -> None:
        """A session is over, and not because another node has it."""

    def when_heard(self, action: Callable[[], None]) -> None:
        """Do this once every node that can be reached has heard whose session that is."""
