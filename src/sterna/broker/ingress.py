"""Messages that enter the broker: journalled, retained, passed to the network and delivered.

A message at QoS 1 or 2 is delivered when the journal has it (`commitments`).  A message at QoS 0 is delivered at once.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from sterna.broker.access.bridges import BRIDGES_MAX
from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.commitments import Commitments
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.delivery.share_targets import FOR_NOBODY
from sterna.broker.network import BrokerNetwork
from sterna.broker.session.session import Session
from sterna.journal.filter_set import FilterSet
from sterna.journal.journal import Journal
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import is_control

SAMPLED_EVERY_S: Final = 0.01
"""Of the messages that are delivered within such a time, the first is asked how long it took."""


class MessageWatcher(Protocol):
    """Follows messages through this node."""

    def entered(self, message: Message) -> None:
        """Here, from a client."""

    def delivered(self, message: Message) -> None:
        """To those here who want it."""


class Ingress:
    __slots__ = (
        "_bridges",
        "_clock",
        "_commitments",
        "_counters",
        "_delivery",
        "_journal",
        "_kept",
        "_retained",
        "_routes",
        "_sample_due",
        "_sys",
        "network",
        "watcher",
    )

    def __init__(
        self, journal: Journal, clock: BrokerClock, state: BrokerState, commitments: Commitments, delivery: Delivery
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._counters = state.counters
        self._retained = state.retained
        self._routes = state.routes
        self._commitments = commitments
        self._delivery = delivery
        self._sample_due = 0.0
        #: None as long as nobody follows messages.
        self.watcher: MessageWatcher | None = None
        #: The other nodes; None for a lone one.
        self.network: BrokerNetwork | None = None
        #: Topics whose messages at QoS 0 go to the journal, too.
        self._kept: FilterSet | None = None
        #: The `$SYS` tree: topic -> bytes it takes among the retained.
        self._sys: dict[bytes, int] = {}
        #: The topics among them on which bridges say whether they are there.
        self._bridges: set[bytes] = set()

    def keep(self, filters: list[bytes]) -> None:
        """Append messages at QoS 0 that match to the journal, too."""
        self._kept = self._routes.kept = FilterSet([wanted for wanted in filters if not is_control(wanted)])
        self._routes.forget_all()

    # -- messages of clients --

    def publish_qos0(self, message: Message, source: Session | None) -> None:
        if message.retain:
            # Kept like the rest, but nobody waits for it.
            if self.network is not None:
                self.network.decide_shares(message)
            self._journal.append(message)
            self._retain(message)
            if self._commitments.waiting:
                # An older one is being written and will be retained when that is done; this one is to stay.
                self._commitments.in_turn(partial(self._retain, message))
            if self.network is not None:
                self._commitments.in_turn(partial(self.network.publish, message))
        else:
            if self.network is not None:
                self.network.decide_shares(message)
                self.network.publish_loose(message)
            if self._kept is not None and message.topic in self._kept:
                self._journal.append(message)  # for the table of messages alone: no queue points to it
        matched = self._delivery.deliver(message, source)
        if self.watcher is not None and message.properties:
            self._watched(message, matched=matched)

    def _watched(self, message: Message, *, matched: bool) -> None:
        assert self.watcher is not None
        if message.identity is None:
            self.watcher.entered(message)
        if matched:
            self.watcher.delivered(message)

    def deliver(self, message: Message, source: Session | None) -> bool:
        """Deliver a message that is safe, here or at the node where it entered.  False if nobody wants it."""
        if message.expires_at != NEVER and message.expires_at <= self._clock.wall:
            self._delivery.expired(message)  # while the journal was being written
            return True
        if message.retain:
            self._retain(message)
        if self._clock.now >= self._sample_due and message.received_at:
            self._sample_due = self._clock.now + SAMPLED_EVERY_S
            # The clock of the node where it entered may be ahead of ours.
            self._counters.delivery_took.observe(max(0.0, self._clock.wall - message.received_at))
        matched = self._delivery.deliver(message, source)
        if self.watcher is not None and message.properties:
            self._watched(message, matched=matched)
        return matched

    def _retain(self, message: Message) -> None:
        if not self._retained.update(message):
            self._counters.dropped("retained-full")

    def retained_stamp(self, topic: bytes, session: Session) -> float:
        """The time at which a message to retain came in.  Messages that this client had retained at the node of its
        earlier session may not have come here yet: this one is later, also if the clock there is ahead."""
        clock = self._clock
        return self._retained.stamp(topic, clock.wall if session.beginning is None else clock.foremost_wall)

    # -- messages of the broker and of other nodes --

    def publish(self, message: Message) -> None:
        """A message of the broker's own (a will): at QoS 1 and 2 it goes through the journal like any other."""
        if message.qos:
            self._commitments.publication(message, None, 0)
        else:
            self.publish_qos0(message, None)

    def publish_result(self, message: Message) -> None:
        """The result of an expression.  It is for this node's clients only: other nodes compute their own."""
        if message.qos:
            self._commitments.publication(message, None, 0)
        else:
            self._delivery.deliver(message, None)

    def remember(self, message: Message) -> None:
        """A message that another node retained before this node knew: kept for later subscribers, sent to nobody."""
        message.shares = FOR_NOBODY
        self._journal.append(message)
        self._commitments.in_turn(partial(self._retain, message))

    def retain_only(self, message: Message) -> None:
        """A message that subscribers have had already: all nodes keep it for later ones, and deliver it to nobody."""
        message.shares = FOR_NOBODY
        if message.qos:
            self._commitments.publication(message, None, 0)
            return
        self._journal.append(message)
        self._commitments.in_turn(partial(self._retain, message))
        if self.network is not None:
            self._commitments.in_turn(partial(self.network.publish, message))

    # -- the `$SYS` tree --

    def publish_sys(self, topic: bytes, payload: bytes) -> None:
        """A value of the `$SYS` tree: retained for subscribers, not journalled."""
        message = Message(topic, payload, 0, True)
        self._retained.update(message, durable=False)
        self._sys[topic] = len(topic) + len(payload)
        self._delivery.deliver(message, None)

    def publish_bridge_state(self, topic: bytes, payload: bytes) -> bool:
        """A bridge says whether it is there.  False if there are too many bridges."""
        if not payload:
            self._sys.pop(topic, None)
            self._bridges.discard(topic)
            self._retained.update(Message(topic, b"", 0, True), durable=False)
            return True
        if topic not in self._bridges and len(self._bridges) >= BRIDGES_MAX:
            return False
        self._bridges.add(topic)
        self.publish_sys(topic, payload)
        return True

    @property
    def sys_topics(self) -> int:
        return len(self._sys)

    @property
    def sys_bytes(self) -> int:
        return sum(self._sys.values())
