"""A feed in bad weather: strangers, junk, slow and vanishing readers, disks that fail.  Nobody else is hurt."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.feed_world import BEGAN, FeedWorld, everything, flip, message, run, until
from sterna.journal.settings import JournalSettings
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.feed.errors import Busy, FeedError, FeedRefused, Trimmed, Unreachable
from sterna.runtime.disk.segment_files import FileStore
from sterna.runtime.feed import connection as feed_connection
from sterna.runtime.feed.feed import STRANGERS_MAX

TOKEN = "a token of sixteen bytes or more"


def _sized(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


MEMORY = JournalSettings(durability="memory", segment_bytes=64 * 1024)


def test_a_wrong_token_is_refused_and_a_right_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, token=TOKEN) as world:
            for token in (None, "a wrong token of sixteen bytes"):
                with pytest.raises(FeedRefused, match=r"node node-1 at .*: the token is wrong") as caught:
                    await world.ask(lambda client: client.status(), token=token)
                assert caught.value.code == "token"
            assert (await world.ask(lambda client: client.status(), token=TOKEN)).next == 0

    run(scene)
    assert caplog.text.count("a reader of the feed was refused") == 2
    assert TOKEN not in caplog.text


def test_a_proof_holds_for_the_connection_it_was_made_for(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, token=TOKEN) as world:
            made_for = await asyncio.to_thread(_nonce, world.address)
            proof = hmac.digest(TOKEN.encode(), made_for + b"test", hashlib.sha256)
            assert await asyncio.to_thread(_introduced, world.address, "test", proof) == "the token is wrong"

    run(scene)


def _nonce(address: str) -> bytes:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        return bytes(_said(raw)["nonce"])


def _introduced(address: str, reader: str, proof: bytes) -> str:
    """A node's answer to an introduction."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        said = msgspec.msgpack.encode({"version": 1, "reader": reader, "proof": proof})
        raw.sendall(len(said).to_bytes(4, "big") + said)
        assert "nonce" in _said(raw)
        return str(_said(raw)["reason"])


def _said(raw: socket.socket) -> dict[str, Any]:
    with raw.makefile("rb", buffering=0) as file:
        found: dict[str, Any] = msgspec.msgpack.decode(file.read(int.from_bytes(file.read(4) or b"", "big")) or b"")
    return found


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x02hi",
        b"\xff" * 5,
        bytes(100),
        b"\x00\x00\x00\x01\xc1",
        _sized(b"\x83\xa7version\x01\xa6reader\xa2\xff\xfe\xa5proof\xc4\x00"),
        _sized(b"\x81\xa2\xff\xfe\x01"),
        _sized(b"\x81\xa1x" + b"\x91" * 5000 + b"\x01"),
    ],
    ids=["http", "no-msgpack", "too-long", "zeros", "bad-msgpack", "bad-name", "bad-key", "deep"],
)
def test_junk_instead_of_an_introduction_gets_one_line_and_goodbye(
    tmp_path: Path, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            host, _, port = world.address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(junk)
            said = await asyncio.wait_for(reader.read(), 60)
            assert b"reason" in said
            writer.close()
            assert (await world.ask(lambda client: client.status())).next == 0

    run(scene)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


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
        with pytest.raises(FeedRefused, match=reason):
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
        with pytest.raises(FeedRefused, match="this is no request"):
            client._answer(connection)
        with pytest.raises(FeedError):
            client._ask({"op": "read", "start": 0, "stop": 1, "filters": ["x" * 70_000]})
        assert client.status().next == 0

    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            await world.ask(scene_of)

    run(scene)


def test_readers_beyond_the_limit_are_told_to_come_again_until_one_leaves(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, connections=2) as world:
            held = [world.client() for _ in range(2)]
            waiting = [asyncio.to_thread(client.status, beyond=0, wait_ms=20_000) for client in held]
            tasks = [asyncio.create_task(one) for one in waiting]
            await until(lambda: sum(one._serving is not None for one in world.feed._connections) == 2)
            with pytest.raises(Busy, match=r"too many readers are connected; see connections in \[feed\]"):
                await world.ask(lambda client: client.status())
            world.fill(1, 1)
            await asyncio.gather(*tasks)
            for client in held:
                client.close()
            await until(lambda: not world.feed._connections)
            assert (await world.ask(lambda client: client.status())).next == 1

    run(scene)


def test_a_reader_that_is_idle_makes_room_and_notices_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, connections=2) as world:
            clients = [world.client(f"r{number}") for number in range(4)]
            for _ in range(2):
                for client in clients:
                    await until(lambda: _has_room(world))
                    assert (await asyncio.to_thread(client.status)).next == 0
                    assert sum(not one.is_over for one in world.feed._connections) <= 2
            for client in clients:
                client.close()

    run(scene)
    assert "refused" not in caplog.text


def _has_room(world: FeedWorld) -> bool:
    now = asyncio.get_running_loop().time()
    here = [one for one in world.feed._connections if not one.is_over]
    return len(here) < 2 or any(one.is_idle(now) for one in here)


def is_deserted(world: FeedWorld) -> bool:
    world.feed.tidy()
    return not world.feed._connections


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
            await until(partial(is_deserted, world))
            with pytest.raises(Unreachable):
                await asyncio.to_thread(list, reading)

    run(scene)


def test_an_idle_reader_is_let_go_and_comes_back_by_itself(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, idle_s=1.0) as world:
            client = world.client()
            await asyncio.to_thread(client.status)
            await until(partial(is_deserted, world))
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
            for place in (body, header):
                flip(path, place)
            for _ in range(2):
                found, end = await world.ask(lambda client: (everything(client), client.last_read))
                assert end is not None
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
            with pytest.raises(FeedRefused, match="Input/output error; check the disk") as caught:
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
                with pytest.raises(FeedRefused, match="No space left on device"):
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


def test_a_crowd_of_strangers_is_bounded(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, connections=4) as world:
            host, _, port = world.address.partition(":")
            crowd = [await asyncio.open_connection(host, int(port)) for _ in range(300)]
            await until(lambda: len(world.feed._connections) <= 4 + 2 * STRANGERS_MAX)
            for _, writer in crowd:
                writer.close()
            await until(lambda: not world.feed._connections)
            assert (await world.ask(lambda client: client.status())).next == 0

    run(scene)
