"""The connection of one reader of the feed: its introduction, its requests, and the answers.

Requests are served one after another.  At most one piece and the socket's buffer wait for a reader, and a reader that
takes nothing for too long is disconnected.  A bad request is answered with one clear line and affects no other reader.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sterna.journal.columns import SCHEMA
from sterna.journal.filter_set import FilterSet
from sterna.journal.reader_cursors import NAME_BYTES_MAX
from sterna.node.feed_pieces import FeedQuestion, needles_of
from sterna.node.feed_proofs import NONCE_BYTES, node_proof, reader_proof
from sterna.node.feed_records import RECORDS
from sterna.runtime.feed import requests as asks
from sterna.runtime.feed.range_read import RangeReading, filters_of, reach, trimmed
from sterna.runtime.feed.record_read import RecordsReading, segment_places
from sterna.runtime.feed.requests import Unfit
from sterna.runtime.feed.segment_read import SPAN_BYTES, first_since
from sterna.vocabulary.errors import JournalError

if TYPE_CHECKING:
    from sterna.runtime.feed.feed import Feed

OUTPUT_BYTES = 1024 * 1024
"""Bytes in the socket's buffer at which the next piece waits."""
HANDSHAKE_S = 10.0
LINGER_S = 2.0
"""How long a reader has to read why it is sent away."""
PAUSE_S = 0.5
"""A reader that asks nothing for so long makes room for another, if there are too many."""
MEMORY_LOOK_S = 0.05
"""A journal in memory tells of a commit only when a frame is full: so often its end is looked at."""
PARQUET_PAGE = 5000

_SCHEMA = SCHEMA.serialize().to_pybytes()
_LENGTH_BYTES = 4

#: Errors for bytes that are no request of a reader: text that is no UTF-8, and deeply nested arrays, included.
_NONSENSE = (msgspec.MsgspecError, UnicodeError, RecursionError)

log = logging.getLogger("sterna.feed")


