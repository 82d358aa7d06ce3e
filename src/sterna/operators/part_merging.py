"""Merges the parts of many places, each computed from that place's own messages, into the answer over all messages.

A place's part is the aggregate of the topics that this place alone has, and their names.  A topic that turns up at a
second place still has one last value: both places are asked to report it separately, and the newest report counts (of
one instant, that of the place whose name comes last).  Until both do, there is no answer rather than a wrong one.
"""

from __future__ import annotations

from typing import Any

from sterna.operators.aggregates import Aggregate, aggregate_of, from_wire
from sterna.operators.engine import Engine
from sterna.operators.expression import Expression, Operator
from sterna.operators.part_engine import PartEngine, Silent
from sterna.operators.settings import OperatorSettings
from sterna.operators.spatial import spatial_of
from sterna.operators.split import halves
from sterna.operators.stages import Counts, Outgrown, Stage

#: A place that cannot be reached, since which microsecond, and what it said last: the number of that (see `Remote`),
#: its aggregate, the topics in it, and when which topics kept apart said what, as far as nobody has newer values.
AwayPart = tuple[str, int, int, int, Any, list[bytes], list[tuple[bytes, int, float | None]]]


class Remote:
    """The part of one other place."""

    __slots__ = ("aggregate", "claims", "left_out", "number", "pending", "wire")

    def __init__(self, number: tuple[int, int], wire: object, aggregate: Aggregate) -> None:
        #: Which boot of the place, and how often it has spoken in it.
        self.number = number
        self.wire = wire
        self.aggregate = aggregate
        #: Topics that are in the aggregate; and those among them that must not stay there.
        self.claims: set[bytes] = set()
        self.pending: set[bytes] = set()
        #: It holds what others have newer values of, and cannot be asked.
        self.left_out = False


