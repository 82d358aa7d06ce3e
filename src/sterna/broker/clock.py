"""The broker's clock: the time of the current turn, as the world told it.

The world tells the time before each piece of work.  Everything that happens in that piece of work has the same time.
"""

from __future__ import annotations

import math
from typing import Final

#: The clock of another node may be ahead of ours by this much; one that is further ahead is taken to be wrong.
AHEAD_MAX_S: Final = 3600.0


class BrokerClock:
    __slots__ = ("_foremost", "_running_offset", "_wall_offset", "now", "wall")

    def __init__(self) -> None:
        #: Steady seconds, for deadlines.
        self.now = 0.0
        #: Wall-clock seconds, for timestamps that clients and the journal see.
        self.wall = 0.0
        self._wall_offset = self._running_offset = 0.0
        #: How far the clock of any other node is ahead of our steady clock, as far as its messages show.
        self._foremost = -math.inf

    def tell(self, now: float, wall: float) -> None:
        self.now = now
        self.wall = wall
        self._wall_offset = wall - now

    def at(self, now: float) -> None:
        """The steady clock reads `now`.  Called before each piece of work, so it is small."""
        self.now = now
        self.wall = now + self._wall_offset

    @property
    def running(self) -> float:
        """Seconds by which sessions age.  It advances only while this node runs, whichever way the wall clock jumps."""
        return self.now + self._running_offset

    def run_from(self, instant: float) -> None:
        """The node has just started: its running clock reads this now."""
        self._running_offset = instant - self.now

    def heard(self, wall: float) -> float:
        """Another node's clock read `wall` when it took in a message.  Returns the seconds by which it is ahead of ours
        if no clock was further ahead before, and 0 otherwise.  A clock that is too far ahead is ignored."""
        ahead_s = wall - self.wall
        if wall - self.now > self._foremost and ahead_s < AHEAD_MAX_S:
            self._foremost = wall - self.now
            return ahead_s
        return 0.0

    @property
    def foremost_wall(self) -> float:
        """The wall-clock time of the node whose clock is furthest ahead; ours if that is none."""
        return max(self.wall, self.now + self._foremost)
