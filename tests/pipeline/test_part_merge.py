"""Tasks, registry and part merge, without Spark: what they make of any stream is what a node's engine and the reference
make of it, whatever is late, restarted or run again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from operators.expression_making import (
    RULES,
    SHORT,
    SHORT_BY_THE_WALL,
    SINCE_US,
    TEXT_RULES,
    Event,
    expressions,
    streams,
    windowed,
)
from sterna.mqtt.topics import levels_of, matches
from sterna.operators.engine import Engine
from sterna.operators.expression import Expression
from sterna.operators.reference import Reference
from sterna.operators.settings import OperatorSettings
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions import lane_files as lane_files_module
from sterna.pipeline.expressions.batch_expressions import BatchExpressions, LaneRow
from sterna.pipeline.expressions.lane_choice import ALONE, ExpressionLane
from sterna.pipeline.expressions.lane_files import LaneFiles
from sterna.pipeline.expressions.lane_layout import lanes_in
from sterna.pipeline.expressions.matching import COLUMNS, EXTRACTED, MISSED, Matcher, Row
from sterna.pipeline.expressions.part_merge import ExpressionResult, PartBatch, PartMerge
from sterna.pipeline.expressions.registry import Entry, ReadingStart, Registry, RegistryFiles
from sterna.pipeline.expressions.result_delivery import OwedResults
from sterna.pipeline.expressions.value_extraction import ExtractedValues, ValueExtractor
from sterna.pipeline.feed.client import WantedExpressions
from sterna.pipeline.table import schema_of

Message = tuple[int, str, int, bytes, bytes]
"""Time, journal, offset, topic, payload."""


def batch_of(messages: list[tuple[int, bytes, bytes]]) -> pa.RecordBatch:
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
    """What a worker does for one lane, and how it comes back after it was killed."""

    def __init__(self, directory: Path, lane: ExpressionLane = ALONE) -> None:
        self.registries = RegistryFiles(str(directory / "registry"))
        self.files = LaneFiles(directory / f"state{lane.number}", self.registries.load)
        self.merge, self.owed = PartMerge(lane=lane), OwedResults()
        self.files.load(self.merge, self.owed)
        self.redone = self.owed.all()
        _open.append(self)

    def take(self, batch: PartBatch, *, is_away: bool = False) -> list[ExpressionResult]:
        """What comes of it; it is handed in, unless all nodes are away."""
        if batch.number <= self.files.last_batch:
            return []

        def hand_in(made: Sequence[ExpressionResult]) -> list[str]:
            self.owed.add(made)
            self.owed.keep(self.owed.by_node if is_away else [])
            return list(self.owed.by_node)

        results = self.files.take(self.merge, batch, hand_in)
        if self.files.is_snapshot_due:
            self.snapshot()
        return results

    def catch_up(self) -> None:
        self.files.catch_up(self.merge, self.owed)

    def snapshot(self) -> None:
        self.files.snapshot(self.merge, self.owed)


class Expected:
    """What a node's engine and the reference make of what was read, in the order in which it can be told."""

    def __init__(self, expression: Expression, chosen: OperatorSettings, since_us: int) -> None:
        self._levels = levels_of(expression.topic_filter)
        self._since_us = since_us
        self._engine, self._reference = Engine(expression, chosen, since_us), Reference(expression, chosen, since_us)
        self.results: list[tuple[int, bytes]] = []
        self._waiting: list[Message] = []
        self._number = 0

    def take(self, read: list[Message], time_us: int) -> None:
        """It is that late everywhere."""
        waiting = sorted([*self._waiting, *read])
        self._waiting = [message for message in waiting if message[0] >= time_us]
        for came_us, _, _, topic, payload in waiting[: len(waiting) - len(self._waiting)]:
            if came_us >= self._since_us and matches(self._levels, levels_of(topic)):
                given = self._engine.message(topic, payload, came_us)
                self._compare(given, self._reference.message(topic, payload, came_us))
        if time_us > self._engine.newest_us:
            self._compare(self._engine.advance(time_us), self._reference.advance(time_us))

    def _compare(self, given: bytes | None, expected: list[bytes]) -> None:
        assert ([] if given is None else [given]) == expected
        if given is not None:
            self._number = max(self._number + 1, self._engine.result_us)
            self.results.append((self._number, given))


