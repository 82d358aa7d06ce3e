"""The cost of the feed to a node: CPU time for a row served, and memory while a reader lags behind.  Needs no Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from sterna.measure.figures import FigureRow
from sterna.measure.harness import meter
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.nodes import FeedNode, fill, publishing, reader_of, started_node
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.measure.workloads.pipeline.publisher import PublisherLoad
from sterna.pipeline.feed.client import FeedClient

CPU_US_MAX = 1.0
MEMORY_MAX = 1.1
READS = 3
FULL = PublisherLoad(messages=0, burst=4096)
SMALL = PublisherLoad(messages=0, window=2, burst=2)
LAG_RATE = 200_000
RETENTION_BYTES = 64 << 20
"""The journal keeps so much if nobody holds it: only the node with the lagging reader pays for the lag."""
LOOK_S = 0.1


def measure_cpu(plan: PipelinePlan) -> FigureRow:
    with started_node() as node:
        fill(node, _sized(FULL, plan.served_rows))
        costs = _costs(node, plan.served_rows)
    cost = median(costs)
    return FigureRow(
        name="cpu",
        summary=f"CPU time of the node for each of {plan.served_rows:,} rows of 100 bytes read from its feed, in full "
        "frames.",
        unit="us CPU/row",
        figure=cost,
        target=f"< {CPU_US_MAX:g}",
        verdict=verdict(cost < CPU_US_MAX),
        rounds=[(one, None) for one in costs],
    )


def measure_cpu_small(plan: PipelinePlan) -> FigureRow:
    # Where nothing waits for the disk, what arrives together makes a frame.
    with started_node(durability="os") as node:
        fill(node, _sized(SMALL, plan.served_small_rows))
        costs = _costs(node, plan.served_small_rows)
    return FigureRow(
        name="cpu-small",
        summary=f"the same for {plan.served_small_rows:,} rows in frames of two, as a quiet node writes them.",
        unit="us CPU/row",
        figure=median(costs),
        verdict="shown",
        rounds=[(one, None) for one in costs],
    )


def _sized(load: PublisherLoad, messages: int) -> PublisherLoad:
    return PublisherLoad(messages=messages, window=load.window, burst=load.burst)


def _costs(node: FeedNode, rows: int) -> list[float]:
    """Microseconds of the node's CPU time per row, for each of several reads of everything."""
    found = []
    with reader_of(node) as feed:
        for _ in range(READS):
            before = meter.cpu_ns(node.pid)
            read = sum(batch.num_rows for batch in feed.read(0, rows))
            assert read == rows, f"{read} of {rows} rows came"
            found.append((meter.cpu_ns(node.pid) - before) / 1000 / rows)
    return found


def measure_memory(plan: PipelinePlan) -> FigureRow:
    load = PublisherLoad(messages=plan.lag, rate=LAG_RATE)
    with started_node(retention_bytes=RETENTION_BYTES) as node, _watched(node) as kept_up:
        _follow(node, load)
    with started_node(retention_bytes=RETENTION_BYTES) as node, _watched(node) as lagging:
        _lag(node, load)
    ratio = max(lagging) / max(kept_up)
    return FigureRow(
        name="memory",
        summary=f"most resident memory of the node while {plan.lag:,} messages come in that a registered reader does "
        "not read, and while it reads them then, beside the same with a reader that keeps up.",
        unit="MiB",
        figure=max(lagging) / 1024,
        beside=max(kept_up) / 1024,
        ratio=ratio,
        target=f"<= {MEMORY_MAX:g}x",
        verdict=verdict(ratio <= MEMORY_MAX),
    )


@contextmanager
def _watched(node: FeedNode) -> Iterator[list[int]]:
    """KiB of resident memory, again and again while the block lasts."""
    seen = [meter.resident_kib(node.pid)]
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            seen.append(meter.resident_kib(node.pid))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def _follow(node: FeedNode, load: PublisherLoad) -> None:
    with reader_of(node) as feed, publishing(node, load) as publisher:
        reached = feed.register(0)
        while reached < load.messages and not publisher.is_over:
            reached = _read_on(feed, reached)
        publisher.result()


def _lag(node: FeedNode, load: PublisherLoad) -> None:
    with reader_of(node) as feed:
        reached = feed.register(0)
        fill(node, load)
        while reached < load.messages:
            reached = _read_on(feed, reached)


def _read_on(feed: FeedClient, start: int) -> int:
    stop = feed.status(beyond=start, wait_ms=1000).next
    for _ in feed.read(start, stop):
        pass
    return feed.commit(stop)
