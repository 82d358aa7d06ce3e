"""A node in a test's hands: the real broker on a journal in memory, clients that are lists of bytes, a clock to turn.

Nothing here waits.  `settle` does what the world does at the end of a turn: write what is pending, tell the broker,
flush; a test that wants to see the time between may close and report commits itself.
"""

from __future__ import annotations

from math import inf, nextafter
from random import Random
from typing import Any, TypeVar, Unpack

from conformance.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Received,
    Sent,
    Suback,
    Subscribe,
    Unsubscribe,
    Will,
    decode,
)
from conformance.properties import Properties
from sterna.broker.access.authentication import Authenticator, Credentials
from sterna.broker.access.authorization import AccessList, AccessRule
from sterna.broker.commitments import Commit
from sterna.broker.expressions.function_calls import Done
from sterna.broker.limits import Limits
from sterna.broker.session.connection import ClientPeer, Connection
from sterna.broker.session.session import Session
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import Durability, JournalSettings
from sterna.mqtt import gateway_packets
from sterna.node.node import Node, Saved
from sterna.operators.functions import NO_FUNCTIONS, Functions

PacketT = TypeVar("PacketT", bound=Received)

WALL_OFFSET = 1_000_000.0
#: The first packet of a gateway.
HELLO = gateway_packets.encode(gateway_packets.GatewayHello("g", gateway_packets.VERSION, ""))


class Wire:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.writes = 0
        self.closed = False
        self.aborted = False
        self.reading = True
        self.unsent = 0

    def write(self, data: bytes) -> None:
        assert not self.closed, "written after close"
        self.written += data
        self.writes += 1

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


