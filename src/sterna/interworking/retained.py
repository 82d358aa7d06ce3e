"""Retained values on both sides of an attachment: which of two that differ is the newer one.

The rule is a three-way merge against the value that both sides last had in common.  If only one side has changed it,
that side's value counts.  If both have, the network's stays and goes to the foreign broker: a conflict, which is
counted.  An absent value is sent again: only a message clears one, for a broker that crashed lacks values, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Protocol

from sterna.interworking.ports import StoredValue

#: Topics of which it is remembered what both sides have; of further ones the network's value counts as changed.
KNOWN_MAX: Final = 1_000_000
#: Topics on which an empty message came from the foreign broker since its values were last read.
EMPTIED_MAX: Final = 10_000


class RetainedFinding(StrEnum):
    """A value of the foreign broker, beside the network's."""

    NEW = "retained-new"
    """The foreign broker's is newer, or the only one."""
    SAME = "retained-same"
    OLD = "retained-old"
    """The network's is newer, and goes there."""
    CONFLICT = "retained-conflict"
    """Both were changed; the network's goes there."""


class NetworkValues(Protocol):
    def retained(self, topic: bytes) -> bytes | None:
        """The network's value: empty if it was cleared, None if there never was one."""

    def came_from_there(self, topic: bytes) -> bool:
        """Is the network's value one that came from the foreign broker?"""


class CommonValues:
    """Topic -> the value that both sides last had, for as long as the process lives.

    A message that went there is common when the foreign broker has completed its exchange and then a fence has passed,
    on the same connection: before that the connection may have taken it along.  A message that came from there must
    also be written down here by then.
    """

    def __init__(self, network: NetworkValues) -> None:
        self._network = network
        self._digests: dict[bytes, int] = {}
        #: Topic -> digest, and whether it came from the foreign broker.
        self._recent: dict[bytes, tuple[int, bool]] = {}
        #: Number of a fence -> the messages before it.
        self._under_way: dict[int, dict[bytes, tuple[int, bool]]] = {}
        #: Topic -> the last message that came from the foreign broker, and that went there, on this connection.
        self._came: dict[bytes, int] = {}
        self._went: dict[bytes, int] = {}
        self.emptied: dict[bytes, None] = {}
        #: Topics of which the foreign broker is still to get the network's value, and no message has come that may be
        #: its own.
        self.lacking: set[bytes] = set()

    def get(self, topic: bytes) -> int | None:
        return self._digests.get(topic)

    def agreed(self, topic: bytes, payload: bytes) -> None:
        """Both sides were seen to have it."""
        self._put(topic, hash(payload))

    def is_current(self, topic: bytes, payload: bytes) -> bool:
        """Is it the network's value?  A message that has a later one behind it, or before it, is not."""
        return self._network.retained(topic) in (None, payload)

    def went_out(self, topic: bytes, payload: bytes) -> None:
        """A message to be retained goes to the foreign broker."""
        digest = self._went[topic] = hash(payload)
        self._recent[topic] = digest, False
        self._came.pop(topic, None)
        if len(self._went) > KNOWN_MAX:
            del self._went[next(iter(self._went))]

    def has_gone(self, topic: bytes, payload: bytes) -> bool:
        """Was it the last that went there on this connection?"""
        return self._went.get(topic) == hash(payload)

    def came_in(self, topic: bytes, payload: bytes) -> None:
        """A message to be retained came from there; our own broker writes it down before it retains it."""
        digest = self._came[topic] = hash(payload)
        self._recent[topic] = digest, True
        if len(self._came) > KNOWN_MAX:
            del self._came[next(iter(self._came))]

    def is_coming(self, topic: bytes, payload: bytes) -> bool:
        """Was it the last that came from there on this connection?"""
        return self._came.get(topic) == hash(payload)

    def came_empty(self, topic: bytes) -> None:
        """An empty message came without the retain flag, which not all brokers keep: it may clear the topic."""
        self.emptied[topic] = None
        if len(self.emptied) > EMPTIED_MAX:
            del self.emptied[next(iter(self.emptied))]

    def fence_sent(self, number: int, outstanding: Iterable[bytes]) -> None:
        """`outstanding`: topics of messages that the broker may still have to retain, as those at QoS 2 unreleased."""
        topics = set(outstanding)
        self._under_way[number] = {topic: one for topic, one in self._recent.items() if topic not in topics}
        self._recent = {topic: one for topic, one in self._recent.items() if topic in topics}

    def fence_passed(self, number: int) -> None:
        """It came back; from a broker that sends it to others alone, its acknowledgement did."""
        for earlier in [one for one in self._under_way if one <= number]:
            for topic, (digest, came) in self._under_way.pop(earlier).items():
                if not came or hash(self._network.retained(topic)) == digest:
                    self._put(topic, digest)

    def connection_lost(self) -> None:
        self._recent = {}
        self._under_way.clear()
        self._came.clear()
        self._went.clear()
        self.lacking.clear()

    def _put(self, topic: bytes, digest: int) -> None:
        if len(self._digests) < KNOWN_MAX or topic in self._digests:
            self._digests[topic] = digest


