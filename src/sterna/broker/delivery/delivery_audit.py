"""Records for an audit: who was subscribed to what, and what became of each message for each subscriber.

The records go into the journal with the next group, so a session's events and its records are kept or lost together.  A
message is named by its identity in the network; one published at QoS 0 has none and leaves no record.  A node that is
killed loses the records since its last group: nothing can be said about sessions that died with it past their last
record, and sessions that live on are sent the message again.

    started       the node                             carried       a subscription stood before, and stands
    opened        a session has a connection           stands        every node knows of a subscription
    closed        it has lost it                       unsubscribed
    subscribed    every message of this node after     ended         the session, and what it had subscribed to
                  the vector is to come                moved         the same: it goes on at another node
    arrived       a subscription of a session that      began        a subscription of a session that took the place
                  came from another node, which had                  of one at a node that was away, which is in charge
                  what comes before the vector                       of what comes before the vector
"""

from __future__ import annotations

import msgspec

from sterna.broker.beginning import owner_of
from sterna.broker.clock import BrokerClock
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.delivery.encoding import Encodings
from sterna.broker.session.session import Session
from sterna.broker.session.shares import SharedSubscription
from sterna.broker.session.subscriptions import Grant, Subscription
from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.vocabulary.drop_reasons import DropReason
from sterna.vocabulary.identity import Identity, Stamp, VersionVector

SESSIONS_BITS = 20
"""A start numbers its sessions from its epoch, shifted by so many bits.  Epochs are seconds of the clock: a start with
more sessions than fit in has run for longer than they reach into the epochs after its own.  Older records have numbers
shifted by 32, which 64 bits hold until 2038; no epoch that fits into a frame comes to one of them, shifted by 20."""


class DeliveryNotes:
    """Notes what happens to sessions."""

    def __init__(self, journal: Journal, clock: BrokerClock, node: str, vector: VersionVector) -> None:
        self._journal = journal
        self._clock = clock
        self.node = node
        last = journal.next_offset - 1
        #: The last message of every origin that was handed to those who wanted it.
        self.vector: VersionVector = {**vector, node: Stamp(journal.epoch_of(last) if last >= 0 else 0, last)}
        self._lives = journal.epoch << SESSIONS_BITS

    def next_life(self) -> int:
        """The number of a new session."""
        self._lives += 1
        return self._lives

    def _note(
        self,
        what: str,
        session: Session,
        subscription: Subscription | None = None,
        vector: VersionVector | None = None,
        number: int | None = None,
    ) -> None:
        client, _ = owner_of(session.client_id)  # a fenced session goes on as what it was
        if subscription is None:
            record = SessionRecord(what, self._clock.wall, client, session.life, vector=vector, number=number)
        else:
            s, rules = subscription, _rules(session)
            record = SessionRecord(
                what,
                self._clock.wall,
                client,
                session.life,
                s.topic_filter,
                s.qos,
                s.no_local,
                rules,
                vector,
                number,
            )
        self._journal.record_session(record)

    def started(self, sessions: list[Session]) -> None:
        """The node has, with these sessions from before."""
        self._journal.record_session(SessionRecord("started", self._clock.wall))
        for session in sessions:
            self.carried(session)

    def carried(self, session: Session) -> None:
        """Its subscriptions, once more, with what may have changed."""
        for subscription in session.subscriptions.values():
            self._note("carried", session, subscription, dict(self.vector))

    def opened(self, session: Session) -> None:
        self._note("opened", session)
        self.carried(session)

    def closed(self, session: Session) -> None:
        self._note("closed", session)

    def ended(self, session: Session) -> None:
        self._note("ended", session, vector=dict(self.vector))

    def moved(self, session: Session, number: int, vector: VersionVector | None = None) -> None:
        """Under this number; it had what comes before the vector, or before now."""
        self._note("moved", session, vector=dict(self.vector if vector is None else vector), number=number)

    def arrived(self, session: Session, vector: VersionVector) -> None:
        """With everything it was owed: what comes after the vector, it hears here."""
        session.life = self.next_life()
        for subscription in session.subscriptions.values():
            self._note("arrived", session, subscription, dict(vector), session.number)

    def began(self, session: Session, topic_filter: bytes, vector: VersionVector, number: int) -> None:
        """It took the place of another one, under this number, and hears this from here on."""
        subscription = session.subscriptions.get(topic_filter)
        if subscription is not None:
            self._note("began", session, subscription, dict(vector), number)

    def subscribed(self, session: Session, subscription: Subscription, before: Subscription | None) -> None:
        """In place of `before`, if there was one.

        Messages taken in earlier that are still being written may come as well.  Vectors do not tell from when on
        messages of other nodes come: see `stands`.
        """
        if before is not None:
            if (before.qos, before.no_local) == (subscription.qos, subscription.no_local):
                return
            self._note("unsubscribed", session, before, dict(self.vector))
        own: VersionVector = {self.node: Stamp(self._journal.epoch, self._journal.next_offset - 1)}
        self._note("subscribed", session, subscription, own)

    def stands(self, session: Session, topic_filters: list[bytes]) -> None:
        for topic_filter in topic_filters:
            subscription = session.subscriptions.get(topic_filter)
            if subscription is not None:
                self._note("stands", session, subscription)

    def unsubscribed(self, session: Session, subscription: Subscription) -> None:
        self._note("unsubscribed", session, subscription, dict(self.vector))


