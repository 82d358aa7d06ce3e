"""Sessions against their model: whatever clients, sockets, the clock and the disk do, the delivery contract holds.

The machine drives a real broker with every legal move it can think of, in any order, and after each one compares
what clients received with what the model says they are owed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.lone_node import Client, LoneNode
from broker.session_model import MATCHES, TOPICS, Model, Owed, Publication, Receiver
from conformance.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Received,
    Suback,
    Subscribe,
    Unsubscribe,
)
from conformance.properties import Properties
from sterna.broker.commitments import Commit
from sterna.broker.limits import Limits

INFLIGHT, SESSION_EXPIRY_S = 3, 60
LIMITS = Limits(inflight=INFLIGHT, session_expiry_s=SESSION_EXPIRY_S, connect_s=1e9)

client_ids = st.sampled_from(["x", "y", "z"])
qualities = st.sampled_from([0, 1, 2])


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.node = LoneNode(LIMITS)
        self.model = Model(INFLIGHT, SESSION_EXPIRY_S)
        self.clients: dict[str, Client] = {}
        self.present: dict[str, bool] = {}
        self.writing: Commit | None = None
        self.lazy = False
        self.count = 0

    @initialize(
        filters=st.lists(st.dictionaries(st.sampled_from(sorted(MATCHES)), qualities), min_size=3, max_size=3),
        versions=st.lists(st.sampled_from([4, 5]), min_size=3, max_size=3),
    )
    def begin(self, filters: list[dict[str, int]], versions: list[int]) -> None:
        """Some clients are there already: most of what can go wrong needs two."""
        for client_id, version, wanted in zip(["x", "y", "z"], versions, filters, strict=True):
            self.connect(client_id, version, False, 1000, 2)
            if wanted:
                self.subscribe(client_id, wanted)

    # -- connections --

    @rule(
        client_id=client_ids,
        version=st.sampled_from([4, 5]),
        clean=st.sampled_from([False, False, False, True]),
        expiry_s=st.sampled_from([0, 20, 1000, 1000]),
        receive_maximum=st.sampled_from([1, 2, 10]),
    )
    def connect(self, client_id: str, version: int, clean: bool, expiry_s: int, receive_maximum: int) -> None:
        old = self.clients.get(client_id)
        if old is not None:
            welcome = self.model.receivers[client_id].welcome
            self.read(client_id, old)
            self.model.leave(client_id, self.node.now)
        client = self.clients[client_id] = self.node.dial(version)
        properties: Properties = {}
        if version == 5:
            properties = {"session_expiry": expiry_s, "receive_maximum": receive_maximum}
        self.present[client_id] = self.model.connect(client_id, version, clean, expiry_s, receive_maximum)
        client.send(Connect(client_id, clean, 0, properties=properties))
        if old is not None:
            assert old.wire.closed
            unread = old.received()
            welcome |= any(isinstance(packet, Connack) for packet in unread)
            told = [packet for packet in unread if isinstance(packet, Disconnect)]
            assert told == ([Disconnect(0x8E)] if old.version == 5 and welcome else [])
        self.turn()

    @rule(client_id=client_ids, graceful=st.booleans())
    def disconnect(self, client_id: str, graceful: bool) -> None:
        client = self.clients.get(client_id)
        if client is None:
            return
        if graceful and self.model.receivers[client_id].welcome:
            client.send(Disconnect())
        else:
            client.wire.closed = True
            client.connection.lost()
        self.gone(client_id)
        self.turn()

    def gone(self, client_id: str) -> None:
        self.model.leave(client_id, self.node.now)
        del self.clients[client_id]

    @rule(client_id=client_ids)
    def congest_or_relieve(self, client_id: str) -> None:
        receiver = self.model.receivers.get(client_id)
        if receiver is None or not receiver.welcome:
            return
        receiver.congested = not receiver.congested
        connection = self.clients[client_id].connection
        if receiver.congested:
            connection.congested()
        else:
            connection.writable()
        self.turn()

    @rule(client_id=client_ids)
    def delay_or_hear(self, client_id: str) -> None:
        receiver = self.model.receivers.get(client_id)
        if receiver is not None:
            receiver.deaf = not receiver.deaf
            self.turn()

    # -- subscriptions --

    @rule(client_id=client_ids, filters=st.dictionaries(st.sampled_from(sorted(MATCHES)), qualities, min_size=1))
    def subscribe(self, client_id: str, filters: dict[str, int]) -> None:
        if receiver := self.listening(client_id):
            self.clients[client_id].send(Subscribe(1000, list(filters.items())))
            receiver.session.subscriptions.update(filters)
            self.turn()

    @rule(client_id=client_ids, topic_filter=st.sampled_from(sorted(MATCHES)))
    def unsubscribe(self, client_id: str, topic_filter: str) -> None:
        if receiver := self.listening(client_id):
            self.clients[client_id].send(Unsubscribe(1001, [topic_filter]))
            receiver.session.subscriptions.pop(topic_filter, None)
            self.turn()

    def listening(self, client_id: str) -> Receiver | None:
        """The client's end of its connection, if it may talk already."""
        receiver = self.model.receivers.get(client_id)
        return receiver if receiver is not None and receiver.welcome else None

    # -- messages --

    @rule(
        client_id=client_ids,
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4),
        qos=qualities,
        expiry_s=st.sampled_from([None, None, None, 5]),
    )
    def publish(self, client_id: str, topics: list[str], qos: int, expiry_s: int | None) -> None:
        receiver = self.listening(client_id)
        if receiver is None:
            return
        for topic in topics:
            self.count += 1
            publication = Publication(client_id, topic, f"{client_id}{self.count}".encode(), qos, expiry_s)
            packet_id = receiver.session.next_packet_id if qos else 0
            receiver.session.next_packet_id += 1 if qos else 0
            self.send_publication(client_id, publication, packet_id, dup=False)
        self.turn()

    @rule(
        publisher=client_ids,
        reader=client_ids,
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3),
        qos=st.sampled_from([1, 2]),
        window=st.sampled_from([1, 2, 10]),
        busy=st.booleans(),
    )
    def publish_into_a_dying_connection(
        self, publisher: str, reader: str, topics: list[str], qos: int, window: int, busy: bool
    ) -> None:
        """The broker believes them sent, the reader never saw them, more waits, and then the reader is back."""
        receiver = self.listening(reader)
        if receiver is None or publisher == reader:
            return
        receiver.deaf = True
        self.publish(publisher, topics, qos, None)
        self.disconnect(reader, False)
        self.publish(publisher, topics, qos, None)
        if reader not in self.model.sessions:
            return
        lazy, self.lazy = self.lazy, busy
        self.connect(reader, 5, False, 1000, window)
        if busy and self.writing is None and self.node.broker.commitments.pending:
            # While the reader is being let in, something else waits for the disk already.
            self.close()
            self.subscribe(publisher, {"a": 1})
            self.finish()
        self.lazy = lazy
        self.turn()

    @rule(
        publisher=client_ids,
        first=st.sampled_from(TOPICS),
        second=st.sampled_from(TOPICS),
        qos=st.sampled_from([1, 2]),
        back=st.booleans(),
    )
    def publish_onto_a_full_disk(self, publisher: str, first: str, second: str, qos: int, back: bool) -> None:
        """One message is being written and fails, the next has come meanwhile; the publisher tries again or not."""
        if self.listening(publisher) is None or self.writing is not None:
            return
        lazy, self.lazy = self.lazy, True
        self.publish(publisher, [first], qos, None)
        self.close()
        self.publish(publisher, [second], qos, None)
        self.fail_commit()
        if back and publisher in self.model.sessions:
            self.connect(publisher, 5, False, 1000, 10)
        self.lazy = lazy
        self.turn()

    def send_publication(self, client_id: str, publication: Publication, packet_id: int, *, dup: bool) -> None:
        properties: Properties = {}
        if publication.expiry_s is not None and self.clients[client_id].version == 5:
            properties = {"message_expiry": publication.expiry_s}
            publication.expires_at = self.node.wall + publication.expiry_s
        packet = Publish(
            publication.topic, publication.payload, publication.qos, False, dup, packet_id, properties=properties
        )
        self.clients[client_id].send(packet)
        self.model.publish(publication, packet_id)

    @rule(client_id=client_ids, choice=st.integers(0, 5))
    def acknowledge(self, client_id: str, choice: int) -> None:
        """Any step a receiver or a publisher may take next, in any order."""
        receiver = self.listening(client_id)
        if receiver is None:
            return
        steps = [*self.receiver_steps(client_id, receiver), *self.publisher_steps(client_id, receiver)]
        if steps:
            steps[choice % len(steps)]()
            self.turn()

    def receiver_steps(self, client_id: str, receiver: Receiver) -> list[Callable[[], None]]:
        client, session = self.clients[client_id], receiver.session

        def take_over(owed: Owed) -> None:
            client.send((Puback if owed.qos == 1 else Pubrec)(owed.packet_id))
            session.owed.remove(owed)
            if owed.qos == 1:
                receiver.unfinished.discard(owed.packet_id)
            else:
                session.releasing.add(owed.packet_id)

        def complete(packet_id: int) -> None:
            client.send(Pubcomp(packet_id))
            for packet_ids in (session.releasing, receiver.released, receiver.unfinished):
                packet_ids.discard(packet_id)

        taken = [partial(take_over, owed) for owed in receiver.seen if owed in session.owed]
        return [*taken, *(partial(complete, packet_id) for packet_id in sorted(receiver.released))]

    def publisher_steps(self, client_id: str, receiver: Receiver) -> list[Callable[[], None]]:
        def release(packet_id: int) -> None:
            self.clients[client_id].send(Pubrel(packet_id))
            receiver.session.held.discard(packet_id)

        received = [packet_id for packet_id, p in receiver.session.publishing.items() if p.received]
        return [partial(release, packet_id) for packet_id in received]

    # -- time and the disk --

    @rule(seconds=st.sampled_from([1, 1, 5, 20, 70]))
    def pass_time(self, seconds: int) -> None:
        self.node.now += seconds
        self.model.expire(self.node.now)
        self.node.broker.handle_deadlines(self.node.now)
        self.turn()

    @rule()
    def slow_down_or_speed_up(self) -> None:
        """From here on the disk takes its time, or no longer does."""
        self.lazy = not self.lazy
        self.turn()

    @precondition(lambda self: self.writing is None)
    @rule()
    def begin_commit(self) -> None:
        if self.node.broker.commitments.pending:
            self.close()

    @precondition(lambda self: self.writing is not None)
    @rule()
    def finish_commit(self) -> None:
        self.finish()
        self.turn()

    @precondition(lambda self: self.node.broker.commitments.pending or self.writing is not None)
    @rule()
    def fail_commit(self) -> None:
        if self.writing is None:
            self.close()
        assert self.writing is not None
        commit, self.writing = self.writing, None
        self.model.failed()
        self.node.broker.failed(commit, "disk full")
        for client_id, client in list(self.clients.items()):
            if client.wire.closed:
                self.read(client_id, client)
                self.gone(client_id)
        self.turn()

    def close(self) -> None:
        self.writing = self.node.broker.commitments.close()
        self.model.close()

    def finish(self) -> None:
        assert self.writing is not None
        commit, self.writing = self.writing, None
        self.model.committed()
        self.node.finish(commit)

    # -- after each step --

    def turn(self) -> None:
        """End of a turn of the loop: commit if the disk is quick, flush, and let every client read."""
        for _ in range(20):
            if not self.lazy:
                if self.writing is not None:
                    self.finish()
                while self.node.broker.commitments.pending:
                    self.close()
                    self.finish()
            self.node.broker.flush()
            answered = [self.read(client_id, client) for client_id, client in list(self.clients.items())]
            if not any(answered):
                return
        raise AssertionError("clients and broker never come to rest")

    def read(self, client_id: str, client: Client) -> bool:
        """Let a client take what came; whether it answered something by itself."""
        receiver = self.model.receivers[client_id]
        if receiver.deaf:
            return False
        answered = False
        for packet in client.received():
            answered |= self.take(client_id, receiver, packet)
        if self.settled and not answered:
            receiver.quiet_at = self.node.wall
        return answered

    @property
    def settled(self) -> bool:
        return self.writing is None and not self.node.broker.commitments.pending

    def take(self, client_id: str, receiver: Receiver, packet: Received) -> bool:
        publishing = receiver.session.publishing
        match packet:
            case Connack(code=0):
                assert not receiver.welcome
                assert packet.session_present == self.present[client_id]
                receiver.welcome = True
                return self.publish_again(client_id, receiver)
            case Publish():
                assert receiver.welcome, "a message before CONNACK"
                receiver.take(packet, self.node.wall)
            case Puback():
                assert publishing.pop(packet.packet_id).committed, "acknowledged before it was safe"
            case Pubrec():
                assert publishing[packet.packet_id].committed, "acknowledged before it was safe"
                publishing[packet.packet_id].received = True
            case Pubcomp():
                publishing.pop(packet.packet_id, None)
            case Pubrel():
                assert packet.packet_id in receiver.session.releasing, "PUBREL for what the client does not hold"
                assert packet.packet_id not in receiver.released, "PUBREL twice on one connection"
                receiver.released.add(packet.packet_id)
                receiver.unfinished.add(packet.packet_id)
            case Suback():
                pass
            case Connack() | Disconnect():
                assert client_id not in self.clients or self.clients[client_id].wire.closed
            case _:
                raise AssertionError(f"unexpected: {packet}")
        return False

    def publish_again(self, client_id: str, receiver: Receiver) -> bool:
        """A client that is back sends everything again that it was not told the end of [MQTT-4.4.0-1]."""
        session = receiver.session
        for packet_id, publication in list(session.publishing.items()):
            if publication.received:
                self.clients[client_id].send(Pubrel(packet_id))
                session.held.discard(packet_id)
            else:
                again = replace(publication, expires_at=None)
                again.committed = publication.committed and publication.qos == 2
                self.send_publication(client_id, again, packet_id, dup=True)
        return bool(session.publishing)

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if not self.settled:
            return
        for client_id, receiver in self.model.receivers.items():
            assert receiver.deaf or receiver.welcome, f"{client_id} waits for CONNACK"
            if not receiver.deaf:
                assert receiver.overdue(self.node.wall) == []

    @invariant()
    def the_broker_knows_the_same_sessions(self) -> None:
        assert sorted(self.model.sessions) == sorted(c.decode() for c in self.node.broker.sessions)

    def teardown(self) -> None:
        """Everybody comes back, reads and acknowledges: then nothing may be owed any more."""
        self.lazy = False
        for client_id in list(self.model.sessions):
            receiver = self.model.receivers.get(client_id)
            if receiver is None or receiver.deaf or receiver.congested:
                self.connect(client_id, 5, False, 1000, 10)
        self.turn()
        for _ in range(10_000):
            steps = [
                step
                for client_id, receiver in self.model.receivers.items()
                for step in self.receiver_steps(client_id, receiver) + self.publisher_steps(client_id, receiver)
            ]
            if not steps:
                break
            steps[0]()
            self.turn()
        for session in self.model.sessions.values():
            assert [o.publication.payload for o in session.owed if not o.expired(self.node.wall)] == []
            assert session.publishing == {}
            assert session.releasing == set()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=50)
