"""Password checks on worker threads: every address has a queue of its own, and the queues take turns.

So an address that guesses passwords delays itself.  Others wait for the checks under way, never for its queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from sterna.broker.access.identity import Accepted, Refused
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.mqtt.reasons import Reason

THREADS = 2
"""64 MiB each while they work."""
WAITING_MAX = 256
WAITING_PER_ADDRESS_MAX = 32

Verdict = Accepted | Refused

log = logging.getLogger(__name__)


class Check(NamedTuple):
    connection: Connection
    verify: Callable[[], Verdict]


class Verifiers:
    def __init__(self, tell: Callable[[Connection, Verdict], None]) -> None:
        """`tell` is called on the event loop with the verdict about each client that is still there."""
        self._tell = tell
        self._threads = ThreadPoolExecutor(THREADS, "password-verifier")
        #: Address -> its clients, first come first served; the next turn is that of the first address.
        self._lines: dict[str, deque[Check]] = {}
        self._under_way = 0
        self.waiting = 0

    def submit(self, connection: Connection, verify: Callable[[], Verdict]) -> None:
        """Verify when it is this client's turn; a client for whom there is no room is refused."""
        host = connection.peer.address.rpartition(":")[0]
        line = self._lines.setdefault(host, deque())
        line.append(Check(connection, verify))
        self.waiting += 1
        if len(line) > WAITING_PER_ADDRESS_MAX:
            self._refuse_last_of(line)
        elif self.waiting > WAITING_MAX:
            self._refuse_last_of(max(self._lines.values(), key=len))
        self._begin()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _refuse_last_of(self, line: deque[Check]) -> None:
        self.waiting -= 1
        line.pop().connection.fail(Reason.SERVER_BUSY, "too many clients are being authenticated")

    def _begin(self) -> None:
        while self._under_way < THREADS and (check := self._next()) is not None:
            self._under_way += 1
            work = asyncio.get_running_loop().run_in_executor(self._threads, check.verify)
            work.add_done_callback(partial(self._done, check.connection))

    def _next(self) -> Check | None:
        """The first of the first line, which then goes to the end; clients that have left are passed over."""
        while self._lines:
            host = next(iter(self._lines))
            line = self._lines.pop(host)
            while line:
                check = line.popleft()
                self.waiting -= 1
                if check.connection.state != ConnectionState.CLOSED:
                    if line:
                        self._lines[host] = line
                    return check
        return None

    def _done(self, connection: Connection, done: asyncio.Future[Verdict]) -> None:
        self._under_way -= 1
        if done.cancelled():
            return  # the node stops
        self._begin()
        self._tell(connection, _verdict(done))


def _verdict(done: asyncio.Future[Verdict]) -> Verdict:
    """A check that fails, such as for want of memory, says nothing about the client, which must not wait for ever."""
    try:
        return done.result()
    except Exception:
        log.exception("the credentials of a client cannot be checked")
        return Refused(Reason.SERVER_UNAVAILABLE, "its credentials could not be checked")
