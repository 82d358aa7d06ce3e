"""A feed that serves readers: ranges, long polls, cursors, and every way to behave badly."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from feed_world import BEGAN, FeedWorld, message, offsets, rows

from sterna.journal.readers import Readers
from sterna.journal.settings import JournalSettings
from sterna.pipeline.feed_client import FeedClient, Lost
from sterna.pipeline.feed_errors import FeedError, Refused, Trimmed, Unreachable
from sterna.runtime import feed_connection
from sterna.runtime.storage import FileStore

TOKEN = "a token of sixteen bytes or more"
MEMORY = JournalSettings(durability="memory", segment_bytes=64 * 1024)


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 30))


def everything(client: FeedClient) -> list[int]:
    return offsets(client.read(0, client.status().next))


async def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


# -- reading --


def test_a_range_is_read_across_segments_and_replays_identically(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(40, 100)
            assert len(world.journal.segments()) > 3
            assert await world.ask(everything) == list(range(4000))
            first = await world.ask(lambda client: rows(client.read(950, 3050)))
            world.fill(1, 10)
            again = await world.ask(lambda client: rows(client.read(950, 3050)))
            assert first == again
            assert [row["offset"] for row in first] == list(range(950, 3050))

    run(scene)


def test_only_what_is_committed_is_shown(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(1, 5)
            world.journal.append(message(5))
            group = world.journal.close_group()
            assert group is not None
            world.journal.append(message(6))
            assert (await world.ask(lambda client: client.status())).next == 5
            assert await world.ask(lambda client: (offsets(client.read(0, 100)), client.last_read.reached)) == (
                [0, 1, 2, 3, 4],
                5,
            )
            world.journal.failed(group)
            world.commit()
            assert await world.ask(everything) == [0, 1, 2, 3, 4, 6]

    run(scene)


def test_filters_and_times_cut_what_is_read(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(3, 300)
            found = await world.ask(lambda client: offsets(client.read(0, 900, ["plant/1"])))
            assert found == list(range(1, 900, 3))
            since, until_us = (BEGAN + 100) * 10**6, (BEGAN + 110) * 10**6
            found = await world.ask(lambda client: offsets(client.read(0, 900, None, since, until_us)))
            assert found == list(range(100, 110))
            assert await world.ask(lambda client: offsets(client.read(0, 900, []))) == []

    run(scene)


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(1, 2)
            found = await world.ask(lambda client: rows(client.read(0, 2, columns=["offset", "topic"])))
            assert found == [{"offset": 0, "topic": "plant/0"}, {"offset": 1, "topic": "plant/1"}]

    run(scene)


def test_the_first_message_since_an_instant_is_found(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            assert await world.ask(lambda client: client.offset_at(0)) == 0
            world.fill(20, 100)
            for offset in (0, 1, 999, 1000, 1999):
                at = (BEGAN + offset) * 10**6
                assert await world.ask(lambda client, at=at: client.offset_at(at)) == offset  # type: ignore[misc]
                assert await world.ask(lambda client, at=at: client.offset_at(at - 1)) == offset  # type: ignore[misc]
            assert await world.ask(lambda client: client.offset_at((BEGAN + 5000) * 10**6)) == 2000

    run(scene)


def test_a_journal_in_memory_is_read_before_its_frames_are_made(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, MEMORY) as world:
            world.fill(50, 100)  # one frame of 4096 or so, and the rest open
            status = await world.ask(lambda client: client.status())
            assert (status.next, status.durable) == (5000, False)
            assert await world.ask(everything) == list(range(5000))
            assert await world.ask(lambda client: client.offset_at((BEGAN + 4990) * 10**6)) == 4990
            assert await world.ask(lambda client: client.register(10)) == 10
            assert not (tmp_path / "readers.json").exists()

    run(scene)


# -- waiting --


@pytest.mark.parametrize("journal", [JournalSettings(durability="os"), MEMORY], ids=["os", "memory"])
def test_a_long_poll_answers_as_soon_as_there_is_more(tmp_path: Path, journal: JournalSettings) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, journal) as world:
            world.fill(1, 3)
            waiting = asyncio.create_task(world.ask(lambda client: client.status(beyond=3, wait_ms=20_000)))
            await until(lambda: world.feed._waiting)
            assert not waiting.done()
            world.fill(1, 1)
            assert (await asyncio.wait_for(waiting, 10)).next == 4

    run(scene)


def test_a_long_poll_in_vain_ends_in_time(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            began = time.monotonic()
            assert (await world.ask(lambda client: client.status(beyond=0, wait_ms=100))).next == 0
            assert 0.09 < time.monotonic() - began < 5

    run(scene)


# -- cursors --


def test_a_cursor_stays_where_it_was_registered_until_it_is_moved_on(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(10, 10)
            assert await world.ask(lambda client: client.registered()) is None
            assert await world.ask(lambda client: client.register(40)) == 40
            assert await world.ask(lambda client: client.register(90)) == 40
            assert await world.ask(lambda client: client.commit(60)) == 60
            assert await world.ask(lambda client: client.commit(50)) == 60
            assert await world.ask(lambda client: client.commit(10**9)) == 100
            assert await world.ask(lambda client: client.registered()) == 40
        async with FeedWorld(tmp_path) as world:
            assert await world.ask(lambda client: client.register(0)) == 100
            await world.ask(lambda client: client.forget())
            assert await world.ask(lambda client: client.register()) == 0

    run(scene)


def test_who_is_not_registered_cannot_commit_and_nobody_registers_beyond_the_end(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, readers=1) as world:
            with pytest.raises(Refused, match=r'node node-1 at .*: reader "test" is not registered'):
                await world.ask(lambda client: client.commit(1))
            with pytest.raises(Refused, match="beyond the end"):
                await world.ask(lambda client: client.register(1))
            await world.ask(lambda client: client.register(), reader="first")
            with pytest.raises(Refused, match="too many readers are registered"):
                await world.ask(lambda client: client.register(), reader="second")

    run(scene)


def test_retention_holds_what_a_reader_needs_and_tells_who_fell_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tight = JournalSettings(durability="os", segment_bytes=64 * 1024, retention_bytes=70_000, retention_age_s=1e9)

    async def scene() -> None:
        async with FeedWorld(tmp_path, tight, hold_bytes=300_000) as world:
            world.fill(1, 10)
            await world.ask(lambda client: client.register(0))
            while world.journal.statistics().bytes < 250_000:
                world.fill(1, 100)
            world.journal.enforce_retention(now=BEGAN, held=world.feed.held())
            assert world.journal.first_offset == 0
            end = world.journal.safe_offset
            await world.ask(lambda client: client.commit(end // 2))
            world.journal.enforce_retention(now=BEGAN, held=world.feed.held())
            assert 0 < world.journal.first_offset <= end // 2
            world.feed.tidy()
            assert (await world.ask(lambda client: client.status())).fell_off is None
            while world.journal.statistics().bytes < 500_000:
                world.fill(1, 100)
            world.journal.enforce_retention(now=BEGAN, held=world.feed.held())
            first = world.journal.first_offset
            assert first > end // 2
            world.feed.tidy()
            status = await world.ask(lambda client: client.status())
            assert status.fell_off == Lost(end // 2, first)
            assert world.feed.view().lost == first - end // 2
            with pytest.raises(Trimmed) as caught:
                await world.ask(lambda client: offsets(client.read(end // 2, first + 1)))
            assert caught.value.first == first
            await world.ask(lambda client: client.commit(first))
            assert (await world.ask(lambda client: client.status())).fell_off is None

    with caplog.at_level(logging.WARNING):
        run(scene)
    said = [record for record in caplog.records if record.message == "retention took what a reader has not committed"]
    assert len(said) == 1


def test_cursors_that_cannot_be_read_are_put_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "readers.json").write_text("{}")

    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            assert await world.ask(lambda client: client.registered()) is None

    run(scene)
    assert (tmp_path / "readers.unreadable").exists()
    assert "forgotten" in caplog.text


def test_a_cursor_ahead_of_a_lost_journal_comes_back_to_its_end() -> None:
    readers = Readers()
    readers.register("ahead", 500)
    readers.register("behind", 5)
    assert readers.bring_back(100) == ["ahead"]
    assert [one.committed for one in readers.records()] == [100, 5]


# -- bad weather --


def test_a_wrong_token_is_refused_and_a_right_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, token=TOKEN) as world:
            for token in (None, "a wrong token of sixteen bytes"):
                with pytest.raises(Refused, match="node node-1 at .*: the token is wrong") as caught:
                    await world.ask(lambda client: client.status(), token=token)
                assert caught.value.code == "token"
            assert (await world.ask(lambda client: client.status(), token=TOKEN)).next == 0

    run(scene)
    assert caplog.text.count("a reader of the feed was refused") == 2
    assert TOKEN not in caplog.text


def test_a_proof_does_not_hold_for_another_name_or_another_time(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, token=TOKEN) as world:
            client = world.client(token=TOKEN)
            await asyncio.to_thread(client.status)
            client.close()
            client.reader, sent = "somebody else", client.reader
            client._introduce.__func__  # noqa: B018
            with pytest.raises(Refused, match="the token is wrong"):
                await asyncio.to_thread(_replayed, world.address, sent)

    run(scene)


def _replayed(address: str, reader: str) -> None:
    """An introduction whose proof was made for another nonce."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        said = msgspec.msgpack.encode({"version": 1, "reader": reader, "proof": bytes(32)})
        raw.sendall(len(said).to_bytes(4, "big") + said)
        raw.recv(1000)
        answer = b""
        while piece := raw.recv(1000):
            answer += piece
    raise Refused(str(msgspec.msgpack.decode(answer[4:])["reason"]))


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02hi", b"\xff" * 5, bytes(100), b"\x00\x00\x00\x01\xc1"],
    ids=["http", "no-msgpack", "too-long", "zeros", "bad-msgpack"],
)
def test_junk_instead_of_an_introduction_gets_one_line_and_goodbye(tmp_path: Path, junk: bytes) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            host, _, port = world.address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(junk)
            said = await asyncio.wait_for(reader.read(), 5)
            assert b"reason" in said
            writer.close()
            assert (await world.ask(lambda client: client.status())).next == 0

    run(scene)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"op": "dance"}, "dance"),
        ({"op": "read", "start": -1, "stop": 5}, "start"),
        ({"op": "read", "start": 0, "stop": "x"}, "stop"),
        ({"op": "read", "start": 0, "stop": 5, "filters": ["a/#/b"]}, "a/#/b"),
        ({"op": "commit"}, "offset"),
        ({}, "op"),
    ],
)
def test_a_bad_request_is_refused_and_the_next_one_served(tmp_path: Path, request_: Any, reason: str) -> None:
    def scene_of(client: FeedClient) -> None:
        with pytest.raises(Refused, match=reason):
            client._ask(request_)
        assert client.status().next == 0

    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            await world.ask(scene_of)

    run(scene)


