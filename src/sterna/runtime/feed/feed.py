"""The feed: a node's journal as a table for readers such as Spark, over TCP or TLS.

    node    -> {version, nonce}
    reader  -> {version, reader, proof: HMAC-SHA256(token, nonce | reader), nonce}
    node    -> {ok, node, epoch, schema, journal, proof: HMAC-SHA256(token, "node" | both nonces | node)}
                                                    or {ok: false, reason, code}, as to every request
    reader  -> {op: "status", beyond, wait_ms}      -> {node, epoch, first, next, peers, away, durable,
                                                        journal[, fell_off]}
               {op: "read", start, stop, filters, since_us, until_us, publishers, qos}
                                                    -> {ok, first}, pieces, an empty piece, {reached, rows, lost}
               {op: "register", offset}             -> {offset, started}
               {op: "readers"}                      -> {readers: [{name, started, committed, behind, lost}, ...]}
               {op: "reader"} {op: "commit", offset} {op: "forget"} {op: "offset_at", time_us} {op: "parquet", after}
               {op: "segments"}                     -> {segments: [[start, stop], ...]}, places
               {op: "records", table, start, stop, since_us}
                                                    -> {ok}, pieces, an empty piece, {reached, rows, lost}
               {op: "expressions"}                  -> {settings, expressions: [[text, since_us], ...]}
               {op: "results", results: [[expression, number, payload[, message]], ...]}
               {op: "audited", audit}: the outcome of an audit, for the dashboard
               {op: "reach", start, bytes, stop}    -> {offset, bytes}: so far do so many bytes of the journal go

Every piece has its length in four bytes (big endian) before it and is MessagePack, but for the pieces of a read: see
node/feed_pieces.py, and node/feed_records.py for records.  `journal` is the identity of the journal: offsets of another
one mean other messages.  Readers cost the node little: segments are read in threads,
frames travel as they lie on the disk, nothing is sent faster than it is taken, and everything a reader can make bigger
has a bound.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from sterna.broker.broker import Broker
from sterna.journal.journal import Journal
from sterna.journal.reader_cursors import HeldOffsets, ReaderCursors
from sterna.operators.settings import OperatorSettings
from sterna.runtime.config.feed_rules import feed_peers
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.secrets import FEED_TOKEN
from sterna.runtime.config.settings import FeedTable
from sterna.runtime.feed.audit_outcomes import AuditOutcome, AuditShelf
from sterna.runtime.feed.connection import HANDSHAKE_S, FeedConnection
from sterna.runtime.feed.cursors import CursorFile
from sterna.runtime.feed.known_nodes import KnownNodes
from sterna.runtime.feed.parquet import Abandoned, ParquetShelf
from sterna.runtime.feed.segment_read import SegmentSource, Store
from sterna.runtime.feed.spark_results import SparkResults
from sterna.runtime.feed.view import FeedView
from sterna.runtime.tls import RenewableContext, digest_of, expires_at, server_context
from sterna.vocabulary.errors import ConfigurationError, JournalError

THREADS = 2
"""That read segments for all readers."""
STRANGERS_MAX = 64
"""Connections that have not introduced themselves yet."""
GRUMBLES_MAX = 10
GRUMBLES_PERIOD_S = 60.0
"""So many lines about readers in such a time: nobody can fill the disk with them."""

log = logging.getLogger("sterna.feed")


def feed_context(settings: FeedTable) -> tuple[ssl.SSLContext, str, float]:
    """With the digest of its files, and when the certificate expires.  May raise OSError."""
    assert settings.certificate is not None
    context = server_context(str(settings.certificate), str(settings.key), None, required=False)
    return context, digest_of(settings.certificate, settings.key), expires_at(settings.certificate)


class Feed:
    """Made before the node, which asks what to hold for readers; `attach` gives it the journal."""

    source: SegmentSource

    def __init__(self, settings: FeedTable, node: str, data: Path, *, durable: bool, identity: str = "") -> None:
        """`identity`: of a durable journal; see FileStore."""
        self.settings = settings
        self.node = node
        self.durable = durable
        self._identity = identity
        self.token = FEED_TOKEN.read(settings)
        self._peers = feed_peers(settings)
        #: Where Spark asks for expressions and hands in results.
        self.spark: SparkResults | None = None
        #: Feeds of the nodes that can be reached.
        self.found: Callable[[], dict[str, str]] = dict
        # A journal in memory starts empty every time: old offsets would mean other messages.
        self._cursors = CursorFile(data / "readers.json") if durable else None
        self._nodes = KnownNodes(data / "feeds.json" if durable else None, settings.forget_nodes_s)
        self.audits = AuditShelf(data / "audits.json" if durable else None)
        self.readers = ReaderCursors(self._cursors.load(identity) if self._cursors else (), most=settings.readers)
        self.shelf: ParquetShelf | None = None
        if settings.parquet is not None:
            limits = {"age_s": settings.parquet_age_s, "bytes_max": settings.parquet_bytes}
            self.shelf = ParquetShelf(settings.parquet, node, **limits)  # type: ignore[arg-type]
        self.rows_sent = 0
        self.bytes_sent = 0
        #: None without TLS.
        self.tls: RenewableContext | None = None
        self._connections: set[FeedConnection] = set()
        self._server: asyncio.Server | None = None
        self._threads = ThreadPoolExecutor(THREADS, "feed")
        self._scribe = ThreadPoolExecutor(1, "feed-scribe")
        self._shelver = ThreadPoolExecutor(1, "feed-parquet")
        self._shelving: asyncio.Task[None] | None = None
        self._shelf_trouble = ""
        self._keeping = asyncio.Lock()
        self._edition = self._kept = 0
        self._changed = asyncio.Event()
        self._waiting = 0
        self._grumbles = (0.0, 0, 0)  # when the period began, said in it, left out in it

    def attach(self, journal: Journal, store: Store) -> None:
        self.source = SegmentSource(journal, store, self._threads)
        for name in self.readers.bring_back(journal.next_offset):
            log.error("a reader was ahead of the journal, which must have been lost", extra={"reader": name})
        if self.shelf is not None and self.shelf.manifest.reached > journal.next_offset:
            raise JournalError(
                f"the Parquet files in {self.shelf.directory} go further than the journal, which must have been lost; "
                "give [feed] parquet another directory"
            )

    def serve_spark(self, broker: Broker, settings: OperatorSettings, after_work: Callable[[], None]) -> None:
        self.spark = SparkResults(broker, self.journal, settings, after_work)

    @property
    def journal(self) -> Journal:
        return self.source.journal

    @property
    def journal_identity(self) -> str:
        """One in memory is another one with every start."""
        return self._identity if self.durable else str(self.journal.epoch)

    def peers(self) -> dict[str, str]:
        """Node -> address of its feed."""
        return {**self.found(), **self._peers}

    def away(self) -> dict[str, str]:
        """The same of nodes that cannot be reached now, and are expected to come back."""
        return self._nodes.away((*self.peers(), self.node))

    def held(self) -> HeldOffsets | None:
        """Offsets that retention is to spare: told at the start and whenever something may be dropped."""
        waits = [offset for offset in (self.readers.slowest(),) if offset is not None]
        if self.shelf is not None:
            waits.append(self.shelf.manifest.reached)
        return HeldOffsets(min(waits), self.settings.hold_bytes, self.settings.hold_age_s) if waits else None

    # -- start and stop --

    async def start(self) -> Bind:
        bind, settings = self.settings.bind, self.settings
        context = None
        if settings.certificate is not None:
            self.tls = RenewableContext(*feed_context(settings))
            context = self.tls.outer
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: FeedConnection(self),
                bind.host,
                bind.port,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context else None,
            )
        except OSError as error:
            raise ConfigurationError(
                f"the feed cannot listen on {bind}: {error.strerror}; set another bind in [feed]"
            ) from error
        if self.shelf is not None:
            await loop.run_in_executor(self._shelver, self._clear_leftovers)
        return Bind(bind.host, self._server.sockets[0].getsockname()[1])

    def _clear_leftovers(self) -> None:
        assert self.shelf is not None
        with suppress(OSError):
            self.shelf.clear_leftovers()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.farewell()
        if self.shelf is not None and self._shelving is not None:
            self.shelf.stopping = True
            await self._shelving
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.abort()
        for threads in (self._threads, self._scribe, self._shelver):
            threads.shutdown(wait=False, cancel_futures=True)

    # -- what connections ask --

    def joined(self, connection: FeedConnection) -> bool:
        """False if there are so many, leaving ones included, that it cannot even be told so."""
        self._connections.add(connection)
        return len(self._connections) <= self.settings.connections + 2 * STRANGERS_MAX

    def is_crowded(self) -> bool:
        """Are there too many that have not introduced themselves?"""
        return sum(not one.reader for one in self._connections if not one.is_over) > STRANGERS_MAX

    def make_room(self) -> bool:
        """Is there room for one more reader?  The one idle longest makes some, and may come again."""
        here = [one for one in self._connections if one.reader and not one.is_over]
        if len(here) < self.settings.connections:
            return True
        now = asyncio.get_running_loop().time()
        idle = [one for one in here if one.is_idle(now)]
        if idle:
            max(idle, key=lambda one: one.idle_for(now)).go()
        return bool(idle)

    def left(self, connection: FeedConnection) -> None:
        self._connections.discard(connection)

    async def keep_audit(self, outcome: AuditOutcome) -> None:
        """It is on the disk when this returns.  May raise JournalError."""
        self.audits.add(outcome)
        await asyncio.get_running_loop().run_in_executor(self._scribe, self.audits.write, self.audits.outcomes)

    async def keep_readers(self) -> None:
        """All that is known of the readers now is on the disk when this returns; many may wait for one write."""
        if self._cursors is None:
            return
        self._edition += 1
        wanted = self._edition
        async with self._keeping:
            if self._kept >= wanted:
                return
            edition = self._edition
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._scribe, self._cursors.write, self.readers.records())
            self._kept = edition

    def committed(self) -> None:
        """The journal may go further than before."""
        if self.spark is not None:
            self.spark.look()
        if self._waiting:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def changed(self, patience_s: float) -> None:
        """Wait for the next commit, so long at most."""
        self._waiting += 1
        try:
            await asyncio.wait_for(self._changed.wait(), patience_s)
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1

    def grumble(self, event: str, connection: FeedConnection, reason: str) -> None:
        now = time.monotonic()
        began, said, left_out = self._grumbles
        if now - began >= GRUMBLES_PERIOD_S:
            began, said = now, 0
        if said >= GRUMBLES_MAX:
            self._grumbles = (began, said, left_out + 1)
            return
        fields: dict[str, Any] = {"address": connection.address, "reader": connection.reader or None, "reason": reason}
        if left_out:
            fields["not_logged_before"] = left_out
        self._grumbles = (began, said + 1, 0)
        log.warning(event, extra=fields)

    # -- housekeeping --

    def tidy(self) -> None:
        """Once a second."""
        now = asyncio.get_running_loop().time()
        for connection in list(self._connections):
            connection.look(now)
        if self._nodes.look(self.found(), time.time()):
            self._scribe.submit(self._nodes.write)
        for lost in self.readers.trimmed(self.journal.first_offset):
            fields = {"reader": lost.reader, "from_offset": lost.committed, "to_offset": lost.first}
            log.warning("retention took what a reader has not committed", extra=fields)
        if self.shelf is not None and (self._shelving is None or self._shelving.done()):
            self._shelving = asyncio.get_running_loop().create_task(self._shelve(self.shelf))

    async def _shelve(self, shelf: ParquetShelf) -> None:
        """Write every sealed segment that is in no file yet, then see what is to go."""
        loop = asyncio.get_running_loop()
        try:
            while (sealed := shelf.due(self.journal.segments())) is not None:
                if shelf.manifest.reached < sealed.first:
                    self._tell_gap(shelf.manifest.reached, sealed.first)
                try:
                    await loop.run_in_executor(self._shelver, shelf.write, sealed, self.source.store)
                except KeyError:
                    continue  # dropped just now; the next look finds what comes after it
            now = time.time()
            if gone := shelf.outdated(now):
                await loop.run_in_executor(self._shelver, shelf.withdraw, gone, now)
            await loop.run_in_executor(self._shelver, shelf.sweep, now)
            self._shelf_trouble = ""
        except Abandoned:
            pass  # it is begun again at the next start
        except (JournalError, OSError) as error:
            if str(error) != self._shelf_trouble:  # it is tried every second
                log.error("a Parquet file cannot be written", extra={"reason": str(error)})
            self._shelf_trouble = str(error)

    def _tell_gap(self, reached: int, first: int) -> None:
        if reached and reached < self.journal.first_offset:
            fields = {"from_offset": reached, "to_offset": first}
            log.error("retention took messages that are in no Parquet file", extra=fields)

    def connected(self) -> dict[str, int]:
        """Connections by the name of their reader."""
        return Counter(one.reader for one in self._connections if one.reader)

    def view(self) -> FeedView:
        slowest = self.readers.slowest()
        return FeedView(
            connections=len(self._connections),
            readers=len(self.readers),
            lag=0 if slowest is None else self.journal.safe_offset - slowest,
            rows_sent=self.rows_sent,
            bytes_sent=self.bytes_sent,
            lost=self.readers.messages_lost,
            parquet_files=len(self.shelf.files) if self.shelf is not None else 0,
        )
