"""The clocks agree, whenever the process stands still."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sterna.runtime.clocks import TRIES, both_clocks

AHEAD_S = 1e9


class Clocks:
    """Time passes between two readings as told, and not at all in the end."""

    def __init__(self, pauses: Sequence[float]) -> None:
        self._pauses = list(pauses)
        self._now = 0.0
        self.readings = 0

    def steady(self) -> float:
        self._now += self._pauses.pop(0) if self._pauses else 0.0
        self.readings += 1
        return self._now

    def wall(self) -> float:
        return self.steady() + AHEAD_S


@pytest.mark.parametrize("pauses", [[], [5, 0.2, 0], [5, 0, 0.2], [0, 0.2, 0.2, 1, 0.1]])
def test_a_pause_between_the_clocks_is_no_difference_between_them(pauses: list[float]) -> None:
    clocks = Clocks(pauses)
    now, wall = both_clocks(clocks.steady, clocks.wall)
    assert wall - now == AHEAD_S


def test_on_a_machine_that_never_lets_it_run_the_closest_reading_counts() -> None:
    clocks = Clocks([0.0, 0.25, 0.25, 0.0, 0.0625, 0.0625] + [0.0, 0.25, 0.25] * TRIES)
    now, wall = both_clocks(clocks.steady, clocks.wall)
    assert wall - now == AHEAD_S + 0.0625
    assert clocks.readings == 3 * TRIES
