"""Dispatches the packets of all clients: framing, which packet may come when, and the hot path of QoS 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sterna.broker import work_budget
from sterna.broker.access.identity import Accepted, Refused
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.delivery.routes import Route, Routes
from sterna.broker.operator_reports import OperatorReports
from sterna.broker.packets.acknowledgements import Acknowledgements
from sterna.broker.packets.handshake import ConnectHandshake, refusal
from sterna.broker.packets.publications import Publications
from sterna.broker.packets.requests import Requests
from sterna.broker.session.connection import ClientHandler, Connection, ConnectionContext, ConnectionState
from sterna.broker.session.session import Session
from sterna.broker.session_lifecycle import SessionLifecycle
from sterna.mqtt import gateway_packets, packets, wire
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from mypy_extensions import i64

Taker = Callable[[Connection, bytes, int, int], None]

#: Packet types are four bits.
_KINDS: Final = 16

#: Low four bits of the first byte, by packet type; PUBLISH carries its own meaning there [MQTT-2.1.3-1].
_FLAGS = {packets.PUBREL: 2, packets.SUBSCRIBE: 2, packets.UNSUBSCRIBE: 2}


class PacketDispatcher(ClientHandler):
    __slots__ = (
        "_clock",
        "_counters",
        "_delivery",
        "_handshake",
        "_lifecycle",
        "_publications",
        "_remembered",
        "_reports",
        "_routes",
        "_takers",
        "_work_budget",
        "may_be_gateway",
    )

    def __init__(
        self,
        context: ConnectionContext,
        routes: Routes,
        delivery: Delivery,
        publications: Publications,
        acknowledgements: Acknowledgements,
        handshake: ConnectHandshake,
        requests: Requests,
        lifecycle: SessionLifecycle,
        reports: OperatorReports,
    ) -> None:
        self._clock = context.clock
        self._counters = context.counters
        self._work_budget = context.work_budget
        self._routes = routes
        self._remembered = routes.remembered
        self._delivery = delivery
        self._publications = publications
        self._handshake = handshake
        self._lifecycle = lifecycle
        self._reports = reports
        #: May a client at this address say that it is a gateway?
        self.may_be_gateway: Callable[[str], bool] = _anybody
        # Which packets may come in which state, and who takes them.  PUBLISH in CONNECTED does not come here.
        states: dict[int, dict[int, Taker]] = {
            ConnectionState.AWAITING_CONNECT: {packets.CONNECT: handshake.connect, 0: self._take_hello},
            ConnectionState.AUTHENTICATING: {packets.AUTH: handshake.auth, packets.DISCONNECT: requests.disconnect},
            ConnectionState.CONNECTED: {
                packets.PUBACK: acknowledgements.puback,
                packets.PUBREC: acknowledgements.pubrec,
                packets.PUBREL: publications.pubrel,
                packets.PUBCOMP: acknowledgements.pubcomp,
                packets.SUBSCRIBE: requests.subscribe,
                packets.UNSUBSCRIBE: requests.unsubscribe,
                packets.PINGREQ: _take_pingreq,
                packets.DISCONNECT: requests.disconnect,
                packets.AUTH: handshake.auth,
                0: _take_control,
            },
            ConnectionState.CLOSED: {},
        }
        #: The same, by state and packet type in one number.
        self._takers: list[Taker | None] = [
            states[state].get(kind) for state in sorted(states) for kind in range(_KINDS)
        ]

    # -- packets --

    def parse(self, connection: Connection, data: bytes) -> None:
        """HOT.  All whole packets in `data`; what is left of an unfinished one is kept."""
        remembered = self._remembered
        spent = self._work_budget
        size_max = connection.input_bytes_max
        position = 0
        end = len(data)
        size = 2
        while end - position >= 2 and not connection.waiting:
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
                raise _too_large(connection, stop - position)
            if stop > end:
                if connection.state == ConnectionState.AWAITING_CONNECT and not _may_be_first(
                    connection, first, length
                ):
                    raise ProtocolError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")
                size = stop - position
                break
            # QoS 0, no RETAIN, on a topic that has a route: the bulk of all traffic.
            if first == 0x30 and length > 2 and connection.state == ConnectionState.CONNECTED:
                head = body + 2 + (data[body] << 8) + data[body + 1]
                topic = data[body + 2 : head]
                if connection.version == MQTT_5:
                    head += 1  # the property section, if it is one zero byte
                if head <= stop and (connection.version != MQTT_5 or data[head - 1] == 0):
                    route = remembered.get(topic)
                    if connection.allowed is None:
                        if route is None:
                            route = self._quick_route(connection, topic)
                    elif topic not in connection.allowed:
                        route = None
                    if route is not None:
                        position = self._forward(connection, route, data, position, stop, head, end, topic)
                        continue
            self._counters.packets_received += 1
            now = self._clock.now
            if spent.turn != now:
                spent.begin(now)
            self._packet(connection, first, data, body, stop)
            position = stop
            if connection.state == ConnectionState.CLOSED:
                return
            size_max = connection.input_bytes_max  # it is larger for a client that has just been let in
            spent.spent += work_budget.PACKET
            if spent.spent >= work_budget.TURN and not connection.waiting:
                connection.hold_back()
        if position < end:
            connection.keep(data[position:] if position else data, size)

    def _forward(
        self,
        connection: Connection,
        route: Route,
        data: bytes,
        start: int,
        stop: int,
        head: int,
        end: int,
        topic: bytes,
    ) -> int:
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
        session = connection.session
        assert session is not None
        self._delivery.forward_run(route, session, data, start, stop, size, head - start, topic)
        self._counters.packets_received += count
        return stop

    def _quick_route(self, connection: Connection, topic: bytes) -> Route | None:
        """HOT.  The route of a topic that is not remembered, if its message may take the quick way."""
        spent = self._work_budget
        now = self._clock.now
        if spent.turn != now:
            spent.begin(now)
        route = self._routes.quick_route(topic)
        if spent.spent >= work_budget.TURN and not connection.waiting:
            connection.hold_back()
        return route

    def _packet(self, connection: Connection, first: int, data: bytes, body: int, stop: int) -> None:
        kind = first >> 4
        if kind == packets.PUBLISH and connection.state == ConnectionState.CONNECTED:
            self._publications.publish(connection, first, data, body, stop)
            return
        if kind == packets.CONNECT:
            self._handshake.learn_version(connection, data, body, stop)
        taker = self._takers[connection.state * _KINDS + kind]
        if taker is None:
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} is not expected here")
        # In 3.1 a request that is said again is marked as such.
        if first & (0x07 if connection.is_3_1 and kind in _FLAGS else 0x0F) != _FLAGS.get(kind, 0):
            raise ProtocolError(Reason.MALFORMED_PACKET, f"reserved flags of packet type {kind} are set")
        taker(connection, data, body, stop)

    def _take_hello(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        if not self.may_be_gateway(connection.peer.address):
            raise ProtocolError(
                Reason.PROTOCOL_ERROR, "it says that it is a gateway, and its address is not in gateways of [mqtt]"
            )
        control = gateway_packets.decode(data, body, stop)
        if connection.gateway or not isinstance(control, gateway_packets.GatewayHello):
            raise ProtocolError(Reason.PROTOCOL_ERROR, "a gateway says HELLO once, and nothing else before CONNECT")
        connection.gateway = control.gateway or "gateway"
        connection.may_be_led, connection.is_second = control.leads, control.is_second
        self._reports.report("gateway", connection, gateway=connection.gateway, client_address=control.address)

    # -- how connections fare --

    def verified(self, connection: Connection, verdict: Accepted | Refused) -> None:
        self._handshake.verified(connection, verdict)

    def failed(self, connection: Connection, code: int, reason: str) -> None:
        session = connection.session
        if connection.state == ConnectionState.CONNECTED and session is not None:
            user = session.user
            self._reports.report("connection failed", connection, code=f"0x{code:02x}", user=user, reason=reason)
            full, bare = packets.encode_disconnect(code, reason), packets.encode_disconnect(code)
            farewell = connection.within_limit(full, bare)
        else:
            self._reports.report("connection failed", connection, code=f"0x{code:02x}", reason=reason)
            self._counters.refused(Reason(code).name.lower().replace("_", "-"))
            farewell = refusal(connection, code)
        self._lifecycle.end(connection, farewell, graceful=False)

    def lost(self, connection: Connection) -> None:
        self._lifecycle.lost(connection)

    def writable(self, session: Session) -> None:
        self._delivery.pump(session)


def _too_large(connection: Connection, size: int) -> ProtocolError:
    setting = "packet_bytes" if connection.state == ConnectionState.CONNECTED else "connect_bytes"
    return ProtocolError(
        Reason.PACKET_TOO_LARGE, f"packet of {size} bytes; limits.{setting} allows {connection.input_bytes_max}"
    )


def _may_be_first(connection: Connection, first: int, length: int) -> bool:
    """A CONNECT, or before it a gateway that says that it is one."""
    if first == gateway_packets.CONTROL and not connection.gateway:
        return length <= gateway_packets.BODY_MAX
    return first >> 4 == packets.CONNECT


def _take_control(connection: Connection, data: bytes, body: int, stop: int) -> None:
    control = gateway_packets.decode(data, body, stop)
    if not connection.gateway or not isinstance(control, gateway_packets.Drained):
        raise ProtocolError(Reason.PROTOCOL_ERROR, "a control packet that is not a gateway's to send")


def _take_pingreq(connection: Connection, _data: bytes, body: int, stop: int) -> None:
    if body != stop:
        raise wire.malformed("PINGREQ with a body")
    connection.send(packets.PINGRESP_BYTES)


def is_repeated(data: bytes, start: i64, following: i64, size: i64, end: i64) -> bool:
    """HOT.  Does a packet begin with the same `size` bytes as the one before it, and could it be as long?  Those that
    differ do so early: compiled, a loop takes less than any call."""
    if following + following - start > end:
        return False
    place: i64 = 0
    while place < size and data[start + place] == data[following + place]:
        place += 1
    return place == size


def _anybody(_address: str) -> bool:
    return True
