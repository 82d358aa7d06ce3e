"""Each job of the pipeline on a cluster, and each part that may die: every result is there exactly once.

`make test` takes a few of the pairs, `make soak` all of them (STERNA_KILL_PAIRS=all).  Each kill falls within the work:
a task has read messages, and the batch is not committed, or no answer printed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.feed.client import FeedClient

from .cluster import ENVIRONMENT, QUICK_JVM, SparkCluster
from .driving import Driver
from .feeding import FeedingNode
from .gating import ADMIN, BatchGate, kill_while_it_reads
from .test_jobs import sterna
from .test_operators_job import came_twice, results_kept

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOON_S = 240.0
MESSAGES = 25
"""At each of two nodes, at a time."""
COUNT = "$HOURLYCOUNT/t"
NODE = f'{ADMIN}[journal]\ndeliveries = true\n[operators]\nengine = "spark"\nhourly_s = 2\nanchor = "wall"\n'


class World:
    """A node with a listener, which lives, and one that may be killed."""

    def __init__(self, directory: Path, near: FeedingNode, far: FeedingNode, cluster: SparkCluster) -> None:
        self.directory, self.near, self.far, self.cluster = directory, near, far, cluster
        self.sent = 0
        near.listen("listener", "t")

    @property
    def feeds(self) -> str:
        return f"{self.near.feed},{self.far.feed}"

    def publish(self) -> None:
        for node in (self.near, self.far):
            node.publish("t", range(self.sent, self.sent + MESSAGES))
            self.sent += MESSAGES

    def command(self, *words: str) -> list[str]:
        quick = ("--conf", f"spark.executor.extraJavaOptions={QUICK_JVM}")
        return sterna(*words, "--nodes", self.feeds, *quick, master=self.cluster.master)


class StreamJob:
    """A query with a checkpoint, and the numbers that it has made of the payloads 0, 1, 2, ..."""

    checkpoint = "checkpoint"
    rows = 1

    def __init__(self, kind: str, world: World) -> None:
        program = str(Path(__file__).with_name("killed_queries.py"))
        words = (kind, str(world.directory), world.feeds, world.far.broker, world.cluster.master)
        self.kind, self.world, self.words = kind, world, [sys.executable, program, *words]

    def found(self) -> list[int]:
        return sorted(int(payload) for payload in getattr(self, f"_{self.kind}")())

    def _files(self) -> Iterator[bytes]:
        for batch in sorted((self.world.directory / "files/_spark_metadata").glob("[0-9]*")):
            for line in batch.read_text().splitlines()[1:]:
                yield from _payloads(Path(json.loads(line)["path"].removeprefix("file://")))

    def _foreachBatch(self) -> Iterator[bytes]:  # as the kind is called
        for batch in self.world.directory.glob("checkpoint/commits/[0-9]*"):
            for file in (self.world.directory / "batches" / batch.name).glob("*.parquet"):
                yield from _payloads(file)

    def _sink(self) -> Iterator[bytes]:
        with suppress(OSError), FeedClient(self.world.far.feed, "test") as feed:
            for batch in feed.read(0, feed.status().next, ["out"], columns=["payload"]):
                yield from batch.column("payload").to_pylist()

    def is_complete(self) -> bool:
        return len(self.found()) >= self.world.sent

    def check(self) -> None:
        assert self.found() == list(range(self.world.sent))


def _payloads(file: Path) -> list[bytes]:
    found: list[bytes] = pq.read_table(file, columns=["payload"], partitioning=None).column("payload").to_pylist()
    return found


class OperatorsJob:
    checkpoint = "job/checkpoint"
    rows = MESSAGES  # its driver reads a message now and then

    def __init__(self, _kind: str, world: World) -> None:
        world.near.listen("counting", COUNT)
        self.world, self.words = world, world.command("operators", str(world.directory / "job"))

    def _counted(self) -> float:
        with FeedClient(self.world.near.feed, "test") as feed:
            batches = feed.read(0, feed.status().next, columns=["topic", "payload"])
            rows = [row for batch in batches for row in batch.to_pylist()]
        return sum(float(row["payload"]) for row in rows if row["topic"] == COUNT)

    def is_complete(self) -> bool:
        return self._counted() >= self.world.sent

    def check(self) -> None:
        assert self._counted() == self.world.sent
        assert came_twice(results_kept(self.world.near)) == []


class ArchiveJob:
    """With merging after each few batches, which may be what the kill falls into as well."""

    checkpoint = "archive/checkpoint"
    rows = 1

    def __init__(self, _kind: str, world: World) -> None:
        self.world, self.files = world, ArchiveFiles(world.directory / "archive")
        words = ("--topics", "t", "--every", "0.1", "--merge-at", "8")
        self.words = world.command("archive", self.files.place, *words)

    def found(self) -> list[int]:
        if not self.files.exists():
            return []
        root = Path(self.files.storage.address)
        return sorted(int(payload) for one in self.files.state().files for payload in _payloads(root / one.path))

    def is_complete(self) -> bool:
        return len(self.found()) >= self.world.sent

    def check(self) -> None:
        assert self.found() == list(range(self.world.sent))


def counted_by_evaluate(said: str) -> int:
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return int(max((float(row["payload"]) for row in rows), default=0))


def counted_by_audit(said: str) -> int:
    """At both nodes: the listener at one of them had to get all."""
    found = re.search(r"^\{$.*?^\}$", said, re.MULTILINE | re.DOTALL)
    rows = json.loads(found[0])["subscriptions"] if found else []
    return sum(2 * row["delivered"] for row in rows if row["client"] == "listener" and row["expected"])


def counted_by_query(said: str) -> int:
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return int(rows[-1]["messages"]) if rows else 0


#: Jobs that read once and print an answer: a driver that dies is asked again.
QUESTIONS: dict[str, tuple[list[str], Callable[[str], int]]] = {
    "evaluate": (["evaluate", "$TMPCOUNT;1:00:00/t", "--output", "json", "--limit", "100000"], counted_by_evaluate),
    "audit": (["audit", "--json"], counted_by_audit),
    "query": (
        ["query", "select count(distinct payload) as messages from messages where topic = 't'", "--output", "json"],
        counted_by_query,
    ),
}
STREAMS: dict[str, Callable[[str, World], StreamJob | OperatorsJob | ArchiveJob]] = {
    "files": StreamJob,
    "foreachBatch": StreamJob,
    "sink": StreamJob,
    "operators": OperatorsJob,
    "archive": ArchiveJob,
}
VICTIMS = ("driver", "executor", "worker", "node")
ASKED = [("evaluate", "executor")]
PAIRS = [("files", "worker"), ("foreachBatch", "executor"), ("sink", "driver"), ("sink", "node")]
if os.environ.get("STERNA_KILL_PAIRS") == "all":
    PAIRS, ASKED = list(product(STREAMS, VICTIMS)), list(product(QUESTIONS, VICTIMS))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def world(start_feeding: Callable[..., FeedingNode], cluster: SparkCluster, tmp_path: Path) -> World:
    cluster.mend()
    return World(tmp_path, start_feeding("near", NODE), start_feeding("far", NODE), cluster)


def victim_of(name: str, world: World, driver: Driver) -> Callable[[], None]:
    """One that has something to lose."""
    if name in ("driver", "node"):
        return driver.kill if name == "driver" else world.far.kill
    at_work = next(worker for worker in world.cluster.workers if worker.executors())
    return at_work.kill if name == "worker" else at_work.kill_executor


@pytest.mark.parametrize(("kind", "victim"), PAIRS)
def test_each_result_is_there_once_whatever_dies(kind: str, victim: str, world: World) -> None:
    job = STREAMS[kind](kind, world)
    gate = BatchGate(world.directory / job.checkpoint, (world.near, world.far), job.rows)
    log = world.directory / "said"

    def publish_now_and_then() -> None:
        world.publish()
        threading.Event().wait(0.5)

    with Driver(job.words, log, ENVIRONMENT) as driver:
        gate.kill(driver, lambda: victim_of(victim, world, driver)(), publish_now_and_then, SOON_S)
        if victim == "node":
            world.far.restart()
        world.publish()
        if victim != "driver":
            driver.wait_until(job.is_complete, "everything is there", SOON_S)
    if victim == "driver":
        with Driver(job.words, log, ENVIRONMENT) as driver:
            driver.wait_until(job.is_complete, "everything is there", SOON_S)
    assert len(gate.hit) == 1
    job.check()


@pytest.mark.parametrize(("kind", "victim"), ASKED)
def test_an_answer_is_complete_whatever_dies(kind: str, victim: str, world: World) -> None:
    words, counted = QUESTIONS[kind]
    command, log = world.command(*words), world.directory / "said"
    for _ in range(4):
        world.publish()
    with Driver(command, log, ENVIRONMENT) as driver:
        kill_while_it_reads(driver, (world.near, world.far), lambda: victim_of(victim, world, driver)(), SOON_S)
        assert not counted(log.read_text()), "it had answered already"
        if victim == "node":
            world.far.restart()
        if victim != "driver":
            driver.wait_until(driver.is_done, "it answers", SOON_S)
    if victim == "driver":
        with Driver(command, log, ENVIRONMENT) as driver:
            driver.wait_until(driver.is_done, "it answers", SOON_S)
    assert counted(log.read_text()) == world.sent
