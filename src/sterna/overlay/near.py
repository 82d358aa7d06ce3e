"""A neighbour of a node that moves, as its hellos show it: when it was heard, how many are lost, and its way to the
leader.

A neighbour is gone when so many hellos are missing that losses do not explain it: three where hellos do not get lost,
more where many do.  A neighbour whose link brings something is there, whatever became of its hellos.
"""

from __future__ import annotations

from math import ceil, log

from sterna.overlay.hellos import LOW_COUNTER, SHORT_IDENTITY_BYTES, Hello, ShortHello
from sterna.overlay.leadership import LeaderPath

MISSED_HELLOS = 3
"""So many missing hellos, and a neighbour is gone, if hardly any get lost."""
MISSED_MAX = 8
"""However many get lost."""
BY_CHANCE = 0.001
"""So improbable must it be that all that are missing were lost."""
MARGIN = 0.1
"""More may get lost than the last hellos showed."""
RARELY = 0.05
"""Losses below this part are none."""
LATE = 0.2
"""Part of the pause between two hellos by which one may be late."""
ECHOES = 16
"""A neighbour that names one of our last so many hellos has heard us lately."""
WEIGHT = 0.03
"""Of the newest hello, in the part that gets lost; that of the first ones is higher."""
COUNTED_MAX = 32
"""More hellos missing in a row count like these."""
LOSSY, SOUND = 0.5, 0.25
"""A link that loses more than this part of the hellos is lossy, until it loses less than that."""


class NodeInReach:
    """One start of one node within reach."""

    __slots__ = (
        "address",
        "address_at",
        "boot",
        "children",
        "counter",
        "heard_at",
        "identity",
        "is_interrupted",
        "is_lossy",
        "lost_part",
        "name",
        "passed_over_until",
        "path",
        "pause_s",
        "proved_at",
        "samples",
        "says_short",
        "since",
        "told_at",
        "turns",
    )

    def __init__(self, hello: Hello, address: str, now: float) -> None:
        self.name = hello.name
        self.boot = hello.boot
        self.identity = hello.identity
        self.counter = -1
        self.address = address
        self.address_at = now
        self.heard_at = now
        #: When a hello last showed that it hears us; None: none has.
        self.proved_at: float | None = None
        #: Since when both have heard each other without a break.
        self.since = now
        self.path: LeaderPath = hello.path
        self.children = 0
        self.pause_s = hello.pause_s
        #: In so many of its hellos it names everybody whom it hears.
        self.turns = 1
        self.says_short = False
        self.passed_over_until = 0.0
        #: When our hellos last named it.
        self.told_at = -1.0
        #: Of its hellos.
        self.lost_part = 0.0
        self.samples = 0
        self.is_lossy = False
        #: Its link has no connection.
        self.is_interrupted = False

    @property
    def gone_after_s(self) -> float:
        if self.is_interrupted:
            return self.pause_s * (1 + LATE)
        missed: float = MISSED_HELLOS
        if self.lost_part > RARELY:
            missed = ceil(log(BY_CHANCE) / log(min(0.9, self.lost_part + MARGIN)))
            missed = min(MISSED_MAX, max(MISSED_HELLOS, missed))
        return self.pause_s * (missed + LATE)

    def is_heard(self, now: float) -> bool:
        return now - self.heard_at <= self.gone_after_s

    def is_mutual(self, now: float) -> bool:
        """Do both hear each other?"""
        return self.proved_at is not None and now - self.proved_at <= self.gone_after_s * self.turns

    def is_suspect(self, now: float) -> bool:
        """A hello is missing, and not because they get lost now and then."""
        return now - self.heard_at > self.pause_s * (1 + LATE) and self.lost_part <= RARELY

    def counted(self, counter: int) -> None:
        """A hello with this counter has come: how many before it have not?"""
        missing = 0 if self.counter < 0 else min(COUNTED_MAX, counter - self.counter - 1)
        self.samples += missing + 1
        weight = max(WEIGHT, 1 / (self.samples + 9))
        kept = (1 - weight) ** missing
        self.lost_part = (self.lost_part * kept + 1 - kept) * (1 - weight)
        self.is_lossy = self.lost_part > (SOUND if self.is_lossy else LOSSY)
        self.counter = counter

    def link_interrupted(self) -> None:
        """Hellos may come where longer frames are lost."""
        self.is_interrupted = True
        self.lost_part, self.is_lossy = max(LOSSY, self.lost_part), True

    def link_brought(self, silent_s: float, now: float) -> bool:
        """Did the link bring something lately, though no hello came?"""
        if silent_s > self.gone_after_s:
            return False
        self.heard_at = max(self.heard_at, now - silent_s)
        if self.proved_at is not None:
            self.proved_at = max(self.proved_at, now - silent_s)
        return True


def echoed(hello: Hello | ShortHello, identity: bytes, counter: int) -> bool | None:
    """Does the hello name this identity, with one of its last counters?  None: it does not name it."""
    start = identity if isinstance(hello, Hello) else identity[:SHORT_IDENTITY_BYTES]
    named: bool | None = None
    for one, low in hello.heard:
        if one == start:
            named = ((counter & LOW_COUNTER) - low) & LOW_COUNTER < ECHOES
            if named:
                return True
    return named
