"""Deadlines fire once, when due, in order."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.deadlines import Deadlines


def note(log: list[int], number: int) -> Callable[[], None]:
    return lambda: log.append(number)


@given(st.lists(st.integers(0, 10)), st.lists(st.integers(0, 11)))
def test_what_is_due_fires_by_instant_then_by_age(instants: list[int], looks: list[int]) -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    for number, instant in enumerate(instants):
        deadlines.at(instant, note(fired, number))
    for now in sorted(looks):
        deadlines.run_due(now)
        due = [number for number, instant in enumerate(instants) if instant <= now]
        assert fired == sorted(due, key=lambda number: (instants[number], number))
        left = [instant for instant in instants if instant > now]
        assert deadlines.next() == min(left, default=None)


def test_a_deadline_may_ask_for_another_that_is_due_already() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    deadlines.at(1, lambda: deadlines.at(2, note(fired, 2)))
    deadlines.run_due(3)
    assert fired == [2]
    assert deadlines.next() is None
