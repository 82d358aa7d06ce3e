"""What is moved and published where, whom a client follows, and what the tables and pictures say of it."""

from __future__ import annotations

import asyncio
import io
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sterna.measure.harness.nodes import settings
from sterna.measure.harness.sites import NodePlace
from sterna.measure.harness.switch import Distances
from sterna.measure.load.movers import Address, MovingClient
from sterna.measure.papers.migration import plots as migration_plots
from sterna.measure.papers.migration import report as migration_report
from sterna.measure.papers.migration.document import MigrationDocument, document
from sterna.measure.papers.migration.model import predict
from sterna.measure.papers.migration.overviews import DELTAS_MS, swept
from sterna.measure.papers.migration.plan import BY_NAME, PAPER_SETS, PARTS, SWEEP_MS, MigrationPlan
from sterna.measure.papers.migration.records import MoveRecords, read

PAGE = Path(__file__).parents[2] / "docs/experiments.md"

# -- the nodes --


def test_the_page_names_every_setting_of_the_nodes_that_is_no_default(tmp_path: Path) -> None:
    """Apart from addresses, names, keys and where files are."""
    place = NodePlace("127.0.0.1", 1, 2, 3)
    tables = tomllib.loads(settings("target", place, place, tmp_path))
    text = PAGE.read_text().partition("## `sterna experiment migration`")[2]
    row = next(line for line in text.splitlines() if line.startswith("| nodes |"))
    identity = {"name", "bind", "neighbours", "key", "token"}
    chosen = {key for table in ("mqtt", "admin", "network", "migration") for key in tables[table].keys() - identity}
    assert tables.keys() == {"node", "log", "listener", "mqtt", "admin", "network", "migration"}
    assert chosen
    assert chosen == {key for key in chosen if f"`{key}" in row}


# -- the plan --


def test_the_experiments_are_those_of_the_paper() -> None:
    topics = [topic for experiment in PAPER_SETS for topic in experiment.topics]
    assert (len(PAPER_SETS), len(topics)) == (13, 24)
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
    assert PAPER_SETS[-1].predicted_ms(PAPER_SETS[-1].latencies()) == 4040 + 4000


def test_after_a_cut_the_word_of_the_move_is_there_long_before_the_messages() -> None:
    cut = BY_NAME["cut-A0_B1_C2"]
    assert cut.is_cut
    assert cut.nodes == 3
    assert {topic.published_at for topic in cut.topics} == {("third",)}
    assert cut.latencies().shortest == 120
    third_ms, there_and_back_ms = 1000, 2 * (1000 + 40)
    found = predict(1, third_ms, third_ms + there_and_back_ms)
    assert (found.state, found.delta) == ("behind", -2000)
    assert cut.predicted_ms(cut.latencies()) == found.move == 120 + 2000


def test_the_other_sets_vary_nodes_qos_and_latency() -> None:
    parts = {one.part for one in BY_NAME.values()}
    assert parts == PARTS.keys() - {"wire"}
    assert [BY_NAME[name].nodes for name in ("2nodes", "3nodes", "5nodes")] == [2, 3, 5]
    assert {topic.published_at for topic in BY_NAME["5nodes"].topics} == {("source",)}
    assert [topic.delivered_at for topic in BY_NAME["ahead-published0"].topics] == [0, 0, 0]
    assert [topic.delivered_at for topic in BY_NAME["ahead-published1"].topics] == [0, 1, 1]
    sweep = [BY_NAME[f"latency{one_way}"].latencies().shortest for one_way in SWEEP_MS]
    assert sweep == [6 * one_way for one_way in SWEEP_MS]
    assert BY_NAME["latency80"].latencies(0.0, 0.0).shortest == 0


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
            "silence_ms": lost.get("silence", 300), "gap_ms": 200.0,
        }
        for name, run in names
    ]  # fmt: skip


def moves(took_s: float, problem: str = "") -> list[dict[str, Any]]:
    return [
        {
            "client": row["client"], "experiment": row["client"].split()[0], "run": int(row["client"].split()[1]),
            "kind": "mqtt5", "ordered": 100.0, "finished": 100.0 + took_s, "arrived": 100.01 + took_s, "present": True,
            "interrupted": 0, "third": "", "problem": problem,
        }
        for row in accounted()
    ]  # fmt: skip


def report(took_s: float = 0.12, **lost: int) -> MigrationDocument:
    return document(PLAN, "sterna 1", accounted(**lost), moves(took_s))


def reached(told: MigrationDocument) -> dict[str, bool]:
    words = {"valid": "valid", "kept": "at QoS 1 and 2", "lost": "published at QoS 2", "served": "served at the target"}
    found = {name: [one.reached for one in told.targets if said in one.what] for name, said in words.items()}
    assert all(len(one) == 1 for one in found.values())
    return {name: one[0] for name, one in found.items()}


def test_a_target_that_is_behind_may_be_waited_for_as_long_as_the_model_does() -> None:
    told = document(MigrationPlan((BY_NAME["cut-A1"],), at_a_distance=True), "sterna 1", [], [])
    for one in told.durations:
        assert one.limit_ms == 1.2 * one.model_ms > 1.2 * 2000 > one.shortest_ms