def _rules(session: Session) -> str | None:
    reading = None if session.permissions.unrestricted else session.permissions.reading
    return None if reading is None else msgspec.json.encode(reading).decode()


class RecordedDelivery(Delivery):
    """The same delivery, with a record of what becomes of each message."""

    __slots__ = ("_records", "_resent")

    def record(self, records: DeliveryNotes) -> None:
        self._records = records
        #: (client, packet identifier) of what was sent more than once and is not acknowledged.
        self._resent: set[tuple[bytes, int]] = set()

    def _note(
        self,
        session: Session,
        message: Message,
        grant: Grant,
        *,
        resent: bool = False,
        dropped: DropReason | None = None,
    ) -> None:
        client, _ = owner_of(session.client_id)
        who = (client, session.life, grant.share or None)
        self._note_of(who, message, min(message.qos, grant.qos), resent, grant.retained, dropped)

    def _note_of(
        self,
        who: tuple[bytes, int, bytes | None],
        message: Message,
        qos: int,
        resent: bool,
        retained: bool,
        dropped: str | None,
    ) -> None:
        known = message.identity
        if known is None:
            if message.offset < 0 or message.qos == 0:
                return
            known = Identity(self._records.node, self._journal.epoch_of(message.offset), message.offset)
        elif known.sequence < 0:
            return
        self._journal.record_delivery(DeliveryRecord(self._clock.wall, *who, *known, qos, resent, retained, dropped))

    # -- handed out --

    def deliver(self, message: Message, source: Session | None) -> bool:
        wanted = super().deliver(message, source)
        identity = message.identity
        if identity is None:
            if message.offset >= 0:
                self._records.vector[self._records.node] = Stamp(self._journal.epoch, message.offset)
        elif identity.sequence >= 0:
            self._records.vector[identity.origin] = identity.stamp
        return wanted

    # -- delivered --

    def _send_qos0(self, session: Session, message: Message, grant: Grant, encodings: Encodings) -> bool:
        sent = super()._send_qos0(session, message, grant, encodings)
        if sent:
            self._note(session, message, grant)
        return sent

    def acknowledged(self, session: Session, packet_id: int, *, is_noted: bool = False) -> None:
        """One that came from another node may have been acknowledged, and noted, over there."""
        if not is_noted:
            self._answered(session, packet_id)
        super().acknowledged(session, packet_id)

    def passed_on(self, session: Session, packet_id: int, dropped: DropReason | None = None) -> None:
        self._answered(session, packet_id, dropped)
        super().passed_on(session, packet_id, dropped)

    def _answered(self, session: Session, packet_id: int, dropped: DropReason | None = None) -> None:
        entry = session.inflight.get(packet_id)
        if entry is None:
            return
        message, grant = entry
        sent = (session.client_id, packet_id)
        resent = sent in self._resent
        self._resent.discard(sent)
        self._note(session, message, grant, resent=resent, dropped=dropped)

    def _resend_one(self, session: Session, packet_id: int) -> None:
        if session.inflight[packet_id] is not None:
            self._resent.add((session.client_id, packet_id))
        super()._resend_one(session, packet_id)

    def _withhold(self, session: Session, packet_id: int, message: Message, grant: Grant, reason: DropReason) -> None:
        self._resent.discard((session.client_id, packet_id))
        super()._withhold(session, packet_id, message, grant, reason)

    def disconnected(self, session: Session) -> None:
        if self._resent:
            self._resent.difference_update([(session.client_id, packet_id) for packet_id in session.inflight])
        super().disconnected(session)

    # -- dropped --

    def _drop(self, session: Session, message: Message, grant: Grant, reason: DropReason) -> None:
        super()._drop(session, message, grant, reason)
        self._note(session, message, grant, dropped=reason)

    def expired(self, message: Message) -> None:
        super().expired(message)
        route = self._routes.route(message.topic)
        for session, grant in route.deliveries:
            self._note(session, message, grant, dropped="expired")
        for share in route.shares:
            self._note_of((b"", 0, share.key), message, message.qos, False, False, "expired")

    def _turn_away(self, session: Session, offset: int, grant: Grant) -> None:
        super()._turn_away(session, offset, grant)
        message = self._journal.read(offset)
        if message is not None:
            self._note(session, message, grant, dropped="queue-full")

    def _turn_away_from(self, share: SharedSubscription, message: Message) -> None:
        super()._turn_away_from(share, message)
        self._note_of((b"", 0, share.key), message, message.qos, False, False, "queue-full")

    def retention_took(self, waiting: Session | SharedSubscription, messages: int) -> None:
        super().retention_took(waiting, messages)
        client, life, share = b"", 0, None
        if isinstance(waiting, SharedSubscription):
            share = waiting.key
        else:
            (client, _), life = owner_of(waiting.client_id), waiting.life
        self._journal.record_delivery(
            DeliveryRecord(
                self._clock.wall, client, life, share, None, None, None, 0, False, False, "retention", messages
            )
        )
