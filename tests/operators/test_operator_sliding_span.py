"""Values of a span of time: however many go at once, what is left is right, and it takes a few steps."""

from __future__ import annotations

import sys
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.operators.engine import Engine
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings

KINDS = ["COUNT", "SUM", "AVG", "STDDEV", "MEDIAN", "MIN", "MAX"]
SPAN_US = 600_000_000


def engine(kind: str) -> Engine:
    return Engine(parse(f"$TMP{kind};0:10:00/t".encode()), OperatorSettings(), 0)


def fresh(kind: str, held: list[tuple[int, float]]) -> bytes | None:
    """The answer of an engine that has seen nothing but these."""
    one, answer = engine(kind), None
    for time_us, value in held:
        answer = one.message(b"t", repr(value).encode(), time_us)
    return answer


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_left_is_as_if_the_others_had_never_been(kind: str, seed: int) -> None:
    rng = Random(seed)
    one = engine(kind)
    held: list[Any] = []
    times = accumulate(rng.choice([0, 1, 1000, 10**6, SPAN_US // 300, SPAN_US // 2]) for _ in range(400))
    for time_us in times:
        value = rng.choice([rng.uniform(-5, 5), float(rng.randrange(10))])
        answer = one.message(b"t", repr(value).encode(), time_us)
        held = [*(entry for entry in held if entry[0] > time_us - SPAN_US), (time_us, value)]
        if rng.random() < 0.03:
            assert answer == fresh(kind, held)
        if rng.random() < 0.01:
            restored = engine(kind)
            restored.restore(one.snapshot())
            one = restored
    assert answer == fresh(kind, held)


def steps(call: Any, *arguments: Any) -> int:
    """How many functions, Python's own included, it takes."""
    count = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_values_expire_in_a_few_steps(kind: str) -> None:
    many = 99_990
    one = engine(kind)
    for number in range(many):
        # So that every one may yet be the greatest, or the least.
        one.message(b"t", b"%d" % (number if kind == "MIN" else many - number), 1000 * number)
    filled = one.snapshot()
    for share in (0.001, 0.5, 0.999, 1.0):
        one = engine(kind)
        one.restore(filled)
        later_us = SPAN_US + int(1000 * many * share)
        assert steps(one.message, b"t", b"1000000" if kind == "MIN" else b"-1", later_us) < 2000
        # A value that makes no difference any more goes at once, too.
        assert steps(one.message, b"t", b"-1" if kind == "MIN" else b"1000000", later_us) < 100


@pytest.mark.parametrize("kind", [*KINDS, "LAST"])
def test_after_a_long_silence_all_topics_expire_in_a_few_steps(kind: str) -> None:
    one = Engine(parse(f"${kind}/t/+".encode()), OperatorSettings(), 0)
    for number in range(10_000):
        one.message(b"t/%d" % number, b"%d" % number, number)
    assert steps(one.message, b"t/1", b"5", 3600 * 10**6 + 10_000) < 100
    expected = {"COUNT": b"2.0", "SUM": b"14.0", "STDDEV": b"0.0", "MEDIAN": b"7.03125"}.get(kind, b"7.0")
    assert [one.message(topic, b"7", 3601 * 10**6) for topic in (b"t/1", b"t/2")][1] == expected


@pytest.mark.parametrize("kind", [*KINDS, "LAST"])
def test_where_few_of_many_topics_are_left_the_others_are_not_looked_for_one_by_one(kind: str) -> None:
    one = Engine(parse(f"${kind}/t/+".encode()), OperatorSettings(), 0)
    for number in range(10_000):
        one.message(b"t/%d" % number, b"%d" % number, number)
    assert steps(one.message, b"t/9999", b"5", 3600 * 10**6 + 9_990) < 10_000


@pytest.mark.parametrize("kind", [*KINDS, "LAST"])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.99])
def test_when_many_topics_expire_at_once_the_answer_is_that_of_the_others(kind: str, share: float) -> None:
    expression, chosen, many = parse(f"${kind}/t/+".encode()), OperatorSettings(), 1_000
    one = Engine(expression, chosen, 0)
    heard = [(number, b"t/%d" % (number * 7 % many), b"%d.25" % (number * 37 % 101)) for number in range(many)]
    heard = [(time_us, topic, b"x" if time_us % 7 == 0 else value) for time_us, topic, value in heard]
    for time_us, topic, value in heard:
        one.message(topic, value, time_us)
    for later_us in (int(many * share), many - 2, many + 5):
        now_us = chosen.expiry_us + later_us
        told = one.message(b"t/new", b"50.5", now_us)
        others = Engine(expression, chosen, 0)
        for time_us, topic, value in heard:
            if time_us > later_us:
                others.message(topic, value, time_us)
        assert told == others.message(b"t/new", b"50.5", now_us)
        assert one.snapshot().count(b"t/") == others.snapshot().count(b"t/")
