"""The client of one node's feed: asks how far its journal reaches, and reads ranges of it as Arrow batches.

It has one connection, opened at the first request and again if it was lost between two requests; requests run one
after another.  The content of a range never changes, so an interrupted reader reads the range again.  Needs no Spark.
It holds a socket: make one client per process, and do not send it to another.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec
import pyarrow as pa

from sterna.journal.columns import SCHEMA as JOURNAL_SCHEMA
from sterna.journal.filter_set import FilterSet
from sterna.journal.table import TABLE_SCHEMA
from sterna.node.feed_pieces import FeedQuestion, table_of, unpack
from sterna.node.feed_proofs import NONCE_BYTES, node_proof, reader_proof
from sterna.node.feed_records import unpack_records
from sterna.operators.settings import OperatorSettings
from sterna.pipeline.feed.errors import Busy, FeedError, FeedRefused, Trimmed, Unreachable
from sterna.runtime.feed.audit_outcomes import AuditOutcome
from sterna.vocabulary.errors import JournalCorrupt

VERSION = 1
TIMEOUT_S = 30.0
BATCH_ROWS = 8192
BATCH_BYTES = 4 * 1024 * 1024
"""Rows are gathered into batches of at least so many rows, or so many bytes: what takes them pays for each batch."""
PIECE_BYTES_MAX = 1 << 30
ANSWER_BYTES_MAX = 1 << 26
GREETING_BYTES_MAX = 1 << 16
"""No node sends more at once; who does is no node."""

__all__ = [
    "TABLE_SCHEMA",
    "ConnectionLost",
    "FeedClient",
    "ParquetFile",
    "ReadEnd",
    "RegisteredReader",
    "Status",
    "WantedExpressions",
]

_LENGTH_BYTES = 4
#: Words of goodbye that say nothing against the next request.
_COME_AGAIN = ("idle", "stopping", "time")


class ConnectionLost(msgspec.Struct, frozen=True):
    """Messages that retention took before this reader committed them: the offsets [committed, first)."""

    committed: int
    first: int


class Status(msgspec.Struct, frozen=True):
    node: str
    epoch: int
    """How often the node has been started, in a manner of speaking: greater with every start."""
    first: int
    """The oldest offset kept."""
    next: int
    """Every message below it can be read."""
    peers: dict[str, str] = {}
    """Other nodes of the network and the addresses of their feeds, as far as this one knows."""
    away: dict[str, str] = {}
    """The same of nodes that it cannot reach now, and that are expected to come back."""
    fell_off: ConnectionLost | None = None
    """Set until this reader has committed past what it lost."""
    durable: bool = True
    """False if a restart of the node forgets its journal and begins again at offset 0."""
    time_us: int = 0
    """Every message that came in before this instant is below `next`; 0 if the node computes everything itself."""
    edition: int = 0
    """Another one when other expressions are Spark's to compute."""
    journal: str = ""
    """The identity of the journal: another identity is another journal, even of the same node.  Empty if the node is of
    an earlier release."""


class ReadEnd(msgspec.Struct, frozen=True):
    """How a read ended."""

    reached: int
    """Everything below it was read; less than `stop` if the journal does not go further yet."""
    rows: int
    """Rows the node sent, before they were cut to what was asked for."""
    lost: int = 0
    """Messages of the range whose bytes on the node's disk are damaged."""


class RegisteredReader(msgspec.Struct, frozen=True):
    """A named reader as a node knows it."""

    name: str
    started: int
    """The offset at which it was registered."""
    committed: int
    behind: int
    """Messages that it has not committed."""
    lost: int = 0
    """Messages that retention took before it had read them, until it goes past them."""


class WantedExpressions(msgspec.Struct, frozen=True):
    """Expressions that Spark is to compute for a node."""

    settings: OperatorSettings
    expressions: list[tuple[bytes, int]]
    """With the instant of subscription, in microseconds."""


class ParquetFile(msgspec.Struct, frozen=True):
    """A sealed segment as a file of the table.  Its rows are those of the offsets [first, stop)."""

    name: str
    first: int
    stop: int
    rows: int
    bytes: int
    oldest_us: int
    newest_us: int


