"""A client in front of a foreign broker whose publications somebody else has to see before it hears that they arrived.

The watcher is told of every publication at QoS 1 and 2.  The last word of the foreign broker about it (PUBACK, PUBCOMP)
goes to the client when the watcher has settled it, in the order in which the foreign broker spoke.  Everything else
passes as it does in a gateway.

A foreign broker that has lost the client's session leaves publications at QoS 2 in doubt.  A client of nodes is sent
away then; here the watcher knows which of them were seen, and says what becomes of the others.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from sterna.gateway.client import ClientRegistry, ClientState, GatewayClient
from sterna.gateway.connecting import WILL, refusal
from sterna.gateway.context import GatewayContext
from sterna.gateway.deliveries import SWALLOW
from sterna.gateway.ending import SessionEndings
from sterna.gateway.ledger import AWAITING_RELEASE
from sterna.gateway.upstream import PeerTransport
from sterna.mqtt import packets, wire
from sterna.mqtt.packets import MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from sterna.mqtt.reasons import Reason

_DUP: Final = 0x08
_REFUSED: Final = 0x80


class Ticket(Protocol):
    """One publication, until the client has the last word about it."""

    @property
    def is_settled(self) -> bool:
        """The client may hear that it arrived."""

    @property
    def was_seen(self) -> bool:
        """The foreign broker has passed it on, and the journal has it."""

    def released(self) -> None:
        """At QoS 2: the client has released it."""

    def answered(self) -> None:
        """The foreign broker has said its last word."""

    def interrupted(self) -> None:
        """The connection has ended: the last word will be said again."""

    def withdraw(self) -> None:
        """Nobody waits for it any more."""


class Watcher(Protocol):
    @property
    def is_open(self) -> bool:
        """May clients go to the foreign broker?"""

    @property
    def is_full(self) -> bool:
        """So many publications are under way that clients are not listened to."""

    @property
    def repeats_doubts(self) -> bool:
        """Publications at QoS 2 in doubt are repeated, else dropped."""

    def published(self, topic: bytes, payload: bytes, qos: int, retain: bool, client: WatchedClient) -> Ticket | None:
        """A publication passes; None if it need not be seen."""

    def wait_for_room(self, client: WatchedClient) -> None:
        """Call its `has_room` when it is no longer full."""

    def doubt(self, outcome: str) -> None:
        """A publication at QoS 2 was in doubt, and this became of it."""

    def is_taken(self, client_id: bytes) -> bool:
        """Does somebody else use this client identifier at the foreign broker?"""


class WatchedClient(GatewayClient):
    __slots__ = ("_copies", "_copies_bytes", "_due", "_orphans", "_repeated", "_tickets", "_watcher")

    def __init__(
        self,
        context: GatewayContext,
        registry: ClientRegistry,
        endings: SessionEndings,
        client: PeerTransport,
        address: str,
        watcher: Watcher,
    ) -> None:
        super().__init__(context, registry, endings, client, address)
        self.deliveries.repeats_first = False
        self._watcher = watcher
        self._tickets: dict[int, Ticket] = {}
        #: Last words of the foreign broker that the client has not had: packet identifier, packet.
        self._due: deque[tuple[int, bytes]] = deque()
        #: Publications at QoS 2 after PUBREC, in case the foreign broker loses them.
        self._copies: dict[int, bytes] = {}
        self._copies_bytes = 0
        #: Of these, the ones to be published again before their release; no PUBREC for them was heard yet.
        self._repeated: set[int] = set()
        #: Identifiers whose release we answer: the foreign broker knows nothing of them.
        self._orphans: set[int] = set()

    # -- the client speaks --

    def _connect(self, data: bytes, body: int, stop: int) -> None:
        super()._connect(data, body, stop)
        if self.wish is not None and self._watcher.is_taken(self.wish.client_id):
            self.fail(Reason.CLIENT_IDENTIFIER_NOT_VALID, "the node itself is known to the broker by this identifier")

    def _take(self, first: int, data: bytes, position: int, body: int, stop: int) -> bool:
        """HOT."""
        if first >> 4 == PUBREL and stop - body >= 2:
            packet_id = data[body] << 8 | data[body + 1]
            if packet_id in self._orphans:
                self._orphans.discard(packet_id)
                self.to_client(_complete(packet_id))
                return False
            ticket = self._tickets.get(packet_id)
            if ticket is not None:
                ticket.released()
        return super()._take(first, data, position, body, stop)

    def _ask(self, packet_id: int, packet: bytes) -> bool:
        """HOT."""
        if packet[0] >> 4 == PUBLISH and packet_id:
            self._watch(packet_id, packet)
        return super()._ask(packet_id, packet)

    def _watch(self, packet_id: int, packet: bytes) -> None:
        held = self._tickets.pop(packet_id, None)
        if held is not None:
            if packet[0] & _DUP:
                self._tickets[packet_id] = held
                return
            held.withdraw()
        self._orphans.discard(packet_id)
        assert self.wish is not None
        end = len(packet)
        _, body = wire.remaining_length(packet, 1, end)
        topic, place = wire.read_binary(packet, body, end)
        place += 2
        if self.wish.version == MQTT_5:
            length, place = wire.read_variable(packet, place, end)
            place += length
        first = packet[0]
        ticket = self._watcher.published(topic, packet[place:], first >> 1 & 3, bool(first & 1), self)
        if ticket is not None:
            self._tickets[packet_id] = ticket

    def _is_full(self) -> bool:
        """HOT."""
        if self._watcher.is_full:
            self._watcher.wait_for_room(self)
            return True
        return super()._is_full()

    def has_room(self) -> None:
        self._listen()

    # -- the foreign broker answers --

    def _weigh(self, first: int, data: bytes, body: int, stop: int) -> int:
        """HOT."""
        kind = first >> 4
        if stop - body < 2 or kind not in (PUBACK, PUBREC, PUBCOMP):
            return super()._weigh(first, data, body, stop)
        packet_id = data[body] << 8 | data[body + 1]
        is_refused = kind != PUBCOMP and stop - body > 2 and data[body + 2] >= _REFUSED
        if kind == PUBREC and not is_refused:
            if packet_id in self._repeated:
                self._repeated.discard(packet_id)  # the client has had one
                return SWALLOW
            self._keep_copy(packet_id)
            return super()._weigh(first, data, body, stop)
        ticket = self._tickets.get(packet_id)
        if ticket is not None:
            if is_refused:
                ticket.withdraw()
                del self._tickets[packet_id]
            else:
                ticket.answered()
        if self._due or (packet_id in self._tickets and ticket is not None and not ticket.is_settled):
            self._due.append((packet_id, packets.packet(first, data[body:stop])))
            return SWALLOW
        self._forget(packet_id)
        return super()._weigh(first, data, body, stop)

    def settled(self) -> None:
        """Something was settled: the client may hear of what is due now."""
        while self._due:
            packet_id, answer = self._due[0]
            ticket = self._tickets.get(packet_id)
            if ticket is not None and not ticket.is_settled:
                return
            self._due.popleft()
            self._forget(packet_id)
            _, body = wire.remaining_length(answer, 1, len(answer))
            if super()._weigh(answer[0], answer, body, len(answer)) != SWALLOW:
                self.to_client(answer)

    def _keep_copy(self, packet_id: int) -> None:
        packet = self.ledger.entries.get(packet_id, b"")
        if not packet or packet[0] >> 4 != PUBLISH or packet_id not in self._tickets or packet_id in self._copies:
            return
        if self._copies_bytes + len(packet) <= self._limits.buffer_bytes:
            self._copies[packet_id] = packet
            self._copies_bytes += len(packet)

    def _forget(self, packet_id: int) -> None:
        """HOT.  The client hears the last word about it."""
        self._tickets.pop(packet_id, None)
        copy = self._copies.pop(packet_id, None)
        if copy is not None:
            self._copies_bytes -= len(copy)
            self._repeated.discard(packet_id)

    # -- connections come and go --

    def detached(self) -> None:
        self._due.clear()
        for ticket in self._tickets.values():
            ticket.interrupted()
        super().detached()

    def _is_beyond_repair(self) -> bool:
        if self.subscriptions.incomplete:
            return True
        for packet_id, packet in list(self.ledger.entries.items()):
            is_sent = bool(packet) and packet[0] & 0xFE == 0x3C  # at QoS 2, and not for the first time
            is_released = bool(packet) and packet[0] >> 4 == PUBREL
            if is_sent or is_released or packet == AWAITING_RELEASE:
                self._decide(packet_id, is_sent=is_sent, is_released=is_released)
        return False

    def _decide(self, packet_id: int, *, is_sent: bool, is_released: bool) -> None:
        """The foreign broker knows no longer whether it had this publication at QoS 2."""
        ticket = self._tickets.get(packet_id)
        if ticket is not None and ticket.was_seen:
            outcome = "witnessed"
        elif self._watcher.repeats_doubts and (is_sent or packet_id in self._copies):
            self._watcher.doubt("repeated")
            if not is_sent:
                self._repeated.add(packet_id)
            return
        else:
            outcome = "unknown" if self._watcher.repeats_doubts else "dropped"
        self._watcher.doubt(outcome)
        self.ledger.answered(packet_id)
        if ticket is not None:
            ticket.withdraw()
        self._forget(packet_id)
        if is_released:
            self.to_client(_complete(packet_id))
            return
        self._orphans.add(packet_id)
        if is_sent:
            self.to_client(bytes((PUBREC << 4, 2, packet_id >> 8, packet_id & 0xFF)))

    def _go_on(self) -> None:
        if self._repeated and self._up is not None:
            again = [self._copies[packet_id] for packet_id in sorted(self._repeated)]
            self._up.write(b"".join(bytes((packet[0] | _DUP,)) + packet[1:] for packet in again))
        super()._go_on()

    def _lingers(self) -> bool:
        # Else nobody would publish its will.
        return super()._lingers() or (self.wish is not None and bool(self.wish.flags & WILL))

    def _connect_timeout(self) -> None:
        if self.state == ClientState.CONNECTING and self.wish is not None:
            # Nobody else can be asked, so it is told so.
            self.to_client(refusal(self.wish.version, Reason.SERVER_UNAVAILABLE))
        super()._connect_timeout()

    def _end(self, farewell: bytes, *, departing: bool = False) -> None:
        super()._end(farewell, departing=departing)
        for ticket in self._tickets.values():
            ticket.withdraw()
        self._tickets.clear()
        self._due.clear()


def _complete(packet_id: int) -> bytes:
    return bytes((PUBCOMP << 4, 2, packet_id >> 8, packet_id & 0xFF))
