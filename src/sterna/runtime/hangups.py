"""SIGHUP from the first moment of a process: one that comes before the process can reload is remembered."""

from __future__ import annotations

import signal

_held_back = False


def hold_back_hangups() -> None:
    signal.signal(signal.SIGHUP, _remember)


def was_hung_up() -> bool:
    """Did a SIGHUP come while they were held back?"""
    return _held_back


def _remember(_number: int, _frame: object) -> None:
    global _held_back
    _held_back = True
