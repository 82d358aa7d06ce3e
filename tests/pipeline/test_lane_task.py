"""What tasks do with their lanes, with real nodes and without Spark: results reach the nodes from the tasks, whoever
has a lane, whatever is run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from live.nodes import wait_until
from sterna.pipeline.errors import NodesMissing, PipelineError
from sterna.pipeline.expressions import lane_task
from sterna.pipeline.expressions.lane_task import LaneJob, LaneReport, take_lanes
from sterna.pipeline.expressions.parts_source import JobOptions, PartsReader
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.offsets import node_of
from sterna.pipeline.options import ReadOptions

from .feeding import FeedingNode

SPARKS = '[operators]\nengine = "spark"\nhourly_s = 1\nanchor = "wall"\n'
LANES = 3
TEXTS = ("$HOURLYCOUNT/t/a", "$HOURLYSUM/t/a", "$SUM/t/+", "$GT;1/t/+", "$GT;1/t/#", "$LT;1/t/+")
SOON_S = 120.0
StartFeeding = Callable[..., FeedingNode]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _workers_end() -> Iterator[None]:
    yield
    lane_task.leave()


class Stream:
    """Spark, as far as batches go: plans, has tasks read, shuffles by lane, has tasks take lanes."""

    def __init__(self, directory: Path, *nodes: FeedingNode, away_s: float = 60.0) -> None:
        self._directory, self._away_s = directory, away_s
        self.read(*nodes)
        self.offset: dict[str, Any] = self._reader.initialOffset()
        self.number = 0
        self.reports: list[LaneReport] = []
        self.lines: list[str] = []

    def read(self, *nodes: FeedingNode) -> None:
        """As a job that is started with these."""
        feeds = ",".join(node.feed for node in nodes)
        options = ReadOptions.parse({"nodes": feeds, "tasks": "2"}, streaming=True)
        registry = str(self._directory / "registry")
        job = JobOptions(registry, str(self._directory / "owed"), LANES, "run", self._away_s)
        self._job = LaneJob(str(self._directory / "lanes"), registry, LANES, options, False, "run")
        self._reader = PartsReader(options, job)

    def batch(self) -> Callable[[], None] | None:
        """Does the tasks of the next batch whenever it is called; None if there is nothing for a batch."""
        start, end, number = self.offset, self._reader.latestOffset(self.offset, ReadAllAvailable()), self.number
        if end == start:
            return None
        self.offset, self.number = end, number + 1

        def run() -> None:
            read = [batch for piece in self._reader.partitions(start, end) for batch in self._reader.read(piece)]
            rows = pa.Table.from_batches(read)
            self.reports = []
            for lane in range(LANES):
                mine = rows.filter(pa.array([one == lane for one in rows.column("lane").to_pylist()])).to_batches()
                for told in take_lanes(self._job, number, mine):
                    self.reports += [LaneReport(**report) for report in told.to_pylist()]
            self.lines += [line for report in self.reports for line in report.lines]

        return run

    def step(self) -> None:
        """A batch that fails is read again from its beginning."""
        before = self.offset, self.number
        run = self.batch()
        if run is not None:
            try:
                run()
            except NodesMissing:
                self.offset, self.number = before
                raise

    @property
    def owed(self) -> int:
        return sum(report.owed for report in self.reports)


def kept(node: FeedingNode) -> list[tuple[str, str, str]]:
    """Results in a node's journal: topic, number, payload."""
    with FeedClient(node.feed, "test") as feed:
        batches = feed.read(0, feed.status().next, columns=["topic", "properties", "payload"])
        rows = [row for batch in batches for row in batch.to_pylist()]
    return [
        (row["topic"], dict(row["properties"])["sterna-sequence"], row["payload"].decode())
        for row in rows
        if row["topic"].startswith("$")
    ]


def of(node: FeedingNode, topic: str) -> list[str]:
    return [payload for one, _, payload in kept(node) if one == topic]


def counted(node: FeedingNode, topic: str) -> float:
    return sum(map(float, of(node, topic)))


