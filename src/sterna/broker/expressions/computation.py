"""One expression that a broker computes, and its subscribers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from sterna.broker.deadlines import Deadline
from sterna.broker.expressions.expression_gate import ExpressionGate
from sterna.broker.expressions.function_calls import FunctionCall, Saved
from sterna.broker.expressions.parts import ExpressionPart
from sterna.broker.session.session import Session
from sterna.mqtt.message import Message
from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.operators.expression import Expression
from sterna.operators.part_merging import AwayPart, OuterEngine
from sterna.vocabulary.identity import Stamp

_SNAPSHOT = tuple[int, bytes]
#: Of one that comes in parts, with what it said last and what its part is called.
_MERGED = tuple[int, bytes, bytes | None, bytes]
_BARRIER = list[tuple[str, int, int]]
#: (end of the window or number, journal offset) of results.
_RECENT = list[tuple[int, int]]

#: Results that a session which comes from a node whose clock is behind may have missed.
RECENT_MAX = 16


def holder_of(session: Session) -> str:
    """The user or client that is charged with the expressions of a session."""
    return f"user {session.user}" if session.user is not None else f"client {session.name()}"


class Numbering:
    """The last result at QoS 1 or 2 that the journal is known to have."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class Computation:
    """One expression and those who want it."""

    __slots__ = (
        "calls",
        "closed_us",
        "coming",
        "deadline",
        "due_us",
        "engine",
        "expression",
        "function",
        "gate",
        "given",
        "held_us",
        "holder",
        "made",
        "numbering",
        "outside",
        "owed",
        "part",
        "recent",
        "said",
        "subscribers",
        "taken",
        "told",
    )

    def __init__(self, expression: Expression, engine: Engine) -> None:
        self.expression = expression
        #: Spark's to compute: the engine only remembers since when.
        self.outside = False
        self.engine = engine
        self.subscribers = 0
        #: The user (or anonymous client) that is charged with it: the one that wanted it first.
        self.holder = ""
        #: The gate that keeps messages from it, if it came from another node.
        self.gate: ExpressionGate | None = None
        #: The data processing function it begins with, if it does, and the messages whose numbers it waits for.
        self.function = expression.function
        self.calls: deque[FunctionCall] = deque()
        #: When the next window ends.
        self.deadline: Deadline | None = None
        #: The deadline that is on its way, 0 if there is none; and the one that waits for the numbers before it.
        self.due_us = 0
        self.held_us = 0
        #: Results made, at QoS 1 and 2; and, during a replay, the last one the journal is known to have.
        self.made = 0
        #: Results of any QoS since the node was started.
        self.given = 0
        self.numbering = Numbering()
        #: The last message at QoS 1 and 2 it has taken; and, during a replay, those that it may not have.
        self.taken = -1
        self.coming: deque[Message] = deque()
        #: The operator knows that it has stopped.
        self.told = False
        #: Its part at this node, if it comes in parts; the last result (empty: there was none to be had); and whether
        #: something has come since.
        self.part: ExpressionPart | None = None
        #: Windows up to this one were told before, at another node or before a crash.
        self.closed_us = 0
        self.said: bytes | None = None
        self.owed = False
        #: The last results at QoS 1 and 2, if they are not known by a message.
        self.recent: deque[tuple[int, int]] = deque(maxlen=RECENT_MAX)

    @property
    def published(self) -> int:
        return self.numbering.last

    @published.setter
    def published(self, number: int) -> None:
        self.numbering.last = number

    @property
    def passes_on(self) -> bool:
        """Nothing but rules, and Spark's: its results are numbered in common with those of the same rules."""
        return self.outside and self.expression.forwards

    @property
    def is_weighed(self) -> bool:
        """Does it count among those that may concern one message?  One that Spark aggregates does not."""
        return not self.outside or self.passes_on or bool(self.function)

    @property
    def known_as(self) -> bytes:
        """The name, at every node, of its results that have no message's identity."""
        text = self.expression.text
        return text.partition(b"/")[0] if self.passes_on else text

    @property
    def is_merged(self) -> bool:
        """Is each answer the newest there is, of all parts?"""
        return self.part is not None and not self.part.naming.has_windows

    @property
    def is_timed(self) -> bool:
        """Are results known by something else than a message?"""
        return self.outside or self.part is not None or self.expression.periodic is not None

    @property
    def told_us(self) -> int:
        """Windows up to this one have been told."""
        if self.outside:
            return self.published
        return self.engine.newest_us if self.part is None else max(self.closed_us, self.part.closed_us)

    @property
    def results(self) -> bytes:
        """The filter that matches its results, and no other expression's; see `result_topic`."""
        return self.expression.text if self.expression.forwards else self.expression.result_topic

    def result_topic(self, topic: bytes) -> bytes:
        return self.expression.topic_of_result(topic)

    @property
    def is_awaited(self) -> bool:
        """Is what it remembers on its way here?"""
        return self.gate is not None and self.gate.is_awaited

    @property
    def taken_in(self) -> int:
        """Messages that this node has computed for it since it was begun or read back."""
        return (self.engine if self.part is None else self.part.engine).counts.taken

    @property
    def where(self) -> str:
        """The engine: Spark, this node, or every node for its part."""
        return "Spark" if self.outside else "node" if self.part is None else "parts"

    def state_bytes(self) -> int:
        """Of what is remembered for it, as it is saved."""
        return len(self.snapshot()) + (len(self.part.snapshot()) if self.part is not None else 0)

    def snapshot(self) -> bytes:
        if self.part is not None:
            known = self.made, self.engine.snapshot(), self.said, self.part.name, self.told_us, [*self.recent]
            return msgspec.msgpack.encode((*known, self.part.away))
        made = self.published if self.passes_on else self.made
        waiting = [call.saved() for call in self.calls if call.offset >= 0]
        barrier = [] if self.gate is None else [(origin, *stamp) for origin, stamp in self.gate.barrier.items()]
        return msgspec.msgpack.encode((made, self.engine.snapshot(), waiting, barrier, [*self.recent]))

    def restore(self, snapshot: bytes) -> None:
        """May raise StateError."""
        fields = self._fields(snapshot)
        if self.part is not None:
            self.made, engine, self.said, _, self.closed_us, recent, away = fields
            self.part.remember(away)
        else:
            self.made, engine, waiting, barrier, recent = fields
            for offset, topic, time_us in waiting if not self.outside else ():
                self.calls.append(FunctionCall(self.function, topic, time_us, offset, again=True))
            if barrier:
                self.gate = ExpressionGate({origin: Stamp(epoch, sequence) for origin, epoch, sequence in barrier})
        self.published = max(self.published, self.made) if self.passes_on else self.made
        self.recent.extend(recent)
        self.engine.restore(engine)

    def adopt(self, snapshot: bytes) -> None:
        """Go on from what it remembered at another node.  May raise StateError."""
        fields = self._fields(snapshot)
        self.made = fields[0]
        if not self.passes_on or not self.published:  # else others here go on from where they are
            self.published = self.made
        if self.part is None:
            self.engine.restore(fields[1])
        else:
            # The operators outside the parts depend on their newest answer only.
            self.said, self.closed_us = fields[2], fields[4]
            self.part.remember(fields[6])

    def _fields(self, snapshot: bytes) -> list[Any]:
        """Whole, and of the right types; those of an earlier release have fewer."""
        try:
            found = msgspec.msgpack.decode(snapshot, type=list[Any])
            if self.part is not None:
                closed_us = msgspec.convert(found[4], int) if len(found) > 4 else 0
                away = msgspec.convert(found[6], list[AwayPart]) if len(found) > 6 else []
                return [*msgspec.convert(found[:4], _MERGED), closed_us, _recent_in(found, 5), away]
            waiting = msgspec.convert(found[2], list[Saved]) if len(found) > 2 else []
            barrier = msgspec.convert(found[3], _BARRIER) if len(found) > 3 else []
            return [*msgspec.convert(found[:2], _SNAPSHOT), waiting, barrier, _recent_in(found, 4)]
        except msgspec.MsgspecError as error:
            raise StateError(f"a damaged state of {self.expression.text!r}: {error}") from None

    def has(self, result: Message) -> None:
        """The journal holds this result, so it holds all before it."""
        if self.part is not None:
            # Not made again by a replay: the other parts are not in the journal.
            self.said = result.payload
            self.part.closed_us = max(self.part.closed_us, taken_us(result))

    def merged(self, time_us: int) -> bytes | None:
        """The result to publish, of all parts."""
        assert self.part is not None
        assert self.part.merge is not None
        assert isinstance(self.engine, OuterEngine)
        self.owed = False
        return self.engine.merged(time_us, self.part.merge)

    def stop(self, reason: str) -> None:
        assert isinstance(self.engine, OuterEngine)
        self.engine.stop(reason)


