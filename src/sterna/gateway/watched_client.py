"""A client in front of a foreign broker whose publications somebody else has to see before it hears that they arrived.

The watcher is told of every publication at QoS 1 and 2.  The last word of the foreign broker about it (PUBACK, PUBCOMP)
goes to the client when the watcher has settled it, in the order in which the foreign broker spoke.  Everything else
passes as it does in a gateway.

A foreign broker that has lost the client's session leaves publications at QoS 2 in doubt.  A client of nodes is sent
away then; here the watcher knows which of them were seen, and says what becomes of the others.  PUBREC goes to the
client when the publication is kept (`kept_publications.py`); those of an earlier connection are said again for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from sterna.gateway.client import SUBACK, ClientRegistry, ClientState, GatewayClient
from sterna.gateway.connecting import WILL, refusal
from sterna.gateway.context import GatewayContext
from sterna.gateway.deliveries import PASS, SWALLOW
from sterna.gateway.ending import SessionEndings
from sterna.gateway.kept_publications import KeptPublications, RelayJournal
from sterna.gateway.ledger import AWAITING_RELEASE
from sterna.gateway.republishing import Republishing, publication_of
from sterna.gateway.subscriptions import Change
from sterna.gateway.upstream import PeerTransport, Upstream
from sterna.mqtt import packets, wire
from sterna.mqtt.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from sterna.mqtt.reasons import Reason
from sterna.mqtt.server_packets import Connack

_DUP: Final = 0x08
_REFUSED: Final = 0x80
_FOREVER: Final = 0xFFFFFFFF


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

    def begins(self, client_id: bytes, filters: Iterable[bytes] | None) -> int:
        """Its session has these subscriptions (None: nobody knows which); a number for `ends`."""

    def subscribed(self, client_id: bytes, topic_filter: bytes) -> None: ...
    def unsubscribed(self, client_id: bytes, topic_filter: bytes) -> None: ...
    def ends(self, client_id: bytes, number: int) -> bool:
        """The session that had this number is over; False if there is a later one."""

    def when_known(self, act: Callable[[], None]) -> bool:
        """Do this when the network knows of the subscriptions; False: it does."""


class WatchedClient(GatewayClient):
    __slots__ = (
        "_again",
        "_due",
        "_is_lost",
        "_is_torn",
        "_keeper",
        "_kept",
        "_life",
        "_orphans",
        "_receipts_held",
        "_released_early",
        "_repeated",
        "_tickets",
        "_watcher",
    )

    def __init__(
        self,
        context: GatewayContext,
        registry: ClientRegistry,
        endings: SessionEndings,
        client: PeerTransport,
        address: str,
        watcher: Watcher,
        keeper: RelayJournal,
    ) -> None:
        super().__init__(context, registry, endings, client, address)
        self.deliveries.repeats_first = False
        self._watcher = watcher
        self._keeper = keeper
        #: The number of its session.
        self._life = 0
        self._tickets: dict[int, Ticket] = {}
        #: Last words of the foreign broker that the client has not had: packet identifier, packet.
        self._due: deque[tuple[int, bytes]] = deque()
        #: Publications at QoS 2 after PUBREC, in case the foreign broker loses them.
        self._kept = KeptPublications(keeper, self._limits.buffer_bytes)
        #: Each PUBREC waits behind those that wait for the journal.
        self._receipts_held = 0
        #: Publications of an earlier connection, which the foreign broker has lost; and those that the client released
        #: meanwhile.
        self._again = Republishing(self._arrived_after_all)
        self._released_early: set[int] = set()
        #: The foreign broker had no session of this client.
        self._is_lost = False
        #: The node ended while it asked the foreign broker for the session, which may have begun anew since.
        self._is_torn = False
        #: Of those kept, the ones to be published again before their release; no PUBREC for them was heard yet.
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
            if packet_id in self._kept.older:
                if self._again.is_under_way(packet_id):
                    self._released_early.add(packet_id)
                    return False
                self._kept.released(packet_id)
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
        if packet_id in self._kept.older and not self._again.is_under_way(packet_id):
            self._kept.drop(packet_id)
        ticket = self._ticket(packet)
        if ticket is not None:
            self._tickets[packet_id] = ticket

    def _ticket(self, packet: bytes) -> Ticket | None:
        assert self.wish is not None
        topic, payload = publication_of(packet, self.wish.version)
        first = packet[0]
        return self._watcher.published(topic, payload, first >> 1 & 3, bool(first & 1), self)

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
            verdict = super()._weigh(first, data, body, stop)
            return self._subscribed(first, data[body:stop]) if kind == SUBACK and verdict == PASS else verdict
        packet_id = data[body] << 8 | data[body + 1]
        is_refused = kind != PUBCOMP and stop - body > 2 and data[body + 2] >= _REFUSED
        if self._again:
            answer = self._again.answered(kind, packet_id, refused=is_refused)
            if answer is not None:
                if answer:
                    self._to_node(answer)
                return SWALLOW
        if kind == PUBREC and not is_refused:
            if packet_id in self._repeated:
                self._repeated.discard(packet_id)  # the client has had one
                self._kept.taken_again(packet_id)
                return SWALLOW
            return self._received(packet_id, first, data, body, stop)
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
        if self._again:
            self._again.settled()
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

    def _subscribed(self, first: int, answer: bytes) -> int:
        """Messages published elsewhere after the client has had SUBACK are to come."""
        is_held = self._watcher.when_known(lambda: self.to_client(packets.packet(first, answer)))
        return SWALLOW if is_held else PASS

    def _received(self, packet_id: int, first: int, data: bytes, body: int, stop: int) -> int:
        """The foreign broker has a publication: the client hears so when it is kept here, too."""
        packet = self.ledger.entries.get(packet_id, b"")
        is_kept = bool(packet) and packet[0] >> 4 == PUBLISH and packet_id in self._tickets
        if is_kept and not self._kept.keep(packet_id, packet):
            self._name_not_kept()
        verdict = super()._weigh(first, data, body, stop)
        if verdict == SWALLOW or not (is_kept or self._receipts_held):
            return verdict
        receipt = packets.packet(first, data[body:stop])

        def safe(is_safe: bool) -> None:
            self._receipts_held -= 1
            if is_safe:
                self.to_client(receipt)
            else:
                self.fail(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the node's journal cannot be written")

        self._receipts_held += 1
        if self._kept.when_safe(safe):
            return SWALLOW
        self._receipts_held -= 1
        return verdict

    def _name_not_kept(self) -> None:
        """The first time only: the counter tells of others."""
        counters = self._context.counters
        counters.not_kept += 1
        if counters.not_kept == 1:
            reason = (
                f"it has more than {self._limits.buffer_bytes} bytes of publications at QoS 2 that it has not released:"
                " if the foreign broker loses its session, further ones stay in doubt; let it send PUBREL sooner;"
                " others are counted (sterna_interworking_not_kept_total)"
            )
            self._context.report("publications not kept", self.wish, reason=reason)

    def _forget(self, packet_id: int) -> None:
        """HOT.  The client hears the last word about it."""
        self._tickets.pop(packet_id, None)
        if packet_id in self._kept.held:
            self._kept.drop(packet_id)
            self._repeated.discard(packet_id)

    # -- connections come and go --

    def before_greeting(self, greet: Callable[[], None]) -> None:
        """The journal has it first that the session is asked for: nobody else knows it if the node ends meanwhile."""
        assert self.wish is not None
        client_id = self.wish.client_id
        if self.wish.is_transient or self.wish.clean or self._keeper.subscriptions(client_id) is None:
            greet()
            return
        if not self._life:
            self._is_torn = self._keeper.is_unanswered(client_id)
        self._keeper.ask(client_id)
        self._keeper.when_safe(lambda is_safe: greet() if is_safe else None)

    def admitted(self, upstream: Upstream, welcome: Connack) -> None:
        assert self.wish is not None
        self._kept.begin(self.wish)
        self._is_lost = not welcome.session_present
        self._remember(has_session=welcome.session_present and not self.wish.clean)
        self._is_bare = is_torn = self._is_torn and welcome.session_present
        if is_torn:
            self._keeper.renew(self.wish.client_id)
            self._kept.lost = set(self._kept.older)
        super().admitted(upstream, welcome)
        if self._life and self._keeper.subscriptions(self.wish.client_id) is not None:
            self.subscriptions.incomplete = False
        if is_torn:
            self._restore(upstream)

    def _begins_anew(self) -> None:
        self._is_lost = True
        self._remember(has_session=False)

    def _remember(self, *, has_session: bool) -> None:
        """Begin with the subscriptions that its session has."""
        assert self.wish is not None
        client_id = self.wish.client_id
        if not has_session:
            self._keeper.end(client_id)
            if not self.wish.is_transient:
                self._keeper.begin(client_id)
            self._life = self._watcher.begins(client_id, ())
            return
        known = self._keeper.subscriptions(client_id)
        self._life = self._watcher.begins(client_id, known)
        for topic_filter, (options, identifier) in (known or {}).items():
            self.subscriptions.add(topic_filter, options, identifier)

    def _has_subscribed(self, changes: list[Change]) -> None:
        assert self.wish is not None
        client_id = self.wish.client_id
        if not self.wish.is_transient:
            self._keeper.subscribed(client_id, changes)
        for topic_filter, options in changes:
            if options is None:
                self._watcher.unsubscribed(client_id, topic_filter)
            else:
                self._watcher.subscribed(client_id, topic_filter)

    def _session_ends(self) -> None:
        """The foreign broker ends its session, now or when it expires."""
        wish = self.wish
        if wish is None or not self._life:
            return
        life, watcher, keeper = self._life, self._watcher, self._keeper

        def end() -> None:
            if watcher.ends(wish.client_id, life):
                keeper.end(wish.client_id)

        if self._ends:
            end()
        elif wish.version == packets.MQTT_5 and wish.expiry_s < _FOREVER:
            self._context.later(wish.expiry_s, end)

    def detached(self) -> None:
        self._due.clear()
        for ticket in self._tickets.values():
            ticket.interrupted()
        self._again.interrupted()
        super().detached()

    def _say_older_again(self, lost: Iterable[int]) -> None:
        """The foreign broker has lost what an earlier connection had given it.  Packet identifiers of that time mean
        nothing to the client any more, or to nobody but the client."""
        for packet_id in sorted(lost):
            if self._again.is_under_way(packet_id):
                continue
            packet = self._kept.older[packet_id]
            if self._watcher.repeats_doubts:
                self._watcher.doubt("repeated")
                identifier = self.ledger.identifier_beside(packet_id, self._restoring | self._again.identifiers)
                self._again.add(identifier, packet_id, packet, self._ticket(packet))
            else:
                self._watcher.doubt("dropped")
                self._kept.drop(packet_id)
                self._orphans.add(packet_id)

    def _arrived_after_all(self, packet_id: int) -> None:
        self._kept.drop(packet_id)
        if packet_id in self._released_early:
            self._released_early.discard(packet_id)
            self.to_client(_complete(packet_id))
        else:
            self._orphans.add(packet_id)

    def _is_beyond_repair(self) -> bool:
        if self.subscriptions.incomplete:
            return True
        assert self.wish is not None
        self._is_lost = True
        if not self.wish.is_transient:
            self._keeper.renew(self.wish.client_id)
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
        elif self._watcher.repeats_doubts and (is_sent or packet_id in self._kept.held):
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
        assert self.wish is not None
        is_lost, self._is_lost = self._is_lost, False
        if lost := self._kept.older.keys() if is_lost else self._kept.lost:
            self._say_older_again(lost)
        if self._again and (words := self._again.say(is_new=is_lost)):
            self._to_node(words)
        if not self._is_bare and not self.wish.is_transient:
            self._keeper.answered(self.wish.client_id)
        if self._repeated:
            again = [self._kept.held[packet_id] for packet_id in sorted(self._repeated)]
            self._to_node(b"".join(bytes((packet[0] | _DUP,)) + packet[1:] for packet in again))
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
        for packet_id, ticket in self._tickets.items():
            if ticket.was_seen:
                self._kept.drop(packet_id)
            ticket.withdraw()
        self._again.end()
        self._session_ends()
        self._tickets.clear()
        self._due.clear()


def _complete(packet_id: int) -> bytes:
    return bytes((PUBCOMP << 4, 2, packet_id >> 8, packet_id & 0xFF))
