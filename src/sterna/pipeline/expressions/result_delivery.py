"""Hands results in to the nodes that wait for them, from the task that has made them.

A result is owed until the node's journal has it.  A node drops results it already has, so after a crash all uncertain
results are handed in again.  A task waits for a slow node; a node that is away delays no other, and its results wait in
the state of the lane for a later batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from sterna.pipeline.errors import NodesMissing
from sterna.pipeline.expressions.part_merge import ExpressionResult
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.feed.errors import FeedError, FeedRefused
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.nodes import open_feed, survey

OWED_MAX, OWED_BYTES_MAX = 100_000, 256 * 1024 * 1024
"""Results of a lane that wait for one node; with more than that, a node that is away loses the oldest."""
AT_ONCE, BYTES_AT_ONCE = 1000, 8 * 1024 * 1024
AGAIN_S = 0.5
NODES_AT_ONCE = 16

Tell = Callable[[str], None]


class OwedResults:
    """Results that nodes are not known to have, in order."""

    def __init__(self) -> None:
        self.by_node: dict[str, deque[ExpressionResult]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_node.values()))

    def add(self, results: Iterable[ExpressionResult]) -> None:
        for result in results:
            self.by_node.setdefault(result.node, deque()).append(result)

    def all(self) -> list[ExpressionResult]:
        return [result for owed in self.by_node.values() for result in owed]

    def keep(self, waiting: Collection[str] | None) -> None:
        """Other nodes have taken all of theirs, if anybody knows."""
        if waiting is not None:
            self.by_node = {node: owed for node, owed in self.by_node.items() if node in waiting}

    def lose_oldest(self) -> dict[str, int]:
        """How many of which node, where there are more than may wait."""
        lost = {}
        for node, owed in self.by_node.items():
            size, before = sum(result.size for result in owed), len(owed)
            while len(owed) > OWED_MAX or size > OWED_BYTES_MAX:
                size -= owed.popleft().size
            if len(owed) < before:
                lost[node] = before - len(owed)
        return lost


class NodeDelivery:
    """One node's."""

    def __init__(self, node: str, options: ReadOptions) -> None:
        self._node = node
        self._options = options
        self._feed: FeedClient | None = None
        self._not_before_s = 0.0
        #: Why its results wait, if they do.
        self.trouble = ""

    def hand_in(self, owed: deque[ExpressionResult]) -> None:
        """As many as it takes; one that has just kept us waiting in vain is left alone for as long."""
        begun_s = time.monotonic()
        if begun_s < self._not_before_s:
            return
        self.trouble = ""
        while owed and not self.trouble:
            some = list(islice(_fitting(owed), AT_ONCE))
            if self._deliver(some):
                for _ in some:
                    owed.popleft()
        if owed:
            ended_s = time.monotonic()
            self._not_before_s = ended_s + max(AGAIN_S, ended_s - begun_s)

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
            if error.code == "operators":
                return True
            self.trouble = str(error)
        except (FeedError, NodesMissing) as error:
            self.close()  # it may come back elsewhere
            self.trouble = str(error)
        return not self.trouble

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None


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
    """Of one process, to all nodes; connections are kept."""

    def __init__(self, options: ReadOptions, tell: Tell) -> None:
        self._options = options
        self._tell = tell
        self._by_node: dict[str, NodeDelivery] = {}
        self._told: dict[str, str] = {}

    def hand_in(self, owed: OwedResults) -> list[str]:
        """Comes back with the names of nodes that have not taken everything."""
        waiting = [node for node, some in owed.by_node.items() if some]
        those = [self._by_node.setdefault(node, NodeDelivery(node, self._options)) for node in waiting]
        if len(those) == 1:
            those[0].hand_in(owed.by_node[waiting[0]])
        elif those:
            with ThreadPoolExecutor(min(NODES_AT_ONCE, len(those))) as pool:
                list(pool.map(NodeDelivery.hand_in, those, [owed.by_node[node] for node in waiting]))
        for node, one in zip(waiting, those, strict=True):
            if one.trouble and one.trouble != self._told.get(node):
                self._tell(f"results for node {node} wait: {one.trouble}")
            self._told[node] = one.trouble
        for node, lost in owed.lose_oldest().items():
            self._tell(
                f"node {node} is away, and {lost} results for it are lost: "
                f"{OWED_MAX} wait already, or {OWED_BYTES_MAX} bytes"
            )
        owed.by_node = {node: some for node, some in owed.by_node.items() if some}
        return list(owed.by_node)

    def close(self) -> None:
        for one in self._by_node.values():
            one.close()
