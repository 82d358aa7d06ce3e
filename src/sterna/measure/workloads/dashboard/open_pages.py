"""Open pages of a dashboard as their node sees them: a stream of live pictures, and what a page asks for besides.

A page is two threads: one reads the stream, the other asks like the browser's page does, again and again.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sterna.measure.errors import MeasurementError

ANSWER_S_MAX = 60.0
READ_BYTES = 65536

Polled = Mapping[str, float]
"""Path -> after how many seconds the browser's page asks for it again."""

MAP: Polled = {}
CLIENTS: Polled = {"/dashboard/clients?most=50": 2.0, "/bans?text=": 2.0}
TOPICS: Polled = {
    "/dashboard/topics": 2.0,
    "/dashboard/topics?prefix=load": 2.0,
    "/dashboard/topic?topic=load/00": 1.0,
    "/dashboard/watch?id=bench-watch&filter=load/%23": 0.7,
}
"""With a branch that is open, a topic that is chosen, and a subscription."""


def answer_to(port: int, path: str) -> bytes:
    """The body of the page of the admin port; MeasurementError if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise MeasurementError(f"{path}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise MeasurementError(f"{path}: {answer.status} {body.decode(errors='replace').strip()}")
    return body


class OpenPage:
    def __init__(self, port: int, polled: Polled) -> None:
        """`polled`: what is asked for besides the pictures."""
        self._port = port
        self._polled = polled
        self._closed = threading.Event()
        self._stream = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
        self.pictures = 0
        self.answers = 0
        self.trouble = ""
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in (self._watch, self._poll)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """The node notices within a second."""
        self._closed.set()
        for thread in self._threads:
            thread.join(ANSWER_S_MAX)

    def _guarded(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except (OSError, http.client.HTTPException, MeasurementError) as error:
            self.trouble = f"a page broke: {error or type(error).__name__}"

    def _watch(self) -> None:
        try:
            self._stream.request("GET", "/dashboard/events")
            answer = self._stream.getresponse()
            while not self._closed.is_set():
                part = answer.read1(READ_BYTES)
                if not part:
                    raise MeasurementError("the node ended the stream")
                self.pictures += part.count(b"event: picture")
        finally:
            self._stream.close()

    def _poll(self) -> None:
        due = dict.fromkeys(self._polled, 0.0)
        while due:
            path = min(due, key=due.__getitem__)
            if self._closed.wait(max(0.0, due[path] - time.monotonic())):
                return
            answer_to(self._port, path)
            self.answers += 1
            due[path] = time.monotonic() + self._polled[path]


@contextmanager
def open_pages(port: int, pages: Sequence[Polled]) -> Iterator[list[OpenPage]]:
    """One for each of `pages`.  MeasurementError if one of them broke or never got a picture."""
    opened = [OpenPage(port, polled) for polled in pages]
    for page in opened:
        page.start()
    try:
        yield opened
    finally:
        for page in opened:
            page.close()
    for page in opened:
        if page.trouble or not page.pictures:
            raise MeasurementError(page.trouble or "a page got no picture")
