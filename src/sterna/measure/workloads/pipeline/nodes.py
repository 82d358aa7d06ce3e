"""Nodes with a feed for the benchmark, and the process that publishes to them.

Both end with the block they were started in, and die with this process if that is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sterna.journal.settings import Durability
from sterna.measure.harness.brokers import started, sterna
from sterna.measure.harness.node_tables import Tables, merged
from sterna.measure.harness.ports import free_port
from sterna.measure.harness.processes import WorkerProcess
from sterna.measure.load.shapes import Idle, Workload
from sterna.measure.workloads.pipeline.publisher import Published, PublisherJob, PublisherLoad
from sterna.pipeline.feed.client import FeedClient

GRACE_S = 120.0
"""Beyond what a load takes at its rate: connecting, and a node that is slower than that."""
SLOWEST_RATE = 5_000
"""Messages a second at which a load without a rate is given up."""
HOLD_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class FeedNode:
    pid: int
    port: int
    feed: str


@contextmanager
def started_node(
    name: str = "bench",
    durability: Durability = "fsync",
    retention_bytes: int = HOLD_BYTES,
    tables: Tables | None = None,
) -> Iterator[FeedNode]:
    """A node with an empty journal.  Its journal keeps everything that a registered reader has not committed.
    `tables` are further ones of its configuration."""
    feed = f"127.0.0.1:{free_port()}"
    plain: Tables = {
        "node": {"name": name},
        "journal": {"durability": durability, "retention_bytes": retention_bytes},
        "feed": {"bind": feed, "hold_bytes": HOLD_BYTES},
    }
    workload = Workload("feed", "a node that is read", Idle(connections=0, before=0))
    with started(sterna(merged(plain, tables or {})), workload, core=None) as running:
        yield FeedNode(running.pid, running.port, feed)


class Publishing:
    """A publisher at work."""

    def __init__(self, node: FeedNode, load: PublisherLoad) -> None:
        self._load = load
        self._worker = WorkerProcess(
            "sterna.measure.workloads.pipeline.publisher", PublisherJob(port=node.port, load=load)
        )

    @property
    def is_over(self) -> bool:
        return self._worker.is_over

    def result(self) -> Published:
        """Waits for its end."""
        within_s = self._load.messages / (self._load.rate or SLOWEST_RATE) + GRACE_S
        return self._worker.result(Published, "the publisher", within_s)

    def stop(self) -> None:
        self._worker.stop()


@contextmanager
def publishing(node: FeedNode, load: PublisherLoad) -> Iterator[Publishing]:
    one = Publishing(node, load)
    try:
        yield one
    finally:
        one.stop()


def fill(node: FeedNode, load: PublisherLoad) -> Published:
    """Publish, and come back when everything is acknowledged."""
    with publishing(node, load) as one:
        return one.result()


def reader_of(node: FeedNode, name: str = "bench") -> FeedClient:
    return FeedClient(node.feed, name)
