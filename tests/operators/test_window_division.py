"""Parts of an expression, merged in any order, give what one engine gives that takes everything by time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.expression_making import (
    CHANGES,
    RULES,
    SHORT,
    SHORT_BY_THE_WALL,
    SINCE_US,
    TEXT_RULES,
    Event,
    streams,
    windowed,
)
from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.operators.expression import Expression
from sterna.operators.grammar import parse
from sterna.operators.reference import Reference
from sterna.operators.settings import OperatorSettings
from sterna.operators.window_division import Division, JoinedParts, MergedWindows, PartialWindows, division

Message = tuple[int, bytes, bytes]


def in_order(events: list[Event]) -> list[Message]:
    time_us, found = SINCE_US, []
    for event in events:
        time_us = max(SINCE_US, time_us + event.passed_us)
        if event.topic:
            found.append((time_us, event.topic, event.payload))
    return sorted(found, key=lambda message: message[0])


@settings(max_examples=400)
@given(
    windowed([*RULES[:4], *TEXT_RULES, *CHANGES]).flatmap(lambda one: st.tuples(st.just(one), streams(one))),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_parts_engine_and_reference_give_the_same_answers(
    drawn: tuple[Expression, list[Event]], places: int, seed: int, by_the_wall: bool
) -> None:
    """Messages come to several places, each with its own delay; parts travel when they like; the whole is restarted."""
    expression, events = drawn
    how = division(expression)
    assert how is not Division.NONE
    chosen, dice = SHORT_BY_THE_WALL if by_the_wall else SHORT, random.Random(seed)
    messages = in_order(events)
    parts = [PartialWindows(expression, chosen, SINCE_US) for _ in range(places)]
    whole = MergedWindows(expression, chosen, SINCE_US)
    got: list[Any] = []
    end_us = messages[-1][0] + 100_000_000 if messages else SINCE_US
    done_us = SINCE_US
    while messages:
        # What came in before an instant, in any order if that may be; then it is that late everywhere.
        now_us = dice.choice(messages)[0] + 1
        due = [message for message in messages if message[0] < now_us]
        messages = messages[len(due) :]
        if how is Division.BY_MESSAGE:
            dice.shuffle(due)
        for time_us, topic, payload in due:
            place = dice.randrange(places) if how is Division.BY_MESSAGE else sum(topic) % places
            parts[place].message(topic, payload, time_us)
        told = [part for one in parts for part in one.take()]
        dice.shuffle(told)
        for part in joined(told, expression, chosen) if dice.random() < 0.5 else told:
            whole.merge(*part)
        if dice.random() < 0.5:
            whole = restarted(whole, expression, chosen)
        done_us = max(done_us, now_us - 1)
        got += whole.advance(done_us)
    got += whole.advance(end_us)
    expected = by_engine(expression, chosen, in_order(events), end_us)
    assert got == expected
    assert [payload for _, payload in expected] == by_reference(expression, chosen, in_order(events), end_us)


def joined(parts: list[tuple[int, bytes]], expression: Expression, chosen: OperatorSettings) -> list[tuple[int, bytes]]:
    """One for each window."""
    one = JoinedParts(expression, chosen, SINCE_US)
    for end_us, part in parts:
        one.merge(end_us, part)
    found = one.take()
    assert [end_us for end_us, _ in found] == sorted({end_us for end_us, _ in parts})
    return found


def restarted(whole: MergedWindows, expression: Expression, chosen: OperatorSettings) -> MergedWindows:
    again = MergedWindows(expression, chosen, SINCE_US)
    again.restore(whole.snapshot())
    assert again.snapshot() == whole.snapshot()
    return again


def by_engine(
    expression: Expression, chosen: OperatorSettings, messages: list[Message], end_us: int
) -> list[tuple[int, bytes]]:
    engine, found = Engine(expression, chosen, SINCE_US), []
    for time_us, topic, payload in messages:
        result = engine.message(topic, payload, time_us)
        found += [] if result is None else [(engine.result_us, result)]
    result = engine.advance(end_us)
    return found + ([] if result is None else [(engine.result_us, result)])


def by_reference(expression: Expression, chosen: OperatorSettings, messages: list[Message], end_us: int) -> list[bytes]:
    reference = Reference(expression, chosen, SINCE_US)
    found = [answer for time, topic, payload in messages for answer in reference.message(topic, payload, time)]
    return found + reference.advance(end_us)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("$HOURLYAVG/t/+", Division.BY_MESSAGE),
        ("$MAX$GT;3$HOURLYCOUNT$CONTAINS;x/t/+", Division.BY_MESSAGE),
        ("$HOURLYAVG$GT;0$RATE/t/+", Division.BY_TOPIC),
        ("$HOURLYAVG$SUM/t/+", Division.NONE),
        ("$HOURLYAVG$TMPSUM;0:01:00/t/+", Division.NONE),
        ("$AVG/t/+", Division.NONE),
        ("$GT;3/t/+", Division.NONE),
    ],
)
def test_what_can_be_dealt_out_how(text: str, how: Division) -> None:
    assert division(parse(text.encode())) is how


@pytest.mark.parametrize("chosen", [OperatorSettings(topics=3, hourly_s=10), OperatorSettings(buckets=3, hourly_s=10)])
def test_a_window_that_outgrows_its_bounds_stops_the_expression_when_it_ends(chosen: OperatorSettings) -> None:
    expression = parse(b"$HOURLYMEDIAN/t/+")
    whole, part = MergedWindows(expression, chosen, 0), PartialWindows(expression, chosen, 0)
    for number in range(10):
        part.message(b"t/%d" % (number % 3), b"1", 1)
        part.message(b"t/%d" % number, b"%d" % 2**number, 10_000_001)
    assert part.size <= 3 + 4
    for told in part.take():
        whole.merge(*told)
    assert list(whole.advance(10_000_000)) == [(10_000_000, b"[1.0078125, 1.0078125, 1.0078125]")]
    assert list(whole.advance(90_000_000)) == []
    assert "more than 3" in whole.engine.stopped


def test_what_comes_after_its_window_has_ended_counts_in_the_next() -> None:
    expression, chosen = parse(b"$HOURLYSUM/t"), OperatorSettings(hourly_s=10)
    whole, part = MergedWindows(expression, chosen, 0), PartialWindows(expression, chosen, 0)
    part.message(b"t", b"1", 5)
    assert list(whole.advance(10_000_000)) == []
    for told in part.take():
        whole.merge(*told)
    assert list(whole.advance(20_000_000)) == [(20_000_000, b"1.0")]


@pytest.mark.parametrize("part", [b"", b"\xc1", b"\x91\x92\xc4\x01t\xa1x"])
def test_what_is_no_part_is_refused(part: bytes) -> None:
    with pytest.raises(StateError):
        MergedWindows(parse(b"$HOURLYSUM/t"), OperatorSettings(), 0).merge(1, part)
