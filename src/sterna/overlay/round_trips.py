"""How far a peer is: nonces that are out, and the round trip smoothed from their echoes.

The least of the last few samples takes out the time that datagrams spent in queues, a moving average the rest of the
jitter.  A nonce counts once and not for long, so an echo is also the proof that a peer is there now.
"""

from __future__ import annotations

from random import Random

NONCES_MAX = 16
"""Questions out at once; the oldest is given up for a new one."""

NONCE_S = 4.0
"""An echo later than this proves nothing."""

SAMPLES = 3
"""The smoothed value follows the least of this many samples."""

GAIN = 0.3
"""The weight of a new sample in the moving average."""


class OpenPings:
    """Nonces sent out, and when."""

    def __init__(self, nonces_max: int = NONCES_MAX) -> None:
        self._max = nonces_max
        self._asked: dict[int, float] = {}

    def ask(self, now: float, rng: Random) -> int:
        """A new nonce."""
        nonce = rng.getrandbits(64)
        self.note(nonce, now)
        return nonce

    def note(self, nonce: int, now: float) -> None:
        """A nonce of the caller's is on its way."""
        while len(self._asked) >= self._max:
            del self._asked[next(iter(self._asked))]
        self._asked[nonce] = now

    def elapsed(self, nonce: int, now: float) -> float | None:
        """Seconds since this nonce was sent; None if it was not, or too long ago."""
        asked = self._asked.get(nonce)
        return None if asked is None or now - asked > NONCE_S else now - asked

    def close(self, nonce: int) -> None:
        """No further echo of this nonce counts."""
        self._asked.pop(nonce, None)


class RoundTrips:
    """The smoothed round trip to one peer."""

    def __init__(self) -> None:
        self.samples = 0
        self.smoothed_s: float | None = None
        self._recent: list[float] = []

    def sample(self, elapsed_s: float) -> None:
        self.samples += 1
        self._recent = [*self._recent[1 - SAMPLES :], elapsed_s]
        least = min(self._recent)
        if self.smoothed_s is None or self.samples <= SAMPLES:
            self.smoothed_s = least
        else:
            self.smoothed_s += GAIN * (least - self.smoothed_s)

    @property
    def microseconds(self) -> int:
        """At least one: a path that costs nothing could be a circle."""
        return max(1, round((self.smoothed_s or 0.0) * 1e6))
