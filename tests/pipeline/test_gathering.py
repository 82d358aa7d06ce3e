"""Tasks, registry and gathering, without Spark: what they make of any stream is what a node's engine and the reference
make of it, whatever is late, restarted or run again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from operators.expression_making import RULES, SHORT, SHORT_BY_THE_WALL, SINCE_US, TEXT_RULES, Event, streams, windowed
from sterna.mqtt.topics import levels_of, matches
from sterna.operators.engine import Engine
from sterna.operators.expression import Expression
from sterna.operators.reference import Reference
from sterna.operators.settings import Settings
from sterna.pipeline import gathering as gathering_module
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.feed_client import Wanted
from sterna.pipeline.gathering import Batch, Gathering, GatheringFiles, Result
from sterna.pipeline.matching import COLUMNS, Matcher
from sterna.pipeline.registry import Beginning, Registry, RegistryFiles
from sterna.pipeline.table import schema_of

Message = tuple[int, bytes, bytes]


def batch_of(messages: list[Message]) -> pa.RecordBatch:
    times, topics, payloads = zip(*messages, strict=True) if messages else ((), (), ())
    columns = [pa.array([one.decode() for one in topics], pa.string()), pa.array(payloads, pa.binary())]
    instants = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays([*columns, instants], schema=schema_of(COLUMNS))


_open: list[Job] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def close_all() -> None:
    for job in _open:
        job.files.close()
    _open.clear()


class Job:
    """What the driver does, and how it comes back after it was killed."""

    def __init__(self, directory: Path) -> None:
        self.registries = RegistryFiles(str(directory / "registry"))
        self.files = GatheringFiles(directory / "state", self.registries.load)
        self.gathering = Gathering()
        self.redone = self.files.load(self.gathering)
        _open.append(self)

    def take(self, batch: Batch) -> list[Result]:
        if batch.number <= self.files.last_batch:
            return []
        results = self.files.take(self.gathering, batch, lambda _results: None)
        if self.files.is_snapshot_due:
            self.files.snapshot(self.gathering, [])
        return results


def answers(
    expression: Expression, chosen: Settings, since_us: int, messages: list[Message], end_us: int
) -> list[tuple[int, bytes]]:
    """By a node's engine, held against the reference."""
    engine, reference = Engine(expression, chosen, since_us), Reference(expression, chosen, since_us)
    found, expected = [], []
    levels = levels_of(expression.topic_filter)
    for time_us, topic, payload in messages:
        if time_us >= since_us and matches(levels, levels_of(topic)):
            result = engine.message(topic, payload, time_us)
            found += [] if result is None else [(engine.result_us, result)]
            expected += reference.message(topic, payload, time_us)
    result = engine.advance(end_us)
    found += [] if result is None else [(engine.result_us, result)]
    assert [payload for _, payload in found] == expected + reference.advance(end_us)
    return found


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(windowed([*RULES, *TEXT_RULES]), min_size=1, max_size=4, unique_by=lambda one: one.text).flatmap(
        lambda some: st.tuples(st.just(some), streams(some[0]))
    ),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_all_engines_give_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[list[Expression], list[Event]],
    seed: int,
    by_the_wall: bool,
) -> None:
    """Two nodes with streams of their own; expressions that come while it runs; batches cut anywhere; the driver killed
    before, between and after its two writes, with the batch run again or not."""
    some, events = drawn
    chosen, dice = SHORT_BY_THE_WALL if by_the_wall else SHORT, random.Random(seed)
    directory = tmp_path_factory.mktemp("job")
    messages = in_order(events)
    assume(messages)
    job, registry, got = Job(directory), Registry(), []
    since = {expression.text: SINCE_US + dice.choice((0, 3_000_000)) for expression in some}
    coming = list(since.items())
    here: list[tuple[bytes, int]] = []
    past: list[Message] = []
    end_us, number = messages[-1][0] + 100_000_000, 0
    while messages or coming:
        come = dice.randint(0, 2)
        here, coming = here + coming[:come], coming[come:]
        before, registry = registry, registry.told("a", 1, len(here), Wanted(chosen, list(here)), Beginning())
        if registry.edition != before.edition:
            job.registries.keep(registry)
        time_us = dice.choice(messages)[0] + 1 if messages else end_us
        due = [message for message in messages if message[0] < time_us]
        messages = messages[len(due) :]
        rows = task(registry, due, dice)
        known = {entry.number for entry in before.entries}
        # New ones get what was read before anybody knew of them.
        rows += [row for row in task(registry, past, dice) if row[0] not in known]
        past += due
        dice.shuffle(rows)
        job, results = taken(job, directory, Batch(number, registry.edition, time_us - 1, rows), dice)
        number += 1
        got += results
    got += job.take(Batch(number, registry.edition, end_us, []))
    close_all()
    for expression in some:
        found = dict.fromkeys((one.end_us, one.payload) for one in got if one.text == expression.text)
        assert list(found) == answers(expression, chosen, since[expression.text], past, end_us)


