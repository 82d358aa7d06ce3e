"""One expression at work, told as conversations; its bounds, its counts, and the state it goes on from."""

from __future__ import annotations

import math

import pytest

from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.operators.functions import Functions
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings

S = 1_000_000


def engine_of(text: str, settings: OperatorSettings | None = None, since_us: int = 0) -> Engine:
    return Engine(parse(text.encode()), settings or OperatorSettings(), since_us)


def told(engine: Engine, *messages: tuple[str, str, float]) -> list[str | None]:
    """The answers to messages given as (topic, payload, second)."""
    answers = [engine.message(topic.encode(), said.encode(), int(second * S)) for topic, said, second in messages]
    return [None if answer is None else answer.decode() for answer in answers]


def test_an_average_follows_the_last_value_of_each_topic() -> None:
    said = told(engine_of("$AVG/t/+"), ("t/a", "10", 0), ("t/b", "20", 1), ("t/a", "30", 2))
    assert said == ["10.0", "15.0", "25.0"]


def test_a_topic_that_falls_below_leaves_the_average_of_those_above() -> None:
    said = told(engine_of("$AVG$GT;5/t/+"), ("t/a", "10", 0), ("t/b", "20", 1), ("t/a", "3", 2), ("t/b", "3", 3))
    assert said == ["10.0", "15.0", "20.0", None]
    assert told(engine_of("$COUNT$GT;5/t/+"), ("t/a", "10", 0), ("t/a", "3", 1)) == ["1.0", "0.0"]


def test_a_value_expires_an_hour_after_its_topic_fell_silent() -> None:
    said = told(engine_of("$COUNT/t/+"), ("t/a", "x", 0), ("t/b", "x", 10), ("t/b", "x", 3600), ("t/a", "x", 3601))
    assert said == ["1.0", "2.0", "1.0", "2.0"]


def test_the_greatest_falls_back_when_its_topic_changes_or_expires() -> None:
    engine = engine_of("$MAX/t/+")
    assert told(engine, ("t/a", "9", 0), ("t/b", "5", 1), ("t/a", "1", 2), ("t/b", "0", 3602)) == [
        "9.0", "9.0", "5.0", "0.0",
    ]  # fmt: skip


def test_the_newest_of_one_instant_is_that_of_the_first_topic() -> None:
    said = told(engine_of("$LAST/t/+"), ("t/b", "1", 0), ("t/a", "2", 0), ("t/c", "3", 0), ("t/c", "4", 1))
    assert said == ["1.0", "2.0", "2.0", "4.0"]


def test_stale_entries_never_fill_a_heap() -> None:
    for text in ("$MAX/t/+", "$LAST/t/+"):
        engine = engine_of(text)
        for second in range(1_000):
            told(engine, ("t/a", str(-second), second), ("t/b", str(second), second))
        assert len(engine._stages[0].heap) < 200  # type: ignore[attr-defined]  # what the bound is about


def test_rules_alone_let_the_message_itself_pass() -> None:
    engine = engine_of("$LT;30$GT;25/t/+")
    assert told(engine, ("t/a", " 26.50\n", 0), ("t/a", "30", 1), ("t/a", "x", 2)) == [" 26.50\n", None, None]
    assert engine.counts.ignored == 1
    assert told(engine_of("$CONTAINS;fire/t"), ("t", "on fire", 0), ("t", "fine", 1)) == ["on fire", None]
    passed = engine_of("$GT;25;.t/x").message(b"x", b'{"t": 26, "u": "C"}', 0)
    assert passed == b'{"t": 26, "u": "C"}'


def test_a_difference_needs_two_values_and_a_rate_some_time_between_them() -> None:
    assert told(engine_of("$DELTA/t/+"), ("t/a", "1", 0), ("t/b", "9", 1), ("t/a", "4", 2)) == [None, None, "3.0"]
    engine = engine_of("$RATE/t")
    assert told(engine, ("t", "1", 0), ("t", "4", 2), ("t", "9", 2), ("t", "8", 2.5)) == [None, "1.5", None, "-2.0"]
    assert engine.counts.not_finite == 1


