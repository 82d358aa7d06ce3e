"""Passwords of people at the dashboard, checked in a thread, one at a time, so that guessing is slow and bounded.

A wrong answer is held back for `WRONG_S`.  An address has at most `PER_ADDRESS_MAX` attempts under way, held back ones
included, so that guesses do not keep people of other addresses out.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sterna.vocabulary.errors import SternaError

if TYPE_CHECKING:
    from sterna.broker.access.passwords import PasswordFile

WRONG_S = 1.0
PER_ADDRESS_MAX = 4
UNDER_WAY_MAX = 64
"""Of all addresses together."""


class TooManyAttempts(SternaError):
    """The password was not looked at."""


class PasswordChecks:
    def __init__(self, wrong_s: float = WRONG_S, clock: Callable[[], float] = time.time) -> None:
        self._wrong_s = wrong_s
        self._clock = clock
        #: Address -> attempts.
        self._under_way: Counter[str] = Counter()
        self._turn = asyncio.Lock()

    async def is_right(self, passwords: PasswordFile, user: str, password: bytes, address: str) -> bool:
        """May raise TooManyAttempts."""
        if self._under_way[address] >= PER_ADDRESS_MAX or self._under_way.total() >= UNDER_WAY_MAX:
            raise TooManyAttempts("too many attempts to log in are under way; try again")
        self._under_way[address] += 1
        try:
            loop = asyncio.get_running_loop()
            async with self._turn:
                right = await loop.run_in_executor(None, partial(passwords.verify, user, password, now=self._clock()))
            if not right:
                await asyncio.sleep(self._wrong_s)
            return right
        finally:
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address]

    async def hold_back(self) -> None:
        """After a wrong token."""
        await asyncio.sleep(self._wrong_s)
