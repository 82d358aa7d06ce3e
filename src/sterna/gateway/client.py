"""One client of a gateway: from its CONNECT to its end, with nodes that come and go meanwhile.

The client's connection outlives those to nodes, and nothing that happens to them shows on it.  A mistake of a client
ends its own connection only, with the reason code the standard names.

Packets are passed on whole.  Those at QoS 0 are not looked at.  For the others the gateway notes who owes whom an
answer (`ledger`, `deliveries`), so that the next node is told everything the last one may have missed, and the client
nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from sterna.gateway.connecting import PASSING, Wish, dismissal, goodbye, read_wish, refusal
from sterna.gateway.context import GatewayContext
from sterna.gateway.deliveries import ANSWER, HOLD, PASS, SWALLOW, Deliveries
from sterna.gateway.ending import SessionEndings
from sterna.gateway.ledger import Ledger
from sterna.gateway.node_words import hear_control, hear_disconnect
from sterna.gateway.subscriptions import Change, Subscriptions
from sterna.gateway.tether import Tether
from sterna.gateway.upstream import PeerTransport, Upstream
from sterna.gateway.welcome import for_client
from sterna.mqtt import packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.framing import Incoming, packet_end
from sterna.mqtt.packets import MQTT_3_1_1, MQTT_5, PUBACK, PUBCOMP, PUBREC, PUBREL
from sterna.mqtt.reasons import Reason
from sterna.mqtt.server_packets import Connack, decode_granted
from sterna.vocabulary.errors import ProtocolError

SUBACK: Final = 9
UNSUBACK: Final = 11
PINGRESP: Final = 13

PINGREQ_BYTES: Final = b"\xc0\x00"

#: Keep-alive is exceeded at one and a half times the interval [MQTT-3.1.2-22].
KEEP_ALIVE_GRACE: Final = 1.5
#: How long a client may take to read why it is sent away.
FAREWELL_S: Final = 2.0


class ClientState:
    AWAITING_CONNECT: Final = 0
    #: CONNECT is in, CONNACK is not.
    CONNECTING: Final = 1
    OPEN: Final = 2
    #: The client said goodbye; a node is yet to be told.
    LEAVING: Final = 3
    CLOSED: Final = 4


class ClientRegistry(Protocol):
    """Knows the clients of a gateway by name."""

    def admitted(self, client: GatewayClient) -> None:
        """A node has let this client in."""

    def ended(self, client: GatewayClient) -> None: ...
    def forget(self, client: GatewayClient) -> None:
        """Its connection is gone; it may still have something to say to a node."""

    def sent_away(self, wish: Wish) -> None:
        """Its session is gone, and it is to learn that when it comes back."""

    def was_sent_away(self, wish: Wish) -> bool:
        """Asked once, when it is back."""


class GatewayClient:
    __slots__ = (
        "_charged",
        "_client",
        "_client_congested",
        "_context",
        "_direct",
        "_endings",
        "_ends",
        "_fruitful",
        "_graceful",
        "_heard_at",
        "_held",
        "_incoming",
        "_is_bare",
        "_keep_alive_s",
        "_limits",
        "_node_congested",
        "_node_heard_at",
        "_node_stopped",
        "_node_window",
        "_owes_pingresp",
        "_parting",
        "_presumed_version",
        "_reading",
        "_registry",
        "_restoring",
        "_size_max",
        "_spoken",
        "_timer",
        "_up",
        "address",
        "deliveries",
        "ledger",
        "state",
        "subscriptions",
        "tether",
        "wish",
    )

    def __init__(
        self,
        context: GatewayContext,
        registry: ClientRegistry,
        endings: SessionEndings,
        client: PeerTransport,
        address: str,
    ) -> None:
        self._context = context
        self._registry = registry
        self._endings = endings
        self._client = client
        self._limits = context.limits
        self._size_max = context.limits.packet_bytes
        #: Bytes held of it that count as a stranger's.
        self._charged = 0
        self.address = address
        self.state: int = ClientState.AWAITING_CONNECT
        self.wish: Wish | None = None
        self.tether: Tether | None = None
        self.ledger = Ledger()
        self.deliveries = Deliveries(context.patience.window)
        self.subscriptions = Subscriptions(context.limits.subscription_bytes)
        self._incoming = Incoming()
        #: The node that has the session, if one has.
        self._up: Upstream | None = None
        #: The client's packets may go straight on.
        self._direct = False
        #: Publications that node takes before it answers.
        self._node_window = 65535
        #: It takes only acknowledgements: the session is on its way to another node.
        self._node_stopped = False
        #: That node has answered something.
        self._fruitful = False
        #: Identifiers of our own requests to subscribe again; and: its session is new and may lack subscriptions.
        self._restoring: set[int] = set()
        self._is_bare = False
        #: The node's next packet has to wait for the client.
        self._held = False
        self._node_congested = False
        self._client_congested = False
        self._owes_pingresp = False
        self._reading = True
        self._heard_at = context.now
        self._node_heard_at = context.now
        #: Has the node been sent anything since we last looked?
        self._spoken = False
        self._keep_alive_s = 0.0
        #: DISCONNECT for the node, once there is one; whether it is the client's own; whether the session ends with it.
        self._parting = b""
        self._graceful = False
        self._ends = False
        #: The MQTT version of the answer to a CONNECT that cannot be read; 0: no answer.
        self._presumed_version = 0
        self._timer = context.later(context.limits.connect_s, self._connect_timeout)

    # -- bytes of the client --

    def feed(self, data: bytes) -> None:
        """HOT."""
        if self.state >= ClientState.LEAVING:
            return  # it said goodbye, or was told so, and talks on
        self._heard_at = self._context.now
        data = self._incoming.with_more(data)
        if not data:
            self.charge()
            return
        try:
            if self.state == ClientState.OPEN:
                self._from_client(data)
            else:
                self._before_connack(data)
                self.charge()
        except ProtocolError as error:
            self.fail(error.code, error.reason)

    def charge(self, elsewhere: int = 0) -> None:
        """Count the bytes held of a client that no node has let in yet, `elsewhere` those its transport holds."""
        if self.state >= ClientState.OPEN:
            return
        before, self._charged = self._charged, elsewhere + self._incoming.size
        fits = self._context.unauthenticated.change(before, self._charged)
        if elsewhere > self._limits.connect_bytes:
            self.fail(Reason.PACKET_TOO_LARGE, f"{elsewhere} bytes without a whole CONNECT; see limits.connect_bytes")
        elif not fits:
            self.fail(Reason.QUOTA_EXCEEDED, "limits.unauthenticated_bytes are held of clients that did not log in yet")

    def _settle_charge(self) -> None:
        self._context.unauthenticated.change(self._charged, 0)
        self._charged = 0

    def _before_connack(self, data: bytes) -> None:
        is_first = self.state == ClientState.AWAITING_CONNECT
        body, stop = packet_end(data, 0, self._limits.connect_bytes if is_first else self._size_max)
        kind = data[0] >> 4
        if self.state == ClientState.AWAITING_CONNECT:
            if kind != packets.CONNECT:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")
            if not body:
                self._incoming.keep(data, stop)
                return
            self._connect(data, body, stop)
        elif kind == packets.AUTH and body:
            if self.tether is not None and self.tether.upstream is not None:
                self.tether.upstream.write(data[:stop])
        else:
            # A client may send up to one packet's worth before CONNACK.
            if len(data) > self._size_max:
                raise ProtocolError(Reason.QUOTA_EXCEEDED, "too much data before CONNACK")
            self._incoming.keep(data, 0)
            return
        if stop < len(data) and self.state < ClientState.LEAVING:
            self._before_connack(data[stop:])

    def _connect(self, data: bytes, body: int, stop: int) -> None:
        if data[0] != 0x10:
            raise wire.malformed("reserved flags of CONNECT are set")
        context = self._context
        if data[body : body + 6] == b"\x00\x04MQTT" and body + 6 < stop:
            self._presumed_version = MQTT_5 if MQTT_5 <= data[body + 6] < packets.BRIDGE else MQTT_3_1_1
        elif data[body : body + 8] == b"\x00\x06MQIsdp":
            self._presumed_version = MQTT_3_1_1
        name = b"gateway-%032x" % context.rng.getrandbits(128)
        self.wish = read_wish(data, body, stop, self._limits.user_properties, name)
        self.deliveries.client_window = self.wish.receive_maximum
        self.state = ClientState.CONNECTING
        self._ends = self.wish.is_transient
        self.tether = Tether(context, self._endings, self, self.wish)

    def to_client(self, data: bytes) -> None:
        """HOT."""
        if self.state < ClientState.LEAVING:
            self._context.counters.bytes_down += len(data)
            self._client.write(data)

    def _settle_orphans(self) -> None:
        """The client is owed a word about exchanges that no node knows of any more."""
        for packet_id in self.deliveries.take_owed():
            self.to_client(b"\x62\x02" + wire.two(packet_id))

    # -- packets of the client --

    def _from_client(self, data: bytes) -> None:
        """HOT.  All whole packets in `data`; those that need no look go on in one piece."""
        position = start = 0
        end = len(data)
        while True:
            body, stop = packet_end(data, position, self._size_max)
            if not body:
                break
            first = data[position]
            if first == 0xE0 and start < position:
                self._to_node(data[start:position])  # nothing follows a DISCONNECT
                start = position
            # QoS 0 goes by unseen while there is somebody to take it.
            if not (first & 0xF6 == 0x30 and self._direct) and not self._take(first, data, position, body, stop):
                if start < position:
                    self._to_node(data[start:position])
                start = stop
                if self.state != ClientState.OPEN:
                    return
            position = stop
        if start < position:
            self._to_node(data[start:position] if start or position < end else data)
        if position < end:
            self._incoming.keep(data[position:], stop)
        if self._held:
            self._hear_held()
        if self._is_full():
            self._listen()

    def _to_node(self, data: bytes) -> None:
        """HOT."""
        if self._up is not None:
            self._spoken = True
            self._context.counters.bytes_up += len(data)
            self._up.write(data)

    def _take(self, first: int, data: bytes, position: int, body: int, stop: int) -> bool:
        """HOT.  A packet that needs a look; False if it does not go on from here as it is."""
        kind = first >> 4
        if kind == packets.PUBLISH:
            if not first & 0x06:
                self._keep_loose(data[position:stop])
                return False
            at = body + 2 + (data[body] << 8) + data[body + 1] if stop - body >= 2 else stop
            if at + 2 > stop:
                raise wire.malformed("packet ends before its identifier")
            return self._ask(data[at] << 8 | data[at + 1], data[position:stop])
        if kind in (packets.PINGREQ, packets.DISCONNECT, packets.AUTH):
            return self._speak(kind, data, position, body, stop)
        if stop - body < 2:
            raise wire.malformed("packet ends before its identifier")
        packet_id = data[body] << 8 | data[body + 1]
        if kind in (PUBACK, PUBREC, PUBCOMP):
            return self._acknowledge(kind, packet_id, stop - body > 2 and data[body + 2] >= 0x80)
        if kind == PUBREL and self._up is not None and not self._restoring and not self._node_stopped:
            # It frees a place in the node's window, so it does not wait behind what waits for one.
            self.ledger.add(packet_id, data[position:stop])
            return True
        if kind in (PUBREL, packets.SUBSCRIBE, packets.UNSUBSCRIBE):
            return self._ask(packet_id, data[position:stop])
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} is not expected here")

    def _ask(self, packet_id: int, packet: bytes) -> bool:
        """HOT.  Something an answer will come to; kept until it does."""
        if not packet_id:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "packet identifier 0")
        if self._direct:
            self.ledger.add(packet_id, packet)
            return True
        self.ledger.add_unsent(packet_id, packet)
        return False

    def _keep_loose(self, packet: bytes) -> None:
        """QoS 0 while there is no node for it."""
        if self.ledger.bytes_held + len(packet) > self._limits.buffer_bytes // 2:
            self._context.counters.dropped += 1
        else:
            self.ledger.add_unsent(0, packet)

    def _acknowledge(self, kind: int, packet_id: int, refused: bool) -> bool:
        verdict = self.deliveries.acknowledge(kind, packet_id, refused=refused)
        if verdict == PASS:
            return self._up is not None  # else the node will ask again, and be answered from memory
        self._settle_orphans()
        return False

    def _hear_held(self) -> None:
        """The client has said something: may what waits for that go on?"""
        if self._up is not None:
            self._held = False
            self._hear()
            self.from_node(self._up, self._up.incoming.take())

    def _speak(self, kind: int, data: bytes, position: int, body: int, stop: int) -> bool:
        if kind == packets.PINGREQ:
            self._answer_ping()
            return False
        if kind == packets.AUTH:
            return self._direct
        assert self.wish is not None
        code, expiry_s = 0, self.wish.expiry_s
        if self.wish.version == MQTT_5:
            code, found = packets.decode_ending(data, body, stop, "DISCONNECT", self._limits.user_properties)
            asked = found.get(prop.SESSION_EXPIRY, expiry_s)
            if asked and not expiry_s:
                # [MQTT-3.1.2-23], which the node cannot see
                raise ProtocolError(Reason.PROTOCOL_ERROR, "a session that was to end cannot be kept")
            expiry_s = asked
            self._ends = expiry_s == 0
        self._leave(goodbye(self.wish.version, code, expiry_s), graceful=code == 0)
        return False

    # -- packets of the node --

    def from_node(self, upstream: Upstream, data: bytes) -> None:
        """HOT.  All whole packets in `data`; those that need no look go on in one piece."""
        if upstream is not self._up:
            return
        if self._held:
            upstream.incoming.add(data)
            return
        try:
            self._relay_down(upstream, data)
        except ProtocolError as error:
            self._context.counters.nonsense += 1
            self.fail(Reason.SERVER_BUSY, f"the node {upstream.server} said: {error.reason}")

    def _relay_down(self, upstream: Upstream, data: bytes) -> None:
        position = start = 0
        end = len(data)
        while True:
            body, stop = packet_end(data, position, self._size_max)
            if not body:
                break
            first = data[position]
            if first & 0xF6 != 0x30:
                verdict = self._weigh(first, data, body, stop)
                if verdict != PASS:
                    if start < position:
                        self.to_client(data[start:position])
                    start = stop
                    if verdict == HOLD:
                        upstream.incoming.keep(data[position:], 0)
                        self._wait_for_client()
                        return
                    if verdict == ANSWER:
                        self._answer(first, data, body, stop)
                        if upstream is not self._up:
                            return
            position = stop
        if start < position:
            self.to_client(data[start:position] if start or position < end else data)
        if position < end:
            upstream.incoming.keep(data[position:], stop)

    def _wait_for_client(self) -> None:
        """The node's next packet has to wait for the client's next one."""
        self._held = True
        self._settle_orphans()
        if self.deliveries.is_stuck and self.state == ClientState.OPEN:
            self._have_it_begin_anew()
        else:
            self._hear()

    def _weigh(self, first: int, data: bytes, body: int, stop: int) -> int:
        """HOT.  The verdict on a packet of the node."""
        kind = first >> 4
        if kind == packets.PUBLISH:
            at = body + 2 + (data[body] << 8) + data[body + 1] if stop - body >= 2 else stop
            if at + 2 > stop:
                raise wire.malformed("packet ends before its identifier")
            verdict = self.deliveries.publish(first, data[at] << 8 | data[at + 1])
            if verdict != PASS:
                self._context.counters.repetitions += verdict != HOLD
            return verdict
        if kind in (PINGRESP, packets.DISCONNECT, packets.AUTH, 0):
            return PASS if kind == packets.AUTH else SWALLOW if kind == PINGRESP else ANSWER
        if stop - body < 2:
            raise wire.malformed("packet ends before its identifier")
        packet_id = data[body] << 8 | data[body + 1]
        if kind == PUBREL:
            return self.deliveries.release(packet_id)
        if kind in (PUBACK, PUBCOMP):
            return self._answered(packet_id)
        if kind == PUBREC:
            if stop - body > 2 and data[body + 2] >= 0x80:
                return self._answered(packet_id)
            return PASS if self.ledger.received(packet_id) else SWALLOW
        if kind in (SUBACK, UNSUBACK):
            return self._granted(packet_id, data, body, stop)
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} is not expected here")

    def _answered(self, packet_id: int) -> int:
        """HOT.  An exchange of the client's has ended; a node's word about something else is none."""
        if self.ledger.answered(packet_id) is None:
            return SWALLOW
        self._fruitful = True
        if self.ledger.unsent or not self._reading or self.state == ClientState.LEAVING:
            self._send_more()
        return PASS

    def _granted(self, packet_id: int, data: bytes, body: int, stop: int) -> int:
        assert self.wish is not None
        if packet_id in self._restoring:
            self._restoring.discard(packet_id)
            _, codes = decode_granted(data, body, stop, self.wish.version)
            self._context.counters.subscriptions_lost += sum(code >= 0x80 for code in codes)
            if not self._restoring:
                self._is_bare = False
                self._go_on()
            return SWALLOW
        request = self.ledger.answered(packet_id)
        if request is None:
            return SWALLOW
        changes = self.subscriptions.answered(request, data[body:stop], self.wish.version, self._limits.user_properties)
        self._has_subscribed(changes)
        self._send_more()
        return PASS

    def _has_subscribed(self, changes: list[Change]) -> None:
        """It has subscribed to something, or no longer is."""

    def _answer(self, first: int, data: bytes, body: int, stop: int) -> None:
        """A packet that is not for the client: we have the answer, or it is for us."""
        kind = first >> 4
        if kind == 0:
            hear_control(self, data, body, stop)
        elif kind == packets.DISCONNECT:
            hear_disconnect(self, data, body, stop)
        elif self._up is not None:
            if kind == PUBREL:
                answer, at = PUBCOMP, body
            else:
                answer = PUBACK if first & 0x02 else PUBREC
                at = body + 2 + (data[body] << 8) + data[body + 1]
            self._up.write(bytes((answer << 4, 2, data[at], data[at + 1])))

    # -- nodes come and go --

    def before_greeting(self, greet: Callable[[], None]) -> None:
        """A node is about to be asked for the session: do this first, then `greet`."""
        greet()

    def admitted(self, upstream: Upstream, welcome: Connack) -> None:
        """The first node has taken the client in."""
        assert self.wish is not None
        self._timer.cancel()
        self.state = ClientState.OPEN
        self._settle_charge()
        self._registry.admitted(self)
        if self._registry.was_sent_away(self.wish):
            welcome = Connack(False, welcome.code, welcome.properties, welcome.raw)
            self._begins_anew()
        elif welcome.session_present and not self.wish.clean:
            self.subscriptions.incomplete = True  # what is in it already was not said here
        self.to_client(for_client(welcome, self.wish, self._limits))
        self._keep_alive_s = KEEP_ALIVE_GRACE * welcome.properties.get(prop.SERVER_KEEP_ALIVE, self.wish.keep_alive_s)
        self._look_later()
        self._attach(upstream, welcome)
        self._go_on()
        if self._incoming.size:
            self.feed(b"")

    def _begins_anew(self) -> None:
        """It was sent away because its session was gone."""

    def attached(self, upstream: Upstream, welcome: Connack) -> None:
        """Another node has taken the session over."""
        assert self.wish is not None
        self._attach(upstream, welcome)
        if welcome.session_present:
            self._restore(upstream)
            return
        context = self._context
        context.counters.sessions_lost += 1
        context.report("session lost", self.wish, node=upstream.server, reason="the node knows of no session")
        if self.state == ClientState.OPEN and self._is_beyond_repair():
            self._have_it_begin_anew()
            return
        self.deliveries.forgotten()
        self._settle_orphans()
        self._is_bare = True
        self._restore(upstream)

    def _is_beyond_repair(self) -> bool:
        """The session is gone: was there something in it that only the client knows, or can decide about?"""
        return self.subscriptions.incomplete or self.ledger.is_in_doubt

    def _restore(self, upstream: Upstream) -> None:
        """Subscribe again to all that a session which took another one's place may lack, also at the next node."""
        assert self.wish is not None
        requests = self.subscriptions.again(self.wish.version) if self._is_bare else []
        self._is_bare = bool(requests)
        if not requests or self.state == ClientState.LEAVING:
            self._go_on()
            return
        for request in requests:
            packet_id = self.ledger.free_identifier(self._restoring)
            self._restoring.add(packet_id)
            upstream.write(packets.packet(0x82, wire.two(packet_id) + request))

    def _have_it_begin_anew(self) -> None:
        """The session is gone, and only the client knows all that was in it, or what to do about a publication at
        QoS 2 that may have been taken.  It is sent away, and learns of it when it comes back.  Nothing of what it has
        under way is said to the node before that."""
        assert self.wish is not None
        assert self.tether is not None
        self._registry.sent_away(self.wish)
        self.to_client(dismissal(self.wish.version, Reason.SERVER_BUSY))
        self._close()
        self._end(b"", departing=True)
        upstream = self.tether.stop()
        if upstream is not None:
            upstream.write(goodbye(self.wish.version, Reason.SUCCESS, self.wish.expiry_s))
            upstream.close()

    def _attach(self, upstream: Upstream, welcome: Connack) -> None:
        self._up = upstream
        self._held = False
        self._node_stopped = False
        self._node_congested = False
        self._node_window = welcome.properties.get(prop.RECEIVE_MAXIMUM, 65535)
        self._node_heard_at = self._context.now
        self._restoring.clear()
        self._fruitful = False
        self._context.attached += 1

    def _go_on(self) -> None:
        """The node is as the client believes it to be: tell it what it may have missed."""
        self._send_more()
        if self.state == ClientState.LEAVING:
            self._depart()

    def _send_more(self) -> None:
        up = self._up
        if up is None or self._restoring or self._node_stopped:
            return
        waiting = self.ledger.to_send(self._node_window)
        if waiting:
            self._spoken = True
            up.write(b"".join(waiting))
        self._direct = not self.ledger.unsent
        self._listen()

    def detached(self) -> None:
        """There is no node for the moment."""
        if self._up is None:
            return
        self._up = None
        self._direct = False
        self._held = False
        self._node_stopped = False
        self._node_congested = False
        self._restoring.clear()
        self._context.attached -= 1
        self._context.counters.resent += self.ledger.interrupted()
        self.deliveries.interrupted()
        self._listen()

    def node_stopped(self) -> None:
        """The session leaves its node: requests wait for the one that has it in the end."""
        self._node_stopped = True
        self._direct = False

    def node_goes_on(self) -> None:
        if self._node_stopped:
            self._node_stopped = False
            self._go_on()

    def hear_again(self, upstream: Upstream) -> None:
        """Packets of a node that came before it was this client's."""
        if upstream is self._up:
            self._hear()
            if upstream.incoming.size:
                self.from_node(upstream, upstream.incoming.take())

    @property
    def is_stuck(self) -> bool:
        """Something waits for an answer, and the last node has answered nothing."""
        return bool(self.ledger.entries) and not self._fruitful

    @property
    def is_served(self) -> bool:
        """A node has it, with all its subscriptions."""
        return self._up is not None and not self._restoring and not self._is_bare

    @property
    def node(self) -> str | None:
        """The node that serves it now."""
        return self._up.server if self._up is not None else None

    # -- flow --

    def _is_full(self) -> bool:
        """HOT.  Is there no room for more of what the client says?"""
        ledger, limits = self.ledger, self._limits
        return len(ledger.entries) >= limits.unacknowledged or ledger.bytes_held >= limits.buffer_bytes

    def _listen(self) -> None:
        """Read from the client, or do not, as there is room for what it says."""
        wanted = not self._is_full() and not self._node_congested
        if wanted != self._reading and self.state == ClientState.OPEN:
            self._reading = wanted
            if wanted:
                self._heard_at = self._context.now
                self._client.resume_reading()
            else:
                self._client.pause_reading()

    def node_congested(self, full: bool) -> None:
        self._node_congested = full
        self._listen()

    def congested(self) -> None:
        """The client's socket is full."""
        self._client_congested = True
        self._hear()

    def writable(self) -> None:
        self._client_congested = False
        self._hear()
        if self._owes_pingresp:
            self._answer_ping()

    def _answer_ping(self) -> None:
        """At once, or, to who does not read what it was sent already, once it does."""
        self._owes_pingresp = self._client_congested
        if not self._client_congested:
            self.to_client(packets.PINGRESP_BYTES)

    def _hear(self) -> None:
        """Read from the node, or do not."""
        if self._up is None or self._up.transport is None:
            return
        if self._held or self._client_congested:
            self._up.transport.pause_reading()
        else:
            self._up.transport.resume_reading()

    # -- signs of life --

    def _look_later(self) -> None:
        assert self.wish is not None
        interval = self._context.patience.ping_s
        if self._keep_alive_s:
            interval = min(interval, self._keep_alive_s / KEEP_ALIVE_GRACE / 2)
        self._timer = self._context.later(interval, self._look)

    def _look(self) -> None:
        """Is the client still there, and the node?"""
        if self.state != ClientState.OPEN:
            return
        now = self._context.now
        if not self._reading:
            self._heard_at = now  # it is we who do not listen
        if self._keep_alive_s and now - self._heard_at >= self._keep_alive_s:
            self.fail(Reason.KEEP_ALIVE_TIMEOUT, "keep-alive exceeded")
            return
        up = self._up
        if up is not None:
            if up.spoken or self._held or self._client_congested:
                self._node_heard_at = now
            if now - self._node_heard_at >= self._context.patience.dead_after_s:
                up.lost("the node is silent")
            elif not (self._spoken and up.spoken):
                up.write(PINGREQ_BYTES)
            up.spoken = self._spoken = False
        self._look_later()

    def _connect_timeout(self) -> None:
        if self.state == ClientState.AWAITING_CONNECT:
            self.fail(Reason.PROTOCOL_ERROR, "no CONNECT in time")
        elif self.state == ClientState.CONNECTING:
            self.fail(Reason.SERVER_UNAVAILABLE, "no node can be reached")

    # -- the end --

    def refused(self, packet: bytes, code: int) -> None:
        """No node takes the client in: it is told as they told us, but for what passes (`connecting.PASSING`)."""
        if self.state == ClientState.CONNECTING:
            self._context.counters.refused(Reason(code).name.lower().replace("_", "-"))
            self._end(b"" if code in PASSING else packet)
        else:
            self.dismiss(code, "a node does not take the client in again")

    def dismiss(self, code: int, reason: str) -> None:
        """The nodes have ended it."""
        if self.state == ClientState.CLOSED:
            return
        assert self.wish is not None
        self._context.report("client sent away", self.wish, code=f"0x{code:02x}", reason=reason)
        self._end(dismissal(self.wish.version, code))

    def fail(self, code: int, reason: str) -> None:
        """The client, or something about it, is wrong."""
        if self.state >= ClientState.LEAVING:
            return
        context = self._context
        context.report("connection failed", self.wish, address=self.address, code=f"0x{code:02x}", reason=reason)
        if self.state == ClientState.OPEN:
            assert self.wish is not None
            farewell = dismissal(self.wish.version, code)
            self.to_client(farewell)
            self._leave(goodbye(self.wish.version, Reason.DISCONNECT_WITH_WILL, self.wish.expiry_s), graceful=False)
            return
        context.counters.refused(Reason(code).name.lower().replace("_", "-"))
        version = self.wish.version if self.wish is not None else self._presumed_version
        self._end(refusal(version, code) if version and code not in PASSING else b"")

    def lost(self) -> None:
        """The client's connection is gone."""
        if self.state == ClientState.OPEN:
            assert self.wish is not None
            code = Reason.DISCONNECT_WITH_WILL
            self._leave(goodbye(self.wish.version, code, self.wish.expiry_s), graceful=False)
        elif self.state < ClientState.OPEN:
            self._end(b"")
        self._registry.forget(self)

    def stop(self) -> None:
        """The gateway stops."""
        self.fail(Reason.SERVER_SHUTTING_DOWN, "the gateway stops")

    def _leave(self, parting: bytes, *, graceful: bool) -> None:
        """The client is gone; a node is told so, as the client would have."""
        assert self.tether is not None
        self._parting = parting
        self._graceful = graceful
        self.state = ClientState.LEAVING
        self._timer.cancel()
        self._close()
        self.tether.switch()  # a node that has the session already is the one to be told
        if self.state != ClientState.LEAVING:
            return
        if self._up is not None and not self._restoring and not self._node_stopped:
            self._send_more()
            self._depart()
        elif self._lingers():
            self._timer = self._context.later(self._context.patience.linger_s, self._depart)
        else:
            self._depart()

    def _lingers(self) -> bool:
        """The client is gone, and there is no node: does somebody have to be told all the same?"""
        return self._graceful

    def _depart(self) -> None:
        if self.state == ClientState.CLOSED:
            return
        assert self.tether is not None
        assert self.wish is not None
        wish = self.wish
        live = self._up is not None
        server = self.tether.server
        raised = self.tether.raised
        ends = self._ends
        self._end(b"", departing=True)
        upstream = self.tether.stop()
        if live and upstream is not None and wish.version == MQTT_5:
            upstream.write(self._parting)
            upstream.close()
            return
        if not live or upstream is None or not self._graceful:
            if upstream is not None:
                upstream.abort()
            if raised and ends:
                self._endings.end(wish, server, None, self.address)
        elif raised:
            self._endings.end(wish, server, upstream, self.address)
        else:
            upstream.write(self._parting)
            upstream.close()

    def _end(self, farewell: bytes, *, departing: bool = False) -> None:
        """It is over for the client, and for the nodes unless there is something left to say to them."""
        if self.state == ClientState.CLOSED:
            return
        self._timer.cancel()
        if farewell:
            self.to_client(farewell)
        if self._up is not None:
            self._up = None
            self._context.attached -= 1
        if not departing:
            if self.tether is not None:
                upstream = self.tether.stop()
                if upstream is not None:
                    upstream.abort()
            self._close()
        self.state = ClientState.CLOSED
        self._incoming.take()
        self._settle_charge()
        self._registry.ended(self)

    def _close(self) -> None:
        self._client.close()
        # A peer that does not read would keep the farewell, and the socket, for ever.
        self._context.later(FAREWELL_S, self._client.abort)
