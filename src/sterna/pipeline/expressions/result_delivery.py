"""Delivers results to the nodes that wait for them: one thread and one queue per node, in order.

A result leaves its queue when the node's journal has it.  A node drops results it already has, so after a crash all
uncertain results are handed in again.  Delivery waits for a slow node (`make_room`); a node that is away delays no
other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from sterna.pipeline.errors import NodesMissing
from sterna.pipeline.expressions.part_merge import ExpressionResult
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.feed.errors import FeedError, FeedRefused
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.nodes import open_feed, survey

OWED_MAX, OWED_BYTES_MAX = 100_000, 256 * 1024 * 1024
"""Results that wait for one node; with more than that, a node that is away loses the oldest."""
AT_ONCE, BYTES_AT_ONCE = 1000, 8 * 1024 * 1024
AGAIN_S = 0.5

Tell = Callable[[str], None]


class NodeDelivery:
    """One node's."""

    def __init__(self, node: str, options: ReadOptions, tell: Tell) -> None:
        self._node = node
        self._options = options
        self._tell = tell
        self._trouble = ""
        self._lock = threading.Condition()
        self._owed: deque[ExpressionResult] = deque()
        self._bytes = 0
        self._feed: FeedClient | None = None
        threading.Thread(target=self._run, name=f"results for {node}", daemon=True).start()

    def add(self, results: Iterable[ExpressionResult]) -> None:
        lost = 0
        with self._lock:
            for result in results:
                self._owed.append(result)
                self._bytes += result.size
            while self._trouble and not self._has_room():
                self._bytes -= self._owed.popleft().size
                lost += 1
            self._lock.notify_all()
        if lost:
            self._tell(
                f"node {self._node} is away, and {lost} results for it are lost: "
                f"{OWED_MAX} wait already, or {OWED_BYTES_MAX} bytes"
            )

    def _has_room(self) -> bool:
        return len(self._owed) <= OWED_MAX and self._bytes <= OWED_BYTES_MAX

    def owed(self) -> list[ExpressionResult]:
        with self._lock:
            return list(self._owed)

    def wait_empty(self, within_s: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: not self._owed, within_s)

    def make_room(self) -> None:
        """Come back when it is not too much that waits, or nobody knows for how long it will."""
        with self._lock:
            self._lock.wait_for(lambda: self._has_room() or self._trouble)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._owed)
                some = list(islice(_fitting(self._owed), AT_ONCE))
            if not self._deliver(some):
                time.sleep(AGAIN_S)
                continue
            with self._lock:
                had = set(map(id, some))
                while self._owed and id(self._owed[0]) in had:
                    self._bytes -= self._owed.popleft().size
                self._lock.notify_all()

    def _deliver(self, some: list[ExpressionResult]) -> bool:
        """Does the node have them, or not want them?"""
        try:
            if self._feed is None:
                found = survey(self._options.access, self._options.nodes, all_of_them=False).get(self._node)
                if found is None:
                    raise NodesMissing(f"node {self._node} is away")
                self._feed = open_feed(self._options.access, found.address)
            self._feed.hand_in([_said(one) for one in some])
        except FeedRefused as error:
            self._say(str(error))
            return error.code == "operators"
        except (FeedError, NodesMissing) as error:
            self._feed = None  # it may come back elsewhere
            self._say(str(error))
            return False
        self._trouble = ""
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            with self._lock:
                self._trouble = trouble
                self._lock.notify_all()
            self._tell(f"results for node {self._node} wait: {trouble}")


def _said(one: ExpressionResult) -> tuple[object, ...]:
    if not one.topic:
        return one.text, one.number, one.payload
    return one.text, one.number, one.payload, (one.topic, one.qos, one.properties, one.expires_us)


def _fitting(owed: Iterable[ExpressionResult]) -> Iterator[ExpressionResult]:
    """The first ones, as many as go into a request."""
    size = 0
    for number, one in enumerate(owed):
        size += one.size
        if number and size > BYTES_AT_ONCE:
            return
        yield one


class ResultDelivery:
    def __init__(self, options: ReadOptions, tell: Tell) -> None:
        self._options = options
        self._tell = tell
        self._by_node: dict[str, NodeDelivery] = {}

    def add(self, results: Iterable[ExpressionResult]) -> None:
        by_node: dict[str, list[ExpressionResult]] = {}
        for result in results:
            by_node.setdefault(result.node, []).append(result)
        for node, some in by_node.items():
            if node not in self._by_node:
                self._by_node[node] = NodeDelivery(node, self._options, self._tell)
            self._by_node[node].add(some)

    def owed(self) -> list[ExpressionResult]:
        return [result for one in self._by_node.values() for result in one.owed()]

    def make_room(self) -> None:
        for one in self._by_node.values():
            one.make_room()

    def wait_empty(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        return all(one.wait_empty(max(0.0, deadline - time.monotonic())) for one in self._by_node.values())
