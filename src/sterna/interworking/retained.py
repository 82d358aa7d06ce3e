"""Retained messages when a broker is attached: compared once, so that both sides end with the same values.

The foreign broker's values come first.  A value that the network does not have is taken.  Where both have one and they
differ, the network's stays and goes to the foreign broker: a conflict, which is counted.  Values that are equal go
neither way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

#: Topics of which it is remembered what the foreign broker has; of further ones it gets the network's value again.
KNOWN_MAX: Final = 1_000_000


class Found(StrEnum):
    NEW = "new"
    SAME = "retained-same"
    CONFLICT = "retained-conflict"


class RetainedComparison:
    def __init__(self, ours: Callable[[bytes], bytes | None]) -> None:
        """`ours`: the network's value; empty if it was cleared, None if there is none."""
        self._ours = ours
        #: Topic -> digest of what the foreign broker has.
        self._theirs: dict[bytes, int] = {}

    def theirs(self, topic: bytes, payload: bytes) -> Found:
        """The foreign broker has this value."""
        ours = self._ours(topic)
        if ours is not None and ours != payload:
            return Found.CONFLICT
        if len(self._theirs) < KNOWN_MAX:
            self._theirs[topic] = hash(payload)
        return Found.SAME if ours is not None else Found.NEW

    def sent(self, topic: bytes, payload: bytes) -> None:
        """It goes to the foreign broker."""
        if len(self._theirs) < KNOWN_MAX or topic in self._theirs:
            self._theirs[topic] = hash(payload)

    def is_theirs(self, topic: bytes, payload: bytes) -> bool:
        """Does the foreign broker have this value already?  It is asked once for each topic."""
        return self._theirs.pop(topic, None) == hash(payload)
