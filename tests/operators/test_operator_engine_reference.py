"""The incremental engine gives what the slow, obvious evaluator gives: to the bit, over restarts, whatever comes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.expression_making import SHORT, SHORT_BY_THE_WALL, SINCE_US, Event, expressions, streams
from sterna.operators.engine import Engine
from sterna.operators.expression import Expression
from sterna.operators.reference import Reference
from sterna.operators.settings import OperatorSettings


@settings(max_examples=1_000)
@given(expressions().flatmap(lambda one: st.tuples(st.just(one), streams(one))), st.integers(1, 30), st.booleans())
def test_the_engine_answers_as_the_reference_does(
    drawn: tuple[Expression, list[Event]], restart_every: int, by_the_wall: bool
) -> None:
    expression, events = drawn
    chosen = SHORT_BY_THE_WALL if by_the_wall else SHORT
    engine, reference = Engine(expression, chosen, SINCE_US), Reference(expression, chosen, SINCE_US)
    time_us, clamped = SINCE_US, 0
    for place, event in enumerate(events, 1):
        if place % restart_every == 0:
            engine = restarted(engine, expression, chosen)
        time_us += event.passed_us
        clamped += time_us < reference.now
        compare(engine, reference, event, time_us)
    assert engine.counts.clamped == clamped
    assert engine.counts.ignored == sum(not reference.value_of(payload)[1] for _, _, payload in reference.history)
    assert engine.stopped == ""


def restarted(engine: Engine, expression: Expression, chosen: OperatorSettings) -> Engine:
    again = Engine(expression, chosen, SINCE_US - 1)
    again.restore(engine.snapshot())
    assert again.snapshot() == engine.snapshot()
    return again


def compare(engine: Engine, reference: Reference, event: Event, time_us: int) -> None:
    due_us = engine.next_deadline()
    if event.topic:
        result = engine.message(event.topic, event.payload, time_us)
        expected = reference.message(event.topic, event.payload, time_us)
    else:
        result = engine.advance(time_us)
        expected = reference.advance(time_us)
        assert result is None or (due_us is not None and due_us <= time_us), "nobody was told to advance"
    assert ([] if result is None else [result]) == expected
