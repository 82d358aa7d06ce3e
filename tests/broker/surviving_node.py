"""A node whose disk survives it, and clients of bytes: crashes at chosen moments, without sockets, files or clocks.

`crash` forgets the node and starts another on what the disk holds: every group that was written, whether or not the
node heard of it, and the last checkpoint.  Nothing is written unless a test says so.
"""

from __future__ import annotations

from random import Random
from struct import pack
from typing import Any, NamedTuple

from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.access.identity import Credentials
from sterna.broker.commitments import Commit
from sterna.broker.expressions.function_calls import Done
from sterna.broker.limits import Limits
from sterna.broker.session.connection import ClientPeer, Connection
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Position
from sterna.node.node import Node, Saved
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.settings import OperatorSettings as OperatorSettings

SETTINGS = JournalSettings(durability="fsync", segment_bytes=1 << 20)
DEFAULT_OPERATORS = OperatorSettings()
WALL = 1_700_000_000.0
ROUNDS_MAX = 20


class Disk:
    """The parts that outlive the process: the journal's bytes and the checkpoint's rows."""

    def __init__(self) -> None:
        self.store = MemoryStore(SETTINGS, "node")
        self.position = BEGINNING
        self.sessions: dict[str, bytes] = {}
        self.retained: dict[bytes, bytes] = {}
        self.epoch = 0

    def journal_bytes(self) -> bytes:
        """Of a journal that has one segment."""
        (segment,) = self.store.segments()
        return self.store.read(segment.serial, 0, segment.size)

    def hold(self, journal: bytes) -> None:
        """The journal is these bytes and nothing else."""
        self.store = MemoryStore(SETTINGS, "node")
        self.store._begin(0)
        segment = self.store._segments[1]
        segment.chunks, segment.starts, segment.size = [journal], [0], len(journal)

    def next_epoch(self, after: int) -> int:
        self.epoch = max(self.epoch, after) + 1
        return self.epoch


class SurvivingNode:
    def __init__(
        self,
        limits: Limits | None = None,
        functions: Functions = NO_FUNCTIONS,
        operators: OperatorSettings = DEFAULT_OPERATORS,
    ) -> None:
        self.disk = Disk()
        self._functions = functions
        self._operators = operators
        self._limits = limits or Limits()
        self._now = 0.0
        #: By how much the wall's clock is wrong.
        self.clock_error_s = 0.0
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self._start()

    def _start(self) -> None:
        #: Data processing functions under way.
        self.calls: list[tuple[bytes, Done]] = []
        self.node = Node(
            limits=self._limits,
            settings=SETTINGS,
            store=self.disk.store,
            saved=Saved(self.disk.position, dict(self.disk.sessions), dict(self.disk.retained)),
            next_epoch=self.disk.next_epoch,
            authenticator=Authenticator(),
            access=AccessList([], "allow"),
            world=self,
            rng=Random(1),
            now=self._now,
            wall=self.wall,
            functions=self._functions,
            operators=self._operators,
        )
        self.broker = self.node.broker

    @property
    def wall(self) -> float:
        return WALL + self._now + self.clock_error_s

    # -- what the broker asks of its world --

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self.reports.append((event, fields))

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None:
        raise AssertionError("nobody has a password here")

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        self.calls.append((payload, done))
        return True

    def answer(self, value: float | None) -> None:
        """The outcome of the oldest call."""
        _, done = self.calls.pop(0)
        done(value, "" if value is not None else "function-failed")

    # -- writing --

    def begin_commit(self) -> tuple[Commit, Position | None]:
        """Write the open group; the node does not hear of it yet, as if a crash were still possible."""
        commit = self.broker.commitments.close()
        return commit, None if commit.group is None else self.disk.store.write(commit.group)

    def finish_commit(self, begun: tuple[Commit, Position | None]) -> None:
        self.broker.committed(*begun)
        self.broker.flush()

    def commit(self) -> None:
        self.finish_commit(self.begin_commit())

    def refuse(self) -> None:
        """The disk does not take the open group."""
        self.broker.failed(self.broker.commitments.close(), "the disk is full")
        self.broker.flush()

    def settle(self) -> None:
        self.broker.flush()
        for _ in range(ROUNDS_MAX):
            if not self.broker.commitments.pending:
                return
            self.commit()
        raise AssertionError("there is no end to it")

    def checkpoint(self) -> None:
        self.broker.flush()
        changes = self.node.changes()
        at = None
        if self.broker.commitments.pending:
            commit, at = self.begin_commit()
            self.finish_commit((commit, at))
        changes = changes.begun_at(at)
        disk = self.disk
        for name in changes.sessions_gone:
            disk.sessions.pop(name, None)
        disk.sessions.update(changes.sessions)
        for topic in changes.retained_gone:
            disk.retained.pop(topic, None)
        disk.retained.update(changes.retained)
        disk.position = changes.position
        self.node.checkpointed(changes)

    def crash(self) -> None:
        self._start()

    def be_off(self, seconds: float) -> None:
        """Crash, and start again after a while."""
        self._now += seconds
        self._start()

    def tidy(self) -> None:
        """The work of a running node every few seconds."""
        self.broker.tell_time(self._now, self.wall)
        self.node.tidy()
        self.settle()

    def wait(self, seconds: float) -> None:
        self._now += seconds
        self.broker.handle_deadlines(self._now)

    def client(self, name: str, **how: Any) -> Client:
        """A client whose CONNECT has been answered."""
        client = Client(self, name, **how)
        self.settle()
        connack, *client.early = client.take()
        assert connack.kind == 2
        return client


