"""How fast a client is read from: messages and bytes a second, with a burst of one second's worth.

A client that sends faster is not read from for a while, so that its own socket fills up and it has to wait.  Nothing
is lost and nothing is refused.
"""

from __future__ import annotations

from typing import Final

from sterna.mqtt import packets

#: A client is stopped for at least so long: each time costs about as much as a message.
PAUSE_S_MIN: Final = 0.02


class ReadingRate:
    __slots__ = ("_bytes", "_bytes_per_s", "_messages", "_messages_per_s", "_told")

    def __init__(self, messages_per_s: float, bytes_per_s: float, now: float) -> None:
        """0: any number."""
        self._messages_per_s = messages_per_s
        self._bytes_per_s = bytes_per_s
        #: Messages and bytes that may be taken now; bytes may be owed.
        self._messages = max(1.0, messages_per_s)
        self._bytes = bytes_per_s
        self._told = now

    def allowed(self, data: bytes, now: float) -> int:
        """How many of these bytes may be taken now: all of them, or whole packets up to one that has to wait."""
        self._earn(now)
        position, end = 0, len(data)
        while position < end:
            length = shift = 0
            place = position + 1
            while place < end and shift <= 21:
                byte = data[place]
                length |= (byte & 0x7F) << shift
                shift += 7
                place += 1
                if byte < 0x80:
                    break
            else:
                return end  # it is not whole, or no packet: whoever takes it says so
            if place + length > end:
                return end
            is_message = data[position] >> 4 == packets.PUBLISH
            if (is_message and self._messages_per_s and self._messages < 1.0) or (
                self._bytes_per_s and self._bytes <= 0
            ):
                return position
            if is_message:
                self._messages -= 1.0
            self._bytes -= place + length - position
            position = place + length
        return end

    def wait_s(self) -> float:
        """Until something may be taken again."""
        messages = (1.0 - self._messages) / self._messages_per_s if self._messages_per_s else 0.0
        size = -self._bytes / self._bytes_per_s if self._bytes_per_s else 0.0
        return max(messages, size, PAUSE_S_MIN)

    def _earn(self, now: float) -> None:
        seconds, self._told = now - self._told, now
        self._messages = min(max(1.0, self._messages_per_s), self._messages + seconds * self._messages_per_s)
        self._bytes = min(self._bytes_per_s, self._bytes + seconds * self._bytes_per_s)