def taken(job: Job, directory: Path, batch: Batch, dice: random.Random) -> tuple[Job, list[Result]]:
    """A batch, and perhaps a kill: what was made before is made again, and the same."""
    results = job.take(batch)
    if dice.random() < 0.3:
        job.files.close()
        job = Job(directory)
        results = job.redone + job.take(batch)
    return job, results


def task(registry: Registry, messages: list[Message], dice: random.Random) -> list[tuple[int, int, bytes]]:
    """By several tasks, each with rows in some order."""
    shares: list[list[Message]] = [[] for _ in range(dice.randint(1, 3))]
    for message in messages:
        dice.choice(shares).append(message)
    matcher = Matcher(registry.entries)
    return [row for share in shares if share for rows in matcher.parts([batch_of(share)]) for row in rows]


def in_order(events: list[Event]) -> list[Message]:
    time_us, found = SINCE_US, []
    for event in events:
        time_us = max(SINCE_US, time_us + event.passed_us)
        if event.topic:
            found.append((time_us, event.topic, event.payload))
    return sorted(found, key=lambda message: message[0])


@pytest.fixture
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering_module, "SNAPSHOT_BATCHES", 2)


def started(directory: Path, *texts: bytes) -> tuple[Job, Registry]:
    job = Job(directory)
    wanted = Wanted(Settings(hourly_s=10, anchor="wall"), [(text, 0) for text in texts])
    registry = Registry().told("a", 1, 1, wanted, Beginning())
    job.registries.keep(registry)
    return job, registry


def part(registry: Registry, time_us: int, payload: bytes) -> list[tuple[int, int, bytes]]:
    return Matcher(registry.entries).parts_of(batch_of([(time_us, b"t", payload)]))


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_a_torn_batch_is_cut_and_taken_again(tmp_path: Path, cut: int, small_snapshots: None) -> None:
    job, registry = started(tmp_path, b"$HOURLYSUM/t")
    for number in range(5):
        job.take(Batch(number, 1, number, part(registry, number, b"1")))
    job.files.close()
    log = tmp_path / "state/batches-3"
    log.write_bytes(log.read_bytes()[: -cut or None])
    job = Job(tmp_path)
    assert job.files.last_batch == (3 if cut else 4)
    job.take(Batch(4, 1, 4, part(registry, 4, b"1")))
    results = job.take(Batch(5, 1, 10_000_000, []))
    assert results == [Result("a", b"$HOURLYSUM/t", 10_000_000, b"5.0")]


def test_a_state_that_is_not_the_checkpoints_is_refused(tmp_path: Path) -> None:
    job, registry = started(tmp_path, b"$HOURLYSUM/t")
    with pytest.raises(PipelineError, match="knows of 0 batches, and this is batch 3"):
        job.take(Batch(3, 1, 3, part(registry, 3, b"1")))


