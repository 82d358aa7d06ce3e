"""The engine of one expression: messages in, results out, each step in time that does not grow with the history.

Drive it with `message` and `advance`; `next_deadline` tells when to advance if no message comes.  Times are
microseconds since the epoch and never go back: an earlier one counts as the newest seen.  `message` and `advance`
return the payload to publish, or None.  There is never more than one: an expression with a period gives a result only
when a window ends, and any other only for the message at hand.

The settings bound its memory.  An expression that outgrows them drops its state and stays silent (`stopped` says why),
since an answer from some of the values would be wrong.
"""

from __future__ import annotations

import msgspec

from sterna.operators.aggregates import Aggregate
from sterna.operators.errors import StateError
from sterna.operators.expression import Expression, Family, Operator
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.settings import OperatorSettings
from sterna.operators.sources import ComputedSource, Source, source_of
from sterna.operators.spatial import spatial_of
from sterna.operators.stages import Counts, Difference, Outgrown, ResultStage, RuleStage, Stage
from sterna.operators.types import StreamType, check
from sterna.operators.windows import Periodic, sliding_of

_VERSION = 1
#: Version, expression, newest time, why it stopped, counts, states of the stages.
_State = tuple[int, bytes, int, str, tuple[int, int, int, int], list[bytes]]


def stage_of(
    operator: Operator, after: Stage, counts: Counts, settings: OperatorSettings, since_us: int
) -> Stage | None:
    """The stage that does an operator's work; None for functions and text rules, which the source is for."""
    if operator.family is Family.RULE:
        return RuleStage(after, counts, operator)
    if operator.family is Family.CHANGE:
        return Difference(after, counts, operator, settings.topics)
    if operator.family is Family.SPATIAL:
        return spatial_of(after, counts, operator, settings)
    if operator.family is Family.SLIDING:
        return sliding_of(after, counts, operator, settings)
    if operator.family is Family.PERIODIC:
        return Periodic(after, counts, operator, settings, since_us)
    return None