ANYTHING = st.one_of(windowed([*RULES, *TEXT_RULES]), expressions().filter(lambda one: not one.forwards))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(ANYTHING, min_size=1, max_size=4, unique_by=lambda one: one.text).flatmap(
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
    """Two nodes with journals of their own, one read further than the other, or away for too long; expressions that
    come while it runs, in lanes; batches cut anywhere; the worker of a lane killed before, between and after its two
    writes, with the batch run again or not, and lanes that go from worker to worker."""
    some, events = drawn
    chosen, dice = SHORT_BY_THE_WALL if by_the_wall else SHORT, random.Random(seed)
    directory = tmp_path_factory.mktemp("job")
    unread = in_order(events, dice)
    assume(unread)
    among, registry, got = dice.randint(1, 3), Registry(), list[ExpressionResult]()
    lanes = [Workers(directory, ExpressionLane(number, among), dice) for number in range(among)]
    registries = RegistryFiles(str(directory / "registry"))
    since = {expression.text: SINCE_US + dice.choice((0, 3_000_000)) for expression in some}
    expected: dict[bytes, Expected] = {}
    coming = list(some)
    past: list[Message] = []
    time_us, number = 0, 0
    while unread or coming:
        come = dice.randint(0, 2)
        before, coming = coming[:come], coming[come:]
        expected |= {one.text: Expected(one, chosen, since[one.text]) for one in before}
        known = registry
        wanted = WantedExpressions(chosen, [(text, since[text]) for text in expected])
        registry = registry.told("a", 1, len(expected), wanted, ReadingStart())
        if registry.edition != known.edition:
            registries.keep(registry)
        time_us = max(time_us, dice.choice(unread)[0] + dice.randint(0, 1) if unread else 0)
        read, unread = dealt(unread, time_us, dice)
        rows = task(registry.entries, read, dice, EXTRACTED, among)
        # New ones get what was read before anybody knew of them.
        fresh = tuple(entry for entry in registry.entries if entry.number >= known.following)
        rows += task(fresh, past, dice, MISSED, among)
        dice.shuffle(rows)
        for text, one in expected.items():
            one.take(read if text not in {new.text for new in before} else past + read, time_us)
        past += read
        for lane, workers in enumerate(lanes):
            mine = [row for one, row in rows if one == lane]
            got += workers.take(PartBatch(number, registry.edition, time_us, mine))
        number += 1
    end_us = time_us + 100_000_000
    for workers in lanes:
        got += workers.take(PartBatch(number, registry.edition, end_us, []))
    close_all()
    for text, one in expected.items():
        one.take([], end_us)
        found = dict.fromkeys((result.number, result.payload) for result in got if result.text == text)
        assert list(found) == one.results


def dealt(unread: list[Message], time_us: int, dice: random.Random) -> tuple[list[Message], list[Message]]:
    """What a batch reads of the journals, and what is left: one may be read further than the others, or be away."""
    ahead_us = time_us + dice.choice((0, 0, 5_000_000, 100_000_000))
    ahead, away = dice.choice("ab"), dice.choice(["a", "b", *["nobody"] * 8])
    upto_us = {"a": time_us, "b": time_us, ahead: ahead_us} | {away: -1}
    read = [message for message in unread if message[0] < upto_us[message[1]]]
    return read, [message for message in unread if message not in read]


class Workers:
    """Of one lane: whoever has it takes the next batch, and may be killed."""

    def __init__(self, directory: Path, lane: ExpressionLane, dice: random.Random) -> None:
        self._directory, self._lane, self._dice = directory, lane, dice
        self._jobs = [Job(directory, lane), Job(directory, lane)]

    def _begun_anew(self) -> Job:
        self._jobs[0].files.close()
        self._jobs[0] = Job(self._directory, self._lane)
        return self._jobs[0]

    def take(self, batch: PartBatch) -> list[ExpressionResult]:
        results: list[ExpressionResult] = []
        dice, jobs = self._dice, self._jobs
        if dice.random() < 0.3:
            jobs.reverse()
        jobs[0].catch_up()
        if jobs[0].files.last_batch < batch.number - 1:  # what the others wrote is gone, and a snapshot stands for it
            self._begun_anew()
        if dice.random() < 0.2:  # killed before it was written down
            lost = Job(self._directory, self._lane)
            lost.files._apply(lost.merge, batch, results.extend)
            self._begun_anew()
        if dice.random() < 0.2:  # taken for dead, another takes the same batch, and sees nothing of it until later
            results += Job(self._directory, self._lane).take(batch)
            results += jobs[0].take(batch)
            jobs[0].catch_up()
        results += jobs[0].take(batch)
        if dice.random() < 0.2:
            jobs[0].snapshot()
        if dice.random() < 0.3:
            self._begun_anew()
            results += jobs[0].redone + jobs[0].take(batch)
        return results


def task(
    entries: tuple[Entry, ...], messages: list[Message], dice: random.Random, kind: int, lanes: int
) -> list[LaneRow]:
    """By several tasks, each with rows in some order."""
    shares: dict[tuple[int, str], list[Message]] = {}
    tasks = dice.randint(1, 3)
    for message in messages:
        shares.setdefault((dice.randrange(tasks), message[1]), []).append(message)
    wanted = BatchExpressions(entries, lanes, None)
    rows: list[LaneRow] = []
    for (_, journal), share in shares.items():
        batch = batch_of([(time_us, topic, payload) for time_us, _, _, topic, payload in share])
        batch = batch.append_column("offset", pa.array([offset for _, _, offset, _, _ in share]))
        rows += [row for some in wanted.rows(iter([(journal, iter([batch]))]), kind) for row in some]
    return rows


def in_order(events: list[Event], dice: random.Random) -> list[Message]:
    time_us, found = SINCE_US, []
    for offset, event in enumerate(events):
        time_us = max(SINCE_US, time_us + event.passed_us)
        if event.topic:
            found.append((time_us, dice.choice("ab"), offset, event.topic, event.payload))
    return sorted(found)


@pytest.fixture
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_files_module, "SNAPSHOT_BATCHES", 2)


