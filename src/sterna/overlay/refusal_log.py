"""Reports refused connections: the first few of each minute, so that a stranger cannot fill the log."""

from __future__ import annotations

from collections.abc import Callable

REPORTED_MAX = 10
PERIOD_S = 60.0
"""So many refusals are reported in such a time; the next report says how many were left out."""


class RefusalLog:
    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._period_began = 0.0
        self._reported = 0
        self._left_out = 0

    def report(self, now: float, event: str, *, peer: str, address: str, reason: str) -> None:
        if now - self._period_began >= PERIOD_S:
            self._period_began = now
            self._reported = 0
        if self._reported >= REPORTED_MAX:
            self._left_out += 1
            return
        self._reported += 1
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._report(event, peer=peer, address=address, reason=reason, not_reported_before=left_out)
        else:
            self._report(event, peer=peer, address=address, reason=reason)
