"""A second implementation of the language, as plain as possible, to test engines against.

It keeps the whole history and computes everything from it again at every event.  Each stage is a function from all
updates so far to all updates so far; numbers are fractions.  It shares the grammar and the reading of payloads with
the engine, and nothing else.  Data processing functions are left out: their numbers could as well have been the
payload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from sterna.operators.expression import AGGREGATING, Expression, Family, Operator
from sterna.operators.payload_values import field_of, number_in, number_of, text_in, text_of
from sterna.operators.settings import OperatorSettings


@dataclass(frozen=True)
class Update:
    time: int
    values: dict[bytes, float | None]
    whole: bool = False
    payload: bytes = b""
    """The message that led to it, as long as that is one."""


Updates = list[Update]


class Reference:
    def __init__(self, expression: Expression, settings: OperatorSettings, since: int) -> None:
        self.expression = expression
        self.settings = settings
        self.since = since
        self.now = since
        self.history: list[tuple[int, bytes, bytes]] = []
        self.given = 0

    def message(self, topic: bytes, payload: bytes, time: int) -> list[bytes]:
        """The payload to publish because of this message."""
        self.now = max(self.now, time)
        self.history.append((self.now, topic, payload))
        return self._new()

    def advance(self, time: int) -> list[bytes]:
        self.now = max(self.now, time)
        return self._new()

    def _new(self) -> list[bytes]:
        results = self.results()
        new = results[self.given :]
        self.given = len(results)
        return new

    def results(self) -> list[bytes]:
        """Everything that was ever to be published."""
        updates = self._read()
        for operator in reversed(self.expression.operators):
            updates = self._apply(operator, updates)
        texts = [self._written(update) for update in updates]
        return [text for text in texts if text is not None]

    def _read(self) -> Updates:
        updates = []
        for time, topic, payload in self.history:
            value, said = self.value_of(payload)
            if said:
                updates.append(Update(time, {topic: value}, payload=payload))
        return updates

    def value_of(self, payload: bytes) -> tuple[float | None, bool]:
        """The value of a message, and whether it says anything."""
        operators = self.expression.operators
        needles = [one.needle for one in operators if one.family is Family.CONTAINS]
        numeric = [one for one in operators if one.family is not Family.CONTAINS]
        field, counting = operators[-1].field, bool(numeric) and numeric[-1].aggregate == "COUNT"
        found = field_of(payload, field, self.settings.field_payload_bytes) if field else None
        if needles:
            text = text_in(found) if field else text_of(payload)
            if text is None:
                return None, False
            if not all(needle in text for needle in needles):
                return None, True
            value = 1.0 if counting or not numeric else number_of(text.encode())
        elif counting:
            value = None if field and found is None else 1.0
        else:
            value = number_in(found) if field else number_of(payload)
        return value, value is not None

    def _apply(self, operator: Operator, updates: Updates) -> Updates:
        if operator.family is Family.CONTAINS:
            return updates  # done while reading
        if operator.family is Family.RULE:
            return [_ruled(operator, update) for update in updates]
        if operator.family is Family.CHANGE:
            return [_changed(operator, updates[: end + 1]) for end in range(len(updates))]
        if operator.family is Family.SPATIAL:
            return [self._spatial(operator, updates[: end + 1]) for end in range(len(updates))]
        if operator.family is Family.SLIDING:
            ends = [end for end in range(len(updates)) if _present(updates[end])]
            return [_sliding(operator, updates[: end + 1]) for end in ends]
        return self._periodic(operator, updates)

    def _spatial(self, operator: Operator, updates: Updates) -> Update:
        now = updates[-1].time
        last: dict[bytes, tuple[int, float | None]] = {}
        for update in updates:
            if update.whole:
                last = {}
            last |= {key: (update.time, value) for key, value in update.values.items()}
        live = [
            (-time, key, value)
            for key, (time, value) in last.items()
            if value is not None and now < time + self.settings.expiry_us
        ]
        if operator.aggregate == "LAST":
            return Update(now, {b"": min(live)[2] if live else None})
        return Update(now, {b"": aggregate(operator, [value for _, _, value in live])})

    def _periodic(self, operator: Operator, updates: Updates) -> Updates:
        length = self.settings.period_us(operator.period)
        anchor = self.since if self.settings.anchor == "subscription" else 0
        windows: dict[int, dict[bytes, list[float]]] = {}
        for update in updates:
            for key, value in _present(update).items():
                windows.setdefault((update.time - anchor) // length, {}).setdefault(key, []).append(value)
        ended = []
        for number in sorted(windows):
            end = anchor + (number + 1) * length
            if end <= self.now:
                ended.append(
                    Update(end, {key: aggregate(operator, all_) for key, all_ in windows[number].items()}, True)
                )
        return ended

    def _written(self, update: Update) -> bytes | None:
        present = _present(update)
        if not present:
            return None
        if self.expression.forwards:
            return update.payload
        numbers = [repr(present[topic]) for topic in sorted(present)]
        families = [operator.family for operator in self.expression.operators]
        outermost = next((family for family in families if family in AGGREGATING), None)
        only = sum(family in AGGREGATING for family in families) == 1
        if outermost is Family.PERIODIC and only and self.expression.wildcard:
            return f"[{', '.join(numbers)}]".encode()
        return numbers[0].encode()


def _present(update: Update) -> dict[bytes, float]:
    return {key: value for key, value in update.values.items() if value is not None}


def _ruled(operator: Operator, update: Update) -> Update:
    values = {
        key: value if value is not None and _holds(operator, value) else None for key, value in update.values.items()
    }
    return Update(update.time, values, update.whole, update.payload)


def _holds(operator: Operator, value: float) -> bool:
    limit = operator.number
    return {
        "GT": value > limit, "GTE": value >= limit, "LT": value < limit,
        "LTE": value <= limit, "EQ": value == limit, "NEQ": value != limit,
    }[operator.name]  # fmt: skip


def _changed(operator: Operator, updates: Updates) -> Update:
    last = updates[-1]
    (key, value), *_ = last.values.items()
    before = [update for update in updates[:-1] if key in update.values]
    previous = before[-1].values[key] if before else None
    if value is None or previous is None:
        return Update(last.time, {key: None})
    if operator.name == "DELTA":
        return Update(last.time, {key: value - previous})
    seconds = (last.time - before[-1].time) / 1e6
    return Update(last.time, {key: (value - previous) / seconds + 0.0 if seconds else None})


def _sliding(operator: Operator, updates: Updates) -> Update:
    now = updates[-1].time
    recent = [update for update in updates if update.time > now - operator.span_us]
    return Update(now, {b"": aggregate(operator, [v for update in recent for v in _present(update).values()])})


def aggregate(operator: Operator, values: Iterable[float]) -> float | None:
    numbers = sorted(values)
    if operator.aggregate == "COUNT":
        return float(len(numbers))
    if not numbers:
        return None
    if operator.aggregate in ("MIN", "MAX"):
        return numbers[0 if operator.aggregate == "MIN" else -1]
    if operator.aggregate in ("MEDIAN", "QUANTILE"):
        return bucketed(numbers[max(1, math.ceil(operator.quantile * len(numbers))) - 1])
    cut = [Fraction(math.trunc(Fraction(number) * 2**128), 2**128) for number in numbers]
    total = sum(cut, Fraction(0))
    if operator.aggregate == "SUM":
        return float(total)
    mean = total / len(cut)
    if operator.aggregate == "AVG":
        return float(mean)
    return math.sqrt(float(sum(((number - mean) ** 2 for number in cut), Fraction(0)) / len(cut)))


def bucketed(value: float) -> float:
    """The middle of the bucket a value lies in: 64 of equal width from each power of two to the next."""
    if value == 0.0:
        return 0.0
    magnitude = Fraction(min(max(abs(value), 1e-12), 1e12))
    octave = Fraction(2) ** (math.frexp(float(magnitude))[1] - 1)
    width = octave / 64
    middle = (magnitude // width + Fraction(1, 2)) * width
    return math.copysign(float(middle), value)
