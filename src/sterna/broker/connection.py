"""One client's bytes: framing, the order packets may come in, and the hot path of QoS 0.

A connection is fed bytes and answers through its transport and its session's outbox; it reads no socket and no clock.
Whatever a client does wrong ends in `fail` with the reason code the standard names, and concerns this connection only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sterna.broker import effort
from sterna.broker.identity import Entrance
from sterna.broker.outbox import Transport
from sterna.broker.parting import Parting
from sterna.mqtt import gateway_packets, packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from mypy_extensions import i64

    from sterna.broker.broker import Broker
    from sterna.broker.identity import Accepted, Refused
    from sterna.broker.routes import Route
    from sterna.broker.scram import Exchange
    from sterna.broker.session import Session


class State:
    """Plain numbers rather than an enumeration: they are compared per packet, and compiled these are constants."""

    AWAITING_CONNECT: Final = 0
    #: CONNECT is in; a password is being checked or an exchange of AUTH packets goes on.
    AUTHENTICATING: Final = 1
    CONNECTED: Final = 2
    CLOSED: Final = 3


@dataclass(frozen=True, slots=True)
class Peer:
    """What is known of the other end before it says a word."""

    address: str
    certificate_name: str | None = None
    entrance: Entrance = field(default_factory=Entrance)
    authority: str = ""
    """What the entrance's was when the certificate was checked."""

    @property
    def is_outdated(self) -> bool:
        """Was its certificate believed because of authorities that are no longer believed?"""
        return self.certificate_name is not None and self.authority != self.entrance.authority


#: Low four bits of the first byte, by packet type; PUBLISH carries its own meaning there [MQTT-2.1.3-1].
_FLAGS = {packets.PUBREL: 2, packets.SUBSCRIBE: 2, packets.UNSUBSCRIBE: 2}

#: Times `output_bytes` that a client's socket may hold, answers included, before it is no longer listened to.
ANSWERS_SHARE = 2