def test_a_sliding_span_forgets_what_is_as_old_as_itself() -> None:
    messages = [("t/a", "8", 0.0), ("t/b", "2", 4.0), ("t/a", "3", 9.0), ("t/a", "1", 10.0)]
    assert told(engine_of("$TMPSUM;0:00:10/t/+"), *messages) == ["8.0", "10.0", "13.0", "6.0"]
    assert told(engine_of("$TMPMAX;0:00:10/t/+"), *messages) == ["8.0", "8.0", "8.0", "3.0"]
    assert told(engine_of("$TMPCOUNT;0:00:10$CONTAINS;a/t/+"), ("t/a", "ab", 0), ("t/a", "b", 1)) == ["1.0", None]


def test_a_period_answers_at_its_end_and_a_message_may_end_it() -> None:
    engine = engine_of("$HOURLYAVG/t/+", since_us=100 * S)
    assert told(engine, ("t/b", "4", 100), ("t/a", "1", 200), ("t/b", "6", 3699)) == [None, None, None]
    assert engine.next_deadline() == 3700 * S
    assert engine.advance(3700 * S - 1) is None
    assert engine.advance(3900 * S) == b"[1.0, 5.0]"
    assert engine.result_us == 3700 * S
    assert engine.next_deadline() is None
    assert told(engine, ("t/a", "2", 4000), ("t/a", "3", 7300)) == [None, "[2.0]"]
    assert engine.advance(1_000_000 * S) == b"[3.0]"


def test_periods_may_follow_the_wall_clock() -> None:
    engine = engine_of("$QUARTERHOURLYMAX/t", OperatorSettings(anchor="wall"), since_us=100 * S)
    assert told(engine, ("t", "4", 899), ("t", "1", 900)) == [None, "4.0"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("$HOURLYSUM/t/+", "[1.0, 2.0]"),
        ("$GT;1$HOURLYSUM/t/+", "[2.0]"),
        ("$GT;5$HOURLYSUM/t/+", None),
        ("$MAX$HOURLYSUM/t/+", "2.0"),
        ("$HOURLYMAX$SUM/t/+", "3.0"),
        ("$TMPAVG;0:10:00$HOURLYSUM/t/+", "1.5"),
        ("$COUNT$GT;5$HOURLYSUM/t/+", "0.0"),
        ("$HOURLYSUM/t/a", "1.0"),
    ],
)
def test_how_a_set_is_written(text: str, written: str | None) -> None:
    engine = engine_of(text)
    topics = [("t/b", "2", 1.0), ("t/a", "1", 2.0)] if "+" in text else [("t/a", "1", 2.0)]
    assert told(engine, *topics) == [None] * len(topics)
    assert engine.advance(3600 * S) == (None if written is None else written.encode())


def test_time_never_goes_back() -> None:
    engine = engine_of("$TMPCOUNT;0:00:10/t", since_us=50 * S)
    assert told(engine, ("t", "x", 0), ("t", "x", 100), ("t", "x", 95), ("t", "x", 104)) == ["1.0", "1.0", "2.0", "3.0"]
    assert engine.counts.clamped == 2


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        ("$AVG/t/+", OperatorSettings(topics=3), "3 topics"),
        ("$DELTA/t/+", OperatorSettings(topics=3), "3 topics"),
        ("$HOURLYAVG/t/+", OperatorSettings(topics=3), "3 topics"),
        ("$TMPAVG;0:10:00/t/+", OperatorSettings(window_values=3), "3 values"),
        ("$HOURLYMEDIAN/t/+", OperatorSettings(buckets=3), "3 buckets"),
    ],
)
def test_an_expression_that_outgrows_a_bound_stops_and_says_so(
    text: str, settings: OperatorSettings, reason: str
) -> None:
    engine = engine_of(text, settings)
    told(engine, *((f"t/{place}", str(place), place) for place in range(3)))
    assert (engine.stopped, engine.counts.overflow) == ("", 0)
    for again in range(2):
        assert told(engine, ("t/new", "9", 3)) == [None]
        assert reason in engine.stopped
        assert engine.counts.overflow == 1 + again
    assert engine.advance(10**15) is None
    assert engine.next_deadline() is None
    resumed = engine_of(text, settings)
    resumed.restore(engine.snapshot())
    assert (resumed.stopped, resumed.counts.overflow) == (engine.stopped, 2)
    assert told(resumed, ("t/0", "1", 4)) == [None]