def test_junk_after_the_introduction_and_requests_too_long_end_the_connection(tmp_path: Path) -> None:
    def scene_of(client: FeedClient) -> None:
        client.status()
        connection = client._connection
        assert connection is not None
        client._send(connection, b"\xc1")
        with pytest.raises(Refused, match="this is no request"):
            client._answer(connection)
        with pytest.raises(FeedError):
            client._ask({"op": "read", "start": 0, "stop": 1, "filters": ["x" * 70_000]})
        assert client.status().next == 0

    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            await world.ask(scene_of)

    run(scene)


def test_readers_beyond_the_limit_are_refused_until_one_leaves(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, connections=2) as world:
            held = [world.client() for _ in range(2)]
            for client in held:
                await asyncio.to_thread(client.status)
            with pytest.raises(Refused, match="too many readers"):
                await world.ask(lambda client: client.status())
            held.pop().close()
            await until(lambda: len(world.feed._connections) < 2)
            assert (await world.ask(lambda client: client.status())).next == 0
            held.pop().close()

    run(scene)


def test_a_reader_that_takes_nothing_holds_little_hurts_nobody_and_is_let_go(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, JournalSettings(durability="os"), idle_s=1.0) as world:
            for _ in range(150):
                world.add(*(message(0, payload=bytes(1000)) for _ in range(400)))
            slow = world.client("slow")
            reading = slow.read(0, 1 << 40)
            await asyncio.to_thread(next, reading)
            (connection,) = world.feed._connections
            await until(lambda: not connection._writable.is_set())
            held = connection._transport.get_write_buffer_size()
            assert held < 4 * feed_connection.OUTPUT_BYTES
            assert len(await world.ask(everything, reader="quick")) == 60_000
            while world.feed._connections:
                world.feed.tidy()
                await asyncio.sleep(0.05)
            with pytest.raises(Unreachable):
                await asyncio.to_thread(list, reading)

    run(scene)


