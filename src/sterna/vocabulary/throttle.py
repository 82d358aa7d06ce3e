"""Limits log lines that others can cause at will: the first few of a kind in a period are logged, the rest are counted
and logged as a number at the end of the period."""

from __future__ import annotations

from typing import Final, NamedTuple

OTHERS: Final = "others"
"""All that there was no room to remember one by one."""


class ThrottledKind(NamedTuple):
    event: str
    who: str
    """The one that causes it, such as an address or a client."""
    what: str = ""


class Throttle:
    """Bounded: `kinds` are told apart in a period, everything else of an event is one kind."""

    def __init__(self, period_s: float = 60.0, most: int = 10, kinds: int = 100) -> None:
        self._period_s = period_s
        self._most = most
        self._kinds = kinds
        self._ends_at = 0.0
        self._seen: dict[ThrottledKind, int] = {}

    def admits(self, kind: ThrottledKind) -> bool:
        """Whether one more of this kind is to be said."""
        if kind not in self._seen and len(self._seen) >= self._kinds:
            kind = ThrottledKind(kind.event, OTHERS)
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        return seen <= self._most

    def turn_over(self, now: float) -> list[tuple[ThrottledKind, int]]:
        """When the period is over: what was left out of it, and how often.  Then a new one begins."""
        if now < self._ends_at:
            return []
        self._ends_at = now + self._period_s
        left_out = [(kind, seen - self._most) for kind, seen in self._seen.items() if seen > self._most]
        self._seen.clear()
        return left_out
