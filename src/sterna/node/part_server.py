"""Telling other nodes our part of their expressions: what our own clients publish counts there without being sent.

A part is told whole, as it is now, so one that was lost or overtaken on the way changes nothing; only the names of
topics are told once.  While it changes, it is told at the pace that is set.  A reader that was told says so from time
to time; one that does not is told everything again.  A reader that cannot be reached is kept in mind for as long as
values count, also over a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from sterna.broker.broker import Broker
from sterna.broker.expressions.parts import ExpressionPart
from sterna.node.membership import UNDERWAY_S
from sterna.node.part_messages import (
    CAUGHT_UP,
    FULL,
    MORE,
    QUIET,
    Done,
    Heard,
    Stopped,
    Told,
    Want,
    Windows,
    Word,
    pages,
    window_pages,
)
from sterna.operators.errors import ExpressionError
from sterna.operators.part_engine import PartEngine
from sterna.operators.window_parts import WindowsPart

#: After this long without a word that it was heard, a part is told again in full.
UNHEARD_S = 15.0
#: The same for what was in a window.
UNCLOSED_S = 5.0
#: Wants that are younger than this came at once, and need no look at what came before.
NEW_S = 0.05
#: How long a reader has to ask again for what it wanted before it, or we, were started again.
ORPHANED_S = 10.0
#: The least a reader that cannot be reached is kept in mind.
KEPT_S = 60.0


class Post(Protocol):
    def can_reach(self, node: str) -> bool: ...
    def send(self, to: str, words: Sequence[Word]) -> None:
        """At once."""


class Reader:
    """One node that wants one part."""

    __slots__ = (
        "apart",
        "checking",
        "claims",
        "count",
        "done_us",
        "due",
        "edition",
        "heard",
        "is_loud",
        "node",
        "number",
        "part",
        "sent_at",
        "wire",
    )

    def __init__(self, node: str, number: int, part: ExpressionPart) -> None:
        self.node = node
        self.number = number
        self.part = part
        #: The number of what it was told last, and of the last that it is known to have heard.
        self.count = 0
        self.heard = 0
        #: News it was told: how many of the topics admitted in this edition, which change of those apart, the rest.
        self.edition = -1
        self.claims = 0
        self.apart = 0
        self.wire: object = None
        self.sent_at = float("-inf")
        #: It is to be told at this instant; 0: nothing is new.
        self.due = 0.0
        #: Messages have come, values have not only expired.
        self.is_loud = False
        self.checking = False
        #: Windows up to this one it has closed.
        self.done_us = 0


class PartsTold:
    def __init__(
        self,
        broker: Broker,
        post: Post,
        pace_s: float,
        expiry_s: float,
        closed: Callable[[ExpressionPart], None],
        catch_up: Callable[[ExpressionPart], None],
    ) -> None:
        """`closed`: a window of a part has ended here.  `catch_up`: it is to take what the journal has."""
        self._broker = broker
        self._post = post
        self._pace_s = pace_s
        self._closed = closed
        self._catch_up = catch_up
        self._kept_s = max(KEPT_S, expiry_s)
        self._parts = broker.routes.computations.parts
        #: How many parts were told since this node was started.
        self._told = 0
        #: Node -> its epoch, and by its numbers what it wants.
        self._epochs: dict[str, int] = {}
        self._readers: dict[str, dict[int, Reader]] = {}
        #: The same by name of the part.
        self._by_part: dict[bytes, list[Reader]] = {}
        for holder in {holder: None for part in self._parts for holder in part.holders}:
            self.lost(holder)
        for part in list(self._parts):
            if part.since_us:  # it had caught up, and forgot that in a crash
                part.begin(part.since_us)
                catch_up(part)
            self.watch_windows(part)

    def _at(self, wait_s: float, action: Callable[[], None]) -> None:
        self._broker.deadlines.at(self._broker.now + wait_s, action)

    def _look_when_due(self, part: ExpressionPart, action: Callable[[ExpressionPart], None]) -> None:
        due = self._broker.now + max(0.0, part.due_us / 1e6 - self._broker.wall)
        part.deadline = self._broker.deadlines.replace(part.deadline, due, partial(action, part))

    # -- what others want --

    def wanted(self, node: str, epoch: int, want: Want) -> None:
        if self._epochs.get(node) != epoch:  # started again: its numbers mean something else now
            self._epochs[node] = epoch
            self._forget_readers(node)
        readers = self._readers.setdefault(node, {})
        reader = readers.get(want.number)
        if reader is None or reader.part.name != want.name:
            part = self._hold(node, want)
            if part is None:
                return
            reader = readers[want.number] = Reader(node, want.number, part)
            self._by_part.setdefault(want.name, []).append(reader)
        reader.edition = -1
        if want.apart:
            self.take_apart(node, want.number, want.apart)
        self.watch_windows(reader.part)
        # At once: whoever asked may be told by an echo behind this that we know.
        self._tell(reader)

    def _hold(self, node: str, want: Want) -> ExpressionPart | None:
        part = self._parts.get(want.name)
        refusal = self._broker.routes.computations.refuses_part(want.name) if part is None else None
        if part is None or node not in part.holders:
            try:
                if refusal is None:
                    # The want has been on its way for a while, too.
                    since_us = int((self._broker.wall - want.age_s - UNDERWAY_S) * 1e6) if want.age_s > NEW_S else 0
                    part = self._broker.routes.hold_part(want.name, node, since_us)
                    self._broker.log.part(node, want.name, is_wanted=True, since_us=part.since_us)
                    if part.since_us:
                        self._catch_up(part)
            except ExpressionError as error:
                refusal = str(error)
        if refusal is not None:
            self._post.send(node, [Stopped(want.number, refusal)])
            return None
        return part

    def unwanted(self, node: str, numbers: list[int]) -> None:
        for number in numbers:
            reader = self._readers.get(node, {}).pop(number, None)
            if reader is not None:
                self._forget(reader)
                self._release(node, reader.part.name)

    def only(self, node: str, numbers: list[int]) -> None:
        """It wants these, and no others."""
        self.unwanted(node, [number for number in self._readers.get(node, {}) if number not in set(numbers)])
        self._release_orphans(node)

    def _release_orphans(self, node: str) -> None:
        wanted = {reader.part.name for reader in self._readers.get(node, {}).values()}
        for name in self._parts.held_by(node):
            if name not in wanted:
                self._release(node, name)

    def _release(self, node: str, name: bytes) -> None:
        if not any(reader.node == node for reader in self._by_part.get(name, ())):
            self._broker.routes.release_part(name, node)
            self._broker.log.part(node, name, is_wanted=False)

    def _forget(self, reader: Reader) -> None:
        some = self._by_part[reader.part.name]
        some.remove(reader)
        if not some:
            del self._by_part[reader.part.name]

    def _forget_readers(self, node: str) -> None:
        for reader in self._readers.pop(node, {}).values():
            self._forget(reader)

    def found(self, node: str) -> None:
        """It will ask for what it wants; whatever else we hold for it, it no longer does."""
        if self._parts.held_by(node):
            self._at(ORPHANED_S, partial(self._still_there, node))

    def _still_there(self, node: str) -> None:
        if self._post.can_reach(node):
            self._release_orphans(node)

    def lost(self, node: str) -> None:
        if self._parts.held_by(node):
            self._at(self._kept_s, partial(self._still_away, node))

    def _still_away(self, node: str) -> None:
        if not self._post.can_reach(node):
            self._forget_readers(node)
            self._release_orphans(node)

    # -- telling --

    def moved(self, part: ExpressionPart) -> None:
        """Messages have come."""
        if part.windows is None:
            self._changed(part, is_loud=True)
            self._watch_expiry(part)
        elif part.engine.stopped:
            for reader in self._by_part.get(part.name, ()):
                self._tell(reader)

    def _changed(self, part: ExpressionPart, *, is_loud: bool) -> None:
        for reader in list(self._by_part.get(part.name, ())):
            reader.is_loud = reader.is_loud or is_loud
            if reader.due:
                continue
            now = self._broker.now
            reader.due = max(now, reader.sent_at + self._pace_s)
            if reader.due <= now:
                self._tell(reader)
            else:
                self._broker.deadlines.at(reader.due, partial(self._tell_late, reader, reader.due))

    def _tell_late(self, reader: Reader, due: float) -> None:
        if reader.due == due and self._readers.get(reader.node, {}).get(reader.number) is reader:
            self._tell(reader)

    def _tell(self, reader: Reader) -> None:
        part = reader.part
        reader.due = 0.0
        if part.engine.stopped:
            self._post.send(reader.node, [Stopped(reader.number, part.engine.stopped)])
        elif part.windows is not None:
            self._tell_windows(reader, part.windows)
        elif part.topics is not None:
            self._tell_topics(reader, part.topics)

    def _tell_topics(self, reader: Reader, engine: PartEngine) -> None:
        spatial, apart = engine.spatial, engine.apart
        if engine.too_many_admitted:
            engine.admit_anew()
        admitted = spatial.admitted
        assert admitted is not None
        flags = 0 if reader.is_loud else QUIET
        if reader.edition != engine.edition:
            flags = FULL | (CAUGHT_UP if reader.part.caught_up else 0)
            reader.edition, reader.claims, reader.apart = engine.edition, 0, 0
        claims = [topic for topic in admitted[reader.claims :] if topic not in apart.held]
        entries = apart.since(reader.apart)
        wire = spatial.partial().to_wire()
        if not flags & FULL and not claims and not entries and wire == reader.wire:
            return
        reader.claims, reader.apart, reader.wire = len(admitted), apart.number, wire
        reader.is_loud = False
        if not flags & FULL:
            reader.sent_at = self._broker.now
        self._send(reader, flags, wire, claims, entries)

    def _send(
        self,
        reader: Reader,
        flags: int,
        wire: object,
        claims: list[bytes],
        entries: list[tuple[bytes, int, float | None]],
    ) -> None:
        values = {topic: (topic, time_us, value) for topic, time_us, value in entries}
        parcels: list[tuple[list[bytes], list[tuple[bytes, int, float | None]]]] = [
            ([], [values[topic] for topic in page]) for page in pages(values)
        ]
        for page in pages(claims):
            parcels.append((page, []))
        if len(parcels) == 2 and (not claims or not entries):
            parcels = [(claims, entries)]
        for place, (some, others) in enumerate(parcels):
            # One count for all readers: a restarted node remembers what it heard before, and takes lower numbers for
            # older news.
            self._told += 1
            reader.count = self._told
            more = MORE if place < len(parcels) - 1 else 0
            self._post.send(reader.node, [Told(reader.number, reader.count, flags | more, wire, some, others)])
            flags &= ~FULL
        if not reader.checking:
            reader.checking = True
            self._at(UNHEARD_S, partial(self._check, reader, reader.count))

    def _check(self, reader: Reader, count: int) -> None:
        reader.checking = False
        if self._readers.get(reader.node, {}).get(reader.number) is not reader:
            return
        # One that cannot be reached asks by itself once it can.
        if reader.heard < count and self._post.can_reach(reader.node):
            reader.edition = -1
            self._tell(reader)

    def heard(self, node: str, epoch: int, heard: Heard) -> None:
        for number, of_epoch, count in heard.counts:
            reader = self._readers.get(node, {}).get(number)
            if reader is not None and of_epoch == epoch:
                reader.heard = max(reader.heard, count)

    def take_apart(self, node: str, number: int, topics: list[bytes]) -> None:
        reader = self._readers.get(node, {}).get(number)
        if reader is None:
            return
        part = reader.part
        part.take_apart(topics)
        self._parts.has_moved(part)
        for other in list(self._by_part[part.name]):
            other.is_loud = True
            self._tell(other)  # at once: there is no answer until it has been said

    # -- expiry --

    def _watch_expiry(self, part: ExpressionPart) -> None:
        if part.topics is None or part.due_us or not part.holders:
            return
        expiring = part.topics.spatial.expiring
        if expiring:
            part.due_us = expiring[0][0]
            self._look_when_due(part, self._expire)

    def _expire(self, part: ExpressionPart) -> None:
        due_us, part.due_us = part.due_us, 0
        if self._parts.get(part.name) is part and part.topics is not None:
            if part.topics.spatial.expire(max(due_us, int(self._broker.wall * 1e6))):
                self._parts.changed[part.name] = part
                self._changed(part, is_loud=False)
            self._watch_expiry(part)

    # -- windows --

    def watch_windows(self, part: ExpressionPart) -> None:
        """See that its windows end in time, and that everybody concerned hears of it."""
        if part.windows is None or part.due_us:
            return
        part.due_us = part.windows.boundary(self._now_us()) + part.windows.length_us
        self._look_when_due(part, self._window_over)

    def _window_over(self, part: ExpressionPart) -> None:
        due_us, part.due_us = part.due_us, 0
        if self._parts.get(part.name) is not part or part.windows is None:
            return
        if self._now_us() >= due_us:  # the clock may have been set back
            part.end_windows(due_us, self._broker.log)
            self._parts.changed[part.name] = part
            for reader in list(self._by_part.get(part.name, ())):
                self._tell(reader)
            self._closed(part)
        self.watch_windows(part)

    def _tell_windows(self, reader: Reader, windows: WindowsPart) -> None:
        closed_us = windows.boundary(self._now_us())
        reader.part.end_windows(closed_us, self._broker.log)
        reports = sorted((end, items) for end, items in windows.reports.items() if end > reader.done_us)
        found = window_pages(reports)
        for place, page in enumerate(found, 1):
            self._post.send(reader.node, [Windows(reader.number, closed_us, place < len(found), page)])
        if reports and not reader.checking:
            reader.checking = True
            self._at(UNCLOSED_S, partial(self._check_closed, reader, reports[-1][0]))

    def _check_closed(self, reader: Reader, end_us: int) -> None:
        reader.checking = False
        alive = self._readers.get(reader.node, {}).get(reader.number) is reader
        if alive and reader.done_us < end_us and self._post.can_reach(reader.node):
            self._tell(reader)

    def done(self, node: str, done: Done) -> None:
        reader = self._readers.get(node, {}).get(done.number)
        if reader is not None:
            reader.done_us = max(reader.done_us, done.closed_us)
            self.release(reader.part)

    def release(self, part: ExpressionPart) -> None:
        """Forget the reports that everybody has."""
        needed = [reader.done_us for reader in self._by_part.get(part.name, ())]
        if len(needed) < len(part.holders):
            return  # one that is being started again, or cannot be reached
        if part.computations:
            needed.append(part.closed_us)
        if part.windows is not None and needed:
            part.windows.release(min(needed))
            self._parts.changed[part.name] = part

    def _now_us(self) -> int:
        return int(self._broker.wall * 1e6)