def test_tasks_hand_in_the_results_of_their_lanes_each_once(start_feeding: StartFeeding, tmp_path: Path) -> None:
    """Every batch is run twice, by the same worker or by another that knows nothing of the first."""
    node = start_feeding("a", SPARKS)
    stream = Stream(tmp_path, node)
    for number, text in enumerate(TEXTS):
        node.listen(f"c{number}", text)
    values = list(range(20))

    def publish_and_run() -> None:
        if values:
            node.publish("t/a", [values.pop(0)])
        run = stream.batch()
        if run is not None:
            run()
            if stream.number % 3 == 0:
                lane_task.leave()
            run()

    def is_complete() -> bool:
        publish_and_run()
        return not values and counted(node, "$HOURLYCOUNT/t/a") == 20 and counted(node, "$HOURLYSUM/t/a") == 190

    wait_until(is_complete, "all are counted", SOON_S)
    assert of(node, "$SUM/t/$A") == [f"{float(value)}" for value in range(20)]
    assert of(node, "$GT;1/t/a") == [str(value) for value in range(2, 20)]
    assert of(node, "$LT;1/t/a") == ["0"]
    results = [(topic, number) for topic, number, _ in kept(node)]
    assert len(results) == len(set(results))
    assert sum(report.expressions for report in stream.reports) == len(TEXTS)


def has_read(stream: Stream, node: FeedingNode) -> bool:
    with FeedClient(node.feed, "test") as feed:
        reached: dict[str, int] = {node_of(journal): offset for journal, offset in stream.offset["nodes"].items()}
        return reached[node.name] == feed.status().next


def test_results_for_a_node_that_is_away_wait_for_it_and_delay_nobody(
    start_feeding: StartFeeding, tmp_path: Path
) -> None:
    here, there = start_feeding("here", SPARKS), start_feeding("there", SPARKS)
    stream = Stream(tmp_path, here, there, away_s=0.0)
    for node in (here, there):
        node.listen("one", "$SUM/t/+")
    here.publish("t/a", [1])

    def have(here_has: list[str], there_has: list[str] | None) -> bool:
        stream.step()
        return of(here, "$SUM/t/$A") == here_has and (there_has is None or of(there, "$SUM/t/$A") == there_has)

    wait_until(lambda: have(["1.0"], ["1.0"]), "both are served", SOON_S)
    wait_until(lambda: have(["1.0"], ["1.0"]) and has_read(stream, there), "its own results are read, too", SOON_S)
    there.kill()
    here.publish("t/a", [2])
    wait_until(lambda: have(["1.0", "2.0"], None), "the other one is served", SOON_S)
    assert stream.owed == 1
    assert any("results for node there wait" in line for line in stream.lines)
    lane_task.leave()  # who gets the lane now was not there
    there.restart()
    there.listen("one", "$SUM/t/+")
    (tmp_path / "owed").touch()  # as the driver does
    wait_until(lambda: have(["1.0", "2.0"], ["1.0", "2.0"]), "it has got the rest", SOON_S)
    assert stream.owed == 0


def test_messages_that_are_older_than_closed_windows_are_told_and_count_once(
    start_feeding: StartFeeding, tmp_path: Path
) -> None:
    """Those of a node that joins later than it took them in."""
    here, there = start_feeding("here", SPARKS), start_feeding("there", SPARKS)
    here.listen("one", "$HOURLYCOUNT/t/a")
    there.publish("t/a", range(3))
    with FeedClient(there.feed, "test") as feed:
        (last_us,) = (batch.column("ingress_time").cast(pa.int64())[-1].as_py() for batch in feed.read(0, 3))
    stream = Stream(tmp_path, here)
    late: list[int] = []

    def stepped() -> Stream:
        stream.reports = []
        stream.step()
        late.append(sum(report.late for report in stream.reports))
        return stream

    here.publish("t/a", range(4))
    wait_until(lambda: stepped().offset["time_us"] > last_us and counted(here, "$HOURLYCOUNT/t/a") == 4, "4", SOON_S)
    assert sum(late) == 0
    stream.read(here, there)
    wait_until(lambda: stepped() is stream and counted(here, "$HOURLYCOUNT/t/a") == 7, "all are counted", SOON_S)
    assert sum(late) == 3


def test_a_lane_that_is_not_the_checkpoints_is_refused(start_feeding: StartFeeding, tmp_path: Path) -> None:
    node = start_feeding("a", SPARKS)
    node.listen("one", "$HOURLYCOUNT/t")  # each end of a window is reason enough for a batch
    stream = Stream(tmp_path, node)

    def next_batch() -> Callable[[], None]:
        run = None
        while run is None:
            run = stream.batch()
        return run

    for _ in range(3):
        next_batch()()
    for number, said in ((1, "batch 1 again"), (5, "batch 5")):
        stream.number = number
        run = next_batch()
        with pytest.raises(PipelineError, match=f"knows of 3 batches, and this is {said}"):
            run()