def is_first(computation: Computation, message: Message, said: list[bytes]) -> bool:
    """Two expressions with the same rules may let the same message pass; who wants it gets it by either."""
    if not computation.expression.forwards:
        return True
    topic = computation.result_topic(message.topic)
    if topic in said:
        return False
    said.append(topic)
    return True


def add_troubles(to: dict[str, int], engine: Engine) -> None:
    counts = engine.counts
    of_one = {
        "not-a-number": counts.ignored,
        "late": counts.clamped,
        "not-finite": counts.not_finite,
        "outgrown": counts.overflow,
    }
    for reason, count in of_one.items():
        if count:
            to[reason] = to.get(reason, 0) + count


def add_troubles_of_parts(to: dict[str, int], parts: Iterable[ExpressionPart]) -> None:
    for part in parts:
        add_troubles(to, part.engine)
        if part.gathered is not None and part.gathered.late:
            to["late-part"] = to.get("late-part", 0) + part.gathered.late


def taken_us(message: Message) -> int:
    return int(message.received_at * 1e6 + 0.5)


def _recent_in(fields: list[Any], place: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = msgspec.convert(fields[place], _RECENT) if len(fields) > place else []
    return found


def part_in(snapshot: bytes | None) -> bytes | None:
    """The name of the part of an expression, if it came in parts."""
    if snapshot is not None:
        with suppress(msgspec.DecodeError):
            fields = msgspec.msgpack.decode(snapshot, type=list[Any])
            return fields[3] if len(fields) > 3 and isinstance(fields[3], bytes) else None
    return None
