"""The sources of an expression: each turns a message into the value of its topic.

There is one class per kind of source, so that the engine makes no choice per message.  `take` is False if the message
holds no such value; the engine counts it, and nothing else happens.
"""

from __future__ import annotations

from sterna.operators.exact_sum import NUMBER_MAX
from sterna.operators.expression import Expression, Family
from sterna.operators.functions import Compute, Functions
from sterna.operators.payload_values import field_of, number_in, number_of, text_in, text_of
from sterna.operators.settings import OperatorSettings
from sterna.operators.stages import Counts, Stage


class Source:
    __slots__ = ("after", "bytes_max", "field")

    def __init__(self, after: Stage, field: tuple[str, ...], bytes_max: int) -> None:
        self.after = after
        self.field = field
        #: Of a payload that a field is looked for in.
        self.bytes_max = bytes_max

    def take(self, time_us: int, topic: bytes, payload: bytes) -> bool:
        raise NotImplementedError


class NumberSource(Source):
    """The payload's text, or a field of it, is a number."""

    __slots__ = ()

    def take(self, time_us: int, topic: bytes, payload: bytes) -> bool:
        value = number_in(field_of(payload, self.field, self.bytes_max)) if self.field else number_of(payload)
        if value is None:
            return False
        self.after.change(time_us, topic, value)
        return True


class AnySource(Source):
    """That there is a message, or the field in it, is all that counts."""

    __slots__ = ()

    def take(self, time_us: int, topic: bytes, payload: bytes) -> bool:
        if self.field and field_of(payload, self.field, self.bytes_max) is None:
            return False
        self.after.change(time_us, topic, 1.0)
        return True


class TextSource(Source):
    """The text rules of an expression, all at once, and what the operator outside of them needs of the text."""

    __slots__ = ("needles", "numeric")

    def __init__(
        self, after: Stage, field: tuple[str, ...], bytes_max: int, needles: list[str], numeric: bool
    ) -> None:  # fmt: skip
        super().__init__(after, field, bytes_max)
        self.needles = needles
        #: Must the text say a number, too?
        self.numeric = numeric

    def take(self, time_us: int, topic: bytes, payload: bytes) -> bool:
        text = text_in(field_of(payload, self.field, self.bytes_max)) if self.field else text_of(payload)
        if text is None:
            return False
        for needle in self.needles:
            if needle not in text:
                self.after.change(time_us, topic, None)
                return True
        value = number_of(text.encode()) if self.numeric else 1.0
        if value is None:
            return False
        self.after.change(time_us, topic, value)
        return True


class ComputedSource(Source):
    """A function makes the number; without one here, only numbers that were computed elsewhere count."""

    __slots__ = ("compute",)

    def __init__(self, after: Stage, compute: Compute | None) -> None:
        super().__init__(after, (), 0)
        self.compute = compute

    def take(self, time_us: int, topic: bytes, payload: bytes) -> bool:
        if self.compute is None:
            return False
        try:
            value = self.compute(payload)
        except Exception:  # a function of somebody else's, on a payload of anybody's
            return False
        return self.take_number(time_us, topic, value)

    def take_number(self, time_us: int, topic: bytes, value: float) -> bool:
        if not -NUMBER_MAX < value < NUMBER_MAX:
            return False
        self.after.change(time_us, topic, float(value) + 0.0)
        return True


class LastValue(Stage):
    """Instead of an expression, behind a source that is asked what single messages say."""

    __slots__ = ("value",)

    def __init__(self, counts: Counts) -> None:
        super().__init__(None, counts)
        self.value: float | None = None

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        self.value = value


def source_of(expression: Expression, after: Stage, settings: OperatorSettings, functions: Functions) -> Source:
    innermost = expression.operators[-1]
    field, bytes_max = innermost.field, settings.field_payload_bytes
    if innermost.family is Family.FUNCTION:
        function = functions.get(innermost.name)
        return ComputedSource(after, None if function is None else function.compute)
    if innermost.family is Family.CONTAINS:
        needles = [operator.needle for operator in expression.operators if operator.family is Family.CONTAINS]
        outer = [operator for operator in expression.operators if operator.family is not Family.CONTAINS]
        return TextSource(after, field, bytes_max, needles, bool(outer) and outer[-1].aggregate != "COUNT")
    if innermost.aggregate == "COUNT":
        return AnySource(after, field, bytes_max)
    return NumberSource(after, field, bytes_max)