class Connection:
    __slots__ = (
        "_broker",
        "_charged",
        "_errands",
        "_handlers",
        "_held",
        "_needed",
        "_partial",
        "_partial_size",
        "_size_max",
        "_waiting",
        "accepted",
        "aliases",
        "allowed",
        "asking",
        "bridge",
        "connect",
        "exchange",
        "gateway",
        "heard_at",
        "is_3_1",
        "keep_alive_s",
        "method",
        "parting",
        "peer",
        "reading_paused",
        "session",
        "stalled",
        "state",
        "transport",
        "unanswered",
        "unsaid",
        "version",
        "wants_reasons",
    )

    def __init__(self, broker: Broker, transport: Transport, peer: Peer) -> None:
        self._broker = broker
        self.transport = transport
        self.peer = peer
        self.state: int = State.AWAITING_CONNECT
        #: 0 until a CONNECT has said it.
        self.version = 0
        #: MQTT 3.1, which is served as 3.1.1; a bridge, whose subscriptions are No Local and Retain As Published.
        self.is_3_1 = False
        self.bridge = False
        self.session: Session | None = None
        #: The CONNECT packet, kept while its sender is being authenticated.
        self.connect: packets.Connect | None = None
        #: Who it is, and what shows it.
        self.accepted: Accepted | None = None
        #: An exchange of AUTH packets under way.
        self.exchange: Exchange | None = None
        #: The method it authenticated with, which it must keep to [MQTT-4.12.1-1].
        self.method = b""
        #: When the client last said anything.
        self.heard_at = broker.now
        self.keep_alive_s = 0.0
        #: Publications it sent at QoS 1 and 2 whose exchange is not over.
        self.unanswered = 0
        #: Not read from until the journal has caught up.
        self.reading_paused = False
        #: Not read from until it has read what it was answered.
        self.stalled = False
        #: Request Problem Information: does the client want reason strings with its acknowledgements [MQTT-3.1.2-29]?
        self.wants_reasons = True
        self._handlers = _HANDLERS[self.state]
        #: Largest packet the client may send in this state.
        self._size_max = broker.limits.connect_bytes
        #: Bytes held of it that count as a stranger's.
        self._charged = 0
        # A packet that has not come in whole yet: its pieces, their size, and the size worth looking at again.
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._needed = 0
        self._waiting = False
        # What is done for this client over several turns, and whether it is neither heard nor read from meanwhile.
        self._errands: deque[Iterator[None]] = deque()
        self._held = False
        #: QoS 0 messages that came while the client was on its way here; they follow CONNACK.
        self.unsaid = b""
        #: The name of the gateway it comes through, which can follow its session to another node; empty: none.
        self.gateway = ""
        #: Its session has stopped and leaves; None otherwise.
        self.parting: Parting | None = None
        #: SUBSCRIBE packets that are not answered yet, or whose retained messages are not all found.
        self.asking = 0
        #: Topic aliases the client defined.
        self.aliases: dict[int, bytes] | None = None
        #: Topics a restricted client may publish to, as far as asked; None for an unrestricted client.
        self.allowed: set[bytes] | None = None

    # -- bytes in --

    def feed(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.state == State.CLOSED:
            return  # it was told goodbye and talks on
        self.heard_at = self._broker.now
        self._broker.counters.bytes_received += len(data)
        if self._partial or self._waiting:
            self._partial.append(data)
            self._partial_size += len(data)
            if self._waiting or self._partial_size < self._needed:
                if self.parting is not None:
                    self._hear_on_parting(self.parting)
                self._bound_waiting()
                if self.state != State.CONNECTED:
                    self.charge()
                return
            data = self._taken_partial()
        self._take(data)
        if self.state != State.CONNECTED:
            self.charge()
        self._bound_backlog()

    def charge(self, elsewhere: int = 0) -> None:
        """Count the bytes held of a client that is not authenticated yet, `elsewhere` those its transport holds."""
        if self.state == State.CONNECTED or self.state == State.CLOSED:
            return
        before, self._charged = self._charged, elsewhere + self._partial_size
        fits = self._broker.unauthenticated.change(before, self._charged)
        if elsewhere > self._broker.limits.connect_bytes:
            self.fail(Reason.PACKET_TOO_LARGE, f"{elsewhere} bytes without a whole CONNECT; see limits.connect_bytes")
        elif not fits:
            self.fail(Reason.QUOTA_EXCEEDED, "limits.unauthenticated_bytes are held of clients that did not log in yet")

    def drop_input(self) -> None:
        """The connection has ended: nothing of what it said is looked at any more."""
        self._partial.clear()
        self._partial_size = 0
        self._settle_charge()

    def _settle_charge(self) -> None:
        self._broker.unauthenticated.change(self._charged, 0)
        self._charged = 0

    def _bound_backlog(self) -> None:
        """Read on only while the journal keeps up with this client, and this client with our answers."""
        broker = self._broker
        if broker.overloaded():
            broker.pause_reading(self)
        session = self.session
        if session is None or not session.outbox.congested or self.stalled or self.state != State.CONNECTED:
            return
        # Messages no longer come on top of what a full socket holds, answers do: it is by asking that it grows.
        if self.transport.get_write_buffer_size() > ANSWERS_SHARE * broker.limits.output_bytes:
            self.stalled = True
            self.transport.pause_reading()

    def listen(self) -> None:
        """Read on from the client, unless something is left that speaks against it."""
        if self.state != State.CLOSED and not (self.reading_paused or self.stalled or self._held):
            self.transport.resume_reading()

    def _bound_waiting(self) -> None:
        """A client that talks on while it is being authenticated may do so up to one packet's worth."""
        if self._held or not self._waiting or self.state == State.CLOSED:
            return  # who is held back is not read from either
        if self._partial_size > self._broker.limits.packet_bytes:
            self.fail(Reason.QUOTA_EXCEEDED, "too much data before CONNACK")

    def _take(self, data: bytes) -> None:
        try:
            self._parse(data)
        except ProtocolError as error:
            self.fail(error.code, error.reason)

    def hold(self) -> None:
        """Take no further packets until `proceed`: an answer to this one is being worked out elsewhere."""
        self._waiting = True

    def proceed_with(self, verdict: Accepted | Refused) -> None:
        """The verdict on its CONNECT, worked out elsewhere."""
        self._waiting = False
        self._broker.handshake.verified(self, verdict)
        if not self._waiting:
            self.proceed()

    # -- more than one turn's work --

    def run(self, errand: Iterator[None]) -> None:
        """Do this for the client, step by step: now, as far as the turn allows, and the rest in later turns.

        Until then no further packet of this client is taken.
        """
        if self._errands or not self._advance(errand):
            self._errands.append(errand)
            self._hold_back()

    def _advance(self, errand: Iterator[None]) -> bool:
        """Go on with it until it is done (True) or the turn is spent."""
        spent = self._broker.effort
        return all(spent.spent < effort.TURN for _ in errand)

    def _hold_back(self) -> None:
        if not self._held:
            self._held = self._waiting = True
            self.transport.pause_reading()
            self._broker.turns.ask(self._go_on)

    def _go_on(self) -> bool:
        """One turn for this client: its errands, then the packets that waited behind them."""
        self.heard_at = self._broker.now  # it is we who do not listen
        try:
            while self._errands and self.state != State.CLOSED:
                if not self._advance(self._errands[0]):
                    return False
                self._errands.popleft()
        except ProtocolError as error:
            self.fail(error.code, error.reason)
        self._held = False
        if self.state == State.CLOSED:
            self._errands.clear()
            self.drop_input()
            return True
        self.proceed()
        self._bound_backlog()
        self.listen()
        return True

    @property
    def is_busy(self) -> bool:
        """Is something being done for the client that has to be finished first?"""
        return bool(self._errands) or self._waiting or self.asking > 0

    def freeze(self, acknowledged: Callable[[], None]) -> None:
        """Hear nothing more from the client but what it acknowledges, until `thaw` or the end."""
        self._held = self._waiting = True
        self.parting = Parting(self._broker.acknowledgements, acknowledged)

    def _hear_on_parting(self, parting: Parting) -> None:
        try:
            left = parting.hear(self, b"".join(self._partial))
        except ProtocolError as error:
            self.fail(error.code, error.reason)
            return
        self._partial, self._partial_size = [left], len(left)
        if parting.is_over and self.state != State.CLOSED:
            self.transport.pause_reading()

    def thaw(self) -> None:
        self._held = False
        if self.parting is not None:
            self._partial = [*self.parting.put_aside.values(), *self._partial]
            self.parting = None
        if self.state != State.CLOSED:
            self.heard_at = self._broker.now  # it is we who did not listen
            self.proceed()
            self.listen()

    def proceed(self) -> None:
        self._waiting = False
        data = self._taken_partial()
        if data and self.state != State.CLOSED:
            self._take(data)

    def _taken_partial(self) -> bytes:
        data = b"".join(self._partial)
        self._partial.clear()
        self._partial_size = 0
        return data

    def _parse(self, data: bytes) -> None:
        """HOT.  All whole packets in `data`; what is left of an unfinished one is kept."""
        broker = self._broker
        remembered = broker.routes.remembered
        size_max = self._size_max
        position = 0
        end = len(data)
        size = 2
        while end - position >= 2 and not self._waiting:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if length >= 0x80:
                length, body = wire.remaining_length(data, position + 1, end)
                if body == 0:
                    size = 5
                    break
            stop = body + length
            if stop - position > size_max:
                raise self._too_large(stop - position)
            if stop > end:
                if self.state == State.AWAITING_CONNECT and not self._may_be_first(first, length):
                    raise ProtocolError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")
                size = stop - position
                break
            # QoS 0, no RETAIN, on a topic that has a route: the bulk of all traffic.
            if first == 0x30 and length > 2 and self.state == State.CONNECTED:
                head = body + 2 + (data[body] << 8) + data[body + 1]
                topic = data[body + 2 : head]
                if self.version == MQTT_5:
                    head += 1  # the property section, if it is one zero byte
                if head <= stop and (self.version != MQTT_5 or data[head - 1] == 0):
                    route = remembered.get(topic)
                    if self.allowed is None:
                        if route is None:
                            route = self._quick_route(topic)
                    elif topic not in self.allowed:
                        route = None
                    if route is not None:
                        position = self._forward(route, data, position, stop, head, end, topic)
                        continue
            broker.counters.packets_received += 1
            spent = broker.effort
            if spent.turn != broker.now:
                spent.begin(broker.now)
            self._packet(first, data, body, stop)
            position = stop
            if self.state == State.CLOSED:
                return
            size_max = self._size_max  # it is larger for a client that has just been let in
            spent.spent += effort.PACKET
            if spent.spent >= effort.TURN and not self._waiting:
                self._hold_back()
        if position < end:
            rest = data[position:] if position else data
            self._partial = [rest]
            self._partial_size = len(rest)
            self._needed = size

    def _forward(self, route: Route, data: bytes, start: int, stop: int, head: int, end: int, topic: bytes) -> int:
        """HOT.  Pass a packet on, with those after it that differ in nothing but the payload; where the last one ends.

        Publishers tend to send runs of such packets; a run is recognised by one comparison per packet and goes to each
        subscriber as one piece.
        """
        size = stop - start
        count = 1
        if stop < end and is_repeated(data, start, stop, head - start, end):
            same = data[start:head]
            stop += size
            while stop + size <= end and data.startswith(same, stop):
                stop += size
            count = (stop - start) // size
        session = self.session
        assert session is not None
        self._broker.delivery.forward_run(route, session, data, start, stop, size, head - start, topic)
        self._broker.counters.packets_received += count
        return stop

    def _quick_route(self, topic: bytes) -> Route | None:
        """HOT.  The route of a topic that is not remembered, if its message may take the quick way."""
        broker = self._broker
        spent = broker.effort
        if spent.turn != broker.now:
            spent.begin(broker.now)
        route = broker.routes.quick_route(topic)
        if spent.spent >= effort.TURN and not self._waiting:
            self._hold_back()
        return route

    def _too_large(self, size: int) -> ProtocolError:
        setting = "packet_bytes" if self.state == State.CONNECTED else "connect_bytes"
        return ProtocolError(
            Reason.PACKET_TOO_LARGE, f"packet of {size} bytes; limits.{setting} allows {self._size_max}"
        )

    def _may_be_first(self, first: int, length: int) -> bool:
        """A CONNECT, or before it a gateway that says that it is one."""
        if first == gateway_packets.CONTROL and not self.gateway:
            return length <= gateway_packets.BODY_MAX
        return first >> 4 == packets.CONNECT

    def _packet(self, first: int, data: bytes, body: int, stop: int) -> None:
        kind = first >> 4
        if kind == packets.PUBLISH and self.state == State.CONNECTED:
            self._broker.publications.publish(self, first, data, body, stop)
            return
        if kind == packets.CONNECT:
            self._broker.handshake.learn_version(self, data, body, stop)
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} is not expected here")
        # In 3.1 a request that is said again is marked as such.
        if first & (0x07 if self.is_3_1 and kind in _FLAGS else 0x0F) != _FLAGS.get(kind, 0):
            raise ProtocolError(Reason.MALFORMED_PACKET, f"reserved flags of packet type {kind} are set")
        handler(self, data, body, stop)

    # -- who takes which packet --

    def _on_hello(self, data: bytes, body: int, stop: int) -> None:
        if not self._broker.may_be_gateway(self.peer.address):
            raise ProtocolError(
                Reason.PROTOCOL_ERROR, "it says that it is a gateway, and its address is not in gateways of [mqtt]"
            )
        control = gateway_packets.decode(data, body, stop)
        if self.gateway or not isinstance(control, gateway_packets.Hello):
            raise ProtocolError(Reason.PROTOCOL_ERROR, "a gateway says HELLO once, and nothing else before CONNECT")
        self.gateway = control.gateway or "gateway"
        self._broker.report("gateway", self, gateway=self.gateway, client_address=control.address)

    def _on_control(self, data: bytes, body: int, stop: int) -> None:
        control = gateway_packets.decode(data, body, stop)
        if not self.gateway or not isinstance(control, gateway_packets.Drained):
            raise ProtocolError(Reason.PROTOCOL_ERROR, "a control packet that is not a gateway's to send")

    def _on_puback(self, data: bytes, body: int, stop: int) -> None:
        self._broker.acknowledgements.puback(self, data, body, stop)

    def _on_pubrec(self, data: bytes, body: int, stop: int) -> None:
        self._broker.acknowledgements.pubrec(self, data, body, stop)

    def _on_pubrel(self, data: bytes, body: int, stop: int) -> None:
        self._broker.publications.pubrel(self, data, body, stop)

    def _on_pubcomp(self, data: bytes, body: int, stop: int) -> None:
        self._broker.acknowledgements.pubcomp(self, data, body, stop)

    def _on_connect(self, data: bytes, body: int, stop: int) -> None:
        self._broker.handshake.connect(self, data, body, stop)

    def _on_auth(self, data: bytes, body: int, stop: int) -> None:
        self._broker.handshake.auth(self, data, body, stop)

    def _on_subscribe(self, data: bytes, body: int, stop: int) -> None:
        self._broker.requests.subscribe(self, data, body, stop)

    def _on_unsubscribe(self, data: bytes, body: int, stop: int) -> None:
        self._broker.requests.unsubscribe(self, data, body, stop)

    def _on_pingreq(self, _data: bytes, body: int, stop: int) -> None:
        if body != stop:
            raise wire.malformed("PINGREQ with a body")
        self.send(packets.PINGRESP_BYTES)

    def _on_disconnect(self, data: bytes, body: int, stop: int) -> None:
        self._broker.requests.disconnect(self, data, body, stop)

    # -- bytes out, and the end --

    def send(self, data: bytes) -> None:
        """A packet this client waits for.  A connection that has ended takes no more."""
        session = self.session
        self._broker.counters.answers_sent += 1
        if self.state == State.CONNECTED and session is not None:
            session.outbox.send(data)
        elif self.state != State.CLOSED:
            self.transport.write(data)

    def enter(self, state: int) -> None:
        self.state = state
        self._handlers = _HANDLERS[state]

    def admit(self, session: Session) -> None:
        """From here on the connection serves this session."""
        self.session = session
        self.connect = None
        self._size_max = self._broker.limits.packet_bytes
        self._settle_charge()
        self.allowed = None if session.permissions.unrestricted else set()
        self.enter(State.CONNECTED)

    def fail(self, code: int, reason: str) -> None:
        """The client, or something about it, is wrong: say so as the protocol version allows, and close."""
        if self.state == State.CLOSED:
            return
        if self.state == State.CONNECTED and self.session is not None:
            user = self.session.user
            self._broker.report("connection failed", self, code=f"0x{code:02x}", user=user, reason=reason)
            farewell = self.within_limit(packets.encode_disconnect(code, reason), packets.encode_disconnect(code))
        else:
            self._broker.report("connection failed", self, code=f"0x{code:02x}", reason=reason)
            self._broker.counters.refused(Reason(code).name.lower().replace("_", "-"))
            farewell = self._broker.handshake.refusal(self, code, reason)
        self._broker.lifecycle.end(self, farewell, graceful=False)

    def within_limit(self, full: bytes, bare: bytes) -> bytes:
        """The packet with its explanation, or without if the client takes none that large [MQTT-3.14.2-3].

        3.1.1 has no DISCONNECT from the server at all.
        """
        if self.version != MQTT_5:
            if bare[0] >> 4 != packets.DISCONNECT:
                return bare
            return gateway_packets.encode(gateway_packets.Farewell(bare[2])) if self.gateway and len(bare) > 2 else b""
        limit = self.session.packet_bytes_max if self.session is not None else 0
        return full if not limit or len(full) <= limit else bare

    def takes(self, packet: bytes) -> bool:
        """Is it within the client's Maximum Packet Size, as far as that is known yet?"""
        limit = 0
        if self.connect is not None:
            limit = self.connect.properties.get(prop.MAXIMUM_PACKET_SIZE, 0)
        elif self.session is not None:
            limit = self.session.packet_bytes_max
        return not limit or len(packet) <= limit

    def lost(self) -> None:
        """The transport is gone."""
        self._broker.lifecycle.end(self, b"", graceful=False)

    # -- flow --

    def congested(self) -> None:
        """The client's socket is full."""
        if self.session is not None and self.session.connection is self:
            self.session.outbox.congested = True

    def writable(self) -> None:
        """There is room again."""
        session = self.session
        if session is not None and session.connection is self and self.state == State.CONNECTED:
            session.outbox.congested = False
            if self.stalled:
                self.stalled = False
                self.listen()
            if session.leaving is not None:
                session.outbox.congested = True  # whatever its socket takes, it is no longer served
                return
            self._broker.delivery.pump(session)


