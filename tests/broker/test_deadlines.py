"""Deadlines fire once, when due, in order, unless they are cancelled; cancelled ones hold nothing."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.deadlines import Deadline, Deadlines


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


@given(st.lists(st.tuples(st.integers(0, 10), st.booleans())), st.lists(st.integers(0, 11)))
def test_what_is_cancelled_never_fires_and_is_not_waited_for(asked: list[tuple[int, bool]], looks: list[int]) -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    made = [deadlines.replace(None, instant, note(fired, number)) for number, (instant, _) in enumerate(asked)]
    for deadline, (_, is_cancelled) in zip(made, asked, strict=True):
        if is_cancelled:
            deadlines.cancel(deadline)
            deadlines.cancel(deadline)
    kept = [(instant, number) for number, (instant, is_cancelled) in enumerate(asked) if not is_cancelled]
    for now in sorted(looks):
        assert deadlines.next() == min((instant for instant, number in kept if number not in fired), default=None)
        deadlines.run_due(now)
        assert fired == [number for instant, number in sorted(kept) if instant <= now]


def test_a_deadline_that_has_come_may_be_cancelled_and_replaced() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    first = deadlines.replace(None, 1, note(fired, 1))
    deadlines.run_due(1)
    second = deadlines.replace(first, 2, note(fired, 2))
    deadlines.replace(second, 3, note(fired, 3))
    deadlines.run_due(5)
    assert fired == [1, 3]


def test_a_deadline_may_cancel_others_while_it_fires() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    others: list[Deadline] = []

    def cancel_all() -> None:
        for other in others:
            deadlines.cancel(other)

    deadlines.at(1, cancel_all)
    others += [deadlines.replace(None, 1, note(fired, number)) for number in range(100)]
    deadlines.at(1, note(fired, -1))
    deadlines.run_due(1)
    assert fired == [-1]
    assert deadlines.next() is None


def test_the_heap_does_not_fill_with_cancelled_deadlines() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    for number in range(100):
        deadlines.at(1e6 + number, note(fired, number))
    for _ in range(10_000):
        deadlines.cancel(deadlines.replace(None, 1e5, note(fired, -1)))
        assert len(deadlines) <= 2 * 100
    deadlines.run_due(2e6)
    assert fired == list(range(100))
