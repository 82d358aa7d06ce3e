"""One client's session: its subscriptions, its messages in flight, and its queue.

A session is state and the small rules that keep it consistent; `delivery.py` delivers, `session_log.py` makes it
survive a crash.  It may outlive its connection (`expiry_s`) and then only its subscriptions, in-flight table and queue
are of interest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.broker.access.authorization import Permissions
from sterna.broker.beginning import FENCED, Beginning, beginning_from
from sterna.broker.counters import Counters
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.outbox import MOVING, NOT_COUNTED, Outbox
from sterna.broker.session.publisher_sequence import NO_NUMBER, Number
from sterna.broker.session.qos0_hold import Qos0Hold
from sterna.broker.session.session_quotas import SessionQuotas, will_size
from sterna.broker.session.subscriptions import Grant, Subscription
from sterna.journal.session_state import SessionState, will_fields, will_from
from sterna.mqtt.message import Message
from sterna.mqtt.packets import MQTT_5, Will
from sterna.vocabulary.bounds import NEW_SESSION_STEPS
from sterna.vocabulary.drop_reasons import DropReason
from sterna.vocabulary.identity import VersionVector

if TYPE_CHECKING:
    from sterna.broker.session.connection import Connection

PACKET_ID_MAX = 65535
#: So many sessions that take each other's places count packet identifiers from different places.
GENERATIONS = 8

#: `expiry_s` that means: for ever (0xFFFFFFFF on the wire).
FOREVER = 0xFFFFFFFF

#: A message sent at QoS 1 or 2 and not yet acknowledged; None once a QoS 2 receiver said PUBREC, when only the
#: packet identifier still matters.
Inflight = tuple[Message, Grant] | None


class Session:
    __slots__ = (
        "_holdings",
        "_user",
        "_will",
        "alias_maximum",
        "aliases",
        "barrier",
        "beginning",
        "came",
        "client_id",
        "connection",
        "disconnected_at",
        "dropped_by_full_queue",
        "dropped_by_retention",
        "expiry_s",
        "held",
        "in_doubt",
        "inflight",
        "inflight_bytes",
        "is_arriving",
        "is_called",
        "is_losing",
        "leaving",
        "life",
        "logged",
        "needs",
        "next_packet_id",
        "number",
        "opened_at",
        "opened_wall",
        "outbox",
        "packet_bytes_max",
        "permissions",
        "queue",
        "received",
        "retained_backlog",
        "round_trip_s",
        "sequence",
        "shares",
        "subscribed_at",
        "subscriptions",
        "taken_back",
        "timed_at",
        "timed_id",
        "told",
        "unsent",
        "version",
        "window",
        "window_bytes",
    )

    _user: str | None
    _will: Will | None
    #: Messages in flight after PUBREC, for a foreign broker, which may yet forget them; None for a client.
    in_doubt: dict[int, tuple[Message, Grant]] | None

    def __init__(self, client_id: bytes, outbox: Outbox, permissions: Permissions, holdings: SessionQuotas) -> None:
        self._holdings, self._user, self._will, self.in_doubt = holdings, None, None, None
        holdings.gained(None)
        self.client_id = client_id
        self.outbox = outbox
        self.permissions = permissions
        self.connection: Connection | None = None
        self.version = MQTT_5
        #: Seconds the session outlives its connection; 0 ends it with the connection.
        self.expiry_s = 0
        #: The journal has events of it, so its end must be noted too.
        self.logged = False
        #: Distinguishes it from other sessions of the client in audit records; 0 if none are written.
        self.life = 0
        #: Ownership number, incremented at every change of owner; 0 for a session that can never move.
        self.number = 0
        #: The node it is being moved to, and its ownership number there: it is not served until the move has ended.
        self.leaving: tuple[str, int] | None = None
        #: Not all of it has come here yet; and: its client was sent to another node, where the session is to follow it.
        self.is_arriving = self.is_called = False
        #: Messages at QoS 0 that came for it meanwhile.
        self.held: Qos0Hold | None = None
        #: How it began, if it may have taken another session's place.
        self.beginning: Beginning | None = None
        #: Up to which message of each origin the node it came from had served it: these do not go to it again.
        self.barrier: VersionVector = {}
        #: (offset, node, epoch, sequence): it came before our message of that offset, from a node that had come so far.
        self.came: tuple[int, str, int, int] | None = None
        #: Which results of expressions it had there, by origin or expression; see `result_identity.py`.
        self.told: VersionVector = {}
        #: When its connection began (steady clock; 0: before this start; wall clock) and ended (running clock; 0: not).
        self.opened_at = self.opened_wall = self.disconnected_at = 0.0
        self.subscriptions: dict[bytes, Subscription] = {}
        #: Journal offset of the first message that came after its last subscription.
        self.subscribed_at = 0
        #: Keys of the shared subscriptions it is a member of.
        self.shares: list[bytes] = []
        #: In order of sending, which is the order of resending [MQTT-4.6.0-1].
        self.inflight: dict[int, Inflight] = {}
        #: Payloads and properties of the messages among them.
        self.inflight_bytes = 0
        #: Packet identifiers in flight that this connection has not sent yet, the next one last.
        self.unsent: list[int] = []
        #: Packet identifiers of messages given to others of a share while the client may be looking at them.
        self.taken_back: set[int] = set()
        #: How long its client takes to acknowledge at QoS 1 (0: unknown); what tells (0: the next), and when it left.
        self.round_trip_s, self.timed_id, self.timed_at = 0.0, 0, 0.0
        self.next_packet_id = 1
        #: How many may be in flight: our limit, or the client's Receive Maximum if lower.
        self.window = 1
        #: From how many bytes in flight on nothing more is sent.
        self.window_bytes = 1
        self.queue: OffsetQueue[Grant] = OffsetQueue()
        #: Retained messages at QoS 0 that wait for room in the socket; None if there are none, as nearly always.
        self.retained_backlog: OffsetQueue[Grant] | None = None
        #: QoS 2 packet identifiers the client sent and has not released.
        self.received: set[int] = set()
        #: The last number of a publisher that numbers its messages.
        self.sequence: Number = NO_NUMBER
        #: Largest packet the client takes; 0 for any.
        self.packet_bytes_max = 0
        #: Topic aliases we defined towards the client, None if it wants none.
        self.aliases: dict[bytes, int] | None = None
        self.alias_maximum = 0
        #: Protocol version, limited packets, aliases: how routes have to treat it.
        self.needs = (0, False, False)
        #: Messages that waited here longer than the journal kept them; those that came when too many waited already.
        self.dropped_by_retention = self.dropped_by_full_queue = 0
        #: Its queue is full, and the operator has been told or is about to be.
        self.is_losing = False

    def state(self) -> SessionState:
        """The part of it that survives a crash and goes along in a move."""
        return SessionState(
            expiry_s=self.expiry_s,
            will=will_fields(self._will),
            next_packet_id=self.next_packet_id,
            received=sorted(self.received),
            sequence=self.sequence,
            dropped_by_retention=self.dropped_by_retention,
            dropped_by_full_queue=self.dropped_by_full_queue,
            beginning=None if self.beginning is None else self.beginning.state(),
        )

    def restore(self, state: SessionState) -> None:
        self.expiry_s = state.expiry_s
        self.will = will_from(state.will)
        self.next_packet_id = state.next_packet_id
        self.received = set(state.received)
        self.sequence = state.sequence
        self.dropped_by_retention = state.dropped_by_retention
        self.dropped_by_full_queue = state.dropped_by_full_queue
        self.beginning = None if state.beginning is None else beginning_from(state.beginning)

    @property
    def user(self) -> str | None:
        return self._user

    @user.setter
    def user(self, user: str | None) -> None:
        self._holdings.lost(self._user)
        self._holdings.gained(user)
        self._user = user

    @property
    def will(self) -> Will | None:
        return self._will

    @will.setter
    def will(self, will: Will | None) -> None:
        self._holdings.wills.change(will_size(self._will), will_size(will))
        self._will = will

    def gone(self) -> None:
        """It is no longer one of this node's sessions, and holds nothing."""
        self.will = None
        self._holdings.lost(self._user)

    @property
    def persistent(self) -> bool:
        return self.expiry_s > 0

    @property
    def is_moving(self) -> bool:
        return self.is_arriving or self.leaving is not None or self.is_fenced

    @property
    def is_fenced(self) -> bool:
        """Has another node come to own the client's session, so that this one only hands over what waits?"""
        return self.client_id.startswith(FENCED)

    @property
    def ready(self) -> bool:
        """May one more QoS 1 or 2 message be sent now?"""
        return (
            not self.outbox.congested
            and len(self.inflight) + len(self.taken_back) < self.window
            and self.inflight_bytes < self.window_bytes  # a message larger than all of it goes alone
        )

    def answered(self, now: float) -> None:
        """The message that is timed has been acknowledged.  A slower answer counts at once, a quicker one by and by."""
        took_s = now - self.timed_at
        self.round_trip_s = max(took_s, self.round_trip_s + (took_s - self.round_trip_s) / 4)
        self.timed_id = 0

    @property
    def may_repeat(self) -> bool:
        """Is something in flight that a client would take for another message if it came again?  At QoS 2 the packet
        identifier tells the client what it has had."""
        return any(entry is not None and min(entry[0].qos, entry[1].qos) == 1 for entry in self.inflight.values())

    def why_not(self) -> DropReason:
        """The reason for which it did not take a message at QoS 0; NOT_COUNTED if another node says it."""
        is_full = self.held is not None and self.held.is_full
        return self.outbox.why_not() or (MOVING if is_full else NOT_COUNTED)

    def put_in_flight(self, packet_id: int, message: Message, grant: Grant) -> None:
        self.inflight[packet_id] = (message, grant)
        self.inflight_bytes += len(message.payload) + len(message.properties)

    def passed_on(self, packet_id: int) -> None:
        """A QoS 2 receiver has the message: the identifier stays in flight without it, in its place in the order."""
        entry = self.inflight[packet_id]
        if entry is not None:
            self.inflight_bytes -= len(entry[0].payload) + len(entry[0].properties)
            if self.in_doubt is not None:
                self.in_doubt[packet_id] = entry
        self.inflight[packet_id] = None

    def out_of_flight(self, packet_id: int) -> Inflight:
        entry = self.inflight.pop(packet_id)
        if entry is not None:
            self.inflight_bytes -= len(entry[0].payload) + len(entry[0].properties)
        elif self.in_doubt is not None:
            self.in_doubt.pop(packet_id, None)
        return entry

    def turn_away(self, counters: Counters) -> None:
        """A message for which there is no room; the operator is told once, until the client has been here again."""
        self.dropped_by_full_queue += 1
        counters.dropped("queue-full")
        if not self.is_losing:
            self.is_losing = True
            counters.begins_to_lose(self.name(), "queue-full")

    def let_go(self) -> None:
        """It has ended: a deadline or a route that still refers to it must not keep its messages in memory."""
        self.inflight.clear()
        self.inflight_bytes = 0
        self.unsent.clear()
        self.taken_back.clear()
        self.queue.clear()
        self.retained_backlog = None
        self.received.clear()

    def count_apart(self) -> None:
        """It takes another one's place, and its client may go back to that one: there the client must not be sent a
        message under an identifier that it has yet to release here, so this session counts from elsewhere."""
        generation = 1 + self.number // NEW_SESSION_STEPS % (GENERATIONS - 1)
        self.next_packet_id = 1 + generation * (PACKET_ID_MAX // GENERATIONS)

    def take_packet_id(self) -> int:
        packet_id = self.next_packet_id
        while packet_id in self.inflight or packet_id in self.taken_back:
            packet_id = packet_id % PACKET_ID_MAX + 1
        self.next_packet_id = packet_id % PACKET_ID_MAX + 1
        return packet_id

    def name(self) -> str:
        return self.client_id.decode()
