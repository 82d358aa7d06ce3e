"""Breadth-first exploration of all states of a model: what holds in each, and whether the good ones stay in reach.

A model gives its first states, the steps out of a state, and what is wrong with one.  A step is marked as a *fault* if
the world may stop taking it (a crash, a lost message): what has to come about in the end has to without those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Step(NamedTuple, Generic[State]):
    what: str
    then: State
    is_fault: bool = False


class Model(Protocol[State]):
    def first(self) -> Iterable[State]: ...
    def steps(self, state: State) -> Iterable[Step[State]]: ...
    def wrong(self, state: State) -> str:
        """Empty: nothing is."""

    def is_good(self, state: State) -> bool:
        """From every state one such must be in reach without further faults."""


@dataclass(slots=True)
class Exploration(Generic[State]):
    states: int = 0
    steps: int = 0
    is_complete: bool = True
    """All states within the bounds of the model were seen."""
    problem: str = ""
    trace: list[str] = field(default_factory=list)
    """The shortest way to the problem."""
    taken: set[str] = field(default_factory=set)
    """The names of all steps that were taken."""


def explore(model: Model[State], states_max: int) -> Exploration[State]:
    """All of them, or so many; the first problem ends it."""
    found: Exploration[State] = Exploration()
    before: dict[State, tuple[State, str] | None] = {}
    back: dict[State, list[State]] = {}
    due: deque[State] = deque()
    for state in model.first():
        before.setdefault(state, None)
        due.append(state)
    good = []
    while due:
        state = due.popleft()
        found.problem = model.wrong(state)
        if found.problem:
            found.trace = _trace(before, state)
            break
        if model.is_good(state):
            good.append(state)
        for step in model.steps(state):
            found.steps += 1
            found.taken.add(step.what)
            if not step.is_fault:
                back.setdefault(step.then, []).append(state)
            if step.then not in before:
                if len(before) >= states_max:
                    found.is_complete = False
                    continue
                before[step.then] = state, step.what
                due.append(step.then)
    found.states = len(before)
    if not found.problem and found.is_complete:
        _look_for_traps(found, before, back, good)
    return found


def _look_for_traps(
    found: Exploration[State],
    before: dict[State, tuple[State, str] | None],
    back: dict[State, list[State]],
    good: list[State],
) -> None:
    reaching = set(good)
    while good:
        for state in back.get(good.pop(), ()):
            if state not in reaching:
                reaching.add(state)
                good.append(state)
    trapped = next((state for state in before if state not in reaching), None)  # the nearest: they are in order
    if trapped is not None:
        found.problem = "no good state can be reached any more"
        found.trace = [*_trace(before, trapped), repr(trapped)]


def _trace(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    trace: list[str] = []
    while (came := before[state]) is not None:
        state, what = came
        trace.append(what)
    return trace[::-1]
