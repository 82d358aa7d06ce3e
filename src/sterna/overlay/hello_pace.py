"""How often a node says hello: as often as it is told to, less where many hear each other, less while nothing changes.

All within reach share the air that hellos may take.  A node that hears many neighbours speaks less often, and waits
longer until it passes on what it has heard, so that they do not all speak at once.
"""

from __future__ import annotations

from sterna.overlay.mobile_settings import MobileSettings

SOON_S = 0.02
"""A hello with news goes out within this time; dice choose when, so that neighbours do not all speak at once."""
SPEAK_S = 0.05
"""Two hellos are at least this far apart."""
GROWTH = 1.25
"""Of the pause, from hello to hello, while nothing changes."""
OVERHEAD_BYTES = 28
"""Of a datagram."""


class HelloPace:
    """The pauses of one node."""

    def __init__(self, settings: MobileSettings) -> None:
        self._settings = settings
        self._share_s = 0.0
        self._calm_s = settings.hello_s

    @property
    def pause_s(self) -> float:
        """Between two hellos."""
        return max(self._calm_s, self._share_s)

    @property
    def jitter_s(self) -> float:
        """Within this time a hello with news goes out."""
        return max(SOON_S, self._share_s / 4)

    @property
    def apart_s(self) -> float:
        """Two hellos are at least this far apart."""
        return max(SPEAK_S, self._share_s / 2)

    def said(self, size: int, in_reach: int) -> None:
        """A hello of so many bytes was said where so many others are heard, and nothing has changed since the last."""
        self._share_s = (size + OVERHEAD_BYTES) * (in_reach + 1) / self._settings.hello_air_bytes_s
        self._calm_s = max(self._settings.hello_s, min(self._calm_s * GROWTH, self._settings.calm_hello_s))

    def changed(self) -> None:
        """Something has: the others are to hear of it, and to be heard."""
        self._calm_s = self._settings.hello_s