class Merge:
    """The parts of all places, this one's included."""

    __slots__ = (
        "_alone",
        "_claimed",
        "_counts",
        "_expiry_us",
        "_joint",
        "_newest",
        "_others",
        "_own",
        "_place",
        "_topics_max",
        "asks",
        "away",
        "remotes",
    )

    def __init__(self, own: PartEngine, place: str, settings: OperatorSettings) -> None:
        self._own = own
        self._place = place
        self._counts = Counts()
        self._topics_max = settings.topics
        self._expiry_us = settings.expiry_us
        self.remotes: dict[str, Remote] = {}
        #: Topic -> the one other place whose aggregate has it.
        self._claimed: dict[bytes, str] = {}
        #: Topics that several places have: when and where each last said something.
        self._newest: dict[bytes, tuple[int, str]] = {}
        self._joint = spatial_of(Silent(self._counts), self._counts, own.aggregate, settings)
        #: Of the other places, until one of them changes; and whether they have nothing.
        self._others: Aggregate | None = None
        self._alone = True
        #: Place -> topics it must keep apart; the sender of that request removes the entry.
        self.asks: dict[str, list[bytes]] = {}
        #: Places that cannot be reached and have said something -> since which microsecond.
        self.away: dict[str, int] = {}
        self.own_apart(list(own.apart.held))

    @property
    def settled(self) -> bool:
        """Does every topic count once?"""
        return not any(remote.pending and not remote.left_out for remote in self.remotes.values())

    @property
    def has_topics(self) -> bool:
        """Has anything come that counts, at any place?"""
        return bool(self._claimed or self._newest or self._own.spatial.heard)

    @property
    def shared(self) -> list[bytes]:
        return list(self._newest)

    def pending(self, place: str) -> list[bytes]:
        """Topics that this place was asked to keep apart and does not yet."""
        remote = self.remotes.get(place)
        return [] if remote is None else sorted(remote.pending)

    def answer(self, time_us: int) -> float | None:
        """Of everything that counts now; OverflowError if it is beyond what a double can say."""
        if self.away:
            for place in [place for place, since_us in self.away.items() if since_us + self._expiry_us <= time_us]:
                self.forget(place)
        if self._others is None:
            self._others = aggregate_of(self._own.aggregate)
            for remote in self.remotes.values():
                if not remote.left_out:
                    self._others.merge(remote.aggregate)
            self._alone = self._others.to_wire() == aggregate_of(self._own.aggregate).to_wire()
        if self._alone and not self._joint.values:
            self._own.spatial.expire(time_us)
            return self._own.spatial.answer()  # which costs less than merging it with nothing
        total = aggregate_of(self._own.aggregate)
        for spatial in (self._own.spatial, self._joint):
            spatial.expire(time_us)
            total.merge(spatial.partial())
        total.merge(self._others)
        return total.result()

    # -- this place --

    def own_topic(self, topic: bytes) -> None:
        """A message of this topic comes now.  May raise Outgrown."""
        if topic in self._claimed:
            self._share(topic)

    def own_apart(self, topics: list[bytes]) -> None:
        """This place keeps them apart, because somebody has asked for it.  May raise Outgrown."""
        for topic in topics:
            self._share(topic)

    def own_message(self, topic: bytes) -> None:
        """It has come."""
        if topic in self._newest:
            time_us, value = self._own.apart.held[topic]
            self._put(topic, time_us, self._place, value)

    # -- other places --

    def came(
        self,
        place: str,
        number: tuple[int, int],
        full: bool,
        wire: object,
        claims: list[bytes],
        apart: list[tuple[bytes, int, float | None]],
    ) -> bool | None:
        """Takes the news of a place.  True if its part is another one than before; None if something before it is
        missing and all of it is wanted again.  May raise StateError or Outgrown."""
        before = self.remotes.get(place)
        if before is not None and number <= before.number:
            return False  # overtaken on the way
        if not full and (before is None or number != (before.number[0], before.number[1] + 1)):
            return None
        remote = Remote(number, wire, from_wire(self._own.aggregate, wire))
        if before is not None:
            if full:
                self._unclaim(place, before)
            else:
                remote.claims, remote.pending, remote.left_out = before.claims, before.pending, before.left_out
        self.remotes[place] = remote
        self.away.pop(place, None)
        self._others = None
        moved = wire != (aggregate_of(self._own.aggregate).to_wire() if before is None else before.wire)
        moved = moved or bool(claims) or (before is not None and before.left_out)
        for topic, time_us, value in apart:
            moved = self._kept_apart(place, remote, topic, time_us, value) or moved
        for topic in claims:
            self._claim(place, remote, topic)
        if len(self._claimed) + len(self._newest) + len(self._own.spatial.heard) > self._topics_max:
            raise Outgrown(f"more than {self._topics_max} topics")
        if not remote.pending:
            remote.left_out = False
        return moved

    def _claim(self, place: str, remote: Remote, topic: bytes) -> None:
        remote.claims.add(topic)
        other = self._claimed.get(topic)
        if topic not in self._newest and other is None and topic not in self._own.spatial.heard:
            self._claimed[topic] = place
        elif other != place:
            self._ask(place, topic)
            self._share(topic)

    def _share(self, topic: bytes) -> None:
        """The place that has it must keep it apart."""
        claimant = self._claimed.pop(topic, None)
        if claimant is not None:
            self._ask(claimant, topic)
        if topic not in self._newest:
            self._newest[topic] = (0, "")
            self._own.apart.take(topic)
            self.own_message(topic)

    def _ask(self, place: str, topic: bytes) -> None:
        self.remotes[place].pending.add(topic)
        self.asks.setdefault(place, []).append(topic)

    def _kept_apart(self, place: str, remote: Remote, topic: bytes, time_us: int, value: float | None) -> bool:
        remote.claims.discard(topic)
        remote.pending.discard(topic)
        if self._claimed.get(topic) == place:
            del self._claimed[topic]
        self._share(topic)  # perhaps somebody else has asked for it
        return self._put(topic, time_us, place, value)

    def _put(self, topic: bytes, time_us: int, place: str, value: float | None) -> bool:
        if time_us == 0 or (time_us, place) <= self._newest[topic]:
            return False
        self._newest[topic] = (time_us, place)
        self._joint.change(time_us, topic, value)
        return True

    def _unclaim(self, place: str, remote: Remote) -> None:
        for topic in remote.claims:
            if self._claimed.get(topic) == place:
                del self._claimed[topic]

    def leave_out(self, place: str) -> bool:
        """It cannot be asked: if it holds what others have newer, it does not count until it is back."""
        remote = self.remotes.get(place)
        self.asks.pop(place, None)
        if remote is None or not remote.pending or remote.left_out:
            return False
        remote.left_out = True
        self._others = None
        return True

    # -- places that cannot be reached --

    def lost(self, place: str, now_us: int) -> bool:
        """True if it has said something, which goes on counting: that is to outlive this process."""
        is_news = place in self.remotes and place not in self.away
        if is_news:
            self.away[place] = now_us
        return is_news

    def parts_away(self) -> list[AwayPart]:
        """Nobody can ask for these again."""
        held, values = self._newest.items(), self._joint.values
        found: list[AwayPart] = []
        for place, since_us in self.away.items():
            remote = self.remotes[place]
            apart = [(topic, time_us, values.get(topic)) for topic, (time_us, newest) in held if newest == place]
            found.append((place, since_us, *remote.number, remote.wire, sorted(remote.claims), apart))
        return found

    def remember(self, part: AwayPart) -> None:
        """It was away before this process, or where the subscriber comes from.  May raise StateError or Outgrown."""
        place, since_us, epoch, count, wire, claims, apart = part
        before = self.remotes.get(place)
        if place != self._place and (before is None or before.number < (epoch, count)):
            self.came(place, (epoch, count), True, wire, claims, apart)
            self.away[place] = since_us

    def forget(self, place: str) -> None:
        """It has been away for so long that nothing it said counts any more."""
        self.away.pop(place, None)
        remote = self.remotes.pop(place, None)
        if remote is not None:
            self._unclaim(place, remote)
            self._others = None
        self.asks.pop(place, None)


class OuterEngine(Engine):
    """The outer half, where the parts are merged."""

    __slots__ = ("_first",)

    _first: Stage

    def _chain(self, settings: OperatorSettings, since_us: int) -> Stage:
        self._first = self._behind(self._result, outside_of(self._expression), settings, since_us)
        return self._first

    def merged(self, time_us: int, merge: Merge) -> bytes | None:
        """The payload to publish, now that the parts are what they are."""
        try:
            time_us = self._begin(time_us)
            try:
                answer = merge.answer(time_us)
            except OverflowError:
                self.counts.not_finite += 1
                answer = None
            self._first.change(time_us, b"", answer)
        except Outgrown as reason:
            self._stop(reason)
            return None
        return self._result.text

    def closed(self, end_us: int, values: dict[bytes, float]) -> bytes | None:
        """The payload to publish, now that a window has been closed with these values."""
        try:
            self._begin(end_us)
            self._first.replace(end_us, values)
        except Outgrown as reason:
            self._stop(reason)
            return None
        return self._result.text

    def stop(self, reason: str) -> None:
        """One of the parts has outgrown its bounds: an answer from the others would be a wrong one."""
        if not self.stopped:
            self._give_up(reason)


def outside_of(expression: Expression) -> tuple[Operator, ...]:
    found = halves(expression)
    assert found is not None
    return found.outside