def test_all_targets_are_reached_by_moves_that_cost_nothing() -> None:
    told = report()
    assert all(reached(told).values())
    assert [(one.model_ms, one.limit_ms) for one in told.durations] == [(2080, 2496), (200, 144)]
    assert not told.invalid


def test_what_is_lost_at_qos_0_is_valid_and_counted_what_is_lost_at_qos_1_is_not_valid() -> None:
    told = report(lost=2)
    assert [row.cells[0].valid_runs for row in told.rows] == [2, 0]
    assert reached(told) == {"valid": False, "kept": False, "lost": True, "served": True}  # 2 of 24.7, at QoS 0
    assert told.invalid
    assert not reached(report(lost=3))["lost"]


def test_what_comes_twice_at_qos_1_is_valid_and_missed_what_comes_twice_at_qos_0_is_not_valid() -> None:
    told = report(duplicated=1)
    assert [row.cells[0].valid_runs for row in told.rows] == [0, 2]
    assert not reached(told)["kept"]


def test_a_move_ends_when_its_client_is_served_at_the_target() -> None:
    assert [one.reached for one in report(took_s=0.2).durations] == [True, False]
    late = [{**move, "finished": 100.05, "arrived": 100.2} for move in moves(0.1)]
    assert not reached(document(PLAN, "sterna 1", accounted(), late))["served"], "that the source is done is not enough"
    failed = document(PLAN, "sterna 1", accounted(), moves(0.1, "refused"))
    assert failed.invalid
    assert failed.problems[0] == "ahead-A0 1 mqtt5: refused"


def test_a_silence_is_held_against_the_mean_gap_of_its_stream() -> None:
    plan = MigrationPlan(experiments=(BY_NAME["synced-A1"],), runs=2, kinds=("gateway",), at_a_distance=True)

    def judged(silence: int) -> list[bool]:
        rows = [{**row, "client": row["client"].replace("mqtt5", "gateway")} for row in accounted(silence=silence)]
        told = document(plan, "sterna 1", rows, [])
        return [one.reached for one in told.targets if "silence" in one.what]

    assert judged(300) == [True]  # 1.5 times 200 ms
    assert judged(301) == [False]


def test_a_line_is_laid_through_the_latencies() -> None:
    plan = MigrationPlan(
        experiments=(BY_NAME["latency10"], BY_NAME["latency80"]), runs=1, kinds=("mqtt5",), at_a_distance=True
    )
    took = {"latency10": 0.045, "latency80": 0.255}
    ran = [{**moves(0.0)[0], "experiment": name, "arrived": 100.0 + spent} for name, spent in took.items()]
    told = document(plan, "sterna 1", [], ran)
    assert [(row.paper_ms, row.shortest_ms) for row in told.latency] == [(80, 60), (640, 480)]
    (slope,) = told.slopes
    assert [slope.times_latency, slope.besides_ms] == pytest.approx([3.0, 15.0])


def test_a_run_that_was_to_be_behind_and_was_not_is_named() -> None:
    plan = MigrationPlan(experiments=(BY_NAME["cut-A1"],), runs=1, kinds=("mqtt5",), at_a_distance=True)
    for state, is_behind in (("unsynced", True), ("synced", False)):
        ran = [{**moves(0.1)[0], "experiment": "cut-A1", "third": state}]
        told = document(plan, "sterna 1", [], ran)
        assert [one.reached for one in told.targets if "was behind" in one.what] == [is_behind]


def test_the_tables_stand_beside_the_papers() -> None:
    out = io.StringIO()
    migration_report.report(report(lost=1), Path()).as_table(Console(file=out, width=180))
    for words in ("247", "101", "2080", "within 1.2 x the model's", "mean gap", "500 to 800 ms", "plus or minus 5 ms"):
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
        moves=[("ahead-A0 2 mqtt5", "ahead-A0", 2, "mqtt5", 100.0, 100.2, 100.25, True, 0, "", "")],
        states=[("ahead-A0 2 mqtt5", "source", state, 100.0 + at) for state, at in (("offered", 0.01), ("", 0.2))],
    )
    records.write(tmp_path / "records", "ahead-A0-1")
    assert read(tmp_path / "records", "moves")[0]["finished"] == pytest.approx(100.2)
    drawn = migration_plots.draw(report(), tmp_path / "records", tmp_path / "plots")
    names = ["model.png", "durations.png", "ahead-A0-states.png", "ahead-A0-topicA.png"]
    assert [file.name for file in drawn] == names
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in drawn)
    tables = {name: read(tmp_path / "records", name) for name in ("messages", "deliveries", "moves")}
    story = migration_plots.tell(tables, "ahead-A0 2 mqtt5", path, "QoS 0")
    assert story is not None
    assert (story.lost, story.repeated) == (1, 0)


def test_the_models_figures_are_swept_over_how_far_the_target_is_ahead() -> None:
    for qos in range(3):
        found = swept(qos)
        assert [one.delta for one in found] == pytest.approx(DELTAS_MS)
        assert min(one.move for one in found) == 120
    assert swept(0)[-1].loss == 800
    assert swept(1)[0].duplication == 120 + 800 + 800
