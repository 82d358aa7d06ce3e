"""A feed that serves readers: ranges, long polls, cursors and what retention does to them."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from operator import methodcaller
from pathlib import Path

import pytest

from runtime.feed_world import BEGAN, FeedWorld, everything, message, offsets, rows, run, until
from sterna.journal.reader_cursors import ReaderCursors
from sterna.journal.settings import JournalSettings
from sterna.pipeline.feed.client import ConnectionLost
from sterna.pipeline.feed.errors import FeedRefused, Trimmed
from sterna.runtime.feed.audit_outcomes import KEPT, AuditedSubscription, AuditOutcome, AuditShelf

TOKEN = "a token of sixteen bytes or more"
MEMORY = JournalSettings(durability="memory", segment_bytes=64 * 1024)


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
            found, end = await world.ask(lambda client: (offsets(client.read(0, 100)), client.last_read))
            assert end is not None
            assert (found, end.reached) == ([0, 1, 2, 3, 4], 5)
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
            assert (await waiting).next == 4

    run(scene)


def test_a_long_poll_in_vain_ends_in_time(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            began = time.monotonic()
            assert (await world.ask(lambda client: client.status(beyond=0, wait_ms=100))).next == 0
            assert time.monotonic() - began > 0.09

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
            with pytest.raises(FeedRefused, match=r'node node-1 at .*: reader "test" is not registered'):
                await world.ask(lambda client: client.commit(1))
            with pytest.raises(FeedRefused, match="beyond the end"):
                await world.ask(lambda client: client.register(1))
            await world.ask(lambda client: client.register(), reader="first")
            with pytest.raises(FeedRefused, match="too many readers are registered"):
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
            assert status.fell_off == ConnectionLost(end // 2, first)
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


def test_readers_of_a_journal_that_was_replaced_register_anew(tmp_path: Path) -> None:
    """Their old places would be taken for places in the new one, which may be longer."""

    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            world.fill(2, 10)
            assert await world.ask(lambda client: client.register(7)) == 7
        shutil.rmtree(tmp_path / "journal")
        async with FeedWorld(tmp_path) as world:
            world.fill(2, 10)
            assert await world.ask(lambda client: client.registered()) is None
            assert await world.ask(lambda client: client.register(0)) == 0

    run(scene)


def test_a_cursor_ahead_of_a_lost_journal_comes_back_to_its_end() -> None:
    readers = ReaderCursors()
    readers.register("ahead", 500)
    readers.register("behind", 5)
    assert readers.bring_back(100) == ["ahead"]
    assert [one.committed for one in readers.records()] == [100, 5]


# -- audits --


def outcome(number: int) -> AuditOutcome:
    counts = dict.fromkeys(("waiting", "dropped", "uncertain", "duplicated", "reordered", "resent", "violations"), 0)
    worst = AuditedSubscription("meter", "a", "plant/#", 1, 5, 5, 0, 0, 0, violation=False)
    return AuditOutcome(
        at=float(number), took_s=1.0, nodes=["a"], not_audited=[], window="everything", subscriptions=1,
        expected=5, delivered=5, lost=number, max_ms=1.5, worst=[worst], **counts,
    )  # fmt: skip


def test_the_last_outcomes_of_audits_are_kept_over_a_restart(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            for number in range(KEPT + 3):
                await world.ask(methodcaller("tell_audit", outcome(number)))
        async with FeedWorld(tmp_path) as world:
            assert [one.lost for one in world.feed.audits.outcomes] == list(range(3, KEPT + 3))
            assert world.feed.audits.outcomes[-1] == outcome(KEPT + 2)

    run(scene)


def test_an_outcome_of_nonsense_is_refused_and_a_file_of_nonsense_is_forgotten(tmp_path: Path) -> None:
    async def scene() -> None:
        async with FeedWorld(tmp_path) as world:
            with pytest.raises(FeedRefused, match="not a request"):
                await world.ask(lambda client: client._ask({"op": "audited", "audit": {"at": "noon"}}))
            assert world.feed.audits.outcomes == ()

    run(scene)
    file = tmp_path / "audits.json"
    file.write_bytes(b'[{"at": "noon"}]')
    assert AuditShelf(file).outcomes == ()
