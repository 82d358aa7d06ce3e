"""Calls data processing functions from Spark tasks, in processes of their own, as a node does (`runtime.functions`).

A Spark worker asks and waits; the pool handles time-outs, crashes and functions that cannot be loaded.  Every payload
gets an answer: a number, or the reason why there is none.  The processes stay from task to task and end with the
worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sterna.operators.exact_sum import NUMBER_MAX
from sterna.pipeline.errors import PipelineError
from sterna.runtime.functions.pool import START_S_MAX, FunctionPool, functions_of
from sterna.runtime.functions.settings import FunctionTable

_Found = TypeVar("_Found")
Answer = tuple[float | None, str]
"""A number, or None and why."""


class FunctionCaller:
    """One pool, in a thread with a loop of its own."""

    def __init__(self, table: FunctionTable) -> None:
        self._functions = functions_of(table)
        self._room = 2 * table.workers
        self._pool = FunctionPool(table, self._functions, lambda work: work())
        self._loop = asyncio.new_event_loop()
        # Processes die with the thread that started them, so it lives for as long as this process does.
        self._thread = threading.Thread(target=self._run, name="functions", daemon=True)
        self._thread.start()
        self._do(self._pool.start(START_S_MAX))

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, _Found]) -> _Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def numbers(self, function: str, payloads: Sequence[bytes]) -> list[Answer]:
        """The results of the function for each."""
        return self._do(self._numbers(function, payloads))

    async def _numbers(self, function: str, payloads: Sequence[bytes]) -> list[Answer]:
        answers: list[Answer] = [(None, "no-function")] * len(payloads)
        if self._functions.get(function) is None:
            return answers
        room = asyncio.Semaphore(self._room)

        def done(place: int, value: float | None, reason: str) -> None:
            answers[place] = _checked(value, reason)
            room.release()

        for place, payload in enumerate(payloads):
            await room.acquire()
            if not self._pool.submit(function, payload, partial(done, place)):
                done(place, None, "functions-busy")
        for _ in range(self._room):
            await room.acquire()
        return answers

    @property
    def failed(self) -> dict[str, str]:
        """Functions that cannot be loaded, and why."""
        return dict(self._pool.failed)

    def close(self) -> None:
        self._do(self._pool.stop())
        self._do(asyncio.sleep(0))  # what ended is put away
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _checked(value: float | None, reason: str) -> Answer:
    if value is None:
        return None, reason
    return (float(value) + 0.0, "") if -NUMBER_MAX < value < NUMBER_MAX else (None, "not-a-number")


@lru_cache(maxsize=2)
def caller_of(table: FunctionTable) -> FunctionCaller:
    """A worker keeps its processes."""
    return FunctionCaller(table)


def check(table: FunctionTable) -> None:
    """PipelineError if a function of one's own cannot be loaded here."""
    if not table.own:
        return
    caller = FunctionCaller(table)
    failed = caller.failed
    caller.close()
    if failed:
        named = "; ".join(f"${name}: {what}" for name, what in sorted(failed.items()))
        raise PipelineError(f"functions cannot be loaded: {named}; see [functions] in the file --config names")


def to_text(table: FunctionTable) -> str:
    """For an option of Spark; tasks may run elsewhere, so the directory is named in full."""
    fields = {name: getattr(table, name) for name in table.__struct_fields__}
    fields["directory"] = str(table.directory.resolve()) if table.directory else None
    return msgspec.json.encode(fields).decode()


def from_text(text: str) -> FunctionTable:
    return msgspec.json.decode(text, type=FunctionTable, dec_hook=_path)


def _path(kind: type[Any], value: Any) -> Any:
    assert kind is Path
    return Path(value)
