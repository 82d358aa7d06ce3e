"""A batch begins when a window has ended, not shortly before, and else now and then."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from sterna.operators.settings import OperatorSettings
from sterna.operators.windows import window_end
from sterna.pipeline.expressions import trigger_pacing
from sterna.pipeline.expressions.registry import ReadingStart, Registry
from sterna.pipeline.expressions.trigger_pacing import (
    BRISK_S,
    GRACE_S,
    HOLD_S,
    PACE_S,
    SLOW_S,
    TriggerPacing,
    WindowEnds,
)
from sterna.pipeline.feed.client import WantedExpressions
from sterna.pipeline.source.nodes import Seen

PERIOD_US = 10_000_000
NEVER_S = 1e9
REGISTRY = Registry().told(
    "a", 1, 1, WantedExpressions(OperatorSettings(hourly_s=10, anchor="wall"), [(b"$HOURLYSUM/t", 0)]), ReadingStart()
)


class Clock:
    """Instead of the module `time`, and of what nodes say."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.nodes = {"a": Seen("a", "", 1, 0, 10, edition=1)}
        self.lag_s = 0.03

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def seen(self) -> Mapping[str, Seen]:
        time_us = int((self.now_s - self.lag_s) * 1e6)
        return {name: replace(seen, time_us=time_us) for name, seen in self.nodes.items()}

    def wait_for(self, holds: Callable[[Mapping[str, Seen]], bool], within_s: float) -> None:
        until_s = self.now_s + within_s
        while not holds(self.seen()) and self.now_s < until_s:
            self.now_s += 0.01


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(trigger_pacing, "time", one)
    return one


class Watching:
    def __init__(self, clock: Clock) -> None:
        self.wait_for = clock.wait_for
        self.nodes = clock.seen


def begun(
    pace: TriggerPacing,
    clock: Clock,
    took_s: float,
    time_us: int | None = None,
    registry: Registry = REGISTRY,
    much_at_s: float = 0.0,
) -> float:
    """When the next batch begins, after one that began now and took so long; `much_at_s`: from then on there is much to
    read."""
    time_us = int((clock.now_s - clock.lag_s) * 1e6) if time_us is None else time_us
    pace.begin()
    clock.now_s += took_s
    watching: Any = Watching(clock)  # all of a watch that is needed
    pace.rest(watching, registry, time_us, lambda nodes: bool(nodes) and clock.now_s >= much_at_s)
    return clock.now_s


def test_in_between_there_is_a_batch_now_and_then(clock: Clock) -> None:
    clock.now_s = 1001.0
    assert begun(TriggerPacing(), clock, 0.2) == pytest.approx(1001.0 + PACE_S, abs=0.02)
    assert begun(TriggerPacing(), clock, 2.5) == pytest.approx(1002.0 + 2.5, abs=0.02)


def test_few_messages_wait_for_more_but_not_for_ever(clock: Clock) -> None:
    clock.now_s = 1001.0
    assert begun(TriggerPacing(), clock, 0.2, much_at_s=1003.0) == pytest.approx(1003.0, abs=0.02)
    clock.now_s = 1001.0
    assert begun(TriggerPacing(), clock, 0.2, much_at_s=NEVER_S) == pytest.approx(1001.0 + SLOW_S, abs=0.02)


def test_much_to_read_is_no_reason_to_be_at_work_when_a_window_ends(clock: Clock) -> None:
    clock.now_s = 1006.0
    after = begun(TriggerPacing(), clock, 0.5, much_at_s=1009.6)
    assert after == pytest.approx(1010.0 + clock.lag_s, abs=0.02)


def test_ends_that_follow_one_another_closely_share_a_batch(clock: Clock) -> None:
    registry = Registry()
    for number in range(20):  # one ends every tenth of a second
        wanted = WantedExpressions(OperatorSettings(hourly_s=2), [(b"$HOURLYSUM/t", number * 100_000)])
        registry = registry.told(f"n{number}", 1, 1, wanted, ReadingStart())
    clock.nodes = {f"n{number}": Seen(f"n{number}", "", 1, 0, 10, edition=1) for number in range(20)}
    pace, clock.now_s = TriggerPacing(), 1001.0
    times = [begun(pace, clock, 0.1, registry=registry, much_at_s=NEVER_S) for _ in range(6)]
    assert [later - one for one, later in pairwise(times)] == pytest.approx([BRISK_S] * 5, abs=0.12)


