"""What is moved and published where, whom a client follows, and what the tables and pictures say of it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sterna.measure.harness.switch import Distances
from sterna.measure.load.movers import Address, MovingClient
from sterna.measure.papers.migration import plots as migration_plots
from sterna.measure.papers.migration import report as migration_report
from sterna.measure.papers.migration.document import MigrationDocument, document
from sterna.measure.papers.migration.plan import BY_NAME, EXPERIMENTS, MigrationPlan
from sterna.measure.papers.migration.records import MoveRecords, read

# -- the plan --


def test_the_experiments_are_those_of_the_paper() -> None:
    topics = [topic for experiment in EXPERIMENTS for topic in experiment.topics]
    assert (len(EXPERIMENTS), len(topics)) == (13, 24)
    assert sum(topic.losses for topic in topics if topic.qos == 0) == sum(topic.losses for topic in topics) == 763
    repeated = [topic.duplicates for topic in topics if topic.qos == 1]
    assert sum(repeated) == sum(topic.duplicates for topic in topics) == 1322


def test_who_lags_is_a_matter_of_where_messages_enter_and_which_way_is_long() -> None:
    ahead, behind, synced = (BY_NAME[name] for name in ("ahead-A1", "behind-A1", "synced-A1"))
    assert [one.topics[0].published_at for one in (ahead, behind, synced)] == [
        ("target",),
        ("source",),
        ("source", "target"),
    ]
    assert (ahead.latencies().source_to_target, ahead.latencies().target_to_source) == (40, 2000)
    assert (behind.latencies().source_to_target, behind.latencies().target_to_source) == (2000, 40)
    assert synced.latencies().shortest == 120


def test_the_model_is_told_of_the_long_way() -> None:
    ahead0, ahead1, behind = (BY_NAME[name] for name in ("ahead-A0", "ahead-A1", "behind-A2"))
    assert ahead0.predicted_ms(ahead0.latencies()) == ahead0.latencies().shortest == 40 + 40 + 2000
    assert ahead1.predicted_ms(ahead1.latencies()) == 2080 + 2000 + 40
    assert behind.predicted_ms(behind.latencies()) == 2080 + 40 + 2000  # as late as the word of the move
    assert EXPERIMENTS[-1].predicted_ms(EXPERIMENTS[-1].latencies()) == 4040 + 4000


def test_a_way_may_be_long_in_one_direction_and_trembles() -> None:
    distances = Distances(0.005, Random(1))
    distances.put(0, 1, 0.04, 2.0)
    there, back = ([distances(*way) for _ in range(200)] for way in ((0, 1), (1, 0)))
    assert 0.035 <= min(there) < 0.037 < 0.043 < max(there) <= 0.045
    assert 1.995 <= min(back) < max(back) <= 2.005
    assert distances(0, 2) == 0.0


# -- a client that follows --

CONNACK = {4: b"\x20\x02\x01\x00", 5: b"\x20\x03\x01\x00\x00"}


class Server:
    """Lets everybody in, says what it is told to say, and hangs up."""

    def __init__(self, version: int, *says: bytes, stays: bool = False) -> None:
        self._version = version
        self.says = says
        self._stays = stays
        self.got = b""
        self.heard_all = asyncio.Event()
        self._serving: list[asyncio.Task[None]] = []
        self.address: Address = ("", 0)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = host, port

    async def stop(self) -> None:
        self._server.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)
        self.got += await reader.read(1000)
        writer.write(CONNACK[self._version] + b"".join(self.says))
        while self._stays and (data := await reader.read(1000)):
            self.got += data
            if PUBCOMP in self.got:
                self.heard_all.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _open(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address)


def _reference(address: Address) -> bytes:
    text = f"{address[0]}:{address[1]}".encode()
    reason = b"\x1f\x00\x02hm" + b"\x26\x00\x01a\x00\x01b"
    properties = reason + b"\x1c" + len(text).to_bytes(2, "big") + text
    return b"\xe0" + bytes((2 + len(properties), 0x9C, len(properties))) + properties


PUBLISH_2 = {
    4: b"\x34\x08\x00\x01t\x00\x07one",
    5: b"\x34\x09\x00\x01t\x00\x07\x00one",
}
PUBREC, PUBCOMP, PUBREL = b"\x50\x02\x00\x07", b"\x70\x02\x00\x07", b"\x62\x02\x00\x07"


async def _follow(version: int, elsewhere: Callable[[Server], Address | None]) -> tuple[MovingClient, Server]:
    second = Server(version, PUBLISH_2[version].replace(b"\x34", b"\x3c", 1), PUBREL, stays=True)
    await second.start()
    first = Server(version, PUBLISH_2[version], *([_reference(second.address)] if version == 5 else []))
    await first.start()
    mover = MovingClient("m", version, _open, elsewhere=elsewhere(second))
    await mover.start(first.address)
    assert await mover.arrives(second.address, 5.0)
    await second.heard_all.wait()
    await mover.leave()
    for server in (first, second):
        await server.stop()
    return mover, second


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_goes_where_it_is_sent_and_hears_a_message_of_qos_2_once(version: int) -> None:
    mover, second = asyncio.run(_follow(version, lambda second: second.address if version == 4 else None))
    assert [(one.payload, one.qos) for one in mover.heard] == [(b"one", 2)]
    assert PUBREC in second.got
    assert [arrival.present for arrival in mover.arrivals] == [True, True]


# -- what is told --

PLAN = MigrationPlan(
    experiments=(BY_NAME["ahead-A0"], BY_NAME["synced-A1"]), runs=2, kinds=("mqtt5",), at_a_distance=True
)


def accounted(**lost: int) -> list[dict[str, Any]]:
    names = [(experiment, run) for experiment in ("ahead-A0", "synced-A1") for run in (1, 2)]
    return [
        {
            "client": f"{name} {run} mqtt5", "topic": f"{name}/{run}/topicA", "qos": 0, "expected": 50,
            "delivered": 50 - lost.get("lost", 0), "lost": lost.get("lost", 0),
            "duplicated": lost.get("duplicated", 0), "reordered": 0, "before_ms": 80.0, "after_ms": 50.0,
            "silence_ms": 300.0,
        }
        for name, run in names
    ]  # fmt: skip


def moves(took_s: float, problem: str = "") -> list[dict[str, Any]]:
    return [
        {
            "client": row["client"], "experiment": row["client"].split()[0], "run": int(row["client"].split()[1]),
            "kind": "mqtt5", "ordered": 100.0, "finished": 100.0 + took_s, "arrived": 100.1 + took_s, "present": True,
            "interrupted": 0, "problem": problem,
        }
        for row in accounted()
    ]  # fmt: skip


def report(took_s: float = 0.15, **lost: int) -> MigrationDocument:
    return document(PLAN, "sterna 1", accounted(**lost), moves(took_s), processing_ms=10.0)


def test_all_targets_are_reached_by_moves_that_cost_nothing() -> None:
    told = report()
    assert [target.reached for target in told.targets] == [True] * 4
    assert [(one.model_ms, one.limit_ms) for one in told.durations] == [(2080, pytest.approx(2506)), (200, 154)]
    assert not told.invalid


def test_what_is_lost_at_qos_0_is_valid_and_counted_what_is_lost_at_qos_1_is_not_valid() -> None:
    told = report(lost=2)
    assert [row.cells[0].valid_runs for row in told.rows] == [2, 0]
    assert [target.reached for target in told.targets] == [False, True, True, True]  # 2 of 24.7, at QoS 0
    assert told.invalid
    assert not report(lost=3).targets[1].reached


def test_what_comes_twice_at_qos_1_is_valid_and_counted_what_comes_twice_at_qos_0_is_not_valid() -> None:
    told = report(duplicated=1)
    assert [row.cells[0].valid_runs for row in told.rows] == [0, 2]
    assert told.targets[2].reached
    assert not report(duplicated=2).targets[2].reached


def test_a_move_that_takes_too_long_or_fails_is_named() -> None:
    assert [one.reached for one in report(took_s=0.2).durations] == [True, False]
    failed = document(PLAN, "sterna 1", accounted(), moves(0.1, "refused"), processing_ms=10.0)
    assert failed.invalid
    assert failed.problems[0] == "ahead-A0 1 mqtt5: refused"


def test_the_tables_stand_beside_the_papers() -> None:
    out = io.StringIO()
    migration_report.report(report(lost=1), Path()).as_table(Console(file=out, width=180))
    for words in ("247", "101", "2080", "at most 1.2 x the model's", "500 to 800 ms", "plus or minus 5 ms"):
        assert words in " ".join(out.getvalue().split())


def test_the_document_for_machines_can_be_read_back() -> None:
    told = report()
    assert msgspec.json.decode(msgspec.json.encode(told), type=MigrationDocument) == told


def test_pictures_are_drawn_from_the_records(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, origin = "ahead-A0/2/topicA", "ahead-A0/2/topicA@target"
    records = MoveRecords(
        messages=[(path, 2, "p", origin, 1, number, 99.0 + number / 10) for number in range(20)],
        deliveries=[
            ("ahead-A0 2 mqtt5", path, origin, 1, number, 0, 99.1 + number / 10, number, False, via)
            for number, via in enumerate(["source"] * 9 + ["target"] * 10)
        ],
        moves=[("ahead-A0 2 mqtt5", "ahead-A0", 2, "mqtt5", 100.0, 100.2, 100.25, True, 0, "")],
    )
    records.write(tmp_path / "records", "ahead-A0-1")
    assert read(tmp_path / "records", "moves")[0]["finished"] == pytest.approx(100.2)
    drawn = migration_plots.draw(report(), tmp_path / "records", tmp_path / "plots")
    assert [file.name for file in drawn] == ["durations.png", "ahead-A0-topicA.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in drawn)
    tables = {name: read(tmp_path / "records", name) for name in ("messages", "deliveries", "moves")}
    story = migration_plots.tell(tables, "ahead-A0 2 mqtt5", path, "QoS 0")
    assert story is not None
    assert (story.lost, story.repeated) == (1, 0)
