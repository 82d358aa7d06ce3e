"""One expression in a broker, and those who want it."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from sterna.broker.calls import Call, Saved
from sterna.broker.parts import Part
from sterna.mqtt.message import Message
from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.operators.expression import Expression, Family
from sterna.operators.merging import OuterEngine

_SNAPSHOT = tuple[int, bytes]
#: Of one that comes in parts, with what it said last and what its part is called.
_MERGED = tuple[int, bytes, bytes | None, bytes]


class Computation:
    """One expression and those who want it."""

    __slots__ = (
        "calls",
        "coming",
        "due_us",
        "engine",
        "expression",
        "function",
        "held_us",
        "made",
        "outside",
        "owed",
        "part",
        "published",
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
        #: The data processing function it begins with, if it does, and the messages whose numbers it waits for.
        self.function = function_of(expression)
        self.calls: deque[Call] = deque()
        #: The deadline that is on its way, 0 if there is none; and the one that waits for the numbers before it.
        self.due_us = 0
        self.held_us = 0
        #: Results made, at QoS 1 and 2; and, during a replay, the last one the journal is known to have.
        self.made = 0
        self.published = 0
        #: The last message at QoS 1 and 2 it has taken; and, during a replay, those that it may not have.
        self.taken = -1
        self.coming: deque[Message] = deque()
        #: The operator knows that it has stopped.
        self.told = False
        #: What is computed of it here, if it comes in parts; the last result (empty: there was none to be had); and
        #: whether something has come since.
        self.part: Part | None = None
        self.said: bytes | None = None
        self.owed = False

    @property
    def results(self) -> bytes:
        """The filter that matches its results, and no other expression's; see `result_topic`."""
        return self.expression.text if self.expression.forwards else self.expression.result_topic

    def result_topic(self, topic: bytes) -> bytes:
        return self.expression.topic_of_result(topic)

    def snapshot(self) -> bytes:
        if self.part is not None:
            return msgspec.msgpack.encode((self.made, self.engine.snapshot(), self.said, self.part.name))
        waiting = [call.saved() for call in self.calls if call.offset >= 0]
        return msgspec.msgpack.encode((self.made, self.engine.snapshot(), waiting))

    def restore(self, snapshot: bytes) -> None:
        """May raise StateError."""
        waiting: list[Saved] = []
        try:
            if self.part is not None:
                self.made, engine, self.said, _ = msgspec.msgpack.decode(snapshot, type=_MERGED)
            else:
                fields = msgspec.msgpack.decode(snapshot, type=list[Any])
                self.made, engine = msgspec.convert(fields[:2], _SNAPSHOT)
                # Those of an earlier release have none.
                waiting = msgspec.convert(fields[2], list[Saved]) if len(fields) > 2 else []
        except msgspec.MsgspecError as error:
            raise StateError(f"a damaged state of {self.expression.text!r}: {error}") from None
        self.published = self.made
        self.engine.restore(engine)
        for offset, topic, time_us in waiting:
            self.calls.append(Call(self.function, topic, time_us, offset, again=True))

    def has(self, result: Message) -> None:
        """The journal holds this result, so it holds all before it."""
        if self.part is not None:
            # Not made again by a replay: the other parts are not in the journal.
            self.said = result.payload
            self.part.closed_us = max(self.part.closed_us, taken_us(result))

    def merged(self, time_us: int) -> bytes | None:
        """What to publish, of all parts."""
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


def taken_us(message: Message) -> int:
    return int(message.received_at * 1e6 + 0.5)


def function_of(expression: Expression) -> str:
    """The data processing function its messages go through; only the innermost operator can be one."""
    innermost = expression.operators[-1]
    return innermost.name if innermost.family is Family.FUNCTION else ""


def part_in(snapshot: bytes | None) -> bytes | None:
    """What the part of an expression was called, if it came in parts."""
    if snapshot is not None:
        with suppress(msgspec.DecodeError):
            name: bytes = msgspec.msgpack.decode(snapshot, type=_MERGED)[3]
            return name
    return None
