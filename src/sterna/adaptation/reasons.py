"""Decisions as records: what is to be done, by which rule, with the numbers that rule looked at.

A record holds all numbers of its rule, so that a reader can reckon the decision again.  `Left` is the
record of a gateway or worker that was considered and left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Number: TypeAlias = float | int | str


class Rule(StrEnum):
    """The rules that decide, as `sterna adaptation explain` names them."""

    # A gateway moves.
    LOWER_GROUP = "lower-group"
    BALANCE = "balance"
    NEARER = "nearer"
    EVACUATION = "evacuation"
    # A gateway stays.
    AT_OPTIMUM = "at-optimum"
    SAME_GROUP = "same-group"
    BALANCED = "balanced"
    SMALL_GAIN = "small-gain"
    UNSTEADY = "unsteady"
    COOLING_DOWN = "cooling-down"
    UNPROVED = "unproved"
    """Nobody has measured the target lately."""
    UNPLACED = "unplaced"
    """The gateway's coordinate is not usable yet."""
    UNSERVED = "unserved"
    """No node says that it serves the gateway, or its worker is lost."""
    TARGET_BUSY = "target-busy"
    NO_NODE = "no-node"
    # A node starts or stops, or does not.
    PRESSURE = "pressure"
    LOW_PRESSURE = "low-pressure"
    OVERLOAD = "overload"
    FLOOR = "floor"
    CEILING = "ceiling"
    LAST = "last"
    FIXED = "fixed"
    YOUNG = "young"
    BARRED = "barred"
    NO_ROOM = "no-room"
    """Other nodes could not take over what it does."""
    NO_GAIN_FOR_TOPICS = "no-gain-for-topics"
    ONE_AT_A_TIME = "one-at-a-time"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class DecisionReason:
    rule: Rule
    numbers: tuple[tuple[str, Number], ...] = ()

    @property
    def sentence(self) -> str:
        return f"{self.rule}: {', '.join(f'{name} {_shown(number)}' for name, number in self.numbers)}".rstrip(": ")


@dataclass(frozen=True, slots=True)
class Move:
    """All clients of a gateway go to another node."""

    gateway: str
    source: str
    target: str
    reason: DecisionReason


@dataclass(frozen=True, slots=True)
class Start:
    worker: str
    reason: DecisionReason


@dataclass(frozen=True, slots=True)
class Stop:
    """The node is to be emptied, drained and stopped: `adaptation/draining.py`."""

    worker: str
    reason: DecisionReason


@dataclass(frozen=True, slots=True)
class Resume:
    """A stop is taken back before its end: the node serves on."""

    worker: str
    reason: DecisionReason


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing is done about this gateway or worker, and why."""

    subject: str
    reason: DecisionReason


Decision: TypeAlias = Move | Start | Stop | Resume
Judgement: TypeAlias = Decision | Left


def reason(rule: Rule, **numbers: Number) -> DecisionReason:
    return DecisionReason(rule, tuple(numbers.items()))


def _shown(number: Number) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)
