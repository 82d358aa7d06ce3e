"""A model of a foreign broker, with the measured peculiarities of real ones as switches.

It is an honest MQTT server with persistent sessions in a memory that a restart keeps or loses.  Its own clients are
calls: `publish` is one of them publishing, `heard` is what a subscriber to all topics got.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple

from sterna.mqtt import packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.client_packets import version_of
from sterna.mqtt.packets import BRIDGE, MQTT_3_1_1, MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from sterna.mqtt.properties import Properties
from sterna.mqtt.reasons import Reason
from sterna.mqtt.topics import levels_of, matches
from sterna.simulation.client_packets import PacketReader
from sterna.simulation.kernel import Kernel
from sterna.simulation.network import SimulatedNetwork
from sterna.simulation.streams import End

PORT = 1883
USER_PROPERTIES_MAX = 1000
DUP = 0x08
IN_FLIGHT_MAX = 20
"""Messages at QoS 1 and 2 under way to one client, as with Mosquitto; the others wait for their turn."""


@dataclass(frozen=True, slots=True)
class Quirks:
    levels: tuple[int, ...] = (MQTT_5, BRIDGE | MQTT_3_1_1, MQTT_3_1_1)
    """Levels of CONNECT that it takes."""
    hangs_up: bool = False
    """On other levels it hangs up instead of saying CONNACK 1 (RabbitMQ)."""
    no_local: bool = True
    """It grants No Local and keeps to it."""
    qos: int = 2
    """The highest it grants; with 1, PUBLISH at QoS 2 is answered with PUBACK (RabbitMQ)."""
    copies: tuple[int, ...] = ()
    """Versions on which a message comes once for each filter that matches (Mosquitto on 5; NATS, ActiveMQ)."""
    keeps_user_properties: bool = True
    delivers_as_granted: bool = False
    """At the QoS that was granted, also messages that were published at QoS 0 (aMQTT)."""
    retained_for_wildcards: bool = True
    retained_before_suback: bool = False
    """As aMQTT does."""
    passes_on_at_pubrel: bool = True
    """A message at QoS 2 goes to subscribers when it is released (Mosquitto), not when it comes."""
    forgets: bool = False
    """Sessions are in memory: a restart ends them, and loses retained messages."""
    qos0_late_s: float = 0.0
    """Messages published at QoS 0 go to subscribers so much later, behind messages at QoS 1 (RabbitMQ)."""
    queue_max: int = 0
    """So many messages wait for a client that is away, and further ones are dropped (Mosquitto: 1,000); 0: all wait."""
    keep_alive_s: int = 0
    """It insists on this keep-alive (ejabberd: 30)."""
    dead: bool = False
    """It answers pings and passes nothing on."""
    refuses: bytes = b""
    """Filters that it answers with SUBACK 0x80."""
    hangs_up_on: bytes = b""
    """A topic that it cannot bear."""
    denies: bytes = b""
    """How topics begin that clients may not write to, but for those that are calls here."""
    denial: Literal["silent", "code", "hangs up"] = "code"
    """The answer to them: as if they were taken, which on 3.1.1 is Mosquitto's; a reason code where there is one; none
    (RabbitMQ, Aedes)."""


#: Real brokers, as far as the switches go.
KINDS: dict[str, Quirks] = {
    "mosquitto": Quirks(copies=(5,)),
    "rabbitmq": Quirks(levels=(4,), hangs_up=True, qos=1, retained_for_wildcards=False, denial="hangs up"),
    "nats": Quirks(levels=(4,), copies=(4,), passes_on_at_pubrel=False),
    "aedes": Quirks(levels=(BRIDGE | 4, 4), forgets=True, denial="hangs up"),
    "amqtt": Quirks(levels=(4,), copies=(4,), retained_before_suback=True, delivers_as_granted=True, forgets=True),
    "ejabberd": Quirks(levels=(5, 4), copies=(4, 5), keep_alive_s=30, forgets=True),
    "activemq": Quirks(levels=(4,), copies=(4,), forgets=True),
}


class ModelMessage(NamedTuple):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool = False
    properties: bytes = b""


@dataclass(slots=True)
class ModelBrokerSession:
    """A session."""

    filters: dict[bytes, packets.FilterRequest] = field(default_factory=dict)
    inflight: dict[int, ModelMessage | None] = field(default_factory=dict)
    waiting: deque[ModelMessage] = field(default_factory=deque)
    window: int = IN_FLIGHT_MAX
    received: dict[int, ModelMessage] = field(default_factory=dict)
    next_id: int = 1
    lasting: bool = False
    version: int = MQTT_3_1_1
    is_bridge: bool = False
    wire: ForeignWire | None = None


class ForeignBroker:
    def __init__(self, kernel: Kernel, network: SimulatedNetwork, name: str, quirks: Quirks | None = None) -> None:
        self.kernel = kernel
        self.network = network
        self.name = name
        self.quirks = quirks or Quirks()
        self.sessions: dict[bytes, ModelBrokerSession] = {}
        self.retained: dict[bytes, ModelMessage] = {}
        self._unseen: dict[bytes, list[ModelMessage]] = {}
        """Those that nobody has taken with the retain flag, since somebody last took one on the topic."""
        self.heard: list[ModelMessage] = []
        self.on_heard: Callable[[ModelMessage], None] = lambda _: None
        """Told of what a subscriber to all topics gets."""
        self.on_lost: Callable[[ModelMessage], None] = lambda _: None
        """Told of what the broker itself loses on its way to a lasting session: it forgets it, or its queue is full."""
        self.on_unseen: Callable[[ModelMessage], None] = lambda _: None
        """Told of a retained message that it forgets before it has shown anybody that it was retained."""
        self.on_repeated: Callable[[ModelMessage], None] = lambda _: None
        """Told of what it sends to a lasting session again."""
        self.forgotten_at: list[float] = []
        """When it has forgotten a lasting session."""
        self.up = False
        self.bridge: Callable[[ModelMessage], None] | None = None
        """Carries every message to another broker."""
        self.watch: Callable[[str, int], bool] = lambda _way, _kind: False
        """Told of each packet of lasting sessions, before it is taken ("in") or sent ("out"); True: it is not."""

    @property
    def address(self) -> str:
        return f"{self.name}:{PORT}"

    def boot(self) -> None:
        if not self.up:
            self.up = True
            self.network.host(self.name).up = True
            self.network.listen(self.address, self._accept)

    def kill(self, *, forgets: bool | None = None) -> None:
        """The process ends; `forgets`: so do its sessions, retained messages included."""
        if not self.up:
            return
        self.up = False
        for session in self.sessions.values():
            session.wire = None
        if self.quirks.forgets if forgets is None else forgets:
            self._forget_everything()
        self.sessions = {name: held for name, held in self.sessions.items() if held.lasting}
        self.network.process_ended(self.name, power=False)

    def _forget_everything(self) -> None:
        for session in self.sessions.values():
            if session.lasting:
                self.forgotten_at.append(self.kernel.now)
            for message in (*session.inflight.values(), *session.waiting):
                if message is not None and session.lasting:
                    self.on_lost(message)
        for message in chain.from_iterable(self._unseen.values()):
            self.on_unseen(message)
        self.sessions.clear()
        self.retained.clear()
        self._unseen.clear()

    def _accept(self, end: End) -> None:
        end.user = ForeignWire(self, end)

    # -- its own clients --

    def publish(
        self, topic: bytes, payload: bytes, qos: int = 0, *, retain: bool = False, properties: bytes = b""
    ) -> None:
        """One of its own clients does, and is told that it arrived."""
        self.take(ModelMessage(topic, payload, qos, retain, properties), None)

    def payloads(self, topic: bytes) -> list[bytes]:
        return [message.payload for message in self.heard if message.topic == topic]

    def take_from_bridge(self, message: ModelMessage) -> None:
        """Another broker's, over a bridge that does not send it back."""
        bridge, self.bridge = self.bridge, None
        self.take(message, None)
        self.bridge = bridge

    # -- messages --

    def take(self, message: ModelMessage, source: ForeignWire | None) -> None:
        if self.bridge is not None:
            self.bridge(message)
        if message.retain:
            if message.payload:
                self.retained[message.topic] = message
                self._unseen.setdefault(message.topic, []).append(message)
            else:
                self.retained.pop(message.topic, None)
                self._unseen.pop(message.topic, None)
        if not message.topic.startswith(b"sterna/"):
            self.heard.append(message)
            self.on_heard(message)
        if self.quirks.dead:
            return
        for session in list(self.sessions.values()):
            self._deliver(session, message, source)

    def _deliver(self, session: ModelBrokerSession, message: ModelMessage, source: ForeignWire | None) -> None:
        levels = levels_of(message.topic)
        matching = [asked for name, asked in session.filters.items() if matches(levels_of(name), levels)]
        is_own = source is not None and session.wire is source
        heard = [asked for asked in matching if not (is_own and self._is_quiet(session, asked))]
        version = session.wire.version if session.wire is not None else session.version
        for asked in heard if version in self.quirks.copies else heard[:1]:
            keeps = asked.retain_as_published or session.is_bridge
            qos = asked.qos if self.quirks.delivers_as_granted else min(message.qos, asked.qos)
            self.send(session, message._replace(qos=qos, retain=message.retain and keeps))

    def _is_quiet(self, session: ModelBrokerSession, asked: packets.FilterRequest) -> bool:
        if session.wire is not None and session.wire.is_bridge:
            return True
        return asked.no_local and self.quirks.no_local

    def seen(self, message: ModelMessage | None) -> None:
        """A client has taken it."""
        if message is not None and message.retain:
            unseen = self._unseen.get(message.topic, [])
            taken = [place for place, one in enumerate(unseen) if one.payload == message.payload]
            del unseen[: taken[-1] + 1 if taken else 0]

    def send(self, session: ModelBrokerSession, message: ModelMessage) -> None:
        if not message.qos:
            self.seen(message)
            if session.wire is not None:
                session.wire.write_message(message, 0, dup=False)
            return
        if session.wire is None and not session.lasting:
            return
        is_full = self.quirks.queue_max and len(session.waiting) >= self.quirks.queue_max
        if session.wire is None and is_full:
            self.on_lost(message)
            return
        session.waiting.append(message)
        self.go_on(session)

    def go_on(self, session: ModelBrokerSession) -> None:
        """Send what waits, as far as the window goes."""
        while session.wire is not None and session.waiting and len(session.inflight) < session.window:
            packet_id = session.next_id
            session.next_id = packet_id % 65535 + 1
            message = session.inflight[packet_id] = session.waiting.popleft()
            session.wire.write_message(message, packet_id, dup=False)