def test_topics_that_expired_make_room_for_others() -> None:
    engine = engine_of("$COUNT/t/+", OperatorSettings(topics=2, expiry_s=10))
    assert told(engine, ("t/a", "", 0), ("t/b", "", 1), ("t/c", "", 10)) == ["1.0", "2.0", "2.0"]


def test_sixteen_operators_run_as_any_other_number() -> None:
    assert told(engine_of("$AVG" * 15 + "$MAX/t/+"), ("t/a", "4", 0), ("t/b", "2", 1)) == ["4.0", "4.0"]
    rates = engine_of("$STDDEV" + "$RATE" * 15 + "/t")
    told(rates, *(("t", f"{(-1) ** place * 1.7e38}", place / S) for place in range(40)))
    assert all(answer is None or math.isfinite(float(answer)) for answer in told(rates, ("t", "0", 1), ("t", "1", 2)))
    assert rates.stopped == ""


@pytest.mark.parametrize("text", ["$STDDEV/t/+", "$TMPSTDDEV;0:10:00/t/+", "$HOURLYSTDDEV/t/+"])
def test_a_deviation_beyond_all_doubles_is_counted_and_not_published(text: str) -> None:
    engine = engine_of(text)
    stage = engine._stages[0]  # no payload says such numbers, and no sixteen operators make them
    for value in (1e200, -1e200):
        stage.change(0, b"t/a" if "HOURLY" in text else str(value).encode(), value)
    assert engine.advance(3600 * S) is None if "HOURLY" in text else engine._result.text == b"0.0"
    assert engine.counts.not_finite == 1


def test_a_snapshot_of_something_else_or_of_nothing_is_refused() -> None:
    engine = engine_of("$AVG/t/+")
    told(engine, ("t/a", "1", 0), ("t/b", "2", 1))
    snapshot = engine.snapshot()
    with pytest.raises(StateError, match="not a state of"):
        engine_of("$SUM/t/+").restore(snapshot)
    for damaged in (b"", b"\xc1", snapshot[:-1], snapshot + b"x", b"\x90", snapshot.replace(b"t/a", b"t/")):
        with pytest.raises(StateError):
            engine_of("$AVG/t/+").restore(damaged)


def test_functions_compute_here_or_elsewhere_and_may_fail() -> None:
    functions = Functions()
    functions.register("LENGTH", lambda payload: len(payload) if payload else 1 / 0, "bytes")
    expression = parse(b"$MAX$LENGTH/t/+", functions)
    engine = Engine(expression, OperatorSettings(), 0, functions)
    assert told(engine, ("t/a", "four", 0), ("t/b", "", 1), ("t/b", "xy", 2)) == ["4.0", None, "4.0"]
    assert engine.computed(b"t/b", 9.0, 3 * S) == b"9.0"
    for failed in (None, math.nan, math.inf, 2.0**127):
        assert engine.computed(b"t/b", failed, 4 * S) is None
    assert engine.counts.ignored == 5
    assert told(engine_of("$CNTPPL/t"), ("t", "image", 0)) == [None]


def test_partial_answers_of_disjoint_topics_merge_to_the_answer_of_all() -> None:
    for name in ("AVG", "SUM", "COUNT", "MIN", "MAX", "STDDEV", "MEDIAN", "QUANTILE;0.9", "LAST"):
        whole, *parts = (engine_of(f"${name}/t/+") for _ in range(4))
        merged = None
        for place in range(30):
            message = (f"t/{place % 7}", str(place * 7 % 11 + 0.1), place)
            answer = told(whole, message)
            told(parts[place % 7 % 3], message)
        for part in parts:
            one = part._stages[0].partial()  # type: ignore[attr-defined]  # stages of these expressions are spatial
            if merged is None:
                merged = one
            else:
                merged.merge(one)
        assert merged is not None
        assert [repr(merged.result())] == answer
