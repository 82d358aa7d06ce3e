"""The exchange of retained values with a foreign broker: reads its values, takes the newer ones, sends those it lacks.

It begins with each connection and is repeated every `retained_s`.  `retained.py` says which of two values is the newer
one.  A value that the broker lacks goes there after all older messages that wait for it, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from sterna.interworking.abilities import Abilities
from sterna.interworking.counters import AttachmentCounters
from sterna.interworking.crossing import CrossingTopics
from sterna.interworking.fences import ROOT
from sterna.interworking.joint import Joint
from sterna.interworking.marks import Marks
from sterna.interworking.ports import ForeignWorld, OwnBroker, StoredValue
from sterna.interworking.probe import Caller
from sterna.interworking.reader import RetainedReader
from sterna.interworking.retained import CommonValues, RetainedComparison, RetainedFinding
from sterna.interworking.session_line import SessionLine
from sterna.interworking.settings import InterworkingSettings
from sterna.interworking.timers import NamedTimers
from sterna.journal.filter_set import FilterSet
from sterna.mqtt.packets import BRIDGE

#: Our own broker may take so many fence intervals to send the network's retained messages.
COMPARED_FENCES: Final = 3
#: Topics that one report names.
NAMED_MAX: Final = 10


class ExchangeListener(Protocol):
    def values_read(self) -> None:
        """All values of the foreign broker were read, before messages flow."""

    def values_not_read(self, reason: str) -> None:
        """They could not be read, and messages do not flow yet."""


@dataclass(slots=True)
class _LackingValues:
    """Retained messages that the broker is still to get."""

    topics: deque[bytes] = field(default_factory=deque)
    later: list[bytes] = field(default_factory=list)
    """The same, while older messages wait for the broker."""
    sending: int = 0
    """The identifier of the one under way."""


@dataclass(slots=True)
class _RetainedConnection:
    """The connection of the session, and what the broker at its other end can do."""

    line: SessionLine
    joint: Joint
    abilities: Abilities
    is_new: bool
    """The broker's session is new: it has perhaps no retained messages of ours."""
    is_flowing: bool = False
    """Messages flow both ways."""

    @property
    def shows_retained(self) -> bool:
        """Does the broker show all its retained messages?  A bridge is not asked: it does not hear itself."""
        return bool(self.abilities.retained_for_wildcards or self.abilities.level & BRIDGE)