def is_repeated(data: bytes, start: i64, following: i64, size: i64, end: i64) -> bool:
    """HOT.  Does a packet begin with the same `size` bytes as the one before it, and could it be as long?  Those that
    differ do so early: compiled, a loop takes less than any call."""
    if following + following - start > end:
        return False
    place: i64 = 0
    while place < size and data[start + place] == data[following + place]:
        place += 1
    return place == size


Handler = Callable[[Connection, bytes, int, int], None]

#: Which packets may come in which state, and who takes them.  PUBLISH in CONNECTED is dealt with before this table.
_HANDLERS: dict[int, dict[int, Handler]] = {
    State.AWAITING_CONNECT: {packets.CONNECT: Connection._on_connect, 0: Connection._on_hello},
    State.AUTHENTICATING: {packets.AUTH: Connection._on_auth, packets.DISCONNECT: Connection._on_disconnect},
    State.CONNECTED: {
        packets.PUBACK: Connection._on_puback,
        packets.PUBREC: Connection._on_pubrec,
        packets.PUBREL: Connection._on_pubrel,
        packets.PUBCOMP: Connection._on_pubcomp,
        packets.SUBSCRIBE: Connection._on_subscribe,
        packets.UNSUBSCRIBE: Connection._on_unsubscribe,
        packets.PINGREQ: Connection._on_pingreq,
        packets.DISCONNECT: Connection._on_disconnect,
        packets.AUTH: Connection._on_auth,
        0: Connection._on_control,
    },
    State.CLOSED: {},
}