def test_an_idle_reader_is_let_go_and_comes_back_by_itself(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, idle_s=1.0) as world:
            client = world.client()
            await asyncio.to_thread(client.status)
            deadline = time.monotonic() + 10
            while world.feed._connections and time.monotonic() < deadline:
                world.feed.tidy()
                await asyncio.sleep(0.05)
            assert not world.feed._connections
            assert (await asyncio.to_thread(client.status)).next == 0
            client.close()

    run(scene)


def test_a_reader_that_vanishes_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(200, 400)

            def abandon(client: FeedClient) -> None:
                next(client.read(0, 1 << 40))

            for _ in range(5):
                await world.ask(abandon)
            await until(lambda: not world.feed._connections)
            assert len(await world.ask(everything)) == 80_000

    run(scene)


def test_a_read_that_was_left_in_the_middle_does_not_disturb_the_next(tmp_path: Path) -> None:
    def scene_of(client: FeedClient) -> None:
        for _ in range(3):
            reading = client.read(0, 1 << 40)
            next(reading)
            reading.close()  # type: ignore[attr-defined]
        assert client.status().next == 80_000

    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(200, 400)
            await world.ask(scene_of)

    run(scene)


def test_a_segment_dropped_in_the_middle_of_a_read_is_told(tmp_path: Path) -> None:
    tight = JournalSettings(durability="os", segment_bytes=64 * 1024, retention_bytes=70_000)

    async def scene() -> None:
        async with FeedWorld(tmp_path, tight) as world:
            for _ in range(60):
                world.add(*(message(0, payload=bytes(1000)) for _ in range(400)))
            client = world.client()
            reading = client.read(0, 1 << 40)
            await asyncio.to_thread(next, reading)
            (connection,) = world.feed._connections
            await until(lambda: not connection._writable.is_set())
            world.journal.enforce_retention(now=BEGAN)
            with pytest.raises(Trimmed) as caught:
                await asyncio.to_thread(list, reading)
            assert caught.value.first == world.journal.first_offset
            assert (await asyncio.to_thread(client.status)).first == caught.value.first
            client.close()

    run(scene)


