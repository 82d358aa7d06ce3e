"""Nodes that keep MQTT sessions as simply as can be, all of one network: a session is wherever its client connects."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sterna.mqtt import gateway_packets, packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_5, packet
from sterna.simulation.client_packets import PacketReader, encode_publish
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from .town import End

Publication = tuple[bytes, bytes, int]


class ModelSession:
    def __init__(self, next_id: int) -> None:
        self.filters: dict[bytes, int] = {}
        self.queue: deque[Publication] = deque()
        self.inflight: dict[int, Publication | None] = {}
        self.received: set[int] = set()
        self.next_id = next_id
        #: Messages sent at QoS 1 since the disk last had everything: a crash may forget it.
        self.unsafe: list[tuple[int, Publication]] = []
        self.connection: ModelConnection | None = None
        self.persistent = True


class ModelNetwork:
    def __init__(self) -> None:
        self.sessions: dict[bytes, ModelSession] = {}
        #: Publications of clients, in the order they were taken in.
        self.accepted: list[Publication] = []
        self.wills: list[bytes] = []
        self.window = 8
        self.first_id = 1
        self.knows_gateways = True
        self.hellos: list[gateway_packets.GatewayHello] = []
        self.receive_maximum = 0
        #: A payload that nodes hang up on.
        self.unbearable = b"?"
        #: The answer to every CONNECT instead of a welcome.
        self.refusal = b""
        #: A connection whose client is still served through another, and its CONNECT.
        self.second: tuple[ModelConnection, packets.Connect] | None = None

    def hand_over(self) -> bool:
        """The session goes from the node that has it to the one its client is connected to as well; False: to none."""
        if self.second is None:
            return False
        (connection, connect), self.second = self.second, None
        session = self.sessions[connect.client_id]
        assert session.connection is not None
        session.connection.say(gateway_packets.GatewayStopped())
        session.connection = None
        connection.welcome(connect)
        return True

    def accept(self, server: str) -> ModelConnection:
        return ModelConnection(self, server)

    def publish(self, topic: bytes, payload: bytes, qos: int) -> None:
        for session in list(self.sessions.values()):
            for topic_filter, granted in session.filters.items():
                if topic_filter in (topic, b"#"):
                    self.deliver(session, (topic, payload, min(qos, granted)))
                    break

    def deliver(self, session: ModelSession, message: Publication) -> None:
        if message[2]:
            session.queue.append(message)
            self.pump(session)
        elif session.connection is not None:
            session.connection.send_publish(message, 0, dup=False)

    def crash(self, forgotten: int) -> None:
        """Nodes come back without their last assignments; what was sent under them is sent anew."""
        for session in self.sessions.values():
            lost = session.unsafe[-forgotten:] if forgotten else []
            session.unsafe.clear()
            for packet_id, message in reversed(lost):
                session.inflight.pop(packet_id, None)
                session.queue.appendleft(message)
                session.next_id = packet_id

    def pump(self, session: ModelSession) -> None:
        while session.connection is not None and session.queue and len(session.inflight) < self.window:
            packet_id = session.next_id
            while packet_id in session.inflight:
                packet_id = packet_id % 65535 + 1
            session.next_id = packet_id % 65535 + 1
            session.inflight[packet_id] = message = session.queue.popleft()
            if message[2] == 1:
                session.unsafe.append((packet_id, message))
            else:
                session.unsafe.clear()  # at QoS 2 nothing leaves before its identifier is safe
            session.connection.send_publish(message, packet_id, dup=False)


class ModelConnection:
    def __init__(self, network: ModelNetwork, server: str) -> None:
        from .town import End

        self.end: End = End()
        self.server = server
        self._network = network
        self._reader = PacketReader()
        self._session: ModelSession | None = None
        self.connect: packets.Connect | None = None
        self.heard: list[tuple[int, bytes]] = []
        self._frozen = False
        self._is_second = False
        self.disconnect: bytes | None = None

    @property
    def version(self) -> int:
        assert self.connect is not None
        return self.connect.version

    def lost(self) -> None:
        """The wire is gone."""
        if self._network.second is not None and self._network.second[0] is self:
            self._network.second = None
        session, self._session = self._session, None
        if session is None or session.connection is not self:
            return
        session.connection = None
        assert self.connect is not None
        if self.connect.will is not None and (self.disconnect is None or self.disconnect[:1] == b"\x04"):
            self._network.wills.append(self.connect.will.payload)
        if not session.persistent:
            self._network.sessions.pop(self.connect.client_id, None)

    def send_publish(self, message: Publication, packet_id: int, *, dup: bool) -> None:
        topic, payload, qos = message
        self.end.write(encode_publish(topic, payload, qos, packet_id, self.version, retain=False, dup=dup))

    def feed(self, data: bytes) -> None:
        for first, body in self._reader.feed(data):
            if self.disconnect is not None or self.end.closing:
                return
            self.heard.append((first, body))
            if self._frozen:
                continue
            try:
                self._take(first, body)
            except ProtocolError:
                self.end.close()

    def _take(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 0:
            if not self._network.knows_gateways:
                self.end.close()
                return
            word = gateway_packets.decode(body, 0, len(body))
            if isinstance(word, gateway_packets.GatewayHello):
                self._network.hellos.append(word)
                self._is_second = word.is_second
            return
        if kind == packets.CONNECT:
            connect = packets.decode_connect(body, 0, len(body), 100)
            if self._is_second:
                self._network.second = self, connect
            else:
                self.welcome(connect)
            return
        assert self._session is not None, "a packet before CONNECT"
        assert self._session.connection is self
        if kind == packets.PUBLISH:
            self._publish(first, body)
        elif kind == packets.PINGREQ:
            self.end.write(packets.PINGRESP_BYTES)
        elif kind == packets.DISCONNECT:
            self.disconnect = body
            if self.version == MQTT_5 and prop.SESSION_EXPIRY in (
                found := packets.decode_ending(body, 0, len(body), "DISCONNECT", 10)[1]
            ):
                self._session.persistent = bool(found[prop.SESSION_EXPIRY])
            self.end.close()
        else:
            self._exchange(kind, body)

    def welcome(self, connect: packets.Connect) -> None:
        self.connect = connect
        network = self._network
        if network.refusal:
            self.end.write(network.refusal)
            if network.refusal[0] >> 4 != packets.AUTH:
                self.end.close()
            return
        known = network.sessions.get(connect.client_id)
        if known is not None and known.connection is not None:
            known.connection.end.close()
            known.connection.lost()
            known = network.sessions.get(connect.client_id)
        if known is not None and connect.clean_start:
            known = None
        session = known or ModelSession(network.first_id)
        network.sessions[connect.client_id] = session
        session.connection = self
        session.persistent = (
            bool(connect.properties.get(prop.SESSION_EXPIRY, 0))
            if connect.version == MQTT_5
            else not connect.clean_start
        )
        self._session = session
        values = {prop.RECEIVE_MAXIMUM: network.receive_maximum} if network.receive_maximum else {}
        self.end.write(packets.encode_connack(connect.version, known is not None, 0, values))
        for packet_id, message in session.inflight.items():
            if message is None:
                self.end.write(b"\x62\x02" + wire.two(packet_id))
            else:
                self.send_publish(message, packet_id, dup=True)
        network.pump(session)

    def _publish(self, first: int, body: bytes) -> None:
        assert self._session is not None
        qos = first >> 1 & 3
        topic, place = wire.read_text(body, 0, len(body))
        packet_id = 0
        if qos:
            packet_id, place = wire.read_two(body, place, len(body))
        if self.version == MQTT_5:
            length, place = wire.read_variable(body, place, len(body))
            place += length
        if body[place:] == self._network.unbearable:
            raise ProtocolError(0x82, "unbearable")
        if qos < 2 or packet_id not in self._session.received:
            self._network.accepted.append((topic, body[place:], qos))
            self._network.publish(topic, body[place:], qos)
        if qos == 2:
            self._session.received.add(packet_id)
        if qos:
            self.end.write(bytes((0x40 if qos == 1 else 0x50, 2)) + wire.two(packet_id))

    def _exchange(self, kind: int, body: bytes) -> None:
        session = self._session
        assert session is not None
        packet_id, _ = wire.read_two(body, 0, len(body))
        if kind in (packets.PUBACK, packets.PUBCOMP):
            session.inflight.pop(packet_id, None)
            self._network.pump(session)
        elif kind == packets.PUBREC:
            if packet_id in session.inflight:
                session.inflight[packet_id] = None
            self.end.write(b"\x62\x02" + wire.two(packet_id))
        elif kind == packets.PUBREL:
            session.received.discard(packet_id)
            self.end.write(b"\x70\x02" + wire.two(packet_id))
        elif kind == packets.SUBSCRIBE:
            asked = packets.decode_subscribe(body, 0, len(body), self.version, 10)
            codes = bytes(one.qos for one in asked.requests)
            session.filters |= {one.topic_filter: one.qos for one in asked.requests}
            self.end.write(packets.encode_suback(packet_id, codes, self.version))
        else:
            left = packets.decode_unsubscribe(body, 0, len(body), self.version, 10)
            for topic_filter in left.filters:
                session.filters.pop(topic_filter, None)
            self.end.write(packets.encode_unsuback(packet_id, bytes(len(left.filters)), self.version))

    def say(self, control: gateway_packets.Control) -> None:
        self._frozen |= isinstance(control, gateway_packets.Redirect | gateway_packets.GatewayStopped)
        self.end.write(gateway_packets.encode(control))

    def dismiss(self, code: int, server: str = "") -> None:
        """DISCONNECT of MQTT 5."""
        body = bytes((code,))
        if server:
            reference = b"\x1c" + wire.binary(server.encode())
            body += wire.variable(len(reference)) + reference
        self.end.write(packet(0xE0, body))
        self.end.close()
        self.disconnect = b""
