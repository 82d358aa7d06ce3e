"""Parts of expressions: the inner halves, computed of the messages that enter the network here.

A part serves expressions of clients here, and other nodes that asked for it.  It exists as long as anybody wants it,
and all who want the same share it.  Its state, and the nodes that want it, outlive a crash as sessions do.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sterna.broker.deadlines import Deadline
from sterna.broker.session.session_log import SessionLog
from sterna.mqtt.message import Message
from sterna.mqtt.topics import FilterTree
from sterna.operators.engine import Engine
from sterna.operators.errors import ExpressionError, StateError
from sterna.operators.expression import Expression
from sterna.operators.grammar import parse
from sterna.operators.part_engine import PartEngine
from sterna.operators.part_merging import AwayPart, Merge
from sterna.operators.settings import OperatorSettings
from sterna.operators.split import halves
from sterna.operators.stages import Outgrown
from sterna.operators.window_parts import WindowsMerge, WindowsPart

if TYPE_CHECKING:
    from sterna.broker.expressions.computation import Computation

#: Nodes that want it; what it remembers; up to when windows have been closed here; since when clients here want it.
_SNAPSHOT = tuple[list[str], bytes, int, int]


_NUMBER = re.compile(rb"[0-9]{1,18}")


class Naming(NamedTuple):
    """The fields that make the name of a part: equal parts have the same name at every node."""

    expression: Expression
    span_us: int
    """For how long values count; or how long windows are."""
    anchor_us: int = 0
    """Where windows begin."""

    @property
    def has_windows(self) -> bool:
        return self.expression.periodic is not None

    @property
    def name(self) -> bytes:
        if self.has_windows:
            return self.expression.text + b"\0%d\0%d" % (self.span_us, self.anchor_us)
        return self.expression.text + b"\0%d" % self.span_us


class ExpressionPart:
    __slots__ = (
        "_away",
        "awaited",
        "caught_up",
        "closed_us",
        "coming",
        "computations",
        "deadline",
        "due_us",
        "expression",
        "gathered",
        "holders",
        "merge",
        "moved",
        "name",
        "naming",
        "settings",
        "since_us",
        "taken",
        "topics",
        "wanted_us",
        "windows",
    )

    def __init__(self, naming: Naming, settings: OperatorSettings, now_us: int) -> None:
        self.naming = naming
        self.name = naming.name
        self.expression = naming.expression
        self.settings = settings if naming.has_windows else replace(settings, expiry_s=naming.span_us / 1e6)
        #: One of these computes: over topics, or over periods.
        self.topics: PartEngine | None = None
        self.windows: WindowsPart | None = None
        self.begin(now_us)
        #: Other nodes that want it.
        self.holders: dict[str, None] = {}
        #: Those of clients here; and, once this node has joined others, their parts with ours.
        self.computations: list[Computation] = []
        self.merge: Merge | None = None
        self.gathered: WindowsMerge | None = None
        #: The last parts of nodes that could not be reached, until they are merged.
        self._away: list[AwayPart] = []
        #: Windows up to this one have been closed here.
        self.closed_us = 0
        #: Since when clients here want it; and, if it began later than it should have for another node, since when what
        #: the journal has is yet to be taken; and whether that has happened.
        self.wanted_us = 0
        self.since_us = 0
        self.caught_up = False
        #: Nodes that have yet to say what they have.
        self.awaited: dict[str, None] = {}
        #: It has changed, and stands in `ExpressionParts.moved`.
        self.moved = False
        #: The last message at QoS 1 and 2 it has taken; and, during a replay, those that it may not have.
        self.taken = -1
        self.coming: deque[Message] = deque()
        #: When the next value may expire, or the window ends, if somebody is to look then.
        self.due_us = 0
        self.deadline: Deadline | None = None

    def begin(self, now_us: int) -> None:
        """Remember nothing."""
        if self.naming.has_windows:
            self.windows = WindowsPart(self.expression, self.settings, now_us)
            self.windows.follow(self.naming.anchor_us, self.naming.span_us)
        else:
            self.topics = PartEngine(self.expression, self.settings, now_us)

    @property
    def engine(self) -> Engine:
        engine = self.windows or self.topics
        assert engine is not None
        return engine

    def join(self, place: str) -> None:
        """This part is merged with the parts of other nodes."""
        if self.windows is not None:
            self.gathered = WindowsMerge(self.windows, self.settings)
        elif self.topics is not None:
            self.merge = Merge(self.topics, place, self.settings)
            away, self._away = self._away, []
            self.remember(away)

    @property
    def away(self) -> list[AwayPart]:
        """The last parts of nodes that cannot be reached."""
        return self._away if self.merge is None else self.merge.parts_away()

    def remember(self, away: list[AwayPart]) -> None:
        """It counts here, as it did before a crash or at another node."""
        if self.merge is None:
            self._away = away
            return
        for part in away:
            try:
                self.merge.remember(part)
            except StateError:
                continue  # damaged, or of another release: that node counts once it can be reached
            except Outgrown as reason:
                self.stop(str(reason))

    @property
    def is_wanted(self) -> bool:
        return bool(self.holders or self.computations)

    @property
    def is_settled(self) -> bool:
        """Can there be an answer?"""
        return not self.awaited and self.merge is not None and self.merge.settled

    def take(self, topic: bytes, payload: bytes, time_us: int) -> bool:
        """HOT.  A message that entered here; True if there is another answer now."""
        engine, merge = self.topics, self.merge
        if engine is None:
            self.engine.message(topic, payload, time_us)
            return False
        try:
            if merge is not None:
                merge.own_topic(topic)
        except Outgrown as reason:
            self.stop(str(reason))
        silent = engine.silent
        silent.moved = False
        engine.message(topic, payload, time_us)
        if merge is not None and silent.moved and not engine.stopped:
            merge.own_message(topic)
        return silent.moved

    def take_apart(self, topics: list[bytes]) -> None:
        """Another node has these topics, too."""
        if self.topics is None:
            return
        self.topics.take_apart(topics)
        if self.merge is not None and not self.topics.stopped:
            try:
                self.merge.own_apart(topics)
            except Outgrown as reason:
                self.stop(str(reason))

    def end_windows(self, upto_us: int, log: SessionLog) -> None:
        """It is that late.  A message that comes later counts in later windows, and after a crash it is to do so again:
        it may have come before that instant and be safe only after it."""
        assert self.windows is not None
        if upto_us > self.windows.newest_us:
            log.ended_windows(self.name, self.taken, upto_us)
            self.windows.advance(upto_us)

    def stop(self, reason: str) -> None:
        """Some place has outgrown its bounds: an answer from the others would be a wrong one."""
        for computation in self.computations:
            computation.stop(reason)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((list(self.holders), self.engine.snapshot(), self.closed_us, self.wanted_us))


class ExpressionParts:
    __slots__ = ("_by_name", "_place", "_settings", "_snapshots", "_tree", "changed", "forgotten", "gone", "moved")

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._by_name: dict[bytes, ExpressionPart] = {}
        self._tree: FilterTree[bytes, ExpressionPart] = FilterTree()
        #: This node's name, once it has joined others.
        self._place = ""
        self._snapshots: dict[bytes, bytes] = {}
        #: Parts that have changed since somebody last looked.
        self.moved: list[ExpressionPart] = []
        #: Changes since the last checkpoint.
        self.changed: dict[bytes, ExpressionPart] = {}
        self.gone: dict[bytes, None] = {}
        #: States that could not be gone on from, and why.
        self.forgotten: list[tuple[bytes, str]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ExpressionPart]:
        return iter(self._by_name.values())

    def get(self, name: bytes) -> ExpressionPart | None:
        return self._by_name.get(name)

    @property
    def is_idle(self) -> bool:
        return not self._by_name

    def matching(self, topic: bytes) -> list[ExpressionPart]:
        return self._tree.match(topic) if self._by_name else []

    def filters(self) -> list[bytes]:
        return [part.expression.topic_filter for part in self._by_name.values()]

    def joined(self, place: str) -> None:
        """Other nodes can be asked from now on."""
        self._place = place
        for part in self._by_name.values():
            if part.computations:
                part.join(place)

    # -- who wants one --

    def of(self, computation: Computation, name: bytes | None, wanted_us: int, now_us: int) -> ExpressionPart:
        """For an expression of clients here; `name`: what it was called before a restart."""
        found = halves(computation.expression)
        assert found is not None
        naming = self._naming(found.inside, now_us) if name is None else read_name(name)
        part = self._by_name.get(naming.name) or self._begin(naming, now_us)
        part.computations.append(computation)
        if len(part.computations) == 1:
            part.wanted_us = part.wanted_us or wanted_us
            if self._place:
                part.join(self._place)
        return part

    def _naming(self, inside: Expression, now_us: int) -> Naming:
        settings = self._settings
        if inside.periodic is None:
            return Naming(inside, settings.expiry_us)
        return Naming(inside, settings.period_us(inside.periodic.period), now_us if self.anchored else 0)

    @property
    def anchored(self) -> bool:
        """Do windows begin with the subscription?"""
        return self._settings.anchor == "subscription"

    def left(self, computation: Computation) -> None:
        part = computation.part
        assert part is not None
        part.computations.remove(computation)
        if not part.computations:
            part.merge = part.gathered = None
            part.wanted_us = 0
            part.awaited.clear()
        self._end_unwanted(part)

    def hold(self, name: bytes, holder: str, since_us: int, now_us: int) -> ExpressionPart:
        """For another node; ExpressionError if there can be no such part.  `since_us`: when it should have begun."""
        part = self._by_name.get(name)
        if part is None:
            part = self._begin(read_name(name), since_us or now_us)
            part.since_us = since_us
        part.holders[holder] = None
        self.changed[name] = part
        return part

    def release(self, name: bytes, holder: str) -> ExpressionPart | None:
        part = self._by_name.get(name)
        if part is not None and holder in part.holders:
            del part.holders[holder]
            self.changed[name] = part
            self._end_unwanted(part)
        return part

    def held_by(self, holder: str) -> list[bytes]:
        return [part.name for part in self._by_name.values() if holder in part.holders]

    def _begin(self, naming: Naming, now_us: int) -> ExpressionPart:
        part = ExpressionPart(naming, self._settings, now_us)
        snapshot = self._snapshots.pop(part.name, None)
        if snapshot is not None:
            self._restore(part, snapshot, now_us)
        self._by_name[part.name] = part
        self._tree.add(part.expression.topic_filter, part.name, part)
        self.gone.pop(part.name, None)
        self.changed[part.name] = part
        return part

    def _end_unwanted(self, part: ExpressionPart) -> None:
        if not part.is_wanted:
            del self._by_name[part.name]
            self._tree.remove(part.expression.topic_filter, part.name)
            self.changed.pop(part.name, None)
            self.gone[part.name] = None

    # -- messages --

    def take(self, part: ExpressionPart, topic: bytes, payload: bytes, time_us: int) -> bool:
        """HOT.  True if it counts."""
        counts = part.take(topic, payload, time_us)
        self.has_moved(part)
        return counts

    def has_moved(self, part: ExpressionPart) -> None:
        self.changed[part.name] = part
        if not part.moved:
            part.moved = True
            self.moved.append(part)

    # -- coming back --

    def load(self, name: bytes, snapshot: bytes, now_us: int) -> None:
        """From the checkpoint; expressions of clients here have come before it, or come later."""
        part = self._by_name.get(name)
        if part is not None:
            self._restore(part, snapshot, now_us)
            return
        self._snapshots[name] = snapshot
        for holder in holders_in(snapshot):
            try:
                self.hold(name, holder, 0, now_us)
            except ExpressionError as error:
                self.forgotten.append((name, str(error)))

    def _restore(self, part: ExpressionPart, snapshot: bytes, now_us: int) -> None:
        for holder in holders_in(snapshot):
            part.holders[holder] = None
        try:
            _, state, part.closed_us, part.wanted_us = msgspec.msgpack.decode(snapshot, type=_SNAPSHOT)
            part.engine.restore(state)
        except (StateError, msgspec.DecodeError) as error:
            part.begin(now_us)
            self.forgotten.append((part.name, str(error)))

    def not_saved(self, name: bytes) -> None:
        part = self._by_name.get(name)
        if part is None:
            self.gone[name] = None
        else:
            self.changed[name] = part

    def recovered(self) -> None:
        self.gone.update(dict.fromkeys(self._snapshots))
        self._snapshots.clear()


def is_part(name: bytes) -> bool:
    return b"\0" in name


def read_name(name: bytes) -> Naming:
    """ExpressionError if no node calls a part so."""
    text, *numbers = name.split(b"\0")
    expression = parse(text)
    found = halves(expression)
    has_all = len(numbers) == (1 if expression.periodic is None else 2)
    if found is None or found.outside or not has_all or not all(map(_NUMBER.fullmatch, numbers)):
        raise ExpressionError(0, "expression", "cannot be computed in parts")
    return Naming(expression, max(1, int(numbers[0])), *map(int, numbers[1:]))


def holders_in(snapshot: bytes) -> list[str]:
    try:
        holders: list[str] = msgspec.msgpack.decode(snapshot, type=_SNAPSHOT)[0]
        return holders
    except msgspec.DecodeError:
        return []