class LoneNode:
    """Also the broker's world: it remembers what was reported, and checks passwords on the spot."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        durability: Durability = "os",
        rules: tuple[AccessRule, ...] = (),
        authenticator: Authenticator | None = None,
        settings: JournalSettings | None = None,
        epoch: int = 1,
        store: MemoryStore | None = None,
        saved: Saved | None = None,
        name: str = "",
        alone: bool = True,
        functions: Functions = NO_FUNCTIONS,
    ) -> None:
        settings = settings or JournalSettings(durability=durability)
        self.store = store or MemoryStore(settings)
        self.now = 100.0
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.waiting_for_verdict: list[tuple[Connection, Credentials]] = []
        #: Data processing functions under way, and how many may be.
        self.calls: list[tuple[str, bytes, Done]] = []
        self.calls_max = 2
        self.node = Node(
            limits=limits or Limits(),
            settings=settings,
            store=self.store,
            saved=saved or Saved(epoch=epoch - 1),
            next_epoch=lambda last: last + epoch,
            authenticator=authenticator or Authenticator(),
            access=AccessList(rules, "allow"),
            world=self,
            rng=Random(1),
            now=self.now,
            wall=self.wall,
            name=name,
            alone=alone,
            functions=functions,
        )
        self.broker = self.node.broker

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self.reports.append((event, fields))

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None:
        self.waiting_for_verdict.append((connection, credentials))

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        if len(self.calls) >= self.calls_max:
            return False
        self.calls.append((function, payload, done))
        return True

    def answer(self, value: float | None, place: int = 0, reason: str = "function-failed") -> None:
        """The outcome of one of the calls that are under way."""
        _, _, done = self.calls.pop(place)
        self.broker.at(self.now)
        done(value, "" if value is not None else reason)
        self.settle()

    # -- the world's work --

    @property
    def wall(self) -> float:
        return self.now + WALL_OFFSET

    def finish(self, commit: Commit) -> None:
        self.broker.committed(commit, None if commit.group is None else self.store.write(commit.group))

    def settle(self) -> None:
        """Write everything, answer everybody, finish what takes more than one turn."""
        for _ in range(10_000):
            if self.broker.commitments.pending:
                self.finish(self.broker.commitments.close())
            elif self.broker.turns:
                self.take_turn()
            else:
                break
        else:
            raise AssertionError("work without end")
        self.broker.flush()

    def take_turn(self) -> None:
        """A moment passes, and whoever is first in line goes on; what else is due comes too."""
        self.now = nextafter(self.now, inf)
        self.broker.handle_deadlines(self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.broker.handle_deadlines(self.now)
        self.settle()

    def dropped(self, reason: str) -> int:
        return self.broker.counters.publish_dropped.get(reason, 0)

    def session(self, client_id: str) -> Session:
        return self.broker.sessions[client_id.encode()]

    # -- clients --

    def dial(self, version: int = 5, address: str = "192.0.2.1:1000", certificate_name: str | None = None) -> Client:
        return Client(self, version, ClientPeer(address, certificate_name))

    def join(
        self,
        client_id: str,
        version: int = 5,
        *,
        clean: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        gateway: bool = False,
        **properties: Unpack[Properties],
    ) -> Client:
        """A client that was let in; its CONNACK is in `connack`."""
        client = self.dial(version)
        password = None if username is None else b""
        if gateway:
            client.send(HELLO)
        client.send(Connect(client_id, clean, keep_alive, will, username, password, properties))
        self.settle()
        client.connack = client.take(Connack)
        assert client.connack.code == 0, client.connack
        return client

    def resume(
        self,
        client_id: str,
        version: int = 5,
        *,
        will: Will | None = None,
        username: str | None = None,
        gateway: bool = False,
        **properties: Unpack[Properties],
    ) -> Client:
        """A client whose session outlives its connection."""
        if version == 5:
            properties.setdefault("session_expiry", 100)
        return self.join(client_id, version, clean=False, will=will, username=username, gateway=gateway, **properties)


class Client:
    """One connection to the node, and what came out of it."""

    def __init__(self, node: LoneNode, version: int, peer: ClientPeer) -> None:
        self._node = node
        self.version = version
        self.wire = Wire()
        self.connack = Connack()
        self._packet_id = 0
        self._read = 0
        self._unread: list[Received] = []
        #: The node's words to a gateway.
        self.words: list[gateway_packets.Control] = []
        node.broker.at(node.now)
        self.connection = node.broker.accept(self.wire, peer)

    def send(self, *packets: Sent | bytes) -> None:
        """All of it in one piece; nothing is committed or flushed yet."""
        self._node.broker.at(self._node.now)
        self._node.broker.work_budget.begin(self._node.now)  # a turn of its own, though the clock stands still
        self.connection.feed(b"".join(p if isinstance(p, bytes) else p.encode(self.version) for p in packets))

    def say(self, *packets: Sent | bytes) -> list[Received]:
        """Send, let the node do its work, and return what it answered."""
        self.send(*packets)
        self._node.settle()
        return self.received()

    def received(self) -> list[Received]:
        """Everything that came in since the last call."""
        data = self.wire.written
        while self._read < len(data):
            first, length, shift, place = data[self._read], 0, 0, self._read + 1
            while data[place] & 0x80:
                length |= (data[place] & 0x7F) << shift
                shift, place = shift + 7, place + 1
            length |= data[place] << shift
            self._read = place + 1 + length
            assert self._read <= len(data), "half a packet was flushed"
            if first == gateway_packets.CONTROL:
                self.words.append(gateway_packets.decode(bytes(data), place + 1, self._read))
            else:
                self._unread.append(decode(first, bytes(data[place + 1 : self._read]), self.version))
        unread, self._unread = self._unread, []
        return unread

    def take(self, kind: type[PacketT]) -> PacketT:
        """The first packet that came, which must be of this kind."""
        packets = self.received()
        assert packets, f"nothing came, expected {kind.__name__}"
        assert isinstance(packets[0], kind), packets
        self._unread = packets[1:]
        return packets[0]

    def _pick(self, kind: type[PacketT]) -> PacketT:
        """The one packet of this kind that came; the others stay to be read."""
        packets = self.received()
        (found,) = [packet for packet in packets if isinstance(packet, kind)]
        self._unread = [packet for packet in packets if packet is not found]
        return found

    def subscribe(self, topic_filter: str, options: int = 0, **properties: Unpack[Properties]) -> int:
        """The granted QoS, or the code of the refusal.  Packets that came with it stay to be read."""
        self.send(Subscribe(self.next_packet_id(), [(topic_filter, options)], properties))
        self._node.settle()
        return self._pick(Suback).codes[0]

    def unsubscribe(self, topic_filter: str) -> None:
        answers = self.say(Unsubscribe(self.next_packet_id(), [topic_filter]))
        assert len(answers) == 1, answers

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **properties: Unpack[Properties]
    ) -> int:
        """Publish through to the end of the exchange; the code it was answered with."""
        packet_id = self.next_packet_id()
        self.send(Publish(topic, payload, qos, retain, packet_id=packet_id, properties=properties))
        self._node.settle()
        if qos == 0:
            return 0
        answer = self._pick(Puback if qos == 1 else Pubrec)
        if qos == 2 and answer.code < 0x80:
            self.send(Pubrel(packet_id))
            self._node.settle()
            assert self._pick(Pubcomp) == Pubcomp(packet_id)
        return answer.code

    def payloads(self) -> list[bytes]:
        """Payloads of the messages that came; nothing else may have come."""
        packets = self.received()
        assert all(isinstance(packet, Publish) for packet in packets), packets
        return [packet.payload for packet in packets if isinstance(packet, Publish)]

    def messages(self) -> list[Publish]:
        packets = self.received()
        return [packet for packet in packets if isinstance(packet, Publish)]

    def farewell(self) -> int | None:
        """The connection is closed: the code it was told last, or None."""
        assert self.wire.closed, "the connection is still open"
        packets = self.received()
        last = packets[-1] if packets else None
        return last.code if isinstance(last, (Disconnect, Connack)) else None

    def leave(self, code: int = 0, **properties: Unpack[Properties]) -> None:
        """DISCONNECT."""
        self.send(Disconnect(code, properties))
        self._node.settle()
        assert self.wire.closed

    def vanish(self) -> None:
        """The socket is gone."""
        self.wire.closed = True
        self._node.broker.at(self._node.now)
        self.connection.lost()
        self._node.settle()

    def next_packet_id(self) -> int:
        self._packet_id += 1
        return self._packet_id