class RetainedExchange:
    def __init__(
        self,
        broker: str,
        settings: InterworkingSettings,
        world: ForeignWorld,
        own: OwnBroker,
        topics: CrossingTopics,
        marks: Marks,
        common: CommonValues,
        counters: AttachmentCounters,
        listener: ExchangeListener,
        new_caller: Callable[[], Caller],
        new_fence: Callable[[], bytes],
    ) -> None:
        """`new_caller`: under which name the broker's values are read, another one each time.  `new_fence`: a packet
        for a session that does not hear what it sends itself; empty if it does."""
        self._broker = broker
        self._settings = settings
        self._world = world
        self._own = own
        self._topics = topics
        self._marks = marks
        self._common = common
        self._counters = counters
        self._listener = listener
        self._new_caller = new_caller
        self._new_fence = new_fence
        self._timers = NamedTimers(world)
        self._connection: _RetainedConnection | None = None
        self._reader: RetainedReader | None = None
        self._comparison: RetainedComparison | None = None
        self._lacking = _LackingValues()

    def begin(self, line: SessionLine, joint: Joint, abilities: Abilities, *, is_new: bool) -> None:
        """The broker has let us in; `is_new`: its session is."""
        self._connection = _RetainedConnection(line, joint, abilities, is_new)

    def end(self, farewell: bytes) -> None:
        """The connection has ended, or is to end."""
        self._timers.cancel_all()
        self._common.connection_lost()
        self._lacking.topics.clear()
        self._lacking.later.clear()
        reader, self._reader = self._reader, None
        self._comparison = self._connection = None
        if reader is not None:
            reader.close(farewell)

    # -- the broker's values --

    @property
    def is_begun(self) -> bool:
        return self._comparison is not None

    @property
    def is_read(self) -> bool:
        """All values of the broker are known."""
        return self._comparison is not None and self._comparison.is_complete

    def read(self) -> None:
        """Compare the foreign broker's retained messages with the network's."""
        connection = self._connection
        if connection is None or self._reader is not None:
            return
        self._timers.cancel("compared")
        self._comparison = connection.joint.comparison = RetainedComparison(self._own, self._common)
        abilities = connection.abilities
        self._reader = RetainedReader(
            self._world,
            self._new_caller(),
            abilities.version,
            self._own.packet_bytes,
            [(topic_filter, abilities.qos) for topic_filter in self._topics.from_broker],
            self._found,
            self._all_found,
            self._not_read,
            fence=self._new_fence(),
        )
        self._world.dial(self._reader)

    def _found(self, value: StoredValue) -> None:
        connection, comparison = self._connection, self._comparison
        if connection is None or comparison is None:
            return
        if not self._topics.comes_in(value.topic) or value.topic.startswith(ROOT):
            return
        is_ours = self._marks.is_ours(value.topic, value.properties, 0, len(value.properties))
        if comparison.theirs(value.topic, value.payload, is_ours=is_ours) is RetainedFinding.NEW:
            # While the session was kept, messages at QoS 1 and 2 came as such; else somebody may have missed it.
            unheard = connection.joint.unheard
            if unheard is not None:
                unheard.read(value)
            is_had = not connection.is_new or connection.is_flowing
            self._own.retain(value, silently=is_had or unheard is not None)

    def _not_read(self, reason: str) -> None:
        self._reader = None
        if self._connection is None or not self._connection.is_flowing:
            self._listener.values_not_read(reason)
            return
        self._world.report("retained messages not read", {"broker": self._broker, "reason": reason})
        self._timers.after("read", max(self._settings.retained_s, self._settings.fence_s), self.read)

    def _all_found(self) -> None:
        self._reader = None
        connection, comparison = self._connection, self._comparison
        if connection is None or comparison is None:
            return
        comparison.is_complete = True
        if connection.is_flowing:
            self._merge(comparison)
            self._send_lacking(connection, comparison)
            self._compared()
            self._read_later(connection)
        else:
            self._listener.values_read()

    def _read_later(self, connection: _RetainedConnection) -> None:
        """Not before messages flow: until then what was read is compared with what comes for the subscription."""
        if self._settings.retained_s and connection.shows_retained:
            self._timers.after("read", self._settings.retained_s, self.read)

    def send_unheard(self, fence_number: int) -> None:
        """A fence came back: messages from before the reading are here, and other values are new to the network."""
        unheard = self._connection.joint.unheard if self._connection is not None else None
        if self._connection is None or unheard is None or unheard.fence_number is None:
            return
        if fence_number >= unheard.fence_number:
            self._connection.joint.unheard = None
            for value in unheard.to_send():
                self._own.retain(value, silently=False)

    # -- the network's values --

    def merge(self) -> None:
        """All values are read: what the broker cleared is cleared here, conflicts are named, and messages may flow."""
        if self._connection is not None and self._comparison is not None:
            self._connection.is_flowing = True
            self._merge(self._comparison)

    def send(self, *, own_sends: bool) -> None:
        """The broker gets what it lacks.  `own_sends`: our own broker sends it all values of the network for a
        subscription; those that are there go no further."""
        connection, comparison = self._connection, self._comparison
        if connection is None or comparison is None:
            return
        if own_sends:
            comparison.is_resent = True
        else:
            self._send_lacking(connection, comparison)
        self._timers.after("compared", COMPARED_FENCES * self._settings.fence_s, self._compared)
        self._read_later(connection)

    def _compared(self) -> None:
        if self._connection is not None:
            self._connection.joint.comparison = None

    def _merge(self, comparison: RetainedComparison) -> None:
        self._clear_emptied(comparison)
        self._name_conflicts(comparison)

    def _clear_emptied(self, comparison: RetainedComparison) -> None:
        """An empty message came, and the broker has no value: it was cleared."""
        for topic in list(self._common.emptied):
            if not comparison.has(topic):
                del self._common.emptied[topic]
                if self._own.retained(topic):
                    self._own.retain(StoredValue(topic, b"", 1, b"", None), silently=True)
                    comparison.sent(topic, b"")
            elif topic in comparison.emptied:
                del self._common.emptied[topic]  # it has been set since

    def _name_conflicts(self, comparison: RetainedComparison) -> None:
        if topics := [topic.decode(errors="replace") for topic in comparison.conflicts]:
            self._counters.held_back[RetainedFinding.CONFLICT] += len(topics)
            reason = "both sides set them while they did not hear each other: the network's values stay"
            fields = {"broker": self._broker, "count": len(topics), "topics": topics[:NAMED_MAX], "reason": reason}
            self._world.report("retained messages conflict", fields)
            comparison.conflicts.clear()

    def _send_lacking(self, connection: _RetainedConnection, comparison: RetainedComparison) -> None:
        """The network's values that the foreign broker lacks go there, one after the other."""
        lacking: Iterable[bytes] = ()
        if connection.is_new or connection.shows_retained:
            emptied = self._common.emptied
            topics = self._own.retained_topics()
            lacking = (topic for topic in topics if not comparison.has(topic) and topic not in emptied)
        both = dict.fromkeys((*comparison.old, *lacking))
        unclear = comparison.unclear  # the broker may have a newer value by now
        self._lacking.topics = deque(topic for topic in both if self._topics.goes_out(topic) and topic not in unclear)
        self._common.lacking.update(self._lacking.topics)
        self._send_next(connection)

    def _send_next(self, connection: _RetainedConnection) -> None:
        lacking = self._lacking
        lacking.sending = 0
        while lacking.topics and not lacking.sending:
            topic = lacking.topics.popleft()
            if topic not in self._common.lacking:
                continue  # the next reading will show which value is there
            if self._own.may_wait(topic):
                lacking.later.append(topic)  # or it would come before older ones
                continue
            self._common.lacking.discard(topic)
            value = self._own.stored(topic)
            if value is None or self._common.has_gone(topic, value.payload):
                continue
            if value.qos and connection.abilities.receive_maximum > 1:
                lacking.sending = connection.line.free_packet_id()
            connection.line.write(connection.joint.value_for_broker(value, lacking.sending))

    def send_wanted(self, filters: list[bytes]) -> None:
        """Clients of the broker want these topics from now on; what was retained meanwhile has not gone there."""
        connection = self._connection
        if connection is None or not connection.is_flowing:
            return
        wanted = FilterSet(filters)
        for topic in self._own.retained_topics():
            if topic not in wanted or not self._topics.goes_out(topic) or self._own.came_from_there(topic):
                continue
            value = self._own.retained(topic)
            if value is not None and self._common.get(topic) != hash(value):
                self._lacking.topics.append(topic)
        if not self._lacking.sending:
            self._send_next(connection)

    def answered(self, packet_id: int) -> bool:
        """The broker has acknowledged a packet: is it a value that it lacked?"""
        if self._connection is None or packet_id != self._lacking.sending:
            return False
        self._send_next(self._connection)
        return True

    def crossed(self, topic: bytes) -> None:
        """Each side has the other's value now: with the next fence the network's goes there once more."""
        self._lacking.later.append(topic)
        self._common.lacking.add(topic)
        self._counters.held_back[RetainedFinding.CONFLICT] += 1

    def send_delayed(self) -> None:
        """A fence was sent: values that waited behind older messages are tried again."""
        lacking = self._lacking
        if self._connection is not None and lacking.later and not lacking.sending:
            lacking.topics.extend(lacking.later)
            lacking.later.clear()
            self._send_next(self._connection)
