"""Inner halves of expressions, computed here of what this node's own clients publish: for expressions of clients here,
and for other nodes that asked for them.

A part exists from the first who wants it to the last, and everybody who wants the same shares it.  What it remembers,
and which nodes want it, outlives a crash like what sessions have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from sterna.mqtt.topics import FilterTree
from sterna.operators.errors import ExpressionError, StateError
from sterna.operators.expression import Expression
from sterna.operators.grammar import parse
from sterna.operators.merging import Merge
from sterna.operators.parts import PartEngine, halves
from sterna.operators.settings import Settings
from sterna.operators.stages import Outgrown

if TYPE_CHECKING:
    from sterna.broker.computation import Computation

#: Nodes that want it; what it remembers.
_SNAPSHOT = tuple[list[str], bytes]


class Part:
    __slots__ = (
        "awaited",
        "computations",
        "due_us",
        "engine",
        "expression",
        "holders",
        "merge",
        "moved",
        "name",
        "replayed",
        "settings",
        "told",
    )

    def __init__(self, name: bytes, expression: Expression, settings: Settings, now_us: int) -> None:
        self.name = name
        self.expression = expression
        self.settings = settings
        self.engine = PartEngine(expression, settings, now_us)
        #: Other nodes that want it.
        self.holders: dict[str, None] = {}
        #: Those of clients here; and, once this node has joined others, their parts with ours.
        self.computations: list[Computation] = []
        self.merge: Merge | None = None
        #: Nodes that have yet to say what they have.
        self.awaited: dict[str, None] = {}
        #: It has changed, and stands in `Parts.moved`.
        self.moved = False
        #: Messages came again, after a crash.
        self.replayed = False
        #: When the next value may expire, if somebody is to look then.
        self.due_us = 0
        #: The operator knows that it has stopped.
        self.told = False

    @property
    def is_wanted(self) -> bool:
        return bool(self.holders or self.computations)

    @property
    def is_settled(self) -> bool:
        """Can there be an answer?"""
        return not self.awaited and self.merge is not None and self.merge.settled

    def take(self, topic: bytes, payload: bytes, time_us: int) -> bool:
        """HOT.  A message that entered here; True if it counts."""
        engine, merge = self.engine, self.merge
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
        self.engine.take_apart(topics)
        if self.merge is not None and not self.engine.stopped:
            try:
                self.merge.own_apart(topics)
            except Outgrown as reason:
                self.stop(str(reason))

    def stop(self, reason: str) -> None:
        """Some place has outgrown its bounds: an answer from the others would be a wrong one."""
        for computation in self.computations:
            computation.stop(reason)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((list(self.holders), self.engine.snapshot()))


class Parts:
    __slots__ = ("_by_name", "_place", "_settings", "_snapshots", "_tree", "changed", "forgotten", "gone", "moved")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._by_name: dict[bytes, Part] = {}
        self._tree: FilterTree[bytes, Part] = FilterTree()
        #: This node's name, once it has joined others.
        self._place = ""
        self._snapshots: dict[bytes, bytes] = {}
        #: Parts that have changed since somebody last looked.
        self.moved: list[Part] = []
        #: What differs from the last checkpoint.
        self.changed: dict[bytes, Part] = {}
        self.gone: dict[bytes, None] = {}
        #: States that could not be gone on from, and why.
        self.forgotten: list[tuple[bytes, str]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._by_name.values())

    def get(self, name: bytes) -> Part | None:
        return self._by_name.get(name)

    def matching(self, topic: bytes) -> list[Part]:
        return self._tree.match(topic) if self._by_name else []

    def filters(self) -> list[bytes]:
        return [part.expression.topic_filter for part in self._by_name.values()]

    def joined(self, place: str) -> None:
        """Other nodes can be asked from now on."""
        self._place = place
        for part in self._by_name.values():
            if part.computations:
                part.merge = Merge(part.engine, place, part.settings)

    # -- who wants one --

    def of(self, computation: Computation, now_us: int) -> Part:
        """For an expression of clients here."""
        found = halves(computation.expression)
        assert found is not None
        name = name_of(found.inside, self._settings)
        part = self._by_name.get(name) or self._begin(name, found.inside, self._settings.expiry_us, now_us)
        part.computations.append(computation)
        if part.merge is None and self._place:
            part.merge = Merge(part.engine, self._place, part.settings)
        return part

    def left(self, computation: Computation) -> None:
        part = computation.part
        assert part is not None
        part.computations.remove(computation)
        if not part.computations:
            part.merge = None
            part.awaited.clear()
        self._end_unwanted(part)

    def hold(self, name: bytes, holder: str, now_us: int) -> Part:
        """For another node; ExpressionError if there can be no such part."""
        part = self._by_name.get(name)
        if part is None:
            part = self._begin(name, *read_name(name), now_us)
        part.holders[holder] = None
        self.changed[name] = part
        return part

    def release(self, name: bytes, holder: str) -> Part | None:
        part = self._by_name.get(name)
        if part is not None and holder in part.holders:
            del part.holders[holder]
            self.changed[name] = part
            self._end_unwanted(part)
        return part

    def held_by(self, holder: str) -> list[bytes]:
        return [part.name for part in self._by_name.values() if holder in part.holders]

    def _begin(self, name: bytes, expression: Expression, expiry_us: int, now_us: int) -> Part:
        part = Part(name, expression, replace(self._settings, expiry_s=expiry_us / 1e6), now_us)
        snapshot = self._snapshots.pop(name, None)
        if snapshot is not None:
            self._restore(part, snapshot, now_us)
        self._by_name[name] = part
        self._tree.add(expression.topic_filter, name, part)
        self.gone.pop(name, None)
        self.changed[name] = part
        return part

    def _end_unwanted(self, part: Part) -> None:
        if not part.is_wanted:
            del self._by_name[part.name]
            self._tree.remove(part.expression.topic_filter, part.name)
            self.changed.pop(part.name, None)
            self.gone[part.name] = None

    # -- messages --

    def take(self, part: Part, topic: bytes, payload: bytes, time_us: int) -> bool:
        """HOT.  True if it counts."""
        counts = part.take(topic, payload, time_us)
        self.has_moved(part)
        return counts

    def has_moved(self, part: Part) -> None:
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
                self.hold(name, holder, now_us)
            except ExpressionError as error:
                self.forgotten.append((name, str(error)))

    def _restore(self, part: Part, snapshot: bytes, now_us: int) -> None:
        for holder in holders_in(snapshot):
            part.holders[holder] = None
        try:
            part.engine.restore(msgspec.msgpack.decode(snapshot, type=_SNAPSHOT)[1])
        except (StateError, msgspec.DecodeError) as error:
            part.engine = PartEngine(part.expression, part.settings, now_us)
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


def name_of(inside: Expression, settings: Settings) -> bytes:
    """The same at every node for what is the same: the expression, and for how long its values count."""
    return inside.text + b"\0%d" % settings.expiry_us


def is_part(name: bytes) -> bool:
    return b"\0" in name


def read_name(name: bytes) -> tuple[Expression, int]:
    """ExpressionError if no node calls a part so."""
    text, _, expiry = name.partition(b"\0")
    expression = parse(text)
    found = halves(expression)
    if found is None or found.outside or not expiry.isdigit() or not 0 < len(expiry) < 19:
        raise ExpressionError(0, "expression", "cannot be computed in parts")
    return expression, max(1, int(expiry))


def holders_in(snapshot: bytes) -> list[str]:
    try:
        holders: list[str] = msgspec.msgpack.decode(snapshot, type=_SNAPSHOT)[0]
        return holders
    except msgspec.DecodeError:
        return []
