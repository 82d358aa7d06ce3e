"""Messages that the foreign broker cannot bear: it hangs up on them again and again, and everything else waits.

The first message of a connection that was not answered is suspected when the connection ends.  One that is suspected
three times in a row is set aside: our own broker is told that it arrived, and the operator that it did not.
"""

from __future__ import annotations

from typing import Final

TRIES: Final = 3


class Poison:
    __slots__ = ("_first", "_is_answered", "_set_aside", "_suspect", "_times")

    def __init__(self) -> None:
        #: Packet identifier and topic of the first publication of this connection.
        self._first: tuple[int, bytes] | None = None
        self._is_answered = False
        self._suspect: tuple[int, bytes] | None = None
        self._times = 0
        self._set_aside: tuple[int, bytes] | None = None

    def sent(self, packet_id: int, topic: bytes) -> None:
        """HOT."""
        if self._first is None:
            self._first = packet_id, topic

    def answered(self) -> None:
        """HOT.  The foreign broker acknowledged something."""
        self._is_answered = True

    def connected(self) -> None:
        self._first = None
        self._is_answered = False

    def hung_up(self) -> None:
        """The connection has ended; not because of us."""
        first, self._first = self._first, None
        if first is None:
            return  # nothing was sent
        if self._is_answered:
            self._suspect, self._times = None, 0
        elif first == self._suspect:
            self._times += 1
        else:
            self._suspect, self._times = first, 1
        if self._times >= TRIES:
            self._set_aside, self._suspect, self._times = self._suspect, None, 0

    def is_set_aside(self, packet_id: int, topic: bytes) -> bool:
        """HOT.  Is this the one?  It is asked for once."""
        if self._set_aside is None or self._set_aside != (packet_id, topic):
            return False
        self._set_aside = None
        return True
