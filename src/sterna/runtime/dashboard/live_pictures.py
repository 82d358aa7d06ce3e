"""Live pictures of the network: one a second for all open pages together, none while nobody looks.

Every node that can be reached is asked for its row.  A picture does not wait for a node that is silent longer than
`ANSWER_S`; that node is named, with the last row it sent.  All pages get the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sterna.node.management import Gathered
from sterna.runtime.admin.site import EventSink

EVERY_S = 1.0
ANSWER_S = 1.0
REMEMBERED_S = 600.0
"""The last row of a node that went is shown for so long."""
QUESTION = "picture"

log = logging.getLogger(__name__)

Row = dict[str, Any]


class LivePictures:
    """An `EventSource` of the admin port."""

    def __init__(
        self, ask: Callable[[float], Awaitable[Gathered]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` all nodes for their rows, and wait for so many seconds at most."""
        self._ask = ask
        self._clock = clock
        self._pages: set[EventSink] = set()
        self._task: asyncio.Task[None] | None = None
        #: Node -> when its last row came, and that row.
        self._last: dict[str, tuple[float, Row]] = {}
        self._picture: tuple[float, bytes] | None = None

    def join(self, sink: EventSink) -> None:
        self._pages.add(sink)
        if self._picture is not None and self._clock() - self._picture[0] < EVERY_S:
            sink.send(event("picture", self._picture[1]))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self, sink: EventSink) -> None:
        self._pages.discard(sink)

    async def picture(self) -> bytes:
        """The picture of now, as JSON; one that is less than a second old will do."""
        if self._picture is None or self._clock() - self._picture[0] >= EVERY_S:
            return await self._new_picture()
        return self._picture[1]

    async def _new_picture(self) -> bytes:
        asked_at = self._clock()
        picture = msgspec.json.encode(self._composed(await self._ask(ANSWER_S)))
        self._picture = asked_at, picture
        return picture

    async def _run(self) -> None:
        is_failing = False
        try:
            while self._pages:
                began = self._clock()
                try:
                    await self._show()
                    is_failing = False
                except Exception:
                    if not is_failing:  # once, and not every second
                        log.exception("the dashboard cannot be drawn now; its pages wait for the next picture")
                    is_failing = True
                await asyncio.sleep(max(0.05, EVERY_S - (self._clock() - began)))
        finally:
            self._task = None

    async def _show(self) -> None:
        shown = event("picture", await self._new_picture())
        for page in list(self._pages):
            page.send(shown)

    def _composed(self, gathered: Gathered) -> Row:
        now = self._clock()
        for row in gathered.rows:
            self._last[row["node"]] = (now, row)
        self._last = {node: found for node, found in self._last.items() if now - found[0] < REMEMBERED_S}
        fresh = {row["node"] for row in gathered.rows}
        return {
            "at": time.time(),
            "nodes": [
                {**row, "age_s": 0.0 if node in fresh else round(now - came_at, 1)}
                for node, (came_at, row) in sorted(self._last.items())
            ],
            "silent": gathered.silent,
        }


def event(name: str, data: bytes) -> bytes:
    """A server-sent event; JSON has no line breaks of its own."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
