"""Groups get written whatever the clients and the disk do: no load keeps a checkpoint away, no refusal is final."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.access.identity import Credentials
from sterna.broker.broker import Broker
from sterna.broker.expressions.function_calls import Done
from sterna.broker.limits import Limits
from sterna.broker.session.connection import Connection
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import Durability, JournalSettings
from sterna.journal.store import Group, Position
from sterna.mqtt.message import Message
from sterna.node.node import Node, Saved
from sterna.runtime import committer
from sterna.runtime.committer import Committer
from sterna.vocabulary.errors import JournalError


class Disk(MemoryStore):
    """Slow when told to be, and full when told to be."""

    slowness_s = 0.0
    is_full = False
    writes = 0

    def __init__(self, settings: JournalSettings) -> None:
        super().__init__(settings)
        self.writers: set[str] = set()

    def write(self, group: Group) -> Position:
        self.writes += 1
        self.writers.add(threading.current_thread().name)
        time.sleep(self.slowness_s)
        if self.is_full:
            raise JournalError("the disk is full")
        return super().write(group)


class World:
    def __init__(self, durability: Durability) -> None:
        settings = JournalSettings(durability=durability)
        self.disk = Disk(settings)
        self.is_busy = False
        self.node = Node(
            limits=Limits(),
            settings=settings,
            store=self.disk,
            saved=Saved(),
            next_epoch=lambda _: 1,
            authenticator=Authenticator(),
            access=AccessList([], "allow"),
            world=self,
            rng=random.Random(1),
            now=0.0,
            wall=0.0,
        )
        self.broker: Broker = self.node.broker
        self.committer = Committer(self.broker, self.disk, settings, self.turn)

    def turn(self) -> None:
        if self.is_busy:
            self.publish()
        self.committer.commit_soon()

    def publish(self) -> int:
        message = Message(b"t", b"", 1)
        self.broker.ingress.publish(message)
        return message.offset

    def report(self, event: str, fields: dict[str, Any]) -> None: ...

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None: ...

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        raise AssertionError("there are no functions here")

    @property
    def is_settled(self) -> bool:
        return not self.broker.commitments.pending and not self.broker.commitments.under_way


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_a_checkpoint_finds_its_moment_though_every_commit_is_followed_by_another() -> None:
    async def conversation() -> None:
        world = World("fsync")
        world.disk.slowness_s = 0.005  # longer than a group is left open, so the next one starts at once
        world.is_busy = True
        world.turn()
        async with asyncio.timeout(60):
            for _ in range(3):
                assert await world.committer.hold()
                offset = world.publish()
                world.broker.log._note(b"an event")
                changes = world.node.changes()
                position = await world.committer.write_open_group()
                assert position is not None
                assert world.node.journal.read(offset) is not None
                assert changes.begun_at(position).position == Position(*position[:2], offset + 1, 1)
        world.is_busy = False
        await wait_until(lambda: world.is_settled)
        world.committer.close()

    asyncio.run(conversation())


def test_no_sync_is_waited_for_on_the_loop_not_even_for_a_checkpoint_or_the_end() -> None:
    async def conversation() -> None:
        world = World("fsync")
        world.publish()
        assert await world.committer.hold()
        assert await world.committer.write_open_group() is not None
        world.publish()
        assert await world.committer.settle()
        assert world.disk.writes == 2
        assert world.disk.writers == {"journal-writer_0"}
        world.committer.close()

    asyncio.run(conversation())


def test_settling_comes_to_an_end_and_says_so_if_work_does_not() -> None:
    async def conversation() -> None:
        world = World("fsync")
        world.disk.slowness_s = 0.005
        world.is_busy = True
        world.turn()
        async with asyncio.timeout(60):
            assert not await world.committer.settle()
        world.is_busy = False
        await wait_until(lambda: world.is_settled)
        assert await world.committer.settle()
        world.committer.close()

    asyncio.run(conversation())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_checkpoint_is_not_tried_while_the_journal_cannot_be_written(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "RETRY_S", 0.02)

    async def conversation() -> None:
        world = World(durability)
        world.disk.is_full = True
        world.node.journal.note(b"a session event")
        assert await world.committer.hold()
        with pytest.raises(JournalError, match="the disk is full"):
            await world.committer.write_open_group()
        assert not await world.committer.hold()
        world.disk.is_full = False
        await wait_until(lambda: world.is_settled)
        assert await world.committer.hold()
        assert await world.committer.write_open_group() is None
        world.committer.close()

    asyncio.run(conversation())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_journal_that_could_not_be_written_is_tried_again_and_nothing_noted_is_missing(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "RETRY_S", 0.05)

    async def conversation() -> None:
        world = World(durability)
        world.disk.is_full = True
        world.node.journal.note(b"a session event")
        offset = world.publish()
        world.turn()
        await asyncio.sleep(0)
        await wait_until(lambda: world.disk.writes >= 3)
        assert world.committer.trouble == "the disk is full"
        assert world.disk.writes < 50, "no pause between two attempts"
        assert not await world.committer.settle()
        assert world.node.journal.read(offset) is None
        world.disk.is_full = False
        await wait_until(lambda: world.is_settled)
        assert world.committer.trouble is None
        assert b"a session event" in world.disk.read(1, 0, 10_000)
        world.committer.close()

    asyncio.run(conversation())


def test_trouble_with_the_last_there_was_to_write_does_not_last_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "RETRY_S", 0.02)

    async def conversation() -> None:
        world = World("fsync")
        world.disk.slowness_s = 0.02
        world.disk.is_full = True
        world.node.journal.append(Message(b"t", b"nobody waits for it"))
        world.turn()
        assert not await world.committer.hold()
        assert world.committer.trouble is not None
        await wait_until(lambda: world.committer.trouble is None)
        assert await world.committer.hold()
        world.committer.close()

    asyncio.run(conversation())
