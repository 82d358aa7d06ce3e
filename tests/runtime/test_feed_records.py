"""The feed's records: ranges by place that replay identically, whatever lies between them, and clear refusals."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from runtime.feed_world import BEGAN, NODE, SMALL, FeedWorld, flip, message, run
from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.journal.frames import DELIVERIES, HEADER_BYTES, SEGMENT_HEADER_BYTES, parse_header
from sterna.journal.recovery import RecoveredMessages, recover
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.feed.errors import FeedRefused, Trimmed
from sterna.runtime.disk.segment_files import FileStore


def fill(world: FeedWorld, groups: int, big: bool = False) -> None:
    """Groups of a message, two deliveries and, every tenth, a session; some with no message, one bigger than a span."""
    for number in range(groups):
        at = float(BEGAN + number)
        for sequence in (2 * number, 2 * number + 1):
            world.journal.record_delivery(DeliveryRecord(at, b"client", 5, None, "node-1", 1, sequence, 1))
        if number % 10 == 0:
            world.journal.record_session(SessionRecord("opened", at, b"client", 5))
        if number % 3:
            payload = bytes(700_000) if big and number == 4 else b""
            world.journal.append(message(number, payload=payload))
        world.journal.let_records_be_written()
        world.commit()


def everything(client: FeedClient, table: str = "deliveries", since_us: int | None = None) -> list[dict[str, Any]]:
    return [
        row
        for start, stop in client.segments()
        for _, batch in client.records(table, start, stop, since_us)
        for row in batch.to_pylist()
    ]


def test_records_are_read_across_segments_and_replay_identically(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            fill(world, 100, big=True)
            segments = await world.ask(lambda client: client.segments())
            assert len(segments) > 3
            rows = await world.ask(everything)
            assert [row["sequence"] for row in rows] == list(range(200))
            assert [row["place"] for row in rows] == sorted({row["place"] for row in rows})
            assert {(row["node"], row["node_epoch"], row["client"], row["session"]) for row in rows} == {
                ("node-1", 1, "client", 5)
            }
            sessions = await world.ask(lambda client: everything(client, "sessions"))
            assert [row["what"] for row in sessions] == ["opened"] * 10
            fill(world, 5)
            again = await world.ask(
                lambda client: [
                    row
                    for start, stop in segments
                    for _, batch in client.records("deliveries", start, stop)
                    for row in batch.to_pylist()
                ]
            )
            assert again == rows

    run(scene)


def test_a_reader_goes_on_behind_the_last_batch_it_has(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            fill(world, 10)

            def interrupted(client: FeedClient) -> list[int]:
                ((start, stop),) = client.segments()
                reading = client.records("deliveries", start, stop)
                assert isinstance(reading, Generator)
                found = [next(reading) for _ in range(3)]
                reading.close()
                found += client.records("deliveries", found[-1][0], stop)
                return [number for _, batch in found for number in batch.column("sequence").to_pylist()]

            assert await world.ask(interrupted) == list(range(20))

    run(scene)


def test_frames_of_older_records_are_left_out_if_nobody_wants_them(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            fill(world, 10)
            late = await world.ask(lambda client: everything(client, since_us=(BEGAN + 7) * 1_000_000))
            assert [row["sequence"] for row in late] == list(range(14, 20))

    run(scene)


def test_what_cannot_be_read_is_said_in_a_line(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            fill(world, 100)
            segments = await world.ask(lambda client: client.segments())
            with pytest.raises(FeedRefused, match="within one segment"):
                await world.ask(lambda client: list(client.records("deliveries", segments[0][0], segments[1][1])))
            with pytest.raises(Trimmed, match="no longer kept"):
                await world.ask(lambda client: list(client.records("deliveries", 0, 1)))
            with pytest.raises(FeedRefused, match="not a request"):
                await world.ask(lambda client: list(client.records("letters", *segments[0])))
            file = world.store.segments()[0]
            place = SEGMENT_HEADER_BYTES
            while (header := parse_header(world.store.read(file.serial, place, HEADER_BYTES))) is not None:
                if header.kind == DELIVERIES:
                    break
                place += HEADER_BYTES + header.length
            flip(file.name, place + HEADER_BYTES + 8)

            def lost(client: FeedClient) -> int:
                list(client.records("deliveries", *segments[0]))
                assert client.last_read is not None
                return client.last_read.lost

            assert await world.ask(lost) == 1

    run(scene)


def test_recovery_steps_over_records(tmp_path: Path) -> None:
    world = FeedWorld(tmp_path)
    fill(world, 30)
    assert isinstance(world.store, FileStore)
    world.store.close()
    recovery = recover(FileStore(tmp_path / "journal", SMALL, NODE))
    pieces = list(recovery)
    assert [one.offset for piece in pieces if isinstance(piece, RecoveredMessages) for one in piece.messages] == list(
        range(20)
    )
    assert recovery.position[:2] == world.journal.position[:2]
    assert not recovery.damage
    assert not recovery.cuts