# msgspec looks a type up when it is first used, and crashes if two threads do that at once: so it is done here.
for _kind in (Status, ReadEnd, RegisteredReader, WantedExpressions, ParquetFile):
    msgspec.msgpack.Decoder(_kind)


@dataclass(slots=True)
class _FeedConnection:
    socket: socket.socket
    node: str
    fresh: bool = True
    """No request has been answered over it: if it breaks, another one would not fare better."""


class FeedClient:
    """`tls` is None, a file with authorities, True for those of the system, or an SSLContext."""

    def __init__(
        self,
        address: str,
        reader: str,
        token: str | bytes | None = None,
        tls: str | bool | ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.address = address
        self.reader = reader
        self._token = token.encode() if isinstance(token, str) else token or b""
        self._timeout_s = timeout_s
        self._connection: _FeedConnection | None = None
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise FeedRefused(f'"{address}" is no address of a feed; write host:port', "address")
        self._host, self._port = host.strip("[]"), int(port)
        self._tls = _context(tls)
        #: Of the node, when the connection was made that was last used.
        self.epoch = 0
        #: The identity of its journal then; of a node of an earlier release, its epoch.
        self.journal = ""
        #: How the last read that came to its end ended.
        self.last_read: ReadEnd | None = None

    # -- asking --

    def status(self, beyond: int | None = None, wait_ms: int = 0) -> Status:
        """With `beyond`: answers when the journal goes beyond that offset, or after `wait_ms`."""
        asked = {"op": "status", "wait_ms": wait_ms}
        if beyond is not None:
            asked["beyond"] = beyond
        found: Status = _as(Status, self._ask(asked, patience_s=wait_ms / 1000), self)
        return found

    def register(self, offset: int | None = None) -> int:
        """Where this reader stands; a new one begins at `offset` (None: at the oldest message kept)."""
        return int(self._ask({"op": "register", "offset": offset})["offset"])

    def registered(self) -> int | None:
        """The offset at which this reader was first registered; None if it is not."""
        found = self._ask({"op": "reader"})["started"]
        return None if found is None else int(found)

    def commit(self, offset: int) -> int:
        """Nothing below `offset` is needed any more; where this reader stands now."""
        return int(self._ask({"op": "commit", "offset": offset})["offset"])

    def readers(self) -> list[RegisteredReader]:
        """Everybody who is registered at this node."""
        return msgspec.convert(self._ask({"op": "readers"})["readers"], list[RegisteredReader])

    def forget(self) -> None:
        """This reader will not come again."""
        self._ask({"op": "forget"})

    def offset_at(self, time_us: int) -> int:
        """Of the first message that came in at that instant (microseconds since 1970) or later."""
        return int(self._ask({"op": "offset_at", "time_us": time_us})["offset"])

    def parquet(self) -> tuple[str, list[ParquetFile]]:
        """The directory, as the node calls it, and the files of sealed segments in it; "" if it writes none."""
        files: list[ParquetFile] = []
        after = -1
        while True:
            answer = self._ask({"op": "parquet", "after": after})
            page = msgspec.convert(answer["files"], list[ParquetFile])
            files += page
            if not page or not answer["more"]:
                return answer["directory"], files
            after = page[-1].first

    def read(
        self,
        start: int,
        stop: int,
        filters: Sequence[str] | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        publishers: Sequence[str] | None = None,
        qos: Sequence[int] | None = None,
        sift: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The messages of [start, stop) that match, in order.  `last_read` tells how it ended.  With `sift` off, some
        that do not match are among them: nodes leave out what they can without looking at each message."""
        interest = None if filters is None or not sift else FilterSet(one.encode() for one in filters)
        named = None if publishers is None else frozenset(one.encode() for one in publishers)
        levels = None if qos is None else frozenset(qos)
        question = FeedQuestion(start, stop, interest, since_us, until_us, publishers=named, qos=levels)
        asked = {
            "op": "read",
            "start": start,
            "stop": stop,
            "filters": None if filters is None else list(filters),
            "since_us": since_us,
            "until_us": until_us,
            "publishers": None if publishers is None else list(publishers),
            "qos": None if qos is None else list(qos),
        }
        self.last_read = None
        self._ask(asked)
        connection = self._connection
        assert connection is not None
        finished = False
        try:
            yield from _merged(self._batches(connection, question, columns))
            end = self._answer(connection)
            finished = True
        finally:
            if not finished:
                self.close()  # what is left of the range would be taken for the next answer
        self.last_read = _as(ReadEnd, end, self)

    def expressions(self) -> WantedExpressions:
        found: WantedExpressions = _as(WantedExpressions, self._ask({"op": "expressions"}), self)
        return found

    def reach(self, start: int, bytes_max: int, stop: int | None = None) -> tuple[int, int]:
        """How far about so many bytes of the journal go from there, one frame at least and not beyond `stop`, and how
        many they are."""
        found = self._ask({"op": "reach", "start": start, "bytes": bytes_max, "stop": stop})
        return int(found["offset"]), int(found["bytes"])

    def hand_in(self, results: Sequence[Sequence[object]]) -> None:
        """(expression, number, payload), and of a message that passed (topic, qos, properties, expires_us) behind it;
        comes back when the node's journal has them, each once."""
        self._ask({"op": "results", "results": results})

    def tell_audit(self, outcome: AuditOutcome) -> None:
        """For people who look at the node's dashboard; FeedRefused by a node of an earlier release."""
        self._ask({"op": "audited", "audit": msgspec.to_builtins(outcome)})

    def segments(self) -> list[tuple[int, int]]:
        """The places between which the records of each segment of the journal lie, oldest first."""
        return [(start, stop) for start, stop in self._ask({"op": "segments"})["segments"]]

    def records(
        self, table: str, start: int, stop: int, since_us: int | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The records of `table` (sessions or deliveries) between two places of one segment, a batch at a time, each
        with the place to go on from; older ones than `since_us` may be left out."""
        self.last_read = None
        self._ask({"op": "records", "table": table, "start": start, "stop": stop, "since_us": since_us})
        connection = self._connection
        assert connection is not None
        finished = False
        try:
            while piece := self._receive(connection):
                yield from unpack_records(piece, table, connection.node)
            end = self._answer(connection)
            finished = True
        except JournalCorrupt as error:
            raise Unreachable(f"node {connection.node} at {self.address}: {error}") from error
        finally:
            if not finished:
                self.close()
        self.last_read = _as(ReadEnd, end, self)

    def _batches(
        self, connection: _FeedConnection, question: FeedQuestion, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        node = connection.node
        try:
            while piece := self._receive(connection):
                for rows in unpack(piece, BATCH_ROWS):
                    made = table_of(rows, question, node, columns)
                    if made is not None:
                        yield made
        except JournalCorrupt as error:
            raise Unreachable(f"node {node} at {self.address}: {error}") from error

    # -- the connection --

    def _ask(self, request: dict[str, Any], patience_s: float = 0.0) -> dict[str, Any]:
        connection = self._connection or self._connect()
        try:
            return self._exchange(connection, request, patience_s)
        except Unreachable as error:
            if connection.fresh or error.timed_out:
                raise
        # It worked before: the node was started again, or let an idle reader go.  Every request may be said twice.
        return self._exchange(self._connect(), request, patience_s)

    def _exchange(self, connection: _FeedConnection, request: dict[str, Any], patience_s: float) -> dict[str, Any]:
        connection.socket.settimeout(self._timeout_s + patience_s)
        self._send(connection, msgspec.msgpack.encode(request))
        answer = self._answer(connection)
        connection.fresh = False
        return answer

    def _connect(self) -> _FeedConnection:
        self.close()
        try:
            raw = socket.create_connection((self._host, self._port), self._timeout_s)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{self.address} does not answer: {_why(error)}") from None
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                raw = self._tls.wrap_socket(raw, server_hostname=self._host)
        except ssl.SSLError as error:
            raw.close()
            raise FeedRefused(f"no TLS with {self.address}: {_why(error)}", "tls") from None
        except OSError as error:
            raw.close()
            raise Unreachable(f"{self.address} hung up: {_why(error)}") from None
        self._connection = connection = _FeedConnection(raw, "?")
        try:
            self._introduce(connection)
        except FeedError:
            self.close()
            raise
        return connection

    def _introduce(self, connection: _FeedConnection) -> None:
        greeting = self._answer(connection, GREETING_BYTES_MAX)
        nonce, ours = greeting.get("nonce"), secrets.token_bytes(NONCE_BYTES)
        if greeting.get("version") != VERSION or not isinstance(nonce, bytes) or len(nonce) != NONCE_BYTES:
            self._refuse(f"{self.address} speaks another version of the feed; this is version {VERSION}", "version")
        proof = reader_proof(self._token, nonce, self.reader)
        said = {"version": VERSION, "reader": self.reader, "proof": proof, "nonce": ours}
        self._send(connection, msgspec.msgpack.encode(said))
        welcome = self._answer(connection, GREETING_BYTES_MAX)
        connection.node = str(welcome.get("node"))
        if self._token:
            expected, proved = node_proof(self._token, nonce, ours, connection.node), welcome.get("proof")
            if not isinstance(proved, bytes) or not hmac.compare_digest(expected, proved):
                self._refuse(
                    f"{self.address} does not prove that it knows the token: it is not the node it should be, its "
                    "[feed] has no token, or it runs an earlier release of Sterna",
                    "proof",
                )
        self.epoch = int(welcome.get("epoch", 0))
        self.journal = str(welcome.get("journal") or self.epoch)
        if welcome.get("schema") != JOURNAL_SCHEMA.serialize().to_pybytes():
            self._refuse(f"node {connection.node} at {self.address} keeps its journal in another format", "format")

    def _refuse(self, text: str, code: str) -> NoReturn:
        self.close()
        raise FeedRefused(text, code)

    def _send(self, connection: _FeedConnection, body: bytes) -> None:
        try:
            connection.socket.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        except OSError as error:
            self._lost(error)

    def _answer(self, connection: _FeedConnection, bytes_max: int = ANSWER_BYTES_MAX) -> dict[str, Any]:
        """A piece that says something; what speaks of no success is raised."""
        try:
            said = msgspec.msgpack.decode(self._receive(connection, bytes_max), type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._refuse(f"{self.address} is no feed of a node", "protocol")
        if said.get("ok", True):
            return said
        text = f"node {said.get('node', connection.node)} at {self.address}: {said.get('reason')}"
        if said.get("closing"):
            self.close()
        if said.get("code") == "trimmed":
            raise Trimmed(text, int(said["first"]))
        if said.get("code") == "busy":
            raise Busy(text)
        if said.get("code") in _COME_AGAIN:
            raise Unreachable(text)
        raise FeedRefused(text, str(said.get("code")))

    def _receive(self, connection: _FeedConnection, bytes_max: int = PIECE_BYTES_MAX) -> memoryview:
        """The next piece."""
        size = int.from_bytes(self._exactly(connection, _LENGTH_BYTES), "big")
        if size > bytes_max:
            self._refuse(f"{self.address} is no feed of a node", "protocol")
        return self._exactly(connection, size)

    def _exactly(self, connection: _FeedConnection, size: int) -> memoryview:
        # A buffer of its own for each piece: the batches made of it refer to it.  Arrow's are not zeroed first.
        buffer = memoryview(pa.allocate_buffer(size)).cast("B")
        done = 0
        while done < size:
            try:
                got = connection.socket.recv_into(buffer[done:])
            except OSError as error:
                self._lost(error)
            if not got:
                self._lost(None)
            done += got
        return buffer

    def _lost(self, error: OSError | None) -> NoReturn:
        self.close()
        if isinstance(error, TimeoutError):
            raise Unreachable(f"{self.address} does not answer in time", timed_out=True) from None
        raise Unreachable(f"{self.address} hung up" + (f": {_why(error)}" if error else "")) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, where they are small."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _one(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _one(gathered)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _context(tls: str | bool | ssl.SSLContext | None) -> ssl.SSLContext | None:
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        context = ssl.create_default_context(cafile=tls if isinstance(tls, str) else None)
    except OSError as error:
        raise FeedRefused(f"{tls} holds no authorities: {_why(error)}", "tls") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _as(kind: type[Any], said: dict[str, Any], client: FeedClient) -> Any:
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise FeedRefused(f"{client.address} is no feed this reader understands: {error}", "protocol") from None