class UnheardValues:
    """Values that the foreign broker had before a new session there heard it.

    The network's subscribers are sent them once a fence that was sent after the reading has come back: what the broker
    passed on before it read them out is here by then.  A value on whose topic a message has come is not sent: it is
    that message, or older.
    """

    def __init__(self) -> None:
        self._came: set[bytes] = set()
        self._values: dict[bytes, StoredValue] = {}
        #: The number of that fence; None: they have not all been read.
        self.fence_number: int | None = None

    def came(self, topic: bytes) -> None:
        if len(self._came) < KNOWN_MAX:
            self._came.add(topic)

    def read(self, value: StoredValue) -> None:
        if len(self._values) < KNOWN_MAX:
            self._values[value.topic] = value

    def to_send(self) -> list[StoredValue]:
        return [value for topic, value in self._values.items() if topic not in self._came]


class RetainedComparison:
    """One reading of the foreign broker's values."""

    def __init__(self, network: NetworkValues, common: CommonValues) -> None:
        self._network = network
        self._common = common
        #: Topic -> digest of the value that the foreign broker has.
        self._theirs: dict[bytes, int] = {}
        #: The same for all values that were read, until they came on the connection of the session, too.
        self._read: dict[bytes, int] = {}
        #: Topic -> digest of the network's value that a newer one of the foreign broker takes the place of.
        self._replaced: dict[bytes, int] = {}
        #: Topics that `is_known_here` was asked about.
        self._live: set[bytes] = set()
        self.conflicts: dict[bytes, None] = {}
        #: Topics of which the network's value goes to the foreign broker.
        self.old: dict[bytes, None] = {}
        #: All values have been read; and: our own broker sends all of the network's for its subscription.
        self.is_complete = self.is_resent = False
        #: Topics on which an empty message had come when the reading began.
        self.emptied = tuple(common.emptied)
        #: Topics on which a message came meanwhile that does not show whether it is retained: the next reading will.
        self.unclear: set[bytes] = set()

    def theirs(self, topic: bytes, payload: bytes, *, is_ours: bool) -> RetainedFinding:
        """The foreign broker has this value; `is_ours`: it has the mark of our network."""
        if len(self._read) < KNOWN_MAX:
            self._read[topic] = hash(payload)
        found = self._compare(topic, payload, is_ours=is_ours)
        ours = self._network.retained(topic)
        if found is RetainedFinding.NEW and ours is not None:
            self._replaced[topic] = hash(ours)
        if found in (RetainedFinding.NEW, RetainedFinding.SAME):
            self._note(topic, payload)
            self._common.agreed(topic, payload)
        else:
            self.old[topic] = None
        if found is RetainedFinding.CONFLICT:
            self.conflicts[topic] = None
        return found

    def _compare(self, topic: bytes, payload: bytes, *, is_ours: bool) -> RetainedFinding:
        ours, common = self._network.retained(topic), self._common.get(topic)
        if ours == payload or self._common.is_coming(topic, payload):
            return RetainedFinding.SAME
        if ours is None:
            return RetainedFinding.NEW
        if common is None and is_ours:
            return RetainedFinding.OLD
        if self._is_changed_here(topic, ours):
            return RetainedFinding.CONFLICT if common is None or common != hash(payload) else RetainedFinding.OLD
        return RetainedFinding.NEW

    def _is_changed_here(self, topic: bytes, ours: bytes) -> bool:
        """Since both sides had the same value.  One that came from there has not been changed."""
        return self._common.get(topic) != hash(ours) and not self._network.came_from_there(topic)

    def came_live(self, topic: bytes, payload: bytes) -> None:
        """A message to be retained came in while the values are compared: had the network changed its own?"""
        ours = self._network.retained(topic)
        if ours is not None and ours != payload and not self.is_complete and self._is_changed_here(topic, ours):
            self.conflicts[topic] = self.old[topic] = None
        self._note(topic, payload)

    def came_without_flag(self, topic: bytes) -> None:
        if len(self.unclear) < KNOWN_MAX:
            self.unclear.add(topic)

    def was_read(self, topic: bytes, payload: bytes) -> bool:
        """It is asked once for each topic."""
        if self._read.get(topic) != hash(payload):
            return False
        del self._read[topic]
        return True

    def has(self, topic: bytes) -> bool:
        return topic in self._theirs

    def is_known_here(self, topic: bytes, payload: bytes) -> bool:
        """Is it the first message on its topic, and the network's value, or the one that the broker's took the place
        of?  Stored messages come ahead of live ones."""
        if topic in self._live or len(self._live) >= KNOWN_MAX:
            return False
        self._live.add(topic)
        return self._network.retained(topic) == payload or self._replaced.get(topic) == hash(payload)

    def sent(self, topic: bytes, payload: bytes) -> None:
        """It goes to the foreign broker."""
        self._note(topic, payload)

    def _note(self, topic: bytes, payload: bytes) -> None:
        if len(self._theirs) < KNOWN_MAX or topic in self._theirs:
            self._theirs[topic] = hash(payload)

    def is_theirs(self, topic: bytes, payload: bytes) -> bool:
        """Does the foreign broker have this value already, or a newer one?  It is asked once for each."""
        if not self.is_resent:
            return False
        return hash(payload) in (self._replaced.pop(topic, None), self._theirs.pop(topic, None))
