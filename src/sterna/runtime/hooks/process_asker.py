"""Asks the access hook as a Python function, in processes of its own: it may hang or die without harm to the node.

The function gets the question as a dictionary and returns the answer as one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec

from sterna.operators.functions import Functions
from sterna.runtime.functions.pool import FunctionPool
from sterna.runtime.functions.settings import FunctionTable, OwnFunction
from sterna.runtime.hooks.access_hook import HookFailed
from sterna.runtime.hooks.settings import HookTable

_NAME = "HOOK"


class ProcessAsker:
    def __init__(self, table: HookTable) -> None:
        own = OwnFunction(name=_NAME, call=table.call or "", description="the access hook")
        functions = Functions()
        functions.register(_NAME, None, "an answer", own.description)
        settings = FunctionTable(
            own=(own,), directory=table.directory, workers=table.workers, time_out_s=table.time_out_s
        )
        self._pool = FunctionPool(settings, functions, lambda piece: piece(), answers_objects=True)
        self._waiting: deque[tuple[bytes, asyncio.Future[bytes]]] = deque()

    async def start(self) -> None:
        await self._pool.start()

    async def stop(self) -> None:
        await self._pool.stop()

    async def ask(self, question: bytes) -> bytes:
        if why := self._pool.failed.get(_NAME):
            raise HookFailed(f"the function cannot be loaded: {why}")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        self._hand_out()
        return await answer

    def _hand_out(self) -> None:
        while self._waiting:
            question, answer = self._waiting[0]
            if not answer.done() and not self._pool.submit(_NAME, question, _telling(self, answer)):
                return
            self._waiting.popleft()

    def answered(self, answer: asyncio.Future[bytes], value: Any, reason: str) -> None:
        if answer.done():  # nobody waits any more
            pass
        elif reason:
            answer.set_exception(HookFailed(f"the function gave no answer ({reason}); the log says why"))
        else:
            answer.set_result(msgspec.json.encode(value))
        self._hand_out()


def _telling(asker: ProcessAsker, answer: asyncio.Future[bytes]) -> Any:
    return lambda value, reason: asker.answered(answer, value, reason)
