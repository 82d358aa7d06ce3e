"""The duties of sessions, said as plainly as possible: lists of what is owed to whom, and no broker in sight.

The model hears of everything clients do and of every commit; `Receiver.take` then compares each packet a client got
with what it was owed.  A packet that was not owed, came twice, came out of order or overran the window fails there,
and `overdue` names what should have been sent and was not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from conformance.packets import Publish

#: Every filter and topic the machine uses, and which go together; written out so that no matcher can be wrong.
MATCHES = {
    "a": {"a"},
    "a/b": {"a/b"},
    "a/+": {"a/b"},
    "a/#": {"a", "a/b"},
    "+/b": {"a/b", "c/b"},
    "#": {"a", "a/b", "c/b"},
}
TOPICS = ["a", "a/b", "c/b"]


@dataclass(eq=False)
class Publication:
    """One PUBLISH a client sent.  The payload is its own and says who sent it."""

    publisher: str
    topic: str
    payload: bytes
    qos: int
    expiry_s: int | None = None
    expires_at: float | None = None
    """Counted from the moment it reaches the broker: a repetition lives longer."""
    committed: bool = False
    received: bool = False
    """Its publisher got PUBREC."""


@dataclass(eq=False)
class Owed:
    """One message on its way to one session at QoS 1 or 2."""

    publication: Publication
    qos: int
    packet_id: int = 0
    """0 until the client saw it."""

    def like(self, other: Owed) -> bool:
        """Must the two keep their order?"""
        mine, theirs = self.publication, other.publication
        return (mine.publisher, mine.topic, self.qos) == (theirs.publisher, theirs.topic, other.qos)

    def expired(self, wall: float) -> bool:
        expires_at = self.publication.expires_at
        return expires_at is not None and expires_at <= wall


@dataclass(eq=False)
class ModelSession:
    client_id: str
    expiry_s: int = 0
    left_at: float | None = None
    subscriptions: dict[str, int] = field(default_factory=dict)
    owed: list[Owed] = field(default_factory=list)
    seen_at_qos_2: set[bytes] = field(default_factory=set)
    releasing: set[int] = field(default_factory=set)
    """Packet identifiers of QoS 2 messages the client has taken and not completed."""
    publishing: dict[int, Publication] = field(default_factory=dict)
    """Publications of the client that were not answered to the end."""
    held: set[int] = field(default_factory=set)
    """QoS 2 packet identifiers the broker must recognise as repetitions."""
    next_packet_id: int = 1

    def grant(self, topic: str) -> int | None:
        found = [qos for topic_filter, qos in self.subscriptions.items() if topic in MATCHES[topic_filter]]
        return max(found, default=None)

    def in_flight(self) -> int:
        return sum(owed.packet_id > 0 for owed in self.owed) + len(self.releasing)


@dataclass(eq=False)
class Receiver:
    """One connection, as the client at its end sees it."""

    session: ModelSession
    version: int
    window: int
    welcome: bool = False
    """CONNACK was read."""
    congested: bool = False
    deaf: bool = False
    """Packets of the broker are still on the way, and may never arrive."""
    quiet_at: float = 0.0
    """When everything the broker had to send was last read: what comes later was sent later."""
    at_most_once: list[tuple[Publication, bool]] = field(default_factory=list)
    """QoS 0 messages to come, and whether they must."""
    seen: list[Owed] = field(default_factory=list)
    unfinished: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)

    def take(self, packet: Publish, wall: float) -> None:
        if packet.qos == 0:
            self._take_qos_0(packet)
            return
        owed = next((o for o in self.session.owed if o.packet_id == packet.packet_id), None)
        if owed is None:
            assert packet.packet_id not in self.session.releasing, "packet identifier still in use"
            owed = self._first_waiting(packet, wall)
            if packet.qos == 2:
                assert packet.payload not in self.session.seen_at_qos_2, "twice at QoS 2"
                self.session.seen_at_qos_2.add(packet.payload)
            owed.packet_id = packet.packet_id
        else:
            assert packet.dup, "sent again without DUP"
        assert (packet.topic, packet.payload) == (owed.publication.topic, owed.publication.payload), packet
        assert owed not in self.seen, "twice on one connection"
        self.seen.append(owed)
        self.unfinished.add(packet.packet_id)
        assert len(self.unfinished) <= self.window, "more in flight than the client allowed"

    def _take_qos_0(self, packet: Publish) -> None:
        while self.at_most_once:
            publication, must = self.at_most_once.pop(0)
            if publication.payload == packet.payload:
                assert publication.topic == packet.topic
                if not must:
                    self._excuse(packet.payload)
                return
            assert not must, f"{publication.payload!r} did not come"
        raise AssertionError(f"not owed at QoS 0: {packet}")

    def _excuse(self, payload: bytes) -> None:
        """One that did not have to come looks the same as its repetition that must: it may have been that one."""
        for place, (publication, must) in enumerate(self.at_most_once):
            if must and publication.payload == payload:
                self.at_most_once[place] = publication, False
                return

    def _first_waiting(self, packet: Publish, wall: float) -> Owed:
        """The message that the packet stands for; whatever should have come before it must have expired."""
        session = self.session
        waiting = [o for o in session.owed if o.packet_id == 0 and o.qos == packet.qos]
        alike = [o for o in waiting if o.publication.payload == packet.payload]
        assert alike, f"not owed: {packet}"
        # A publisher that sent it twice may have done so because the first one expired while the disk was busy.
        meant = next((o for o in alike if not o.expired(wall)), alike[0])
        # A repetition was begun on a connection before this one, perhaps before the message expired.
        assert packet.dup or not meant.expired(self.quiet_at), "sent after it expired"
        for earlier in waiting[: waiting.index(meant)]:
            if earlier.like(meant):
                assert earlier.expired(wall), f"{packet.payload!r} overtook {earlier.publication.payload!r}"
                session.owed.remove(earlier)
        return meant

    def overdue(self, wall: float) -> list[bytes]:
        """All that the broker should have sent by now, if it has nothing more to do."""
        late = [publication.payload for publication, must in self.at_most_once if must]
        if not self.congested and self.session.in_flight() < self.window:
            waiting = [o for o in self.session.owed if o.packet_id == 0 and not o.expired(wall)]
            late += [o.publication.payload for o in waiting]
        return late


class Model:
    """All sessions, and what waits for the journal."""

    def __init__(self, inflight: int, session_expiry_s: int) -> None:
        self.sessions: dict[str, ModelSession] = {}
        self.receivers: dict[str, Receiver] = {}
        self._inflight = inflight
        self._session_expiry_s = session_expiry_s
        self._open: list[tuple[Publication, int]] = []
        self._writing: list[tuple[Publication, int]] = []

    # -- what clients do --

    def connect(self, client_id: str, version: int, clean: bool, expiry_s: int, receive_maximum: int) -> bool:
        """Whether the broker must have a session of this client."""
        session = self.sessions.get(client_id)
        present = session is not None and not clean
        if session is None or clean:
            session = self.sessions[client_id] = ModelSession(client_id)
        session.left_at = None
        if version == 4:
            expiry_s = 0 if clean else self._session_expiry_s
        session.expiry_s = min(expiry_s, self._session_expiry_s)
        window = min(self._inflight, receive_maximum) if version == 5 else self._inflight
        self.receivers[client_id] = Receiver(session, version, window)
        return present

    def leave(self, client_id: str, now: float) -> None:
        session = self.receivers.pop(client_id).session
        session.left_at = now
        if not session.expiry_s:
            del self.sessions[client_id]

    def expire(self, now: float) -> None:
        for session in list(self.sessions.values()):
            if session.left_at is not None and session.left_at + session.expiry_s <= now:
                del self.sessions[session.client_id]

    def publish(self, publication: Publication, packet_id: int) -> None:
        """A PUBLISH reaches the broker."""
        session = self.receivers[publication.publisher].session
        if publication.qos == 0:
            self._deliver(publication)
            return
        session.publishing[packet_id] = publication
        if publication.qos == 2:
            if packet_id in session.held:
                return
            session.held.add(packet_id)
        self._open.append((publication, packet_id))

    # -- commits --

    def close(self) -> None:
        self._writing, self._open = self._open, []

    def committed(self) -> None:
        for publication, _ in self._writing:
            publication.committed = True
            self._deliver(publication)
        self._writing = []

    def failed(self) -> None:
        """Nothing of the group that failed, nor of what came after it, was ever published."""
        for publication, packet_id in self._writing + self._open:
            if publication.qos == 2 and (session := self.sessions.get(publication.publisher)):
                session.held.discard(packet_id)
        self._writing, self._open = [], []

    def _deliver(self, publication: Publication) -> None:
        for session in self.sessions.values():
            grant = session.grant(publication.topic)
            if grant is None:
                continue
            if qos := min(grant, publication.qos):
                session.owed.append(Owed(publication, qos))
            else:
                self._offer(session, publication)

    def _offer(self, session: ModelSession, publication: Publication) -> None:
        """At QoS 0: to whoever is there and keeps up."""
        receiver = self.receivers.get(session.client_id)
        if receiver is not None and not receiver.congested:
            # A client that is just being let in may or may not get it.
            receiver.at_most_once.append((publication, receiver.welcome))
