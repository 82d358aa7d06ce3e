"""The storm guard: stops what goes round through brokers that are bridged behind our backs.

A message that went to the foreign broker, came in from it, went out again and so on, alternating, more often than
`repeats` within ten seconds is a storm.  Its topic is held for a while: messages on it that come from the foreign
broker go nowhere.  Each storm on the topic doubles the while.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: Alternations count within this time.
WITHIN_S: Final = 10.0
#: A topic is held so long for its first storm, and at most so long.
HELD_S: Final = 10.0
HELD_MAX_S: Final = 3600.0
#: Topics watched at once; the one that was watched longest goes first.
WATCHED_MAX: Final = 4096


class _Watch:
    __slots__ = ("digest", "held_s", "held_until", "last_out", "since", "turns")

    def __init__(self) -> None:
        self.digest = 0
        self.turns = 0
        self.last_out = False
        self.since = 0.0
        self.held_until = 0.0
        self.held_s = HELD_S


class Verdict(NamedTuple):
    is_held: bool
    begins: float
    """A storm begins with this message: its topic is held for so many seconds; 0: it does not."""


_FREE: Final = Verdict(is_held=False, begins=0.0)
_HELD: Final = Verdict(is_held=True, begins=0.0)


class StormGuard:
    def __init__(self, repeats: int) -> None:
        self._repeats = repeats
        self._topics: dict[bytes, _Watch] = {}

    def went_out(self, topic: bytes, payload: bytes, now: float) -> None:
        """HOT.  It goes to the foreign broker."""
        watch = self._topics.get(topic)
        if watch is None:
            if len(self._topics) >= WATCHED_MAX:
                del self._topics[next(iter(self._topics))]
            watch = self._topics[topic] = _Watch()
        digest = hash(payload)
        if watch.digest != digest or now - watch.since > WITHIN_S:
            watch.digest, watch.turns, watch.since = digest, 0, now
        watch.last_out = True

    def came_in(self, topic: bytes, payload: bytes, now: float) -> Verdict:
        """HOT.  It comes from the foreign broker."""
        watch = self._topics.get(topic)
        if watch is None:
            return _FREE
        if now < watch.held_until:
            return _HELD
        if not watch.last_out or watch.digest != hash(payload):
            return _FREE
        watch.last_out = False
        watch.turns += 1
        if watch.turns <= self._repeats:
            return _FREE
        held_s = watch.held_s
        watch.held_until, watch.turns = now + held_s, 0
        watch.held_s = min(2 * held_s, HELD_MAX_S)
        return Verdict(is_held=True, begins=held_s)

    def held(self, now: float) -> list[bytes]:
        """Topics that are held now."""
        return sorted(topic for topic, watch in self._topics.items() if now < watch.held_until)
