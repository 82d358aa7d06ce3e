"""Reading the journal's segments beside the node's loop: bytes from files, in threads, a bounded piece at a time.

A job holds the interpreter for about a millisecond at most, so that the loop is not kept waiting by readers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import pyarrow.compute as pc

from sterna.journal.columns import OWN_SCHEMA, read_batch
from sterna.journal.frames import HEADER_BYTES, MESSAGES, parse_header
from sterna.journal.index import FrameSpan
from sterna.journal.journal import Journal
from sterna.journal.memory_store import MemoryStore
from sterna.journal.table import own_rows, rows_between
from sterna.node.feed_pieces import FeedQuestion, Picked, pick
from sterna.runtime.disk.segment_files import FileStore

SPAN_BYTES = 512 * 1024
"""Read for one piece, or one frame that is bigger by itself."""

LOOK_SPAN_BYTES = 96 * 1024
"""The same where frames are looked into: that takes ten times as long, and the interpreter all the while."""

Store = FileStore | MemoryStore

T = TypeVar("T")


class SegmentSource(NamedTuple):
    """A journal with the store of its segments, and the threads that read them."""

    journal: Journal
    store: Store
    threads: ThreadPoolExecutor

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)


def read_bytes(store: Store, serial: int, start: int, stop: int) -> bytes:
    """Raises JournalError; KeyError if the segment is gone."""
    if isinstance(store, MemoryStore):
        return store.read(serial, start, stop - start)
    fd = store.open_apart(serial)
    try:
        parts = [os.pread(fd, stop - start, start)]
        done = len(parts[0])
        while parts[-1] and done < stop - start:
            parts.append(os.pread(fd, stop - start - done, start + done))
            done += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)
    except OSError as error:
        raise store.explained(error, serial) from error
    finally:
        os.close(fd)


def read_span(store: Store, span: FrameSpan, question: FeedQuestion, look: bool) -> Picked:
    """The part of a span that is to be sent."""
    return pick(read_bytes(store, span.serial, span.start, span.stop), question, look=look)


def first_since(store: Store, span: FrameSpan, time_us: int) -> int | None:
    """The first message of ours in the span that came in at `time_us` or later."""
    data = read_bytes(store, span.serial, span.start, span.stop)
    position = 0
    while header := parse_header(data[position : position + HEADER_BYTES]):
        end = position + HEADER_BYTES + header.length
        if header.kind == MESSAGES and (header.newest_us >= time_us or header.from_elsewhere) and end <= len(data):
            batch = read_batch(data[position + HEADER_BYTES : end], from_elsewhere=header.from_elsewhere)
            late = rows_between(batch.column("received_at"), time_us, None)
            own = own_rows(batch) if batch.num_columns > len(OWN_SCHEMA) else None
            found = pc.index(late if own is None else pc.and_(late, own), True).as_py()
            if found >= 0:
                return header.base + int(found)
        position = end
    return None