class ForeignWire:
    """One connection."""

    def __init__(self, broker: ForeignBroker, end: End) -> None:
        self._broker = broker
        self._end = end
        self._reader = PacketReader()
        self._session: ModelBrokerSession | None = None
        self._client_id = b""
        self.version = MQTT_3_1_1
        self.is_bridge = False
        self._over = False

    # -- the stream --

    def received(self, data: bytes) -> None:
        for first, body in self._reader.feed(data):
            if self._over:
                return
            kind = first >> 4
            lasting = self._session is not None and self._session.lasting
            if lasting and kind != 12 and self._broker.watch("in", kind):
                self.cut()
                return
            self._take(first, kind, body)

    def lost(self) -> None:
        self._over = True
        session = self._session
        if session is not None and session.wire is self:
            session.wire = None
            if not session.lasting:
                self._broker.sessions.pop(self._client_id, None)

    def congested(self) -> None: ...
    def writable(self) -> None: ...

    def cut(self) -> None:
        """The connection breaks here."""
        if not self._over:
            self.lost()
            self._end.abort()

    def _write(self, data: bytes) -> None:
        session = self._session
        if self._over:
            return
        lasting = session is not None and session.lasting
        if lasting and data[0] >> 4 != 13 and self._broker.watch("out", data[0] >> 4):
            self.cut()
        else:
            self._end.write(data)

    def write_message(self, message: ModelMessage, packet_id: int, *, dup: bool) -> None:
        first = 0x30 | message.qos << 1 | message.retain | (DUP if dup else 0)
        body = wire.binary(message.topic) + (wire.two(packet_id) if message.qos else b"")
        if self.version == MQTT_5:
            properties = message.properties if self._broker.quirks.keeps_user_properties else b""
            body += wire.variable(len(properties)) + properties
        self._write(packets.packet(first, body + message.payload))

    # -- packets --

    def _take(self, first: int, kind: int, body: bytes) -> None:
        if kind == packets.CONNECT:
            self._connect(body)
            return
        session = self._session
        assert session is not None, "the first packet is CONNECT"
        packet_id = body[0] << 8 | body[1] if len(body) > 1 else 0
        if kind == PUBLISH:
            self._publish(first, body, session)
        elif kind in (PUBACK, PUBCOMP):
            self._broker.seen(session.inflight.pop(packet_id, None))
            self._broker.go_on(session)
        elif kind == PUBREC:
            if packet_id in session.inflight:
                self._broker.seen(session.inflight[packet_id])
                session.inflight[packet_id] = None
            self._acknowledge(PUBREL, packet_id)
        elif kind == PUBREL:
            message = session.received.pop(packet_id, None)
            if message is not None and self._broker.quirks.passes_on_at_pubrel:
                self._broker.take(message, self)
            self._acknowledge(PUBCOMP, packet_id)
        elif kind == packets.SUBSCRIBE:
            self._subscribe(body, session)
        elif kind == packets.UNSUBSCRIBE:
            gone = packets.decode_unsubscribe(body, 0, len(body), self.version, USER_PROPERTIES_MAX).filters
            for topic_filter in gone:
                session.filters.pop(topic_filter, None)
            self._write(packets.encode_unsuback(packet_id, bytes(len(gone)), self.version))
        elif kind == packets.PINGREQ:
            self._write(packets.PINGRESP_BYTES)
        elif kind == packets.DISCONNECT:
            self.lost()
            self._end.close()
        else:
            raise AssertionError(f"packet type {kind}")

    def _acknowledge(self, kind: int, packet_id: int, code: int = 0) -> None:
        self._write(packets.encode_acknowledgement(kind, packet_id, code, self.version))

    def _connect(self, body: bytes) -> None:
        quirks = self._broker.quirks
        level = body[6]
        if level not in quirks.levels:
            if not quirks.hangs_up:
                self._end.write(b"\x20\x02\x00\x01")
            self._over = True
            self._end.close()
            return
        request = packets.decode_connect(body, 0, len(body), USER_PROPERTIES_MAX)
        self.version, self.is_bridge, self._client_id = version_of(level), bool(level & BRIDGE), request.client_id
        sessions = self._broker.sessions
        known = sessions.get(request.client_id)
        if known is not None and known.wire is not None:
            known.wire.cut()
            known = sessions.get(request.client_id)
        present = known is not None and not request.clean_start
        session = known if known is not None and present else ModelBrokerSession()
        session.lasting = not request.clean_start or bool(request.properties.get(prop.SESSION_EXPIRY, 0))
        session.window = min(IN_FLIGHT_MAX, request.properties.get(prop.RECEIVE_MAXIMUM, IN_FLIGHT_MAX))
        session.version, session.is_bridge = self.version, self.is_bridge
        sessions[request.client_id] = session
        session.wire = self
        # Before the watch sees packets of a lasting session, it is let in.
        values: Properties = {prop.SERVER_KEEP_ALIVE: quirks.keep_alive_s} if quirks.keep_alive_s else {}
        self._end.write(packets.encode_connack(self.version, present, 0, values))
        self._session = session
        for packet_id, message in list(session.inflight.items()):
            if message is None:
                self._acknowledge(PUBREL, packet_id)
            else:
                self._broker.on_repeated(message)
                self.write_message(message, packet_id, dup=True)
        self._broker.go_on(session)

    def _publish(self, first: int, body: bytes, session: ModelBrokerSession) -> None:
        quirks = self._broker.quirks
        qos = first >> 1 & 3
        topic, place = wire.read_text(body, 0, len(body))
        packet_id = 0
        if qos:
            packet_id, place = wire.read_two(body, place, len(body))
        is_denied = bool(quirks.denies) and topic.startswith(quirks.denies)
        if topic == quirks.hangs_up_on or (is_denied and quirks.denial == "hangs up"):
            self.cut()
            return
        if is_denied:
            self._deny(qos, packet_id)
            return
        properties = b""
        if self.version == MQTT_5:
            length, place = wire.read_variable(body, place, len(body))
            properties, place = body[place : place + length], place + length
        message = ModelMessage(topic, body[place:], qos, bool(first & 1), properties)
        if not qos and quirks.qos0_late_s:
            self._broker.kernel.after(quirks.qos0_late_s, self._broker.take, message, self)
            return
        if qos < 2 or quirks.qos < 2:
            self._broker.take(message, self)
            if qos:
                self._acknowledge(PUBACK, packet_id)
            return
        if packet_id not in session.received:
            session.received[packet_id] = message
            if not quirks.passes_on_at_pubrel:
                self._broker.take(message, self)
        self._acknowledge(PUBREC, packet_id)

    def _deny(self, qos: int, packet_id: int) -> None:
        """It goes nowhere; on 3.1.1 there is no word for that."""
        code = Reason.NOT_AUTHORIZED if self._broker.quirks.denial == "code" else 0
        if qos:
            self._acknowledge(PUBACK if qos == 1 or self._broker.quirks.qos < 2 else PUBREC, packet_id, code)

    def _subscribe(self, body: bytes, session: ModelBrokerSession) -> None:
        quirks = self._broker.quirks
        request = packets.decode_subscribe(body, 0, len(body), self.version, USER_PROPERTIES_MAX)
        codes = bytes(
            0x80 if asked.topic_filter == quirks.refuses else min(asked.qos, quirks.qos) for asked in request.requests
        )
        answer = packets.encode_suback(request.packet_id, codes, self.version)
        if not quirks.retained_before_suback:
            self._write(answer)
        for asked in request.requests:
            is_new = asked.topic_filter not in session.filters
            session.filters[asked.topic_filter] = packets.FilterRequest(
                asked.topic_filter,
                min(asked.qos, quirks.qos),
                asked.no_local,
                asked.retain_as_published,
                asked.retain_handling,
            )
            wanted = asked.retain_handling == 0 or (asked.retain_handling == 1 and is_new)
            if wanted and not quirks.dead:
                self._send_retained(session, asked)
        if quirks.retained_before_suback:
            self._write(answer)

    def _send_retained(self, session: ModelBrokerSession, asked: packets.FilterRequest) -> None:
        broker = self._broker
        has_wildcard = b"+" in asked.topic_filter or b"#" in asked.topic_filter
        if has_wildcard and not broker.quirks.retained_for_wildcards:
            return
        name = levels_of(asked.topic_filter)
        for message in list(broker.retained.values()):
            if matches(name, levels_of(message.topic)):
                qos = min(message.qos, asked.qos, broker.quirks.qos)
                broker.send(session, message._replace(qos=qos, retain=True))
