"""One client's connection: its state, the bytes not taken yet, and whether the client is read from.

A connection is fed bytes and answers through its transport and its session's outbox; it reads no socket and no clock.
A `ClientHandler` (see `dispatcher.py`) takes the packets.  Every mistake of a client ends in `fail` with the reason
code that the standard names, and affects this connection only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from sterna.broker import work_budget
from sterna.broker.access.identity import Entrance
from sterna.broker.backpressure import Backpressure
from sterna.broker.clock import BrokerClock
from sterna.broker.counters import Counters
from sterna.broker.deadlines import Deadline, Deadlines
from sterna.broker.limits import Limits
from sterna.broker.session.outbox import Transport
from sterna.broker.session.reading_rate import ReadingRate
from sterna.broker.work_budget import Turns, WorkBudget
from sterna.mqtt import gateway_packets, packets
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.allowance import Allowance
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from sterna.broker.access.authorization import AccessRule
    from sterna.broker.access.identity import Accepted, Refused
    from sterna.broker.access.scram import Exchange
    from sterna.broker.session.session import Session


class ConnectionState:
    """Plain numbers rather than an enumeration: they are compared per packet, and compiled these are constants."""

    AWAITING_CONNECT: Final = 0
    #: CONNECT is in; a password is being checked or an exchange of AUTH packets goes on.
    AUTHENTICATING: Final = 1
    CONNECTED: Final = 2
    CLOSED: Final = 3


@dataclass(frozen=True, slots=True)
class ClientPeer:
    """The other end, as it is known before it says a word."""

    address: str
    certificate_name: str | None = None
    entrance: Entrance = field(default_factory=Entrance)
    authority: str = ""
    """The entrance's authority when the certificate was checked."""
    is_foreign_broker: bool = False
    """The node itself speaks here, for a broker that it is attached to: nobody has to be authenticated."""
    is_relayed: bool = False
    """The node itself speaks here, for a client that a foreign broker has let in: the user name is believed."""

    @property
    def is_ours(self) -> bool:
        """Does the node itself speak here?"""
        return self.is_foreign_broker or self.is_relayed

    @property
    def is_outdated(self) -> bool:
        """Was its certificate believed because of authorities that are no longer believed?"""
        return self.certificate_name is not None and self.authority != self.entrance.authority


#: Times `output_bytes` that a client's socket may hold, answers included, before it is no longer listened to.
ANSWERS_SHARE = 2


class AcknowledgementReader(Protocol):
    """Reads what the client of a session that leaves this node still acknowledges."""

    @property
    def is_over(self) -> bool:
        """The client has sent something else."""

    @property
    def put_aside(self) -> dict[int, bytes]:
        """PUBREC packets, by packet identifier."""

    def hear(self, connection: Connection, data: bytes) -> bytes:
        """Returns the bytes that are left.  May raise ProtocolError."""


class ClientHandler(ABC):
    """Takes the packets of all connections, and is told when one fails, ends or may be written to again.

    A class, not a protocol: compiled, calls go through a table.
    """

    __slots__ = ()

    @abstractmethod
    def parse(self, connection: Connection, data: bytes) -> None:
        """HOT.  Take all whole packets in `data`, and have the connection keep the rest.  May raise ProtocolError."""

    @abstractmethod
    def verified(self, connection: Connection, verdict: Accepted | Refused) -> None:
        """The verdict on its CONNECT, worked out elsewhere."""

    @abstractmethod
    def failed(self, connection: Connection, code: int, reason: str) -> None:
        """Tell the client so, as its protocol version allows, and end the connection."""

    @abstractmethod
    def lost(self, connection: Connection) -> None:
        """The transport is gone: end the connection."""

    @abstractmethod
    def writable(self, session: Session) -> None:
        """There is room in the client's socket again."""


class ConnectionContext:
    """The parts of a broker that every connection uses."""

    __slots__ = ("backpressure", "clock", "counters", "deadlines", "limits", "turns", "unauthenticated", "work_budget")

    def __init__(
        self,
        limits: Limits,
        clock: BrokerClock,
        counters: Counters,
        backpressure: Backpressure,
        spent: WorkBudget,
        turns: Turns,
        deadlines: Deadlines,
    ) -> None:
        self.deadlines = deadlines
        self.limits = limits
        self.clock = clock
        self.counters = counters
        self.backpressure = backpressure
        self.work_budget = spent
        self.turns = turns
        #: Bytes held of clients that are not authenticated yet.
        self.unauthenticated = Allowance(limits.unauthenticated_bytes)


