"""Nodes with a feed for the benchmark, and the process that publishes to them.

Both end with the block they were started in, and die with this process if that is killed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sterna.journal.settings import Durability
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import STERNA, started, tie_to_parent
from sterna.measure.harness.ports import free_port
from sterna.measure.load.shapes import Idle, Workload
from sterna.measure.workloads.pipeline.publisher import Load, Published
from sterna.pipeline.feed.client import FeedClient

GRACE_S = 120.0
"""Beyond what a load takes at its rate: connecting, and a node that is slower than that."""
SLOWEST_RATE = 5_000
"""Messages a second at which a load without a rate is given up."""
HOLD_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class Node:
    pid: int
    port: int
    feed: str


@contextmanager
def started_node(
    name: str = "bench", durability: Durability = "fsync", retention_bytes: int = HOLD_BYTES, tables: str = ""
) -> Iterator[Node]:
    """A node with an empty journal.  What a registered reader has not committed is kept whatever its retention.
    `tables` are further ones of its configuration."""
    feed = f"127.0.0.1:{free_port()}"

    def settings(workload: Workload, port: int, directory: Path) -> str:
        plain = STERNA.settings(workload, port, directory).replace('name = "bench"', f'name = "{name}"')
        plain = plain.replace("[journal]\n", f"[journal]\nretention_bytes = {retention_bytes}\n")
        plain = plain.replace(f'durability = "{workload.durability}"', f'durability = "{durability}"')
        return f'{plain}[feed]\nbind = "{feed}"\nhold_bytes = {HOLD_BYTES}\n{tables}'

    workload = Workload("feed", "a node that is read", Idle(connections=0, before=0), durability="fsync")
    with started(replace(STERNA, settings=settings), workload, core=None) as running:
        yield Node(running.pid, running.port, feed)


class Publishing:
    """A publisher at work."""

    def __init__(self, node: Node, load: Load) -> None:
        self._load = load
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "sterna.measure.workloads.pipeline.publisher",
                str(node.port),
                msgspec.json.encode(load),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: tie_to_parent(None),
        )

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> Published:
        """Waits for its end."""
        try:
            told, complaint = self._process.communicate(
                timeout=self._load.messages / (self._load.rate or SLOWEST_RATE) + GRACE_S
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError("the publisher did not finish in time") from None
        if self._process.returncode:
            raise MeasurementError(f"the publisher failed: {complaint.decode(errors='replace').strip()}")
        return msgspec.json.decode(told, type=Published)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def publishing(node: Node, load: Load) -> Iterator[Publishing]:
    one = Publishing(node, load)
    try:
        yield one
    finally:
        one.stop()


def fill(node: Node, load: Load) -> Published:
    """Publish, and come back when everything is acknowledged."""
    with publishing(node, load) as one:
        return one.result()


def reader_of(node: Node, name: str = "bench") -> FeedClient:
    return FeedClient(node.feed, name)