class FeedConnection(asyncio.Protocol):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._input = bytearray()
        self._serving: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        #: Pieces of a read are being sent: any other answer has to come after an empty piece.
        self._in_read = False
        self.is_over = False
        """It was told goodbye."""
        self.reader = ""
        """Empty until it has proved what it has to."""
        self.address = ""
        self.last_active = self._loop.time()

    # -- the transport --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"
        if not self._feed.joined(self):
            self.abort()
        elif self._feed.is_crowded():
            self._dismiss("too many readers connect at once", "busy")
        else:
            self._say({"version": asks.VERSION, "nonce": self._nonce})

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_over = True
        self._writable.set()
        if self._serving is not None:
            self._serving.cancel()
        self._feed.left(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self.last_active = self._loop.time()
        self._writable.set()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return  # read and forget, so that closing does not reset the connection under our last word
        self._input += data
        if len(self._input) > self._bytes_max + _LENGTH_BYTES:
            self._dismiss(f"a request has at most {self._bytes_max} bytes", "request")
        elif self._serving is None:
            self._next()

    @property
    def _bytes_max(self) -> int:
        spark = self._feed.spark
        return asks.RESULTS_BYTES_MAX if self.reader and spark is not None and spark.serves else asks.REQUEST_BYTES_MAX

    def _next(self) -> None:
        """Begin with the next request, if there is a whole one."""
        if self.is_over or len(self._input) < _LENGTH_BYTES:
            return
        size = int.from_bytes(self._input[:_LENGTH_BYTES], "big")
        if size > self._bytes_max:
            self._dismiss(f"a request has at most {self._bytes_max} bytes", "request")
        elif len(self._input) >= _LENGTH_BYTES + size:
            body = bytes(self._input[_LENGTH_BYTES : _LENGTH_BYTES + size])
            del self._input[: _LENGTH_BYTES + size]
            self.last_active = self._loop.time()
            if not self.reader:
                self._introduced(body)
                self._next()
            else:
                self._serving = self._loop.create_task(self._serve(body))
                self._serving.add_done_callback(self._served)

    def _served(self, done: asyncio.Task[None]) -> None:
        self._serving = None
        self.last_active = self._loop.time()
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            log.error("a request of a reader failed", exc_info=error, extra={"reader": self.reader})
            self._dismiss("the node could not serve this; see its log", "internal")
        self._next()

    def idle_for(self, now: float) -> float:
        return now - self.last_active

    def is_idle(self, now: float) -> bool:
        """It is between two requests, and has been for a moment."""
        return self._serving is None and not self._input and self.idle_for(now) > PAUSE_S

    def go(self) -> None:
        self._dismiss("it was idle, and another reader needs the room", "idle", log_it=False)

    def look(self, now: float) -> None:
        """Once a second: is its time over?"""
        idle_s = self.idle_for(now)
        if self.is_over:
            if idle_s > LINGER_S:
                self.abort()
        elif not self.reader and idle_s > HANDSHAKE_S:
            self._dismiss("no introduction in time", "time")
        elif idle_s > self._feed.settings.idle_s and (self._serving is None or not self._writable.is_set()):
            slow = not self._writable.is_set()
            self._feed.grumble("a reader of the feed is let go", self, "too slow" if slow else "idle")
            if slow:
                self.abort()  # it would not read our last word either
            else:
                self._dismiss(f"nothing was asked for {self._feed.settings.idle_s:g} s", "idle", log_it=False)

    # -- words --

    def _say(self, said: dict[str, Any]) -> None:
        body = msgspec.msgpack.encode(said)
        self._transport.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    def _dismiss(self, reason: str, code: str, *, log_it: bool = True) -> None:
        """Say why, and no more."""
        if self.is_over:
            return
        if log_it:
            self._feed.grumble("a reader of the feed was refused", self, reason)
        if self._in_read:
            self._transport.write(bytes(_LENGTH_BYTES))
        self._say({"ok": False, "node": self._feed.node, "reason": reason, "code": code, "closing": True})
        self.is_over = True
        self.last_active = self._loop.time()
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
        except OSError:  # it has gone already
            self.abort()

    def farewell(self) -> None:
        self._dismiss("the node is stopping", "stopping", log_it=False)
        if self._serving is not None:
            self._serving.cancel()

    def _introduced(self, body: bytes) -> None:
        try:
            said = asks.introduction.decode(body)
        except _NONSENSE:
            self._dismiss("this is no reader of a feed", "request")
            return
        name = said.reader
        if said.version != asks.VERSION:
            text = f"the reader speaks version {said.version} of the feed, this node version {asks.VERSION}"
            self._dismiss(text, "version")
        elif not 0 < len(name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX or not name.isprintable():
            self._dismiss(f"a reader's name has 1 to {NAME_BYTES_MAX} printable characters", "name")
        elif not self._is_proved(said):
            self._dismiss("the token is wrong", "token")
        elif not self._feed.make_room():
            self._dismiss("too many readers are connected; see connections in [feed]", "busy")
        else:
            self.reader = name
            feed = self._feed
            welcome: dict[str, Any] = {"ok": True, "node": feed.node, "epoch": feed.journal.epoch, "schema": _SCHEMA}
            if feed.token and said.nonce:
                welcome["proof"] = node_proof(feed.token, self._nonce, said.nonce, feed.node)
            self._say({**welcome, "journal": feed.journal_identity})

    def _is_proved(self, said: asks.Introduction) -> bool:
        token = self._feed.token
        if not token:
            return True
        return hmac.compare_digest(reader_proof(token, self._nonce, said.reader), said.proof)

    # -- requests --

    async def _serve(self, body: bytes) -> None:
        try:
            asked = asks.request.decode(body)
        except msgspec.ValidationError as error:
            self._say({"ok": False, "reason": f"not a request: {error}", "code": "request"})
            return
        except _NONSENSE:
            self._dismiss("this is no request", "request")
            return
        try:
            await _SERVED[type(asked)](self, asked)
        except Unfit as refusal:
            self._say(refusal.answer)
        except JournalError as error:
            self._feed.grumble("a reader of the feed cannot be served", self, str(error))
            self._say({"ok": False, "reason": str(error), "code": "disk"})

    async def _status(self, asked: asks.AskStatus) -> None:
        feed, journal = self._feed, self._feed.journal
        if asked.beyond is not None and asked.wait_ms:
            until = self._loop.time() + min(asked.wait_ms, asks.WAIT_MS_MAX) / 1000
            while journal.safe_offset <= asked.beyond and (left_s := until - self._loop.time()) > 0:
                await feed.changed(left_s if feed.durable else min(left_s, MEMORY_LOOK_S))
        answer: dict[str, Any] = {
            "node": feed.node,
            "epoch": journal.epoch,
            "first": journal.first_offset,
            "next": journal.safe_offset,
            "peers": feed.peers(),
            "away": feed.away(),
            "durable": feed.durable,
            "journal": feed.journal_identity,
        }
        if feed.spark is not None:
            answer |= {"time_us": feed.spark.look(), "edition": feed.spark.edition}
        if (lost := feed.readers.lost(self.reader)) is not None:
            answer["fell_off"] = {"committed": lost.committed, "first": lost.first}
        self._say(answer)

    async def _register(self, asked: asks.AskRegister) -> None:
        journal = self._feed.journal
        offset = journal.first_offset if asked.offset is None else asked.offset
        if offset > journal.safe_offset:
            raise Unfit(f"offset {offset} is beyond the end of the journal, {journal.safe_offset}", "beyond")
        known = self._feed.readers.find(self.reader) is not None
        found = self._feed.readers.register(self.reader, offset)
        if found is None:
            raise Unfit("too many readers are registered; let some be forgotten, or raise [feed] readers", "readers")
        if not known:
            await self._feed.keep_readers()
        self._say({"ok": True, "offset": found.committed, "started": found.started})

    async def _reader(self, _asked: asks.AskReader) -> None:
        found = self._feed.readers.find(self.reader)
        started, committed = (None, None) if found is None else found[1:]
        self._say({"ok": True, "started": started, "offset": committed})

    async def _readers(self, _asked: asks.AskReaders) -> None:
        readers, end = self._feed.readers, self._feed.journal.safe_offset
        found = []
        for one in readers.records():
            lost = readers.lost(one.name)
            behind = max(0, end - one.committed)
            found.append({**one._asdict(), "behind": behind, "lost": 0 if lost is None else lost.messages})
        self._say({"ok": True, "readers": found})

    async def _commit(self, asked: asks.AskCommit) -> None:
        readers = self._feed.readers
        before = readers.find(self.reader)
        if before is None:
            raise Unfit(f'reader "{self.reader}" is not registered', "unregistered")
        # Nobody has read what is not there yet.
        reached = readers.commit(self.reader, min(asked.offset, self._feed.journal.safe_offset))
        if reached != before.committed:
            await self._feed.keep_readers()
        self._say({"ok": True, "offset": reached})

    async def _forget(self, _asked: asks.AskForget) -> None:
        if self._feed.readers.forget(self.reader):
            await self._feed.keep_readers()
        self._say({"ok": True})

    async def _reach(self, asked: asks.AskReach) -> None:
        offset, size = reach(self._feed.journal, asked.start, asked.bytes, asked.stop)
        self._say({"ok": True, "offset": offset, "bytes": size})

    async def _parquet(self, asked: asks.AskParquet) -> None:
        shelf = self._feed.shelf
        files = [entry for entry in shelf.files if entry.first > asked.after] if shelf is not None else []
        page = [msgspec.structs.asdict(entry) for entry in files[:PARQUET_PAGE]]
        directory = str(shelf.directory) if shelf is not None else ""
        self._say({"ok": True, "directory": directory, "files": page, "more": len(files) > len(page)})

    async def _offset_at(self, asked: asks.AskOffsetAt) -> None:
        feed, journal = self._feed, self._feed.journal
        stop = journal.safe_offset
        late = (segment.first_offset for segment in journal.segments() if segment.newest_us >= asked.time_us)
        offset = next(late, stop)
        while offset < stop and (span := journal.span(offset, stop, SPAN_BYTES)) is not None:
            try:
                found = await feed.source.in_thread(first_since, feed.source.store, span, asked.time_us)
            except KeyError:
                found = None  # it has just been dropped
            if found is not None:
                self._say({"ok": True, "offset": found})
                return
            offset = max(span.following, journal.first_offset)
        first, messages = journal.not_stored(0, stop)
        ages = (place for place, one in enumerate(messages) if one.received_at * 1e6 >= asked.time_us)
        self._say({"ok": True, "offset": next((first + place for place in ages), stop)})

    async def _read(self, asked: asks.AskRead) -> None:
        journal = self._feed.journal
        filters = filters_of(asked)
        interest = None if filters is None else FilterSet(filters)
        named = None if asked.publishers is None else [one.encode("utf-8", "surrogatepass") for one in asked.publishers]
        question = FeedQuestion(
            asked.start,
            asked.stop,
            interest,
            asked.since_us,
            asked.until_us,
            needles_of(filters, named),
            publishers=None if named is None else frozenset(named),
            qos=None if asked.qos is None else frozenset(asked.qos),
        )
        if asked.start < journal.first_offset:
            raise trimmed(asked.start, journal.first_offset)
        self._say({"ok": True, "first": asked.start})
        reading = RangeReading(self._feed.source, question)
        self._in_read = True
        try:
            while (picked := await reading.more()) is not None:
                self._feed.rows_sent += picked.rows
                for kind, buffers in picked.pieces:
                    await self._send_piece(kind, buffers)
        except (Unfit, JournalError):
            self._end_read()
            raise
        self._end_read()
        self._say({"ok": True, "reached": reading.offset, "rows": reading.rows, "lost": reading.lost})

    async def _segments(self, _asked: asks.AskSegments) -> None:
        self._say({"ok": True, "segments": segment_places(self._feed.journal.segments())})

    async def _records(self, asked: asks.AskRecords) -> None:
        reading = RecordsReading(self._feed.source, asked)
        self._say({"ok": True})
        self._in_read = True
        try:
            while (picked := await reading.more()) is not None:
                if picked.buffers:
                    await self._send_piece(RECORDS, picked.buffers)
        except (Unfit, JournalError):
            self._end_read()
            raise
        self._end_read()
        self._say({"ok": True, "reached": reading.reached, "rows": reading.rows, "lost": reading.rotten})

    async def _expressions(self, _asked: asks.AskExpressions) -> None:
        spark = self._feed.spark
        assert spark is not None
        self._say({"ok": True, "settings": spark.settings, "expressions": spark.expressions()})

    async def _results(self, asked: asks.AskResults) -> None:
        spark = self._feed.spark
        if spark is None or not spark.serves:
            raise Unfit("no expression is computed outside this node; see engine in [operators]", "operators")
        await spark.hand_in(asked.results)
        self._say({"ok": True})

    async def _audited(self, asked: asks.AskAudited) -> None:
        await self._feed.keep_audit(asked.audit)
        self._say({"ok": True})

    def _end_read(self) -> None:
        self._in_read = False
        self._transport.write(bytes(_LENGTH_BYTES))

    async def _send_piece(self, kind: int, buffers: list[Any]) -> None:
        size = 1 + sum(map(len, buffers))
        self._feed.bytes_sent += size
        self._transport.writelines((size.to_bytes(_LENGTH_BYTES, "big") + bytes((kind,)), *buffers))
        if not self._writable.is_set():
            self.last_active = self._loop.time()
            await self._writable.wait()


_SERVED: dict[type[Any], Callable[[FeedConnection, Any], Awaitable[None]]] = {
    asks.AskStatus: FeedConnection._status,
    asks.AskRead: FeedConnection._read,
    asks.AskRegister: FeedConnection._register,
    asks.AskReader: FeedConnection._reader,
    asks.AskReaders: FeedConnection._readers,
    asks.AskCommit: FeedConnection._commit,
    asks.AskForget: FeedConnection._forget,
    asks.AskOffsetAt: FeedConnection._offset_at,
    asks.AskReach: FeedConnection._reach,
    asks.AskParquet: FeedConnection._parquet,
    asks.AskSegments: FeedConnection._segments,
    asks.AskRecords: FeedConnection._records,
    asks.AskExpressions: FeedConnection._expressions,
    asks.AskResults: FeedConnection._results,
    asks.AskAudited: FeedConnection._audited,
}