def started(directory: Path, *texts: bytes) -> tuple[Job, Registry]:
    job = Job(directory)
    wanted = WantedExpressions(OperatorSettings(hourly_s=10, anchor="wall"), [(text, 0) for text in texts])
    registry = Registry().told("a", 1, 1, wanted, ReadingStart())
    job.registries.keep(registry)
    return job, registry


def part(registry: Registry, time_us: int, payload: bytes) -> list[tuple[int, int, bytes]]:
    return Matcher(registry.entries).parts_of(batch_of([(time_us, b"t", payload)]))


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_a_torn_batch_is_cut_and_taken_again(tmp_path: Path, cut: int, small_snapshots: None) -> None:
    job, registry = started(tmp_path, b"$HOURLYSUM/t")
    for number in range(5):
        job.take(PartBatch(number, 1, number, part(registry, number, b"1")))
    job.files.close()
    (log,) = (tmp_path / "state0").glob("batches-3-*")
    log.write_bytes(log.read_bytes()[: -cut or None])
    job = Job(tmp_path)
    assert job.files.last_batch == (3 if cut else 4)
    job.take(PartBatch(4, 1, 4, part(registry, 4, b"1")))
    results = job.take(PartBatch(5, 1, 10_000_000, []))
    assert results == [ExpressionResult("a", b"$HOURLYSUM/t", 10_000_000, b"5.0")]


def test_a_state_that_is_not_the_checkpoints_is_refused(tmp_path: Path) -> None:
    job, registry = started(tmp_path, b"$HOURLYSUM/t")
    with pytest.raises(PipelineError, match="knows of 0 batches, and this is batch 3"):
        job.take(PartBatch(3, 1, 3, part(registry, 3, b"1")))


def test_what_is_owed_stays_owed_over_a_snapshot(tmp_path: Path) -> None:
    job, registry = started(tmp_path, b"$HOURLYSUM/t")
    results = job.take(PartBatch(0, 1, 10_000_000, part(registry, 3, b"1")), is_away=True)
    job.snapshot()
    job.files.close()
    assert Job(tmp_path).redone == results != []


