"""When to send: at once while the node has little to do, in windows when it has much.

Most of a broker's cost is one system call per packet.  Above a certain rate it is cheaper to wait a moment and send
together what has gathered for each client; the wait is no longer than queueing would be.  Below that rate nothing
waits.
"""

from __future__ import annotations

from typing import Final

#: How long packets may gather.
WINDOW_S: Final = 0.003

#: Writes in one window from which on gathering starts, and below which it ends.  25,000 and 10,000 writes a second.
BUSY_WRITES: Final = 75
QUIET_WRITES: Final = 30


class WritePacing:
    __slots__ = ("_started", "_writes", "gathering")

    def __init__(self) -> None:
        #: True while packets gather until the window is over.
        self.gathering = False
        self._started = 0.0
        self._writes = 0

    def sent(self, writes: int, now: float) -> None:
        """So many clients were just written to."""
        if self.gathering:
            self.gathering = writes >= QUIET_WRITES
            self._started = now
            self._writes = 0
            return
        if now - self._started > WINDOW_S:
            self._started = now
            self._writes = 0
        self._writes += writes
        if self._writes >= BUSY_WRITES:
            self.gathering = True
