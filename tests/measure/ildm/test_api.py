"""The API below the algorithms: pairs under churn, states, listeners, the generator, and an algorithm of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from sterna.measure.ildm.reference.api import Address, SessionInfo
from sterna.measure.ildm.reference.messages import (
    GENERATORS,
    MessageType,
    NotMqtt,
    PacketStream,
    create_mqtt_message,
    read_connect,
    read_filters,
    read_identifier,
    read_publish,
    read_suback,
)
from sterna.measure.ildm.reference.node import IldmNode
from sterna.measure.ildm.reference.states import (
    NODE_STEPS,
    SESSION_STEPS,
    IllegalStep,
    NodeStatus,
    SessionStatus,
    as_markdown,
    step,
)
from sterna.mqtt.packets import decode_connect, decode_subscribe, decode_unsubscribe

from .model_world import World


class SilentAlgorithm:
    """Relays, and writes down what it is told."""

    def __init__(self, node: IldmNode) -> None:
        self.node = node
        self.told: list[str] = []
        self.arrived: dict[SessionInfo, list[bytes]] = {}

    def mqtt_message_arrived(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        self.arrived.setdefault(session, []).append(message)
        pair = self.node.get_paired_session(session)
        if pair is not None:
            self.node.send_message(pair, message)

    def on_tcp_down(self, session: SessionInfo) -> None:
        self.told.append(f"down {session.number}")

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        self.told.append(f"failure {session.number} {type(error).__name__}")

    def on_session_established(self, session: SessionInfo) -> None:
        assert session.status is SessionStatus.ESTABLISHED
        self.told.append(f"established {session.number}")

    def on_session_closed(self, session: SessionInfo) -> None:
        assert session.status is SessionStatus.CLOSED
        self.told.append(f"closed {session.number}")

    def on_ildm_stop(self) -> None:
        self.told.append("stop")

    def on_ildm_add(self, address: Address) -> None:
        assert self.node.status is NodeStatus.ILDM_ADDING
        self.node.create_session(address)

    def on_ildm_remove(self, address: Address) -> None:
        assert self.node.status is NodeStatus.ILDM_REMOVING


@dataclass
class Wire:
    """A connection that only notes what is done to it."""

    written: list[bytes] = field(default_factory=list)
    held: bool = False
    closed: int = 0

    def write(self, data: bytes) -> bool:
        assert not self.closed
        self.written.append(data)
        return True

    def hold(self, *, held: bool) -> None:
        self.held = held

    def close(self) -> None:
        self.closed += 1


class PairingMachine(RuleBasedStateMachine):
    """Clients come and go, the broker is reached, refuses and hangs up, in any order."""

    clients: Bundle[tuple[SessionInfo, Wire]] = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.dialled: dict[SessionInfo, Address] = {}
        self.wires: dict[SessionInfo, Wire] = {}
        self.here: set[SessionInfo] = set()
        self.said: dict[SessionInfo, int] = {}
        self.algorithms: list[SilentAlgorithm] = []
        self.node = IldmNode(Address("broker", 1), self._dial, self._algorithm)
        self.node.start()

    def _algorithm(self, node: IldmNode) -> SilentAlgorithm:
        self.algorithms.append(SilentAlgorithm(node))
        return self.algorithms[0]

    def _dial(self, address: Address, session: SessionInfo) -> None:
        self.dialled[session] = address

    @rule(target=clients)
    def client_connects(self) -> tuple[SessionInfo, Wire]:
        wire = Wire()
        session = self.node.accepted(wire, "client")
        self.wires[session] = wire
        self.here.add(session)
        return session, wire

    @rule(client=clients)
    def broker_answers(self, client: tuple[SessionInfo, Wire]) -> None:
        pair = self.node.get_paired_session(client[0])
        if pair is not None and pair in self.dialled:
            del self.dialled[pair]
            self.wires[pair] = Wire()
            assert self.node.established(pair, self.wires[pair])
            assert not client[1].held

    @rule(client=clients)
    def broker_refuses(self, client: tuple[SessionInfo, Wire]) -> None:
        pair = self.node.get_paired_session(client[0])
        if pair is not None and pair in self.dialled:
            del self.dialled[pair]
            self.node.lost(pair)
            assert client[1].written[-1:] == [b"\x20\x02\x00\x03"]
            assert client[1].closed == 1

    @rule(client=clients)
    def client_speaks(self, client: tuple[SessionInfo, Wire]) -> None:
        pair = self.node.get_paired_session(client[0])
        if pair is None:
            return
        self.said[pair] = self.said.get(pair, 0) + 2
        self.node.received(client[0], b"\xc0\x00\xc0")
        self.node.received(client[0], b"\x00")

    @invariant()
    def the_broker_gets_every_packet_once_it_is_there(self) -> None:
        for pair, count in self.said.items():
            if pair in self.wires:
                assert self.wires[pair].written == [b"\xc0\x00"] * count

    @rule(client=clients)
    def client_is_lost(self, client: tuple[SessionInfo, Wire]) -> None:
        self.node.lost(client[0])
        self.node.lost(client[0])

    @rule(client=clients)
    def client_is_closed(self, client: tuple[SessionInfo, Wire]) -> None:
        self.node.close_session(client[0])
        self.node.close_session(client[0])
        assert not self.node.send_message(client[0], b"\xd0\x00")

    @rule(client=clients)
    def broker_hangs_up(self, client: tuple[SessionInfo, Wire]) -> None:
        pair = self.node.get_paired_session(client[0])
        if pair is not None and pair in self.wires:
            self.node.lost(pair)

    @rule(client=clients)
    def client_sends_garbage(self, client: tuple[SessionInfo, Wire]) -> None:
        if client[0] in self.node.sessions and not client[1].held:
            self.node.received(client[0], b"\x00\xff\xff\xff\xff")
            assert self.algorithms[0].told.count(f"failure {client[0].number} NotMqtt") == 1

    @rule()
    def late_answers(self) -> None:
        """Connections that nobody wants any more."""
        for session in list(self.dialled):
            if session not in self.node.sessions:
                del self.dialled[session]
                assert not self.node.established(session, Wire())

    @invariant()
    def pairs_are_one_to_one(self) -> None:
        sessions = self.node.sessions
        clients = [one for one in sessions if one in self.here]
        brokers = [one for one in sessions if one not in self.here]
        assert len(clients) == len(brokers)
        for one in sessions:
            pair = self.node.get_paired_session(one)
            assert pair is not None
            assert self.node.get_paired_session(pair) is one
            assert (one in self.here) != (pair in self.here)

    @invariant()
    def what_ended_was_closed_once(self) -> None:
        for session, wire in self.wires.items():
            assert wire.closed == (session not in self.node.sessions)
            assert (session.status is SessionStatus.ESTABLISHED) == (session in self.node.sessions)
            assert self.algorithms[0].told.count(f"closed {session.number}") == wire.closed


TestPairing = PairingMachine.TestCase
TestPairing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_stopping_tells_the_algorithm_before_anything_is_closed() -> None:
    world = World()
    algorithms: list[SilentAlgorithm] = []

    def algorithm(node: IldmNode) -> SilentAlgorithm:
        algorithms.append(SilentAlgorithm(node))
        return algorithms[0]

    node = world.node_with("I1", algorithm)
    world.client("I1", "C")
    node.add(Address("nowhere", 1))
    world.settle()
    assert any(one.startswith("down") for one in algorithms[0].told)
    node.stop()
    told = algorithms[0].told
    assert told.count("stop") == 1
    assert all(one.startswith("closed") for one in told[told.index("stop") + 1 :])
    with pytest.raises(IllegalStep):
        node.stop()


@pytest.mark.parametrize("status", SessionStatus)
def test_steps_of_sessions_that_the_table_does_not_have_raise(status: SessionStatus) -> None:
    for event in {event for before, event in SESSION_STEPS if (status, event) not in SESSION_STEPS}:
        with pytest.raises(IllegalStep):
            step(SESSION_STEPS, status, event)


@pytest.mark.parametrize("status", NodeStatus)
def test_steps_of_the_node_that_the_table_does_not_have_raise(status: NodeStatus) -> None:
    for event in {event for before, event in NODE_STEPS if (status, event) not in NODE_STEPS}:
        with pytest.raises(IllegalStep):
            step(NODE_STEPS, status, event)


class NumbersOnly(SilentAlgorithm):
    """An algorithm in a few lines: payloads that are no numbers reach nobody."""

    def mqtt_message_arrived(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        if kind is not MessageType.PUBLISH or read_publish(message)[1].isdigit():
            super().mqtt_message_arrived(session, kind, message)


def test_an_algorithm_may_hold_back_what_it_does_not_like() -> None:
    world = World()
    world.node_with("I1", NumbersOnly)
    reader, writer = world.client("I1", "reader"), world.client("I1", "writer")
    reader.subscribe("#")
    world.settle()
    for payload in b"1", b"one", b"2":
        writer.publish("t", payload)
    world.settle()
    assert reader.messages == [(b"t", b"1"), (b"t", b"2")]
    assert world.brokers["I1"].published == [b"t", b"t"]


PARAMETERS: dict[MessageType, dict[str, object]] = {
    MessageType.CONNECT: {"client_id": "c", "keep_alive": 7, "clean": False, "will": ("w", b"gone", 1, True)},
    MessageType.CONNACK: {"code": 5},
    MessageType.PUBLISH: {"topic": b"a/b", "payload": b"p" * 200, "qos": 1, "identifier": 9, "retain": True},
    MessageType.SUBSCRIBE: {"identifier": 3, "filters": [("a/#", 1), ("b", 2)]},
    MessageType.SUBACK: {"identifier": 3, "codes": b"\x01\x80"},
    MessageType.UNSUBSCRIBE: {"identifier": 4, "filters": ["a/#", "b"]},
    MessageType.PINGREQ: {},
    MessageType.PINGRESP: {},
    MessageType.DISCONNECT: {},
}


def test_generated_messages_are_read_back_by_the_brokers_codec_and_by_ours() -> None:
    made = {kind: create_mqtt_message(kind, **PARAMETERS.get(kind, {"identifier": 5})) for kind in GENERATORS}
    assert set(made) == set(MessageType)
    assert PacketStream().feed(b"".join(made.values())) == list(made.items())
    connect = made[MessageType.CONNECT]
    theirs = decode_connect(connect, 2, len(connect), 64)
    assert (theirs.client_id, theirs.keep_alive_s, theirs.clean_start) == (b"c", 7, False)
    assert theirs.will is not None
    assert (theirs.will.topic, theirs.will.payload, theirs.will.qos, theirs.will.retain) == (b"w", b"gone", 1, True)
    ours = read_connect(connect)
    assert (ours.client_id, ours.clean, ours.will) == ("c", False, ("w", b"gone", True))
    assert read_publish(made[MessageType.PUBLISH]) == (b"a/b", b"p" * 200)
    assert read_filters(made[MessageType.SUBSCRIBE]) == (3, [("a/#", 1), ("b", 2)])
    assert read_filters(made[MessageType.UNSUBSCRIBE]) == (4, [("a/#", 0), ("b", 0)])
    assert read_suback(made[MessageType.SUBACK]) == (3, b"\x01\x80")
    assert read_identifier(made[MessageType.PUBREC]) == 5
    subscribe, unsubscribe = made[MessageType.SUBSCRIBE], made[MessageType.UNSUBSCRIBE]
    assert decode_subscribe(subscribe, 2, len(subscribe), 4, 10).packet_id == 3
    assert decode_unsubscribe(unsubscribe, 2, len(unsubscribe), 4, 10).packet_id == 4


@given(st.data())
def test_packets_are_the_same_however_the_stream_is_cut(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(MessageType)), max_size=8))
    made = [create_mqtt_message(kind, **PARAMETERS.get(kind, {"identifier": 5})) for kind in kinds]
    stream, found, whole = PacketStream(), [], b"".join(made)
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        found += stream.feed(whole[:size])
        whole = whole[size:]
    assert [message for _, message in found] == made


@given(st.binary(max_size=64))
def test_any_bytes_are_packets_or_no_mqtt(data: bytes) -> None:
    readers: dict[MessageType, Callable[[bytes], object]] = {MessageType.CONNECT: read_connect}
    try:
        for kind, message in PacketStream().feed(data):
            readers.get(kind, len)(message)
    except NotMqtt:
        pass


def test_the_documentation_shows_the_tables() -> None:
    page = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()
    for table in as_markdown(SESSION_STEPS), as_markdown(NODE_STEPS):
        assert table in page