def test_what_a_node_has_not_taken_goes_with_the_lane_to_another_worker(tmp_path: Path) -> None:
    job, registry = started(tmp_path, b"$HOURLYSUM/t")
    other = Job(tmp_path)
    results = job.take(PartBatch(0, 1, 10_000_000, part(registry, 3, b"1")), is_away=True)
    other.catch_up()
    assert other.owed.all() == results != []
    more = other.take(PartBatch(1, 1, 20_000_000, part(registry, 10_000_003, b"2")), is_away=True)
    job.catch_up()
    assert job.owed.all() == results + more  # in order
    job.take(PartBatch(2, 1, 20_000_001, []))
    other.catch_up()
    assert other.owed.all() == []
    assert Job(tmp_path).redone == []
    # Somebody has written it down with its rows, and somebody else who has taken it: in whichever order these are read.
    third = Job(tmp_path)
    results = third.take(PartBatch(3, 1, 30_000_000, part(registry, 20_000_003, b"4")), is_away=True)
    job.catch_up()
    job.files.tell_again(PartBatch(3, 1, 30_000_000, []), [])
    assert [one.payload for one in results] == [b"4.0"]
    other.catch_up()
    assert (other.files.last_batch, other.owed.all()) == (3, [])
    assert [one.payload for one in other.take(PartBatch(4, 1, 40_000_000, part(registry, 30_000_003, b"8")))] == [
        b"8.0"
    ]


def test_the_state_of_a_release_with_one_merge_is_dealt_out_to_lanes(tmp_path: Path) -> None:
    texts = (b"$HOURLYSUM/t", b"$HOURLYMAX/t", b"$SUM/t", b"$GT;0/t")
    job, registry = started(tmp_path, *texts)
    batch = batch_of([(3, b"t", b"5")]).append_column("offset", pa.array([0]))
    batch = batch.append_column("qos", pa.array([1])).append_column("property_block", pa.array([b""]))
    batch = batch.append_column("expires_us", pa.array([0]))
    rows = BatchExpressions(registry.entries, 1, None).rows(iter([("a", iter([batch]))]), EXTRACTED)
    owed = job.take(PartBatch(0, 1, 4, [row for some in rows for _, row in some]))
    job.files.close()
    (tmp_path / "state0").rename(tmp_path / "state")
    (log,) = (tmp_path / "state").glob("batches--1-*")
    log.rename(tmp_path / "state/batches--1")
    lanes = lanes_in(tmp_path, 2, job.registries)
    assert lanes.among == lanes_in(tmp_path, 5, job.registries).among == 2
    results: list[ExpressionResult] = []
    for number in range(lanes.among):
        lane = ExpressionLane(number, lanes.among)
        merge, files = PartMerge(lane=lane), LaneFiles(lanes.directory / str(number), job.registries.load)
        files.load(merge, OwedResults())
        results += files.take(merge, PartBatch(1, 1, 10_000_000, []), lambda _made: [])
        files.close()
    assert {(one.text, one.payload) for one in owed + results} == {(text, b"5.0") for text in texts[:3]} | {
        (b"$GT;0/t", b"5")
    }


def test_a_window_that_is_not_there_wholly_is_left_out_and_said(tmp_path: Path) -> None:
    lines: list[str] = []
    wanted = WantedExpressions(OperatorSettings(hourly_s=10, anchor="wall"), [(b"$HOURLYSUM/t", 0)])
    registry = Registry().told("a", 1, 1, wanted, ReadingStart((), 15_000_000))
    merge = PartMerge(lines.append)
    rows = [row for time_us in (5, 16_000_000, 20_000_000) for row in part(registry, time_us, b"1")]
    results = merge.close(registry, 30_000_000, rows)
    assert [(one.number, one.payload) for one in results] == [(30_000_000, b"1.0")]
    assert len(lines) == 2


def said(registry: Registry, journal: str, *messages: tuple[int, int, bytes, bytes]) -> list[Row]:
    """(time, offset, topic, payload)."""
    batch = batch_of([(time_us, topic, payload) for time_us, _, topic, payload in messages])
    batch = batch.append_column("offset", pa.array([offset for _, offset, _, _ in messages]))
    return [(EXTRACTED, 0, one) for one in ValueExtractor(registry.entries).extract(journal, batch)]


def test_what_came_at_the_same_time_is_ordered_by_journal_whichever_is_read_first() -> None:
    wanted = WantedExpressions(OperatorSettings(), [(b"$DELTA/t", 0)])
    registry = Registry().told("a", 1, 1, wanted, ReadingStart())
    merge = PartMerge()
    assert merge.close(registry, 5, said(registry, "b", (5, 0, b"t", b"1"), (5, 1, b"t", b"3"))) == []
    results = merge.close(registry, 6, said(registry, "a", (5, 9, b"t", b"10")))
    assert [(one.number, one.payload) for one in results] == [(5, b"-9.0"), (6, b"2.0")]


