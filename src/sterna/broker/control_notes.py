"""The last words of coordinators for people: what the dashboard of a node shows of those that are connected to it.

They come on control topics, so only those may say them that `[adaptation]` names.  Nothing here looks into a word.
"""

from __future__ import annotations

from typing import Final

from sterna.mqtt.topics import CONTROL

SHOWN: Final = b"shown"
"""The kind of control topics whose words are kept: `$adaptation/NETWORK/shown/NAME`."""
NOTE_BYTES_MAX: Final = 128 * 1024
NOTES_MAX: Final = 8
FORGET_S: Final = 30.0


class ControlNotes:
    def __init__(self) -> None:
        #: Topic -> when the word came, and the word.
        self._last: dict[bytes, tuple[float, bytes]] = {}

    def saw(self, topic: bytes, word: bytes, now: float) -> None:
        levels = topic.split(b"/")
        if len(levels) != 4 or levels[0] != CONTROL or levels[2] != SHOWN or len(word) > NOTE_BYTES_MAX:
            return
        self._last.pop(topic, None)
        self._last[topic] = (now, word)
        if len(self._last) > NOTES_MAX:
            del self._last[next(iter(self._last))]

    def fresh(self, now: float) -> list[tuple[float, bytes]]:
        """How many seconds ago each word came, and the word."""
        return [(now - at, word) for at, word in self._last.values() if now - at < FORGET_S]
