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
from sterna.node.committing import Committing
from sterna.node.driver import Driver
from sterna.node.node import Changes, Node, Saved
from sterna.runtime.committer import Committer
from sterna.runtime.timers import LoopTimers
from sterna.vocabulary.errors import JournalError


class Disk(MemoryStore):
    """Slow when told to be, and full when told to be."""

    slowness_s = 0.0
    is_full = False
    has_a_fault = False
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
        if self.has_a_fault:
            raise ValueError("a fault")
        return super().write(group)


class World:
    def __init__(self, durability: Durability, retry_s: float = 1.0) -> None:
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
            now=time.monotonic(),
            wall=0.0,
        )
        self.broker: Broker = self.node.broker
        #: Checkpoints that were saved, and what was on the disk by then.
        self.saved: list[tuple[Changes, int]] = []
        committing = Committing(self.node, settings, retry_s)
        self.committer = Committer(committing, self.broker, self.disk, self.save, self.turn)
        self.driver = Driver(self.node, committing, self.committer.perform, networked=False)
        self.driver.begin(LoopTimers(asyncio.get_running_loop()))

    def save(self, changes: Changes) -> None:
        if self.disk.is_full:
            raise JournalError("the disk is full")
        self.saved.append((changes, self.disk.writes))

    def turn(self) -> None:
        if self.is_busy:
            self.publish()
        self.driver.after_work()

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
            for number in range(3):
                offset = world.publish()
                world.broker.log._note(b"an event")
                await world.committer.checkpoint()
                assert len(world.saved) == number + 1
                changes, writes = world.saved[-1]
                assert changes.position.offset > offset
                assert writes > number, "the group that was open is safe before the checkpoint"
                assert world.node.journal.read(offset) is not None
        world.is_busy = False
        await wait_until(lambda: world.is_settled)
        world.committer.close()

    asyncio.run(conversation())


def test_no_sync_is_waited_for_on_the_loop_not_even_for_a_checkpoint_or_the_end() -> None:
    async def conversation() -> None:
        world = World("fsync")
        world.publish()
        await world.committer.checkpoint()
        assert len(world.saved) == 1
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
def test_a_checkpoint_is_not_tried_while_the_journal_cannot_be_written(durability: Durability) -> None:
    async def conversation() -> None:
        world = World(durability, retry_s=0.02)
        world.disk.is_full = True
        world.node.journal.note(b"a session event")
        await world.committer.checkpoint()
        assert world.saved == []
        writes = world.disk.writes
        await world.committer.checkpoint()
        assert world.disk.writes == writes
        world.disk.is_full = False
        await wait_until(lambda: world.is_settled)
        await world.committer.checkpoint()
        assert len(world.saved) == 1
        world.committer.close()

    asyncio.run(conversation())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_journal_that_could_not_be_written_is_tried_again_and_nothing_noted_is_missing(
    durability: Durability,
) -> None:
    async def conversation() -> None:
        world = World(durability, retry_s=0.05)
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


def test_trouble_with_the_last_there_was_to_write_does_not_last_for_ever() -> None:
    async def conversation() -> None:
        world = World("fsync", retry_s=0.02)
        world.disk.slowness_s = 0.02
        world.disk.is_full = True
        world.node.journal.append(Message(b"t", b"nobody waits for it"))
        world.turn()
        await world.committer.checkpoint()
        assert world.saved == []
        assert world.committer.trouble is not None
        await wait_until(lambda: world.committer.trouble is None)
        world.disk.is_full = False
        await world.committer.checkpoint()
        assert len(world.saved) == 1
        world.committer.close()

    asyncio.run(conversation())


def test_a_checkpoint_that_could_not_be_saved_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def conversation() -> None:
        world = World("fsync")
        assert await world.committer.settle()
        world.disk.is_full = True
        for _ in range(3):
            await world.committer.checkpoint()
        assert caplog.messages == ["the checkpoint failed; the journal still holds everything"]
        world.disk.is_full = False
        await world.committer.checkpoint()
        assert len(world.saved) == 1
        world.committer.close()

    asyncio.run(conversation())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_store_with_a_fault_of_its_own_is_tried_again_too(
    durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    async def conversation() -> None:
        world = World(durability, retry_s=0.02)
        world.disk.has_a_fault = True
        world.node.journal.note(b"a session event")
        world.turn()
        await wait_until(lambda: world.committer.trouble is not None)
        assert "the journal's store failed" in caplog.messages
        world.disk.has_a_fault = False
        await wait_until(lambda: world.is_settled)
        assert b"a session event" in world.disk.read(1, 0, 10_000)
        world.committer.close()

    asyncio.run(conversation())