def test_an_expression_in_order_whose_first_messages_are_gone_begins_with_those_that_are_there() -> None:
    lines: list[str] = []
    wanted = WantedExpressions(OperatorSettings(), [(b"$SUM/t/+", 0)])
    registry = Registry().told("a", 1, 1, wanted, ReadingStart(), ReadingStart((), 7))
    rows = said(registry, "a", (6, 0, b"t/a", b"1"), (7, 1, b"t/b", b"2"), (8, 2, b"t/c", b"3"))
    results = PartMerge(lines.append).close(registry, 9, rows)
    assert [(one.number, one.payload) for one in results] == [(7, b"2.0"), (8, b"5.0")]
    assert lines == ["$SUM/t/+ of node a: its first messages are no longer kept; it begins with those that are"]


def test_payloads_stay_where_they_are_read() -> None:
    """Numbers leave a task, however long the messages are, and each once for all expressions that read alike."""
    texts = (b"$COUNT/t/+", b"$SUM/t/+", b"$TMPMAX;0:01:00/t/a", b"$SUM;.v/t/+", b"$TMPCOUNT;0:01:00$CONTAINS;x/t/+")
    registry = Registry().told(
        "a", 1, 1, WantedExpressions(OperatorSettings(), [(text, 0) for text in texts]), ReadingStart()
    )
    rows = said(registry, "a", (1, 0, b"t/a", b"x" * 1_000_000), (2, 1, b"t/b", b"7"), (3, 2, b"t/b", b'{"v": 1}'))
    assert len(rows) == 4
    assert sum(len(part) for _, _, part in rows) < 1000
    decoded = [msgspec.msgpack.decode(part, type=ExtractedValues) for _, _, part in rows]
    assert [(one.offsets, one.values) for one in sorted(decoded, key=lambda one: one.reading)] == [
        ([0, 1, 2], [1.0, 1.0, 1.0]),
        ([2], [1.0]),
        ([1], [7.0]),
        ([0, 1, 2], [1.0, None, None]),
    ]


def test_what_stops_is_said_once(tmp_path: Path) -> None:
    lines: list[str] = []
    wanted = WantedExpressions(OperatorSettings(hourly_s=10, anchor="wall", topics=1), [(b"$HOURLYSUM/+", 0)])
    registry = Registry().told("a", 1, 1, wanted, ReadingStart())
    merge = PartMerge(lines.append)
    rows = Matcher(registry.entries).parts_of(batch_of([(1, b"t", b"1"), (1, b"u", b"1")]))
    assert merge.close(registry, 10_000_000, rows) == []
    assert merge.close(registry, 90_000_000, rows) == []
    assert lines == ["$HOURLYSUM/+ of node a has stopped: more than 1 topics"]


@pytest.mark.parametrize(
    ("epoch", "since_us", "number", "edition"),
    [(1, 5, 0, 1), (1, 6, 1, 2), (2, 6, 0, 1)],
    ids=["unchanged", "subscribed again", "the node was killed"],
)
def test_who_is_the_same_subscription(epoch: int, since_us: int, number: int, edition: int) -> None:
    before = Registry().told("a", 1, 1, WantedExpressions(OperatorSettings(), [(b"$HOURLYSUM/t", 5)]), ReadingStart())
    after = before.told(
        "a", epoch, 2, WantedExpressions(OperatorSettings(), [(b"$HOURLYSUM/t", since_us)]), ReadingStart()
    )
    assert [(entry.number, entry.node) for entry in after.entries] == [(number, "a")]
    assert (after.edition, after.entries[0].since_us) == (edition, 5 if number == 0 else 6)
    # A node that told of something once more tells it in the same words.
    again = after.told(
        "a", epoch, 3, WantedExpressions(OperatorSettings(), [(b"$HOURLYSUM/t", since_us)]), ReadingStart()
    )
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
    registry = Registry().told("a", 1, 1, WantedExpressions(SHORT, [(b"$HOURLYCOUNT/#", 0)]), ReadingStart())
    rows = batch_of([(1, b"t", b"1"), (1, b"$HOURLYCOUNT/$ALL", b"1"), (1, b"$SYS/x", b"1")])
    ((number, _, part),) = Matcher(registry.entries).parts_of(rows)
    assert (number, msgspec.msgpack.decode(part)) == (0, [[b"t", 1]])
