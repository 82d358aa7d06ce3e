"""Nodes, brokers and clients that meet through bytes in one thread; every message between nodes is written down.

The broker is a model of the few things that conversations need: CONNECT, subscriptions, QoS 0 and retained messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sterna.measure.ildm.reference.api import Address, Cooperation, SessionInfo
from sterna.measure.ildm.reference.flooding import LiteralPublicationFlooding
from sterna.measure.ildm.reference.messages import (
    MessageType,
    PacketStream,
    create_mqtt_message,
    read_filters,
    read_publish,
)
from sterna.measure.ildm.reference.node import IldmNode
from sterna.measure.ildm.reference.subscriptions import LiteralSubscriptionFlooding
from sterna.mqtt.topics import matches


class Pipe:
    """One end of a connection: what is written arrives at the other end when the world turns."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.other: Pipe | None = None
        self.receive: Callable[[bytes], None] = lambda data: None
        self.ended: Callable[[], None] = lambda: None
        self.held = False
        self.is_closed = False
        self.waiting: deque[bytes] = deque()

    def write(self, data: bytes) -> bool:
        assert self.other is not None
        if self.is_closed:
            return False
        self.world.note(self.name, self.other.name, data)
        other = self.other
        self.world.later(lambda: other.arrive(data))
        return True

    def arrive(self, data: bytes) -> None:
        self.waiting.append(data)
        self.pump()

    def hold(self, *, held: bool) -> None:
        self.held = held
        if not held:
            self.world.later(self.pump)

    def pump(self) -> None:
        while self.waiting and not self.held and not self.is_closed:
            self.receive(self.waiting.popleft())

    def close(self) -> None:
        """The other end hears of it after all that was written."""
        if self.is_closed:
            return
        self.is_closed = True
        other = self.other
        assert other is not None
        self.world.later(other.end)

    def end(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.ended()


class ModelBroker:
    def __init__(self) -> None:
        self.subscriptions: dict[Pipe, dict[str, int]] = {}
        self.retained: dict[bytes, bytes] = {}
        self.published: list[bytes] = []
        """Topics of the publications it got."""

    def accept(self, pipe: Pipe) -> None:
        stream = PacketStream()
        self.subscriptions[pipe] = {}
        pipe.receive = lambda data: self._feed(pipe, stream, data)
        pipe.ended = lambda: self._forget(pipe)

    def _forget(self, pipe: Pipe) -> None:
        self.subscriptions.pop(pipe, None)

    def _feed(self, pipe: Pipe, stream: PacketStream, data: bytes) -> None:
        for kind, message in stream.feed(data):
            if kind is MessageType.CONNECT:
                pipe.write(create_mqtt_message(MessageType.CONNACK))
            elif kind is MessageType.SUBSCRIBE:
                identifier, filters = read_filters(message)
                self.subscriptions[pipe].update(filters)
                codes = bytes(qos for _, qos in filters)
                pipe.write(create_mqtt_message(MessageType.SUBACK, identifier=identifier, codes=codes))
                self._send_retained(pipe, [one for one, _ in filters])
            elif kind is MessageType.UNSUBSCRIBE:
                identifier, filters = read_filters(message)
                for one, _ in filters:
                    self.subscriptions[pipe].pop(one, None)
                pipe.write(create_mqtt_message(MessageType.UNSUBACK, identifier=identifier))
            elif kind is MessageType.PUBLISH:
                self._publish(message)
            elif kind is MessageType.DISCONNECT:
                pipe.close()
                self._forget(pipe)

    def _publish(self, message: bytes) -> None:
        topic, payload = read_publish(message)
        self.published.append(topic)
        if message[0] & 0x01:
            self.retained[topic] = payload
        plain = create_mqtt_message(MessageType.PUBLISH, topic=topic, payload=payload)
        for pipe, filters in list(self.subscriptions.items()):
            if any(matches(one.encode().split(b"/"), topic.split(b"/")) for one in filters):
                pipe.write(plain)

    def _send_retained(self, pipe: Pipe, filters: list[str]) -> None:
        for topic, payload in self.retained.items():
            if any(matches(one.encode().split(b"/"), topic.split(b"/")) for one in filters):
                pipe.write(create_mqtt_message(MessageType.PUBLISH, topic=topic, payload=payload, retain=True))


@dataclass
class Client:
    pipe: Pipe
    identifier: int = 0
    got: list[tuple[MessageType, bytes]] = field(default_factory=list)

    def send(self, kind: MessageType, **parameters: Any) -> None:
        self.pipe.write(create_mqtt_message(kind, **parameters))

    def subscribe(self, *filters: str) -> None:
        self.identifier += 1
        self.send(MessageType.SUBSCRIBE, identifier=self.identifier, filters=[(one, 0) for one in filters])

    def unsubscribe(self, *filters: str) -> None:
        self.identifier += 1
        self.send(MessageType.UNSUBSCRIBE, identifier=self.identifier, filters=filters)

    def publish(self, topic: str, payload: bytes = b"x", **more: Any) -> None:
        self.send(MessageType.PUBLISH, topic=topic.encode(), payload=payload, **more)

    @property
    def messages(self) -> list[tuple[bytes, bytes]]:
        return [read_publish(message) for kind, message in self.got if kind is MessageType.PUBLISH]


class World:
    def __init__(self) -> None:
        self._events: deque[Callable[[], None]] = deque()
        self.nodes: dict[str, IldmNode] = {}
        self.algorithms: dict[str, Cooperation] = {}
        self.brokers: dict[str, ModelBroker] = {}
        self.said: list[tuple[str, str, MessageType, bytes]] = []
        """From, to, packet: between nodes only."""

    def later(self, event: Callable[[], None]) -> None:
        self._events.append(event)

    def settle(self) -> None:
        for _ in range(100_000):
            if not self._events:
                return
            self._events.popleft()()
        raise AssertionError("the nodes never come to rest")

    def note(self, source: str, target: str, data: bytes) -> None:
        if source in self.nodes and target in self.nodes:
            self.said += [(source, target, kind, message) for kind, message in PacketStream().feed(data)]

    def node(self, name: str, kind: str = "SF", **options: Any) -> IldmNode:
        """A node with its own broker; both are known by the node's name."""

        def algorithm(node: IldmNode) -> Cooperation:
            made = LiteralSubscriptionFlooding if kind == "SF" else LiteralPublicationFlooding
            self.algorithms[name] = made(node, name, Address("broker", 1), **options)
            return self.algorithms[name]

        return self.node_with(name, algorithm)

    def node_with(self, name: str, algorithm: Callable[[IldmNode], Cooperation]) -> IldmNode:
        self.brokers[name] = ModelBroker()
        made = IldmNode(Address("broker", 1), lambda address, session: self._dial(name, address, session), algorithm)
        self.nodes[name] = made
        made.start()
        return made

    def link(self, one: str, other: str) -> None:
        self.nodes[one].add(Address(other, 1))
        self.settle()

    def client(self, node: str, name: str, **more: Any) -> Client:
        """Connected through a node, and answered."""
        near, far = self._pipes(name, node)
        client = Client(near)
        stream = PacketStream()
        near.receive = lambda data: client.got.extend(stream.feed(data))
        self._accept(node, far)
        client.send(MessageType.CONNECT, client_id=name, **more)
        self.settle()
        return client

    def between(self, *kinds: MessageType) -> list[str]:
        """Messages of these kinds, as `2>1`; and forget all of it."""
        found = [f"{source[1:]}>{target[1:]}" for source, target, kind, _ in self.said if kind in kinds]
        self.said.clear()
        return found

    def _dial(self, name: str, address: Address, session: SessionInfo) -> None:
        self.later(lambda: self._connect(name, address, session))

    def _connect(self, name: str, address: Address, session: SessionInfo) -> None:
        node = self.nodes[name]
        target = name + "'s broker" if address.host == "broker" else address.host
        if address.host != "broker" and address.host not in self.nodes:
            node.lost(session)
            return
        near, far = self._pipes(name, target)
        near.receive = lambda data: node.received(session, data)
        near.ended = lambda: node.lost(session)
        if not node.established(session, near):
            return
        if address.host == "broker":
            self.brokers[name].accept(far)
        else:
            self._accept(address.host, far)

    def _accept(self, name: str, pipe: Pipe) -> None:
        node = self.nodes[name]
        pipe.held = True
        session = node.accepted(pipe, "somebody")
        pipe.receive = lambda data: node.received(session, data)
        pipe.ended = lambda: node.lost(session)

    def _pipes(self, one: str, other: str) -> tuple[Pipe, Pipe]:
        near, far = Pipe(self, one), Pipe(self, other)
        near.other, far.other = far, near
        return near, far