def test_what_is_owed_stays_owed_over_a_snapshot(tmp_path: Path) -> None:
    job, registry = started(tmp_path, b"$HOURLYSUM/t")
    results = job.take(Batch(0, 1, 10_000_000, part(registry, 3, b"1")))
    job.files.snapshot(job.gathering, results)
    job.files.close()
    assert Job(tmp_path).redone == results != []


def test_a_window_that_is_not_there_wholly_is_left_out_and_said(tmp_path: Path) -> None:
    lines: list[str] = []
    wanted = Wanted(Settings(hourly_s=10, anchor="wall"), [(b"$HOURLYSUM/t", 0)])
    registry = Registry().told("a", 1, 1, wanted, Beginning((), 15_000_000))
    gathering = Gathering(lines.append)
    rows = [row for time_us in (5, 16_000_000, 20_000_000) for row in part(registry, time_us, b"1")]
    results = gathering.close(registry, 30_000_000, rows)
    assert [(one.end_us, one.payload) for one in results] == [(30_000_000, b"1.0")]
    assert len(lines) == 2


def test_what_stops_is_said_once(tmp_path: Path) -> None:
    lines: list[str] = []
    wanted = Wanted(Settings(hourly_s=10, anchor="wall", topics=1), [(b"$HOURLYSUM/+", 0)])
    registry = Registry().told("a", 1, 1, wanted, Beginning())
    gathering = Gathering(lines.append)
    rows = Matcher(registry.entries).parts_of(batch_of([(1, b"t", b"1"), (1, b"u", b"1")]))
    assert gathering.close(registry, 10_000_000, rows) == []
    assert gathering.close(registry, 90_000_000, rows) == []
    assert lines == ["$HOURLYSUM/+ of node a has stopped: more than 1 topics"]


@pytest.mark.parametrize(
    ("epoch", "since_us", "number", "edition"),
    [(1, 5, 0, 1), (1, 6, 1, 2), (2, 6, 0, 1)],
    ids=["unchanged", "subscribed again", "the node was killed"],
)
def test_who_is_the_same_subscription(epoch: int, since_us: int, number: int, edition: int) -> None:
    before = Registry().told("a", 1, 1, Wanted(Settings(), [(b"$HOURLYSUM/t", 5)]), Beginning())
    after = before.told("a", epoch, 2, Wanted(Settings(), [(b"$HOURLYSUM/t", since_us)]), Beginning())
    assert [(entry.number, entry.node) for entry in after.entries] == [(number, "a")]
    assert (after.edition, after.entries[0].since_us) == (edition, 5 if number == 0 else 6)
    # A node that told of something once more tells it in the same words.
    again = after.told("a", epoch, 3, Wanted(Settings(), [(b"$HOURLYSUM/t", since_us)]), Beginning())
    assert again.edition == after.edition


def test_an_edition_that_is_gone_is_said(tmp_path: Path) -> None:
    files = RegistryFiles(str(tmp_path))
    for edition in (1, 2, 3):
        files.keep(Registry(edition))
    files.forget_before(3)
    assert files.newest().edition == 3
    with pytest.raises(PipelineError, match="edition 2 cannot be read"):
        files.load(2)


def test_nothing_is_computed_of_nothing() -> None:
    assert list(Matcher(()).parts([batch_of([(1, b"t", b"1")])])) == [[]]
    assert list(Matcher(()).parts([])) == []


def test_a_task_takes_no_message_that_no_expression_matches() -> None:
    """Nodes send some of those, too; results of expressions are among them."""
    registry = Registry().told("a", 1, 1, Wanted(SHORT, [(b"$HOURLYCOUNT/#", 0)]), Beginning())
    rows = batch_of([(1, b"t", b"1"), (1, b"$HOURLYCOUNT/$ALL", b"1"), (1, b"$SYS/x", b"1")])
    ((number, _, part),) = Matcher(registry.entries).parts_of(rows)
    assert (number, msgspec.msgpack.decode(part)) == (0, [[b"t", 1]])