def test_damage_on_the_disk_is_counted_reported_once_and_stepped_over(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(30, 100)
            assert isinstance(world.store, FileStore)
            segment = world.journal.segments()[0]
            path = next(file.name for file in world.store.segments() if file.serial == segment.serial)
            body, header = segment.starts[1] + 100, segment.starts[3] + 5
            with open(path, "r+b") as file:
                for place in (body, header):
                    file.seek(place)
                    byte = file.read(1)[0]
                    file.seek(place)
                    file.write(bytes((byte ^ 1,)))
            for _ in range(2):
                found, end = await world.ask(lambda client: (everything(client), client.last_read))
                gone = {*range(100, 200), *range(300, 400)}
                assert found == [offset for offset in range(3000) if offset not in gone]
                assert (end.lost, end.reached) == (200, 3000)
            assert len(world.journal.damage) == 2

    run(scene)


def test_a_disk_that_cannot_be_read_is_said_in_one_line_and_the_reader_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(3, 10)
            read = os.pread

            def broken(fd: int, length: int, start: int) -> bytes:
                raise OSError(5, "Input/output error")

            monkeypatch.setattr(os, "pread", broken)
            with pytest.raises(Refused, match="Input/output error; check the disk") as caught:
                await world.ask(everything)
            assert caught.value.code == "disk"
            monkeypatch.setattr(os, "pread", read)
            assert await world.ask(everything) == list(range(30))

    run(scene)
    assert caplog.text.count("cannot be served") == 1


def test_cursors_that_cannot_be_written_are_refused_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(1, 10)

            def full(fd: int) -> None:
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", full)
                with pytest.raises(Refused, match="No space left on device"):
                    await world.ask(lambda client: client.register(3))
            assert await world.ask(lambda client: client.commit(5)) == 5
            assert "5" in (tmp_path / "readers.json").read_text()

    run(scene)


def test_a_feed_that_stops_says_so_in_the_middle_of_a_read(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, JournalSettings(durability="os")) as world:
            for _ in range(60):
                world.add(*(message(0, payload=bytes(1000)) for _ in range(400)))
            client = world.client()
            reading = client.read(0, 1 << 40)
            await asyncio.to_thread(next, reading)
        with pytest.raises(FeedError):
            await asyncio.to_thread(list, reading)

    run(scene)
