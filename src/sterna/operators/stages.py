"""The base of all stages, and the stages that look at one key at a time: rules, differences, and the result at the
end.

A stage receives one key's new value (`change`) or an entire set (`replace`) and calls the stage after it.  These two
calls are the updates in the package's description; no object is made per message.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sterna.operators.expression import Operator


class Counts:
    """Messages, and values that did not lead to a result, and why."""

    __slots__ = ("clamped", "ignored", "not_finite", "overflow", "taken")

    def __init__(self) -> None:
        #: Messages that this engine was given since it was made.
        self.taken = 0
        #: Messages that hold no such value: no number, no such field, a function that failed.
        self.ignored = 0
        #: Events whose time lay before one already seen; they count as of that one.
        self.clamped = 0
        #: Answers that no finite double can give: a rate over no time, a deviation beyond all bounds.
        self.not_finite = 0
        #: Messages that came after the expression had outgrown a bound, the one that did included.
        self.overflow = 0


class Outgrown(Exception):
    """A stage would have to keep more than it may; the text says of what."""


class Stage:
    __slots__ = ("after", "counts")

    def __init__(self, after: Stage | None, counts: Counts) -> None:
        self.after = after
        self.counts = counts

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        """This key has this value now, or none any more."""
        raise NotImplementedError

    def replace(self, time_us: int, values: dict[bytes, float]) -> None:
        """These are all the keys there are."""
        raise NotImplementedError

    def state(self) -> bytes:
        """The state that must survive."""
        return b""

    def resume(self, state: bytes) -> None:
        """Go on from what `state` gave; msgspec's errors if it never gave that."""


class Answering(Stage):
    """A stage that has one answer, which it gives again whenever that may have changed."""

    __slots__ = ()

    def answer(self) -> float | None:
        """None of no values; OverflowError if it is beyond what a double can say."""
        raise NotImplementedError

    def tell(self, time_us: int) -> None:
        assert self.after is not None
        try:
            answer = self.answer()
        except OverflowError:
            self.counts.not_finite += 1
            answer = None
        self.after.change(time_us, b"", answer)


class ResultStage(Stage):
    """The end of the chain: the payload to publish, if any."""

    __slots__ = ("as_list", "text", "time_us")

    def __init__(self, counts: Counts, as_list: bool) -> None:
        super().__init__(None, counts)
        #: A set is written as a list; else it has one key at most.
        self.as_list = as_list
        self.text: bytes | None = None
        #: Of which time the result is: a message's, or the end of a window.
        self.time_us = 0

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if value is not None:
            self.time_us = time_us
            self.text = repr(value).encode()

    def replace(self, time_us: int, values: dict[bytes, float]) -> None:
        if values:
            numbers = [repr(values[key]) for key in sorted(values)]
            self.time_us = time_us
            self.text = (f"[{', '.join(numbers)}]" if self.as_list else numbers[0]).encode()


_GT: Final = 0
_GTE: Final = 1
_LT: Final = 2
_LTE: Final = 3
_EQ: Final = 4
_NEQ: Final = 5
_RELATIONS = {"GT": _GT, "GTE": _GTE, "LT": _LT, "LTE": _LTE, "EQ": _EQ, "NEQ": _NEQ}


class RuleStage(Stage):
    __slots__ = ("number", "relation")

    def __init__(self, after: Stage, counts: Counts, operator: Operator) -> None:
        super().__init__(after, counts)
        self.relation = _RELATIONS[operator.name]
        self.number = operator.number

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        assert self.after is not None
        self.after.change(time_us, key, value if value is not None and self.holds(value) else None)

    def replace(self, time_us: int, values: dict[bytes, float]) -> None:
        assert self.after is not None
        self.after.replace(time_us, {key: value for key, value in values.items() if self.holds(value)})

    def holds(self, value: float) -> bool:
        relation = self.relation
        if relation == _GT:
            return value > self.number
        if relation == _GTE:
            return value >= self.number
        if relation == _LT:
            return value < self.number
        if relation == _LTE:
            return value <= self.number
        if relation == _EQ:
            return value == self.number
        return value != self.number


class Difference(Stage):
    """DELTA and RATE: how a topic's value differs from its previous one."""

    __slots__ = ("per_second", "previous", "topics_max")

    def __init__(self, after: Stage, counts: Counts, operator: Operator, topics_max: int) -> None:
        super().__init__(after, counts)
        self.per_second = operator.name == "RATE"
        self.topics_max = topics_max
        self.previous: dict[bytes, tuple[float, int]] = {}

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        assert self.after is not None
        before = self.previous.get(key)
        if value is None:
            self.previous.pop(key, None)
            self.after.change(time_us, key, None)
            return
        if before is None and len(self.previous) >= self.topics_max:
            raise Outgrown(f"more than {self.topics_max} topics")
        self.previous[key] = (value, time_us)
        self.after.change(time_us, key, None if before is None else self.difference(before, value, time_us))

    def difference(self, before: tuple[float, int], value: float, time_us: int) -> float | None:
        difference = value - before[0]
        if not self.per_second:
            return difference
        passed_us = time_us - before[1]
        if passed_us == 0:
            self.counts.not_finite += 1
            return None
        # A microsecond is the least, so this stays far from infinity however many rates are taken of rates.
        return difference / (passed_us / 1e6) + 0.0

    def state(self) -> bytes:
        return msgspec.msgpack.encode(self.previous)

    def resume(self, state: bytes) -> None:
        self.previous = msgspec.msgpack.decode(state, type=dict[bytes, tuple[float, int]])