class Engine:
    __slots__ = (
        "_expression",
        "_forwards",
        "_newest_us",
        "_periodic",
        "_result",
        "_source",
        "_stages",
        "counts",
        "stopped",
    )

    def __init__(
        self, expression: Expression, settings: OperatorSettings, since_us: int, functions: Functions = NO_FUNCTIONS
    ) -> None:
        """`since_us`: the instant of subscription, where windows may be anchored and before which nothing counts."""
        self._expression = expression
        self._forwards = expression.forwards
        self._newest_us = since_us
        self.counts = Counts()
        #: Why there will be no more results; empty while there may be.
        self.stopped = ""
        self._periodic: Periodic | None = None
        self._result = ResultStage(self.counts, check(expression)[0] is StreamType.SET and expression.wildcard)
        self._stages: list[Stage] = []
        last = self._chain(settings, since_us)
        self._source: Source = source_of(expression, last, settings, functions)

    def _chain(self, settings: OperatorSettings, since_us: int) -> Stage:
        return self._behind(self._result, self._expression.operators, settings, since_us)

    def _behind(
        self, after: Stage, operators: tuple[Operator, ...], settings: OperatorSettings, since_us: int
    ) -> Stage:
        """The stages, outermost first."""
        for operator in operators:
            stage = stage_of(operator, after, self.counts, settings, since_us)
            if stage is None:
                break
            if isinstance(stage, Periodic):
                self._periodic = stage
            self._stages.append(stage)
            after = stage
        return after

    def message(self, topic: bytes, payload: bytes, time_us: int) -> bytes | None:
        """A message whose topic matches the filter.  The payload to publish, if any."""
        self.counts.taken += 1
        try:
            time_us = self._begin(time_us)
            if not self._source.take(time_us, topic, payload):
                self.counts.ignored += 1
        except Outgrown as reason:
            self._stop(reason)
            return None
        result = self._result.text
        return payload if self._forwards and result is not None else result

    def told(self, topic: bytes, value: float | None, time_us: int) -> bytes | None:
        """Takes a message's value, as a source of this expression has read it elsewhere; None: there is no value."""
        try:
            self._source.after.change(self._begin(time_us), topic, value)
        except Outgrown as reason:
            self._stop(reason)
            return None
        return self._result.text

    def computed(self, topic: bytes, value: float | None, time_us: int) -> bytes | None:
        """Takes the result of a data processing function for a message, made elsewhere; None if it failed."""
        source = self._source
        self.counts.taken += 1
        try:
            time_us = self._begin(time_us)
            assert isinstance(source, ComputedSource)
            if value is None or not source.take_number(time_us, topic, value):
                self.counts.ignored += 1
        except Outgrown as reason:
            self._stop(reason)
            return None
        return self._result.text

    def advance(self, time_us: int) -> bytes | None:
        """It is that late now.  The payload to publish, if a window ended."""
        if self.stopped:
            return None
        try:
            self._begin(time_us)
        except Outgrown as reason:
            self._stop(reason)
            return None
        return self._result.text

    def window(self, end_us: int, held: dict[bytes, Aggregate]) -> bytes | None:
        """A window that was computed in parts has ended; they come in the order of their ends, and nothing else does.
        The payload to publish, if any."""
        if self.stopped:
            return None
        assert self._periodic is not None
        try:
            self._periodic.put(end_us, held)
        except Outgrown as reason:
            self._stop(reason)
            return None
        return self.advance(end_us)

    @property
    def newest_us(self) -> int:
        """The newest time seen: at first, the instant of subscription."""
        return self._newest_us

    def next_deadline(self) -> int | None:
        """When to advance at the latest for results to be in time; None while nothing is to end."""
        periodic = self._periodic
        return periodic.end_us if periodic is not None and periodic.held else None

    @property
    def result_us(self) -> int:
        """Of which time the newest result is: the message's, or the end of the window."""
        return self._result.time_us

    def _begin(self, time_us: int) -> int:
        """Begin an event: the time it counts as, with the window closed that ended before."""
        if self.stopped:
            raise Outgrown(self.stopped)
        self._result.text = None
        if time_us < self._newest_us:
            time_us = self._newest_us
            self.counts.clamped += 1
        self._newest_us = time_us
        periodic = self._periodic
        if periodic is not None and periodic.held and periodic.end_us <= time_us:
            periodic.close()
        return time_us

    def _stop(self, reason: Outgrown) -> None:
        self.counts.overflow += 1
        self._give_up(str(reason))

    def _give_up(self, reason: str) -> None:
        self.stopped = reason
        self._stages = []
        self._periodic = None
        self._source = Source(self._result, (), 0)

    def snapshot(self) -> bytes:
        """Everything an engine of the same expression needs to go on as if nothing had been."""
        counts = self.counts
        counted = (counts.ignored, counts.clamped, counts.not_finite, counts.overflow)
        states = [stage.state() for stage in self._stages]
        return msgspec.msgpack.encode(
            (_VERSION, self._expression.text, self._newest_us, self.stopped, counted, states)
        )  # fmt: skip

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot, perhaps under other settings.  After a StateError the engine is of no use."""
        counts = self.counts
        try:
            version, text, self._newest_us, stopped, counted, states = msgspec.msgpack.decode(snapshot, type=_State)
            if version != _VERSION or text != self._expression.text:
                raise StateError(f"not a state of {self._expression.text!r}, or of another version")
            if stopped:
                self._give_up(stopped)
            for stage, state in zip(self._stages, states, strict=True):
                stage.resume(state)
        except (msgspec.DecodeError, ValueError) as error:
            raise StateError(f"a damaged state of {self._expression.text!r}: {error}") from None
        counts.ignored, counts.clamped, counts.not_finite, counts.overflow = counted
