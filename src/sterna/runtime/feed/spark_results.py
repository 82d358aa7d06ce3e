"""The part of the feed that serves Spark's operator job: expressions to compute, the node's time, and results.

`look` gives an instant and an offset of the journal: every message that came in before that instant is below that
offset.  So Spark may close a window that ended before it, and no message of the window comes later.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from sterna.broker.broker import Broker
from sterna.broker.expressions.spark_expressions import PassedMessage
from sterna.journal.journal import Journal
from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.topics import is_control, is_reserved, is_topic_name
from sterna.operators.settings import OperatorSettings
from sterna.runtime.feed.requests import Handed, HandedOn, Unfit
from sterna.vocabulary.errors import ProtocolError

LOOKS_MAX = 1024
"""Remembered at once; a journal that gets nothing written needs no more of them."""
TOPIC_LEVELS_MAX = TOPIC_BYTES_MAX = USER_PROPERTIES_MAX = 65535
"""Of a message that is handed in: the node where it entered has checked it by its own limits."""


class LogClock:
    """An instant T is over in the journal when everything is safe that had been taken in by T."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_MAX)
        self.time_us = 0

    def look(self, now_us: int, next_offset: int, safe_offset: int) -> int:
        """It is `now_us`, and what is taken in from now on gets `next_offset` or a greater one."""
        self._looks.append((next_offset, now_us))
        while self._looks and self._looks[0][0] <= safe_offset:
            self.time_us = max(self.time_us, self._looks.popleft()[1])
        return self.time_us


class SparkResults:
    def __init__(
        self, broker: Broker, journal: Journal, settings: OperatorSettings, after_work: Callable[[], None]
    ) -> None:  # fmt: skip
        self._broker = broker
        self._journal = journal
        self._after_work = after_work
        #: May anything of this node's be Spark's to compute?
        self.serves = settings.has_spark
        self._clock = LogClock()
        self.settings: dict[str, Any] = msgspec.to_builtins(settings)

    @property
    def edition(self) -> int:
        """Another one when other expressions are to be computed, as long as the node runs."""
        return self._broker.routes.computations.edition

    def look(self) -> int:
        broker = self._broker
        now_us = int((time.monotonic() - broker.now + broker.wall) * 1e6)
        return self._clock.look(now_us, self._journal.next_offset, self._journal.safe_offset)

    def expressions(self) -> list[tuple[bytes, int]]:
        return self._broker.routes.computations.outside()

    async def hand_in(self, results: Sequence[Handed]) -> None:
        """Comes back when the journal has them.  If it cannot be written now they are refused and are to come again:
        the broker tries on by itself, but what it has only in memory is not safe."""
        broker, computations = self._broker, self._broker.routes.computations
        broker.at(time.monotonic())
        passed = [_passed(one.message) for one in results]
        for one, message in zip(results, passed, strict=True):
            computations.hand_in(one.expression, one.number, one.payload, message)
        written = asyncio.get_running_loop().create_future()
        broker.commitments.in_turn(partial(_done, written))
        self._after_work()
        await written
        if broker.commitments.unavailable:
            raise Unfit(f"the node cannot write: {broker.commitments.unavailable}", "disk")


def _passed(message: HandedOn | None) -> PassedMessage | None:
    """Nothing that a client could not have published comes in this way."""
    if message is None:
        return None
    try:
        message.topic.decode()
        block = wire.variable(len(message.properties)) + message.properties
        _, properties, _ = prop.read_properties(block, 0, len(block), "PUBLISH", USER_PROPERTIES_MAX)
    except (ProtocolError, UnicodeDecodeError) as error:
        raise Unfit(f"no message that a client could have published: {error}", "request") from None
    is_name = is_topic_name(message.topic, TOPIC_LEVELS_MAX, TOPIC_BYTES_MAX)
    if not is_name or is_reserved(message.topic) or is_control(message.topic):
        raise Unfit("no message that a client could have published: its topic", "request")
    return PassedMessage(message.topic, message.qos, properties, message.expires_us / 1e6)


def _done(written: asyncio.Future[None]) -> None:
    if not written.done():  # as it is when the one who waited has gone
        written.set_result(None)