@pytest.mark.parametrize("began", [1008.2, 1008.95, 1009.3, 1009.75])
def test_the_one_that_closes_a_window_begins_when_it_is_over(clock: Clock, began: float) -> None:
    clock.now_s = began
    after = begun(TriggerPacing(), clock, 0.2)
    if after < 1010.0:  # one more fits in
        assert after + 0.2 <= 1010.0
        after = begun(TriggerPacing(), clock, 0.2)
    assert after == pytest.approx(1010.0 + clock.lag_s, abs=0.02)


def test_slow_batches_do_not_wait_for_long(clock: Clock) -> None:
    clock.now_s = 1003.0
    assert begun(TriggerPacing(), clock, 5.0) <= 1008.0 + HOLD_S
    assert begun(TriggerPacing(), clock, 1.5) == pytest.approx(1010.0 + clock.lag_s, abs=0.02)


def test_somebody_who_is_away_does_not_make_it_run(clock: Clock) -> None:
    """A window is not closed though it is over everywhere in sight: it is tried once, and then at the usual pace."""
    pace = TriggerPacing()
    clock.now_s, stuck_us = 1009.9, 1_009_000_000
    assert begun(pace, clock, 0.2, stuck_us) < 1010.2
    before = clock.now_s
    assert begun(pace, clock, 0.2, stuck_us) == pytest.approx(before + PACE_S, abs=0.02)


def test_a_clock_that_is_behind_is_not_waited_for_for_ever(clock: Clock) -> None:
    clock.now_s, clock.lag_s = 1009.9, 60.0
    assert begun(TriggerPacing(), clock, 0.2, 1_009_000_000) <= 1010.0 + max(GRACE_S, PACE_S) + 0.02


def test_a_new_expression_is_seen_to_at_once(clock: Clock) -> None:
    clock.now_s = 1001.0
    clock.nodes["a"] = replace(clock.nodes["a"], edition=2)
    assert begun(TriggerPacing(), clock, 0.2) == pytest.approx(1001.2)


def test_a_new_expression_that_nobody_can_learn_of_yet_does_not_make_it_run(clock: Clock) -> None:
    pace, clock.now_s = TriggerPacing(), 1001.0
    clock.nodes["a"] = replace(clock.nodes["a"], edition=2)
    assert begun(pace, clock, 0.2) == pytest.approx(1001.2)
    assert begun(pace, clock, 0.2) == pytest.approx(1001.2 + PACE_S, abs=0.02)
    clock.nodes["a"] = replace(clock.nodes["a"], edition=3)
    assert begun(pace, clock, 0.2) == pytest.approx(1002.2 + 0.2, abs=0.03)


def test_ends_are_those_of_all_windows() -> None:
    assert TriggerPacing().next_end(REGISTRY, 1) == PERIOD_US
    assert TriggerPacing().next_end(REGISTRY, PERIOD_US) == 2 * PERIOD_US
    assert TriggerPacing().next_end(Registry(), 1) > time.time() * 1e6


def test_the_next_of_many_ends_is_found_whichever_way_time_goes() -> None:
    dice = random.Random(1)
    windows = {(dice.randrange(1000), dice.choice([7, 60, 900])) for _ in range(200)}
    ends, time_us = WindowEnds(windows), 5
    for step in [*(dice.randrange(30) for _ in range(300)), -4000, 3, 1_000_000, 1]:
        time_us += step
        assert ends.next_after(time_us) == min(window_end(time_us, *window) for window in windows)


def test_ends_are_not_computed_again_while_none_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = WindowEnds({(0, length) for length in range(1000, 2000)})
    assert ends.next_after(1) == 1000
    computed: list[int] = []

    def counted(time_us: int, anchor_us: int, length_us: int) -> int:
        computed.append(length_us)
        return window_end(time_us, anchor_us, length_us)

    monkeypatch.setattr(trigger_pacing, "window_end", counted)
    assert [ends.next_after(time_us) for time_us in (2, 999)] == [1000, 1000]
    assert ends.next_after(1001) == 1002
    assert sorted(computed) == [1000, 1001]


def test_who_answers_each_message_is_not_kept_waiting_for_long(clock: Clock) -> None:
    wanted = WantedExpressions(OperatorSettings(), [(b"$SUM/t/+", 0), (b"$HOURLYSUM/t/+", 0)])
    brisk = Registry().told("a", 1, 1, wanted, ReadingStart())
    pace = TriggerPacing()
    clock.now_s = 1001.0
    assert begun(pace, clock, 0.0, 1, brisk, NEVER_S) == pytest.approx(1001.0 + BRISK_S, abs=0.02)
