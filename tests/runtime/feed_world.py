"""A feed on a real journal in the test's own process: filled by hand, served on loopback, read in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from sterna.journal.journal import Journal
from sterna.journal.memory_store import MemoryStore
from sterna.journal.recovery import recover
from sterna.journal.settings import JournalSettings
from sterna.mqtt.message import Message
from sterna.pipeline.feed.client import FeedClient
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import FeedTable
from sterna.runtime.disk.segment_files import FileStore
from sterna.runtime.feed.feed import Feed
from sterna.vocabulary.identity import Identity

NODE = "node-1"
BEGAN = 1_700_000_000
SMALL = JournalSettings(durability="os", segment_bytes=64 * 1024)

T = TypeVar("T")


def message(number: int, topic: bytes = b"", origin: str = "", payload: bytes = b"") -> Message:
    """Message number n comes in at second BEGAN + n."""
    one = Message(
        topic or b"plant/%d" % (number % 3),
        payload or b"payload %d" % number,
        qos=1,
        publisher=b"client",
        received_at=float(BEGAN + number),
    )
    if origin:
        one.identity = Identity(origin, 7, number)
    return one


class FeedWorld:
    """`async with FeedWorld(tmp_path) as world:` is a feed that can be read."""

    def __init__(self, directory: Path, journal: JournalSettings = SMALL, **table: Any) -> None:
        self._settings = journal
        self.durable = journal.durability != "memory"
        self.store: FileStore | MemoryStore = (
            FileStore(directory / "journal", journal, NODE) if self.durable else MemoryStore(journal, NODE)
        )
        recovery = recover(self.store)
        for _ in recovery:
            pass
        self.journal = Journal(self.store, journal, epoch=recovery.last_epoch + 1, recovered=recovery)
        identity = self.store.identity if isinstance(self.store, FileStore) else ""
        settings = FeedTable(**{"bind": Bind("127.0.0.1", 0), **table})
        self.feed = Feed(settings, NODE, directory, durable=self.durable, identity=identity)
        self.feed.attach(self.journal, self.store)
        self.address = ""

    def add(self, *messages: Message) -> None:
        """One group."""
        for one in messages:
            self.journal.append(one)
        self.commit()

    def fill(self, groups: int, per_group: int) -> None:
        for _ in range(groups):
            first = self.journal.next_offset
            self.add(*(message(first + number) for number in range(per_group)))

    def commit(self) -> None:
        if (group := self.journal.close_group()) is not None:
            self.journal.committed(group, self.store.write(group))
        self.feed.committed()

    async def __aenter__(self) -> Self:
        self.address = str(await self.feed.start())
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.feed.stop()
        if isinstance(self.store, FileStore):
            self.store.close()

    def client(self, reader: str = "test", **options: Any) -> FeedClient:
        return FeedClient(self.address, reader, timeout_s=60, **options)

    async def ask(self, question: Callable[[FeedClient], T], reader: str = "test", **options: Any) -> T:
        """Ask in a thread, as a process elsewhere would."""

        def work() -> T:
            with self.client(reader, **options) as client:
                return question(client)

        return await asyncio.to_thread(work)


def rows(batches: Any) -> list[dict[str, Any]]:
    return pa.Table.from_batches(list(batches)).to_pylist() if batches else []


def offsets(batches: Any) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 240))


def everything(client: FeedClient) -> list[int]:
    return offsets(client.read(0, client.status().next))


async def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def flip(path: str, place: int) -> None:
    """Let a byte of a file rot."""
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes((byte ^ 1,)))