class Connection:
    __slots__ = (
        "_charged",
        "_context",
        "_errands",
        "_held",
        "_needed",
        "_paced",
        "_partial",
        "_partial_size",
        "_rate",
        "accepted",
        "aliases",
        "allowed",
        "asking",
        "bridge",
        "connect",
        "deadline",
        "exchange",
        "gateway",
        "granted",
        "handler",
        "heard_at",
        "input_bytes_max",
        "is_3_1",
        "is_greeted",
        "is_second",
        "keep_alive_s",
        "may_be_led",
        "method",
        "parting",
        "peer",
        "proof_deadline",
        "reading_paused",
        "session",
        "stalled",
        "state",
        "transport",
        "unanswered",
        "unheard_until",
        "unsaid",
        "version",
        "waiting",
        "wants_reasons",
    )

    def __init__(
        self, context: ConnectionContext, handler: ClientHandler, transport: Transport, peer: ClientPeer
    ) -> None:
        self._context = context
        #: Takes its packets.
        self.handler = handler
        self.transport = transport
        self.peer = peer
        self.state: int = ConnectionState.AWAITING_CONNECT
        #: 0 until a CONNECT has said it.
        self.version = 0
        #: MQTT 3.1, which is served as 3.1.1; a bridge, whose subscriptions are No Local and Retain As Published.
        self.is_3_1 = self.bridge = False
        self.session: Session | None = None
        #: The CONNECT packet, kept while its sender is being authenticated.
        self.connect: packets.Connect | None = None
        #: Its user, and what proves it.
        self.accepted: Accepted | None = None
        #: Access rules that a hook gave it.
        self.granted: tuple[AccessRule, ...] = ()
        #: An exchange of AUTH packets under way.
        self.exchange: Exchange | None = None
        #: The method it authenticated with, which it must keep to [MQTT-4.12.1-1].
        self.method = b""
        #: By its state: CONNECT must have come, its keep-alive is looked at, or the transport is aborted.
        self.deadline: Deadline | None = None
        #: When it is looked at whether its token has expired.
        self.proof_deadline: Deadline | None = None
        #: When the client last said anything.
        self.heard_at = context.clock.now
        #: Until when this node did not listen, so that its silence does not count.
        self.unheard_until = 0.0
        self.keep_alive_s = 0.0
        #: Publications it sent at QoS 1 and 2 whose exchange is not over.
        self.unanswered = 0
        # Not read from until the journal has caught up; until it has read what it was answered.
        self.reading_paused = self.stalled = False
        #: Request Problem Information: does the client want reason strings with its acknowledgements [MQTT-3.1.2-29]?
        self.wants_reasons = True
        #: Largest packet the client may send in this state.
        self.input_bytes_max = context.limits.connect_bytes
        #: How fast it is read from; None: as fast as it sends.  And whether it waits because of that.
        self._rate: ReadingRate | None = None
        self._paced: Deadline | None = None
        #: Bytes held of it that count as a stranger's.
        self._charged = 0
        # A packet that has not come in whole yet: its pieces, their size, and the size worth looking at again.
        self._partial: list[bytes] = []
        self._partial_size = self._needed = 0
        #: No further packet is taken for the time being; nor is the client read from (`_held`).
        self.waiting = self._held = False
        # Work for this client that takes several turns.
        self._errands: deque[Iterator[None]] = deque()
        #: QoS 0 messages that came while the client was on its way here; they follow CONNACK.
        self.unsaid = b""
        #: The name of the gateway it comes through, which can follow its session to another node; empty: none.
        self.gateway = ""
        #: That gateway may be asked to connect its client to another node while this one serves it.
        self.may_be_led = False
        # Its session is on its way here: its client is served elsewhere, through another connection; or it has its
        # CONNACK already, and is heard when the session has come.
        self.is_second = self.is_greeted = False
        #: Its session has stopped and leaves; None otherwise.
        self.parting: AcknowledgementReader | None = None
        #: SUBSCRIBE packets that are not answered yet, or whose retained messages are not all found.
        self.asking = 0
        #: Topic aliases the client defined.
        self.aliases: dict[int, bytes] | None = None
        #: Topics a restricted client may publish to, as far as asked; None for an unrestricted client.
        self.allowed: set[bytes] | None = None

    # -- bytes in --

    def feed(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.state == ConnectionState.CLOSED:
            return  # it was told goodbye and talks on
        context = self._context
        self.heard_at = context.clock.now
        context.counters.bytes_received += len(data)
        if self._partial or self.waiting:
            self._partial.append(data)
            self._partial_size += len(data)
            if self.waiting or self._partial_size < self._needed:
                if self.parting is not None:
                    self._hear_on_parting(self.parting)
                self._bound_waiting()
                if self.state != ConnectionState.CONNECTED:
                    self.charge()
                return
            data = self._taken_partial()
        self._take(data)
        if self.state != ConnectionState.CONNECTED:
            self.charge()
        self._bound_backlog()

    def charge(self, elsewhere: int = 0) -> None:
        """Count the bytes held of a client that is not authenticated yet, `elsewhere` those its transport holds."""
        if self.state == ConnectionState.CONNECTED or self.state == ConnectionState.CLOSED:
            return
        before, self._charged = self._charged, elsewhere + self._partial_size
        fits = self._context.unauthenticated.change(before, self._charged)
        if elsewhere > self._context.limits.connect_bytes:
            self.fail(Reason.PACKET_TOO_LARGE, f"{elsewhere} bytes without a whole CONNECT; see limits.connect_bytes")
        elif not fits:
            self.fail(Reason.QUOTA_EXCEEDED, "limits.unauthenticated_bytes are held of clients that did not log in yet")

    def drop_input(self) -> None:
        """The connection has ended: nothing of what it said is looked at any more."""
        self._partial.clear()
        self._partial_size = 0
        self._context.deadlines.cancel(self._paced)
        self._settle_charge()

    def _settle_charge(self) -> None:
        self._context.unauthenticated.change(self._charged, 0)
        self._charged = 0

    def _bound_backlog(self) -> None:
        """Read on only while the journal keeps up with this client, and this client with our answers."""
        backpressure = self._context.backpressure
        if backpressure.overloaded():
            backpressure.pause(self)
        session = self.session
        if session is None or not session.outbox.congested or self.stalled or self.state != ConnectionState.CONNECTED:
            return
        # Messages no longer come on top of what a full socket holds, answers do: it is by asking that it grows.
        if self.transport.get_write_buffer_size() > ANSWERS_SHARE * self._context.limits.output_bytes:
            self.stalled = True
            self.transport.pause_reading()

    def pause(self) -> None:
        """Read nothing more from the client until `listen`."""
        if not self.stalled:
            self.transport.pause_reading()

    def listen(self) -> None:
        """Read on from the client, unless something is left that speaks against it."""
        if self.state == ConnectionState.CLOSED or self.reading_paused or self.stalled or self._held:
            return
        if self._paced is None:
            self.transport.resume_reading()

    def _bound_waiting(self) -> None:
        """A client that talks on while it is being authenticated may do so up to one packet's worth."""
        if self._held or self._paced is not None or not self.waiting or self.state == ConnectionState.CLOSED:
            return  # who is held back is not read from either
        if self._partial_size > self._context.limits.packet_bytes:
            self.fail(Reason.QUOTA_EXCEEDED, "too much data before CONNACK")

    def _take(self, data: bytes) -> None:
        later = b""
        if self._rate is not None:
            allowed = self._rate.allowed(data, self._context.clock.now)
            data, later = data[:allowed], data[allowed:]
        try:
            if data:
                self.handler.parse(self, data)
        except ProtocolError as error:
            self.fail(error.code, error.reason)
        if later and self.state != ConnectionState.CLOSED:
            self._take_later(later)

    def _take_later(self, data: bytes) -> None:
        """It sends faster than it may: its next packets have to wait."""
        self._partial.append(data)
        self._partial_size += len(data)
        self.waiting = True
        context = self._context
        if self._paced is None:
            context.counters.throttled += 1
            self.pause()
        assert self._rate is not None
        due = context.clock.now + self._rate.wait_s()
        self._paced = context.deadlines.replace(self._paced, due, self._wait_is_over)

    def _wait_is_over(self) -> None:
        self._paced = None
        if self.state == ConnectionState.CLOSED or self._held:
            return  # whoever holds it back goes on with its packets
        self.unheard_until = self._context.clock.now  # it is we who did not listen
        self.proceed()
        self._bound_backlog()
        self.listen()

    @property
    def is_throttled(self) -> bool:
        """Does it wait because it sends too fast?"""
        return self._paced is not None

    def hold(self) -> None:
        """Take no further packets until `proceed`: an answer to this one is being worked out elsewhere."""
        self.waiting = True

    def greet(self, connack: bytes) -> None:
        """Its session is about to come: let it in, and read from it when that is here."""
        self.is_greeted = self._held = self.waiting = True
        self.transport.pause_reading()
        self.send(connack)

    def proceed_with(self, verdict: Accepted | Refused) -> None:
        """The verdict on its CONNECT, worked out elsewhere."""
        self.waiting = False
        self.handler.verified(self, verdict)
        if not self.waiting:
            self.proceed()

    # -- more than one turn's work --

    def run(self, errand: Iterator[None]) -> None:
        """Do this for the client, step by step: now, as far as the turn allows, and the rest in later turns.

        Until then no further packet of this client is taken.
        """
        if self._errands or not self._advance(errand):
            self._errands.append(errand)
            self.hold_back()

    def _advance(self, errand: Iterator[None]) -> bool:
        """Go on with it until it is done (True) or the turn is spent."""
        spent = self._context.work_budget
        return all(spent.spent < work_budget.TURN for _ in errand)

    def hold_back(self) -> None:
        if not self._held:
            self._held = self.waiting = True
            self.transport.pause_reading()
            self._context.turns.ask(self._go_on)

    def _go_on(self) -> bool:
        """One turn for this client: its errands, then the packets that waited behind them."""
        self.unheard_until = self._context.clock.now  # it is we who do not listen
        try:
            while self._errands and self.state != ConnectionState.CLOSED:
                if not self._advance(self._errands[0]):
                    return False
                self._errands.popleft()
        except ProtocolError as error:
            self.fail(error.code, error.reason)
        self._held = False
        if self.state == ConnectionState.CLOSED:
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
        return bool(self._errands) or self.waiting or self.asking > 0

    def freeze(self, parting: AcknowledgementReader) -> None:
        """Hear nothing more from the client but what it acknowledges, until `thaw` or the end."""
        self._held = self.waiting = True
        self.parting = parting

    def _hear_on_parting(self, parting: AcknowledgementReader) -> None:
        try:
            left = parting.hear(self, b"".join(self._partial))
        except ProtocolError as error:
            self.fail(error.code, error.reason)
            return
        self._partial, self._partial_size = [left], len(left)
        if parting.is_over and self.state != ConnectionState.CLOSED:
            self.transport.pause_reading()

    def thaw(self) -> None:
        self._held = False
        if self.parting is not None:
            self._partial = [*self.parting.put_aside.values(), *self._partial]
            self.parting = None
        if self.state != ConnectionState.CLOSED:
            self.unheard_until = self._context.clock.now  # it is we who did not listen
            self.proceed()
            self.listen()

    def proceed(self) -> None:
        self.waiting = False
        data = self._taken_partial()
        if data and self.state != ConnectionState.CLOSED:
            self._take(data)

    @property
    def kept_bytes(self) -> int:
        """Bytes of packets that were not taken yet."""
        return self._partial_size

    def keep(self, rest: bytes, needed: int) -> None:
        """The beginning of a packet that is not whole yet.  With `needed` bytes of it, it is worth another look."""
        self._partial = [rest]
        self._partial_size = len(rest)
        self._needed = needed

    def _taken_partial(self) -> bytes:
        data = b"".join(self._partial)
        self._partial.clear()
        self._partial_size = 0
        return data

    # -- bytes out, and the end --

    def send(self, data: bytes) -> None:
        """A packet this client waits for.  A connection that has ended takes no more."""
        session = self.session
        self._context.counters.answers_sent += 1
        if self.state == ConnectionState.CONNECTED and session is not None:
            session.outbox.send(data)
        elif self.state != ConnectionState.CLOSED:
            self.transport.write(data)

    def enter(self, state: int) -> None:
        self.state = state

    def admit(self, session: Session) -> None:
        """From here on the connection serves this session."""
        if self.is_greeted:
            self._held = False
            self.unheard_until = self._context.clock.now
            self.listen()
        self.session = session
        self.connect = None
        self.input_bytes_max = self._context.limits.packet_bytes
        self._settle_charge()
        self.allowed = None if session.permissions.unrestricted else set()
        self.set_pace()
        self.enter(ConnectionState.CONNECTED)

    def set_pace(self) -> None:
        """The client is read from as fast as the limits say now."""
        messages, size = self._context.limits.client_messages_per_s, self._context.limits.client_bytes_per_s
        is_bounded = (messages or size) and not self.peer.is_ours
        self._rate = ReadingRate(messages, size, self._context.clock.now) if is_bounded else None

    def fail(self, code: int, reason: str) -> None:
        """The client, or something about it, is wrong: say so as the protocol version allows, and close."""
        if self.state == ConnectionState.CLOSED:
            return
        self.handler.failed(self, code, reason)

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
        self.handler.lost(self)

    # -- flow --

    def congested(self) -> None:
        """The client's socket is full."""
        if self.session is not None and self.session.connection is self:
            self.session.outbox.congested = True

    def writable(self) -> None:
        """There is room again."""
        session = self.session
        if session is not None and session.connection is self and self.state == ConnectionState.CONNECTED:
            session.outbox.congested = False
            if self.stalled:
                self.stalled = False
                self.listen()
            if session.leaving is not None:
                session.outbox.congested = True  # its socket takes more, but it is no longer served
                return
            self.handler.writable(session)