class Packet(NamedTuple):
    kind: int
    flags: int = 0
    packet_id: int = 0
    payload: bytes = b""

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3


class Client:
    """One connection.  It says only what it is told to say, and keeps what it hears."""

    def __init__(
        self,
        node: SurvivingNode,
        name: str,
        *,
        version: int = 4,
        clean: bool = False,
        expiry_s: int = 1000,
        receive_maximum: int = 65535,
        will: tuple[str, bytes, int] | None = None,
    ) -> None:
        self.version = version
        self._heard = b""
        self.early: list[Packet] = []
        connection = node.broker.accept(self, ClientPeer("127.0.0.1:1"))
        assert connection is not None
        self.connection = connection
        flags = (2 if clean else 0) | (0x04 | will[2] << 3 if will else 0)
        properties = b"\x08\x11" + pack(">IBH", expiry_s, 0x21, receive_maximum) if version == 5 else b""
        no_properties = b"\0" if version == 5 else b""
        last_words = no_properties + _text(will[0]) + _text(will[1].decode()) if will else b""
        opening = _text("MQTT") + bytes((version, flags, 0, 0)) + properties + _text(name) + last_words
        self.feed(0x10, opening)

    def feed(self, first: int, body: bytes) -> None:
        assert len(body) < 128
        self.connection.feed(bytes((first, len(body))) + body)

    def publish(self, topic: str, payload: bytes, qos: int, packet_id: int = 0, *, retain: bool = False) -> None:
        properties = b"\0" if self.version == 5 else b""
        identifier = pack(">H", packet_id) if qos else b""
        self.feed(0x30 | qos << 1 | retain, _text(topic) + identifier + properties + payload)

    def subscribe(self, topic_filter: str, qos: int, packet_id: int = 60_000) -> None:
        properties = b"\0" if self.version == 5 else b""
        self.feed(0x82, pack(">H", packet_id) + properties + _text(topic_filter) + bytes((qos,)))

    def unsubscribe(self, topic_filter: str, packet_id: int = 60_001) -> None:
        properties = b"\0" if self.version == 5 else b""
        self.feed(0xA2, pack(">H", packet_id) + properties + _text(topic_filter))

    def acknowledge(self, kind: int, packet_id: int) -> None:
        self.feed(kind << 4 | (2 if kind == 6 else 0), pack(">H", packet_id))

    def vanish(self) -> None:
        self.connection.lost()

    def take(self) -> list[Packet]:
        """Packets that have come since the last call."""
        found, self.early = self.early, []
        data, self._heard = self._heard, b""
        while data:
            size = 2 + data[1]
            assert data[1] < 128
            found.append(self._decode(data[:size]))
            data = data[size:]
        return found

    def payloads(self) -> list[bytes]:
        """Of the messages that have come since the last call."""
        return [packet.payload for packet in self.take() if packet.kind == 3]

    def _decode(self, data: bytes) -> Packet:
        kind, flags = data[0] >> 4, data[0] & 0x0F
        if kind == 2:
            return Packet(kind, payload=data[2:3])
        if kind != 3:
            return Packet(kind, flags, int.from_bytes(data[2:4], "big"), data[4:])
        position = 4 + data[3]
        packet_id = int.from_bytes(data[position : position + 2], "big") if flags & 6 else 0
        position += (2 if flags & 6 else 0) + (self.version == 5)
        return Packet(kind, flags, packet_id, data[position:])

    # -- the transport, as the broker sees it --

    def write(self, data: bytes) -> None:
        self._heard += data

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


def _text(text: str) -> bytes:
    return pack(">H", len(text)) + text.encode()
