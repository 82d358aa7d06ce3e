"""Simulated MQTT clients: real bytes, both versions, every QoS, and their side of every promise across connections.

A client sends again, in order and with DUP, every message whose end it was not told; it recognises messages that it
has taken at QoS 2 and was not told to release.  It acknowledges when it gets around to it, and keeps the books in
Records.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from sterna.mqtt.packets import DISCONNECT as DISCONNECT_KIND
from sterna.mqtt.packets import MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, encode_acknowledgement
from sterna.mqtt.topics import split_share
from sterna.simulation.client_packets import (
    DISCONNECT,
    PINGREQ,
    Delivered,
    LastWords,
    PacketReader,
    decode_publish,
    encode_connect,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
    server_reference,
)
from sterna.simulation.network import SimulatedNetwork, host_of
from sterna.simulation.records import LastWill, Publication, ReceivedDelivery, Records, Span, Violation, identity_of
from sterna.simulation.streams import End

CONNACK, SUBACK, UNSUBACK, PINGRESP = 2, 9, 11, 13
NOT_FOUND = 0x92
"""The other side has finished with this packet identifier: what an answer to a repetition may say."""
PACKET_IDS = 65535


@dataclass(frozen=True, slots=True)
class Habits:
    version: int = MQTT_5
    persistent: bool = True
    keep_alive_s: int = 4
    receive_maximum: int = 20
    window: int = 10
    """Publications it has under way at most."""
    acknowledge_s: float = 0.02
    """Mean time it takes to acknowledge a message."""
    will: tuple[bytes, int] | None = None
    """Topic and QoS."""


@dataclass(slots=True)
class _Outgoing:
    publication: Publication
    payload: bytes
    received: bool = False
    """PUBREC came: from here on it is PUBREL that is repeated."""


@dataclass(slots=True)
class _ClientRequest:
    """A SUBSCRIBE, or, without QoS, an UNSUBSCRIBE.  `again`: a session that is gone may have had it, unanswered."""

    topic_filter: bytes
    qos: int | None
    packet_id: int = 0
    again: bool = False


class _Conversation:
    """One connection of a client; a client has at most one, and forgets what others still say."""

    __slots__ = ("client", "end", "pinged_at", "reader", "welcome", "will")

    def __init__(self, client: Client, end: End, will: LastWill | None) -> None:
        self.client = client
        self.end = end
        self.reader = PacketReader()
        self.welcome = False
        self.pinged_at: float | None = None
        self.will = will

    def received(self, data: bytes) -> None:
        for first, body in self.reader.feed(data):
            if self.client.conversation is not self:
                return
            self.client.take(first, body)

    def lost(self) -> None:
        self.client.lost(self)

    def congested(self) -> None: ...
    def writable(self) -> None: ...


class Client:
    def __init__(
        self, network: SimulatedNetwork, name: str, address: str, records: Records, habits: Habits, domain: str = ""
    ) -> None:
        self.network = network
        self.kernel = network.kernel
        self.name = name
        self.address = address
        self.habits = habits
        self.domain = domain or host_of(address)
        self.conversation: _Conversation | None = None
        self._records = records
        self._dice = self.kernel.dice(f"client {name}")
        self._wanted = False
        self._dialling = 0  # the number of the attempt under way; 0: none
        self._attempts = 0
        self._has_session = False
        self._waiting: deque[tuple[Publication, bytes]] = deque()
        self._outgoing: dict[int, _Outgoing] = {}
        self._unreleased: dict[int, bytes] = {}
        self._owed: set[int] = set()
        self._acknowledged_last = 0.0
        self._next_packet_id = 1
        self._requests: deque[_ClientRequest] = deque()
        self._spans: dict[bytes, Span] = {}
        #: Of a session that was replaced by another one, until they are confirmed there.
        self._interrupted: dict[bytes, Span] = {}
        self._number = 0
        self._wills = 0

    # -- what a scenario asks of it --

    def come(self) -> None:
        """Be connected from now on, as far as the world allows."""
        self._wanted = True
        self._dial()

    def leave(self, *, politely: bool) -> None:
        """Be away from now on."""
        self._wanted = False
        self._dialling = 0
        conversation = self.conversation
        if conversation is not None and politely:
            self._send(DISCONNECT)
            conversation.end.close()
            self._over(conversation)
        elif conversation is not None:
            self.hang_up()

    def hang_up(self) -> None:
        """Break the connection without a word; come back soon unless told to be away."""
        conversation = self.conversation
        if conversation is not None:
            if conversation.will is not None and conversation.end.reaches:
                conversation.will.aborted_at = self.kernel.now
                self.kernel.after(1.0, _forgive_if_left, conversation.will, conversation.end.peer)
            conversation.end.abort()
            self._over(conversation)

    def desert(self) -> None:
        """Go without a word, and leave the connection standing as if somebody were there."""
        if self.conversation is not None:
            self._over(self.conversation)

    def publish(self, topic: bytes, qos: int, *, retain: bool = False, size: int = 0) -> None:
        """At QoS 0 only if connected: nobody would know of it otherwise."""
        if qos == 0 and not self.is_welcome:
            return
        self._number += 1
        identity = f"{self.name}/{self._number}"
        publication = Publication(identity, self.name, self.domain, self._number, topic, qos, retain)
        self._records.publications[identity] = publication
        payload = identity.encode() + b" " + b"." * size
        if qos:
            self._waiting.append((publication, payload))
            self._begin_more()
        else:
            self._write(publication, payload, 0)

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        self._ask(_ClientRequest(topic_filter, qos))

    def unsubscribe(self, topic_filter: bytes) -> None:
        self._ask(_ClientRequest(topic_filter, None))

    @property
    def is_welcome(self) -> bool:
        return self.conversation is not None and self.conversation.welcome

    @property
    def filters(self) -> list[bytes]:
        """Subscriptions it holds, as confirmed."""
        return list(self._spans)

    @property
    def is_asking(self) -> bool:
        return bool(self._requests)

    @property
    def unfinished(self) -> int:
        """Publications and requests without an answer."""
        return len(self._waiting) + len(self._outgoing) + len(self._requests) + len(self._unreleased)

    # -- connecting --

    def _dial(self) -> None:
        if self._wanted and self.conversation is None and not self._dialling:
            self._attempts += 1
            self._dialling = self._attempts
            self.network.dial(self.name, self.address, partial(self._dialled, self._attempts))

    def _dialled(self, attempt: int, end: End | None) -> None:
        if attempt != self._dialling:
            if end is not None:
                end.abort()
            return
        self._dialling = 0
        if end is None:
            self._try_again()
            return
        habits = self.habits
        will = self._make_will()
        self.conversation = end.user = _Conversation(self, end, will)
        last_words = None if will is None else LastWords(will.topic, f"{will.identity} ".encode(), will.qos)
        end.write(
            encode_connect(
                self.name,
                habits.version,
                persistent=habits.persistent,
                keep_alive_s=habits.keep_alive_s,
                receive_maximum=habits.receive_maximum,
                will=last_words,
            )
        )
        self._keep_alive(self.conversation)

    def _make_will(self) -> LastWill | None:
        if self.habits.will is None:
            return None
        self._wills += 1
        topic, qos = self.habits.will
        will = LastWill(f"{self.name}/will{self._wills}", self.name, host_of(self.address), self.domain, topic, qos)
        self._records.wills[will.identity] = will
        return will

    def _try_again(self) -> None:
        self.kernel.after(self._dice.uniform(0.02, 0.6), self._dial)

    def lost(self, conversation: _Conversation) -> None:
        if self.conversation is conversation:
            self._over(conversation)

    def _over(self, conversation: _Conversation) -> None:
        assert self.conversation is conversation
        self.conversation = None
        self._owed.clear()
        if not self.habits.persistent:
            self._forget_session()
        if self._wanted:
            self._try_again()

    def _forget_session(self) -> None:
        """The session is gone: so are its subscriptions, and what was under way may or may not arrive."""
        for outgoing in self._outgoing.values():
            outgoing.publication.abandoned = outgoing.publication.acknowledged_at is None
        self._outgoing.clear()
        self._unreleased.clear()
        for span in self._spans.values():
            if self._records.gives_new_sessions and self._has_session and not split_share(span.topic_filter):
                self._interrupted[span.topic_filter] = span
            else:
                span.until = self.kernel.now
        for request in self._requests:
            request.again |= self._records.gives_new_sessions and self._has_session and request.packet_id > 0
        lost, self._spans = self._spans, {}
        for span in lost.values():
            if not any(request.topic_filter == span.topic_filter for request in self._requests):
                self._requests.append(_ClientRequest(span.topic_filter, span.qos))  # a clean client asks again

    def _keep_alive(self, conversation: _Conversation) -> None:
        """Ping at half the interval; an answer that does not come within the interval ends the connection."""
        if self.conversation is not conversation:
            return
        now, interval = self.kernel.now, self.habits.keep_alive_s
        if conversation.pinged_at is not None and now - conversation.pinged_at >= interval:
            conversation.end.abort()
            self._over(conversation)
            return
        if conversation.pinged_at is None:
            conversation.pinged_at = now  # before CONNACK it is that which has to come in time
            if conversation.welcome:
                self._send(PINGREQ)
        self.kernel.after(interval / 2, self._keep_alive, conversation)

    # -- bytes --

    def _send(self, data: bytes) -> None:
        if self.conversation is not None:
            self.conversation.end.write(data)

    def take(self, first: int, body: bytes) -> None:
        """A packet came."""
        kind = first >> 4
        if kind == CONNACK:
            self._on_connack(body)
        elif kind == PUBLISH:
            self._on_publish(decode_publish(first, body, self.habits.version))
        elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            self._on_acknowledgement(kind, int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0)
        elif kind in (SUBACK, UNSUBACK):
            self._on_confirmation(kind, body)
        elif kind == PINGRESP:
            assert self.conversation is not None
            self.conversation.pinged_at = None
        else:
            self._expect(kind == DISCONNECT_KIND, "protocol", f"packet type {kind}")
            self._follow(server_reference(body[1:]))

    def _follow(self, server: str) -> None:
        """Go where the broker says, from the next connection on."""
        if server:
            self.kernel.tell(f"{self.name} is sent to {server}")
            self.address = server

    def _expect(self, kept: bool, claim: str, what: str) -> None:
        if not kept:
            self._records.broken.append(Violation(claim, f"{self.name} at {self.kernel.now:.3f}: {what}", (self.name,)))

    def _on_connack(self, body: bytes) -> None:
        conversation = self.conversation
        assert conversation is not None
        self._expect(not conversation.welcome, "protocol", "a second CONNACK")
        if body[1]:
            self._follow(server_reference(body[2:]))
            return  # not now: the broker closes, we try again
        present = bool(body[0] & 1)
        conversation.welcome = True
        conversation.pinged_at = None
        self._records.connected.setdefault(self.name, []).append(self.kernel.now)
        if conversation.will is not None:
            conversation.will.welcomed_at = self.kernel.now
        self.kernel.tell(f"{self.name} welcome, session {'present' if present else 'new'}")
        self._expect(not present or self.habits.persistent, "protocol", "a session after a clean start")
        if not present:
            self._expect(
                self._records.gives_new_sessions or not self._has_session, "session lost", "its session is gone"
            )
            if self._has_session:
                self._records.new_sessions.setdefault(self.name, []).append(self.kernel.now)
                forgotten = map(identity_of, self._unreleased.values())
                self._records.unreleased.setdefault(self.name, set()).update(forgotten)
            self._forget_session()
        self._has_session = self.habits.persistent
        for packet_id, outgoing in list(self._outgoing.items()):
            if outgoing.received:
                self._send(encode_acknowledgement(PUBREL, packet_id, 0, self.habits.version))
            else:
                self._write(outgoing.publication, outgoing.payload, packet_id)
        self._begin_more()
        self._send_request()

    # -- publishing --

    def _begin_more(self) -> None:
        while self._waiting and self.is_welcome and len(self._outgoing) < self.habits.window:
            packet_id = self._take_packet_id()
            publication, payload = self._waiting.popleft()
            self._outgoing[packet_id] = _Outgoing(publication, payload)
            self._write(publication, payload, packet_id)

    def _write(self, publication: Publication, payload: bytes, packet_id: int) -> None:
        p = publication
        if p.sent_at is None:
            p.sent_at = self.kernel.now
        p.sends += 1
        p.nodes.add(host_of(self.address))
        self.kernel.tell(f"{p.identity} sent to {p.topic.decode()} at QoS {p.qos}, time {p.sends}")
        dup = p.sends > 1
        self._send(encode_publish(p.topic, payload, p.qos, packet_id, self.habits.version, retain=p.retain, dup=dup))

    def _take_packet_id(self) -> int:
        packet_id = self._next_packet_id
        while packet_id in self._outgoing or any(request.packet_id == packet_id for request in self._requests):
            packet_id = packet_id % PACKET_IDS + 1
        self._next_packet_id = packet_id % PACKET_IDS + 1
        return packet_id

    def _on_acknowledgement(self, kind: int, packet_id: int, code: int) -> None:
        if kind == PUBREL:
            self._unreleased.pop(packet_id, None)
            self._answer(PUBCOMP, packet_id)
            return
        outgoing = self._outgoing.get(packet_id)
        if outgoing is None:
            self._expect(kind != PUBACK, "protocol", f"PUBACK {packet_id} for nothing under way")
            return
        self._expect(outgoing.publication.qos == (1 if kind == PUBACK else 2), "protocol", f"packet type {kind}")
        if kind == PUBCOMP:
            self._expect(outgoing.received, "protocol", "PUBCOMP before PUBREC")
            del self._outgoing[packet_id]
        else:
            self._acknowledged(kind, packet_id, outgoing, code)
        self._begin_more()

    def _acknowledged(self, kind: int, packet_id: int, outgoing: _Outgoing, code: int) -> None:
        publication = outgoing.publication
        publication.refused = code >= 0x80
        if publication.acknowledged_at is None:
            publication.acknowledged_at = self.kernel.now
            self.kernel.tell(f"{publication.identity} acknowledged with 0x{code:02x}")
        if kind == PUBACK or publication.refused:
            del self._outgoing[packet_id]
        else:
            outgoing.received = True
            self._send(encode_acknowledgement(PUBREL, packet_id, 0, self.habits.version))

    # -- receiving --

    def _on_publish(self, message: Delivered) -> None:
        packet_id = message.packet_id
        if message.qos:
            self._owed.add(packet_id)
            self._expect(
                self.habits.version != MQTT_5 or len(self._owed) <= self.habits.receive_maximum,
                "protocol",
                "more under way than Receive Maximum",
            )
        if message.qos == 1:
            self._answer(PUBACK, packet_id)
        elif message.qos == 2:
            self._answer(PUBREC, packet_id)
            if packet_id in self._unreleased:
                same = message.dup and self._unreleased[packet_id] == message.payload
                self._expect(same, "protocol", f"packet identifier {packet_id} used again before its release")
                return
            self._unreleased[packet_id] = message.payload
        identity = identity_of(message.payload)
        again = " again" if message.dup else ""
        self.kernel.tell(f"{identity} arrives{again} at {self.name} at QoS {message.qos}")
        where = host_of(self.address)
        arrival = ReceivedDelivery(self.kernel.now, message.topic, identity, message.qos, message.retain, where)
        self._records.arrived(self.name, arrival)

    def _answer(self, kind: int, packet_id: int) -> None:
        """Acknowledge, when we get around to it, in the order things came [MQTT-4.6.0-2, -3, -4]."""
        due = self.kernel.now + self._dice.expovariate(1.0) * self.habits.acknowledge_s
        self._acknowledged_last = max(self._acknowledged_last, due)
        self.kernel.at(self._acknowledged_last, self._answer_now, self.conversation, kind, packet_id)

    def _answer_now(self, conversation: _Conversation | None, kind: int, packet_id: int) -> None:
        if conversation is not None and conversation is self.conversation:
            if kind != PUBREC:
                self._owed.discard(packet_id)
            self._send(encode_acknowledgement(kind, packet_id, 0, self.habits.version))

    # -- subscribing --

    def _ask(self, request: _ClientRequest) -> None:
        self._requests.append(request)
        if len(self._requests) == 1:
            self._send_request()

    def _send_request(self) -> None:
        """The oldest one; the next when it is answered."""
        if not self._requests or not self.is_welcome:
            return
        request = self._requests[0]
        request.packet_id = request.packet_id or self._take_packet_id()
        if request.qos is not None:
            self._send(encode_subscribe(request.packet_id, request.topic_filter, request.qos, self.habits.version))
            return
        for spans in (self._spans, self._interrupted):
            span = spans.pop(request.topic_filter, None)
            if span is not None:
                span.until = self.kernel.now
        self._send(encode_unsubscribe(request.packet_id, request.topic_filter, self.habits.version))

    def _on_confirmation(self, kind: int, body: bytes) -> None:
        asked = self._requests[0] if self._requests else _ClientRequest(b"", None)
        fits = (kind, int.from_bytes(body[:2], "big")) == (UNSUBACK if asked.qos is None else SUBACK, asked.packet_id)
        self._expect(fits, "protocol", f"packet type {kind} nobody asked for")
        if not fits:
            return
        self._requests.popleft()
        if asked.qos is not None:
            self._subscribed(asked.topic_filter, asked.qos, body[-1], asked.again)
        self._send_request()

    def _subscribed(self, topic_filter: bytes, asked: int, granted: int, again: bool) -> None:
        self.kernel.tell(f"{self.name} subscribed to {topic_filter.decode()}: 0x{granted:02x}")
        if granted >= 0x80:
            return
        self._expect(granted == asked, "protocol", f"asked for QoS {asked}, granted {granted}")
        before = self._spans.get(topic_filter) or self._interrupted.pop(topic_filter, None)
        if before is not None and topic_filter not in self._spans and before.qos == granted:
            before.renewals.append(self.kernel.now)
            self._spans[topic_filter] = before
            return
        if before is not None:
            before.until = self.kernel.now
        span = Span(self.name, self.domain, topic_filter, granted, self.kernel.now, renewals=[self.kernel.now] * again)
        self._spans[topic_filter] = span
        is_expression = topic_filter.startswith(b"$") and not topic_filter.startswith(b"$share/")
        (self._records.expressions if is_expression else self._records.spans).append(span)


def _forgive_if_left(will: LastWill, node: End) -> None:
    """The node hung up at the same moment, to send the client elsewhere: it has not seen that the client did."""
    will.aborted_at = None if node.was_left else will.aborted_at
