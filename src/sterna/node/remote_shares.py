"""Shared subscriptions with members on several nodes: one message, one member, wherever it is.

The node a message enters decides which node's members are to have it (`share_targets`), nodes taking turns.  Groups
whose node cannot be reached are kept in mind: if nobody else has members, the message waits for that node.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sterna.broker.broker import Broker
from sterna.broker.commitments import MADE_OF_ANOTHER
from sterna.broker.delivery.share_targets import decode_decision, encode_decision
from sterna.mqtt.message import Message
from sterna.mqtt.topics import REMEMBERED_TOPIC_BYTES, FilterTree, split_share
from sterna.vocabulary.errors import JournalError, LinkProtocolError

#: Topics whose groups are remembered; past this the memory starts anew.
REMEMBERED_MAX = 100_000
#: Messages that waited for a shared subscription's last member here, given to members elsewhere.
HANDED_OVER_A_TURN = 1000


@dataclass(slots=True)
class _Group:
    #: node -> its members
    members: dict[str, int] = field(default_factory=dict)
    turn: int = 0


class SharedElsewhere:
    """Which groups have members on which other nodes."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._groups: dict[bytes, _Group] = {}
        self._announced: dict[str, dict[bytes, int]] = {}
        self._unreachable: dict[str, None] = {}
        self._tree: FilterTree[bytes, bytes] = FilterTree()
        self._remembered: dict[bytes, list[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __contains__(self, key: object) -> bool:
        """Has this group members elsewhere?"""
        return key in self._groups

    def announced(self, origin: str, shares: list[tuple[bytes, int]] | None) -> None:
        """Shares of which a node has members; None: it can no longer be reached."""
        if shares is None:
            self._unreachable[origin] = None
            return
        self._unreachable.pop(origin, None)
        before, after = self._announced.get(origin, {}), dict(shares)
        if before == after:
            return
        self._remembered.clear()
        for key in before.keys() - after.keys():
            self._leave(key, origin)
        for key, members in sorted(after.items()):
            self._join(key, origin, members)
        self._announced[origin] = after

    def _join(self, key: bytes, origin: str, members: int) -> None:
        split = split_share(key)
        if split is None or members <= 0:
            raise LinkProtocolError("not a shared subscription")
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
            self._tree.add(split[1], key, key)
        group.members[origin] = members

    def _leave(self, key: bytes, origin: str) -> None:
        group = self._groups[key]
        del group.members[origin]
        if not group.members:
            del self._groups[key]
            split = split_share(key)
            assert split is not None
            self._tree.remove(split[1], key)

    def matching(self, topic: bytes) -> list[bytes]:
        """Groups with members elsewhere whose filter matches."""
        keys = self._remembered.get(topic)
        if keys is None:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            keys = self._tree.match(topic)
            if len(topic) <= REMEMBERED_TOPIC_BYTES:
                self._remembered[topic] = keys
        return keys

    def decide(self, key: bytes, members_here: int) -> str:
        """Whose turn it is: nodes take as many turns as they have members."""
        group = self._groups[key]
        candidates = sorted((node, n) for node, n in group.members.items() if node not in self._unreachable)
        if members_here:
            candidates.append((self._node, members_here))
        if not candidates:
            candidates = sorted(group.members.items())
        turn = group.turn % sum(members for _, members in candidates)
        group.turn += 1
        for node, members in candidates:
            if turn < members:
                return node
            turn -= members
        raise AssertionError("a turn beyond the members")


class SharesLeft:
    """Filters of groups whose last member here has left, until every node knows that."""

    def __init__(self) -> None:
        self._times: dict[bytes, int] = {}
        self._tree: FilterTree[bytes, None] = FilterTree()

    def __bool__(self) -> bool:
        return bool(self._times)

    def add(self, topic_filter: bytes) -> None:
        times = self._times.get(topic_filter, 0)
        self._times[topic_filter] = times + 1
        if not times:
            self._tree.add(topic_filter, topic_filter, None)

    def remove(self, topic_filter: bytes) -> None:
        self._times[topic_filter] -= 1
        if not self._times[topic_filter]:
            del self._times[topic_filter]
            self._tree.remove(topic_filter, topic_filter)

    def matches(self, topic: bytes) -> bool:
        return bool(self._tree.match(topic))

    def filters(self) -> list[bytes]:
        return list(self._times)


def copy_for(decision: dict[bytes, str], message: Message) -> Message:
    """A message of our own for these groups and nobody else."""
    copy = Message(
        message.topic, message.payload, message.qos, False, message.properties, message.expires_at,
        message.publisher, message.received_at,
    )  # fmt: skip
    copy.shares = encode_decision(decision, only=True)
    return copy


class HandingOver:
    """Messages for members of ours who have left go on to a node that has members now."""

    def __init__(self, node: str, broker: Broker, elsewhere: SharedElsewhere) -> None:
        self._node = node
        self._broker = broker
        self._elsewhere = elsewhere

    def orphaned(self, message: Message) -> list[bytes]:
        """Groups of which members here were to have it, and of which there are none."""
        if not message.shares:
            return []
        _, decision = decode_decision(message.shares)
        share_of = self._broker.routes.share
        return [key for key, node in decision.items() if node == self._node and share_of(key) is None]

    def hand_over(self, message: Message) -> bool:
        passed_on = {key: self._elsewhere.decide(key, 0) for key in self.orphaned(message) if key in self._elsewhere}
        if passed_on:
            self._broker.commitments.publication(copy_for(passed_on, message), None, MADE_OF_ANOTHER)
            only, decision = decode_decision(message.shares)
            rest = {key: node for key, node in decision.items() if key not in passed_on}
            message.shares = encode_decision(rest, only=only)  # so that it is not done twice
        return bool(passed_on)

    def hand_over_late(self, message: Message) -> None:
        """One that is safe and delivered: the members it was for may have gone elsewhere while it was written."""
        for key in self.orphaned(message):
            if key in self._elsewhere:
                self._broker.ingress.publish(copy_for({key: self._elsewhere.decide(key, 0)}, message))

    def waiting(self, key: bytes, offsets: deque[int]) -> bool:
        """The same for some of what waited for them; True if that was all."""
        broker = self._broker
        for _ in range(min(len(offsets), HANDED_OVER_A_TURN)):
            offset = offsets.popleft()
            try:
                message = broker.journal.read(offset) or broker.retained.at_offset(offset)
            except JournalError:
                message = None
            if message is None or key not in self._elsewhere:
                broker.counters.dropped("no-member-left")
            else:
                broker.ingress.publish(copy_for({key: self._elsewhere.decide(key, 0)}, message))
        return not offsets
