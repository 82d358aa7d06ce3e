"""Sealed segments as Parquet files: each once, whole, listed, and kept as long as they are to be."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from runtime.feed_world import BEGAN, SMALL, FeedWorld, everything, flip, message, rows, run, until
from sterna.journal.table import TABLE_SCHEMA
from sterna.pipeline.feed.client import FeedClient
from sterna.runtime.disk.segment_files import FileStore
from sterna.runtime.disk.session_store import SessionStore
from sterna.runtime.feed import parquet as feed_parquet
from sterna.vocabulary.errors import JournalError


async def shelved(world: FeedWorld) -> None:
    """Every sealed segment has been seen to."""
    world.feed.tidy()
    assert world.feed._shelving is not None
    await world.feed._shelving


def settings(directory: Path, **more: Any) -> dict[str, Any]:
    return {"parquet": directory / "parquet", "parquet_age_s": 0.0, **more}


def listed(client: FeedClient) -> list[tuple[int, int, int]]:
    return [(file.first, file.stop, file.rows) for file in client.parquet()[1]]


def offsets_in(directory: Path) -> list[int]:
    found: list[int] = []
    for path in sorted(directory.glob("*.parquet")):
        found += pq.read_table(path).column("offset").to_pylist()
    return found


def test_files_and_the_rest_of_the_journal_are_the_whole_table(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            world.fill(30, 100)
            await shelved(world)
            sealed = world.journal.segments()[-1].first_offset
            assert 0 < sealed < 3000
            directory, files = await world.ask(lambda client: client.parquet())
            assert directory == str(tmp_path / "parquet")
            assert [file.first for file in files[1:]] == [file.stop for file in files[:-1]]
            assert (files[0].first, files[-1].stop) == (0, sealed)
            assert offsets_in(tmp_path / "parquet") == list(range(sealed))
            one = pq.ParquetFile(Path(directory) / files[0].name)
            assert one.schema_arrow.equals(TABLE_SCHEMA)
            assert one.metadata.row_group(0).column(0).compression == "ZSTD"
            assert files[0].oldest_us == BEGAN * 10**6
            assert files[0].newest_us == (BEGAN + files[0].stop - 1) * 10**6
            assert files[0].bytes == (tmp_path / "parquet" / files[0].name).stat().st_size

    run(scene)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_nobody_else_may_read_what_a_node_keeps_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "node" / "data"

    async def scene() -> None:
        with SessionStore(data / "sessions.sqlite", reserve_bytes=0):
            async with FeedWorld(data, **settings(tmp_path / "node")) as world:
                world.fill(30, 100)
                await shelved(world)
                await world.ask(lambda client: client.register(0))

    before = os.umask(umask)
    try:
        run(scene)
    finally:
        os.umask(before)
    found = [path for path in (tmp_path / "node").rglob("*") if "wal" not in path.suffix and "shm" not in path.suffix]
    assert {"readers.json", "identity", "sessions.sqlite", "_node-1.manifest.json"} < {path.name for path in found}
    assert any(path.suffix == ".parquet" for path in found)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "node", *found]}
    assert modes == {path.name: 0o700 if path.is_dir() else 0o600 for path in [tmp_path / "node", *found]}


def test_a_file_says_what_the_feed_says(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            world.fill(30, 100)
            await shelved(world)
            file = world.feed.shelf.files[1]  # type: ignore[union-attr]
            fed = await world.ask(lambda client: rows(client.read(file.first, file.stop)))
            assert pq.read_table(tmp_path / "parquet" / file.name).to_pylist() == fed

    run(scene)


def test_only_own_messages_are_in_files_and_a_segment_without_any_has_none(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            while len(world.journal.segments()) < 3:
                world.add(*(message(0, origin="elsewhere", payload=bytes(100)) for _ in range(100)))
            before = world.journal.safe_offset
            while len(world.journal.segments()) < 5:
                world.add(*(message(0, payload=bytes(100)) for _ in range(100)))
            await shelved(world)
            assert world.feed.shelf is not None
            assert world.feed.shelf.manifest.reached == world.journal.segments()[-1].first_offset
            assert offsets_in(tmp_path / "parquet") == list(range(before, world.feed.shelf.manifest.reached))

    run(scene)


def test_files_outlive_the_segments_and_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            world.fill(30, 100)
            await shelved(world)
            files = await world.ask(listed)
            for segment in world.journal.segments()[:2]:
                world.store.drop(segment.serial)
        (tmp_path / "parquet" / ".node-1-00000000000000000000.parquet.making").write_bytes(b"half")
        (tmp_path / "parquet" / "node-1-00000000000000009999.parquet").write_bytes(b"renamed, never entered")
        (tmp_path / "parquet" / "node-2-00000000000000009999.parquet").write_bytes(b"somebody else's")
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            names = {path.name for path in (tmp_path / "parquet").iterdir()}
            assert {"node-2-00000000000000009999.parquet", "_node-1.manifest.json"} <= names
            assert not any("making" in name or name == "node-1-00000000000000009999.parquet" for name in names)
            assert await world.ask(listed) == files
            world.fill(10, 100)
            await shelved(world)
            again = await world.ask(listed)
            assert again[: len(files)] == files
            assert len(again) > len(files)
            assert [first for first, _, _ in again[1:]] == [stop for _, stop, _ in again[:-1]]

    run(scene)


def test_old_files_leave_the_manifest_first_and_the_disk_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path, parquet_bytes=20_000)) as world:
            world.fill(60, 100)
            await shelved(world)
            left = await world.ask(listed)
            on_disk = len(list((tmp_path / "parquet").glob("*.parquet")))
            assert 0 < len(left) < on_disk
            monkeypatch.setattr(feed_parquet, "GRACE_S", 0.0)
            await shelved(world)
            assert len(list((tmp_path / "parquet").glob("*.parquet"))) == len(left)

    run(scene)


def test_retention_waits_for_the_files_within_its_limits(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, SMALL, **settings(tmp_path, hold_bytes=1000)) as world:
            world.fill(30, 100)
            held = world.feed.held()
            assert held is not None
            assert (held.offset, held.bytes) == (0, 1000)
            await shelved(world)
            held = world.feed.held()
            assert held is not None
            assert held.offset == world.journal.segments()[-1].first_offset

    run(scene)


def test_a_disk_that_takes_no_file_is_told_once_and_the_feed_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            (tmp_path / "parquet").write_text("no directory")
            world.fill(30, 100)
            for _ in range(3):
                await shelved(world)
            assert await world.ask(everything) == list(range(3000))
            (tmp_path / "parquet").unlink()
            await shelved(world)
            assert len(await world.ask(listed)) >= 2

    run(scene)
    assert caplog.text.count("a Parquet file cannot be written") == 1


def test_a_rotten_frame_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            world.fill(30, 100)
            assert isinstance(world.store, FileStore)
            flip(world.store.segments()[0].name, world.journal.segments()[0].starts[2] + 200)
            await shelved(world)
            found = offsets_in(tmp_path / "parquet")
            assert found[:300] == [*range(200), *range(300, 400)]

    run(scene)
    assert "a frame is missing from a Parquet file" in caplog.text


def test_files_of_a_journal_that_was_lost_are_not_written_over(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            world.fill(30, 100)
            await shelved(world)
        (tmp_path / "journal").rename(tmp_path / "lost")
        with pytest.raises(JournalError, match="go further than the journal"):
            FeedWorld(tmp_path, **settings(tmp_path))

    run(scene)


@pytest.mark.parametrize("found", [b"not json", b'{"version": 2}'])
def test_a_manifest_that_makes_no_sense_is_refused_with_its_name(tmp_path: Path, found: bytes) -> None:
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "_node-1.manifest.json").write_bytes(found)
    with pytest.raises(JournalError, match=r"_node-1\.manifest\.json"):
        FeedWorld(tmp_path, **settings(tmp_path))


def test_a_file_is_in_the_manifest_only_when_it_is_whole(tmp_path: Path) -> None:
    """Somebody who looks all the time never finds a name without a whole file."""

    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            world.fill(60, 100)
            world.feed.tidy()
            manifest = tmp_path / "parquet" / "_node-1.manifest.json"
            seen = 0
            assert world.feed._shelving is not None
            while not world.feed._shelving.done():
                if await asyncio.to_thread(manifest.exists):
                    entries = json.loads(await asyncio.to_thread(manifest.read_bytes))["files"]
                    for entry in entries:
                        path = tmp_path / "parquet" / entry["name"]
                        assert pq.read_metadata(path).num_rows == entry["rows"]
                    seen = len(entries)
                await asyncio.sleep(0)
            await until(world.feed._shelving.done)
            assert world.feed.shelf is not None
            assert len(world.feed.shelf.files) >= seen > 0

    run(scene)


def test_a_node_that_stops_does_not_wait_for_files(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            world.fill(60, 100)
            world.feed.tidy()
        assert world.feed.shelf is not None
        assert len(world.feed.shelf.files) < len(world.journal.segments()) - 1
        assert not list((tmp_path / "parquet").glob(".*.making"))
        async with FeedWorld(tmp_path, **settings(tmp_path)) as world:
            await shelved(world)
            assert offsets_in(tmp_path / "parquet") == list(range(world.journal.segments()[-1].first_offset))

    run(scene)
