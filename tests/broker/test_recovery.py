"""No crash, at whatever moment, loses an acknowledged message, repeats one of QoS 2, or revives what had ended."""

from __future__ import annotations

from itertools import pairwise

import pytest

from broker.surviving_node import Client, Packet, SurvivingNode
from sterna.broker.access.authorization import AccessList
from sterna.broker.broker_state import BrokerState
from sterna.broker.limits import Limits
from sterna.broker.recovery import Replay
from sterna.vocabulary.errors import JournalError

PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 3, 4, 5, 6, 7, 9


@pytest.fixture
def node() -> SurvivingNode:
    return SurvivingNode()


def subscriber(node: SurvivingNode, name: str = "reader", topic_filter: str = "t/#", qos: int = 2) -> Client:
    client = node.client(name)
    client.subscribe(topic_filter, qos)
    node.settle()
    assert client.take()[0].kind == SUBACK
    return client


def kinds(packets: list[Packet]) -> list[tuple[int, int]]:
    return [(packet.kind, packet.packet_id) for packet in packets]


def complete(node: SurvivingNode, client: Client) -> list[bytes]:
    """Take part in every exchange until nothing more comes; the payloads, each as often as it was new to the client."""
    seen: list[bytes] = []
    unreleased: set[int] = set()
    node.settle()
    while packets := client.take():
        for packet in packets:
            if packet.kind == PUBLISH and packet.qos < 2:
                seen.append(packet.payload)
                if packet.qos:
                    client.acknowledge(PUBACK, packet.packet_id)
            elif packet.kind == PUBLISH:
                if packet.packet_id not in unreleased:
                    seen.append(packet.payload)
                unreleased.add(packet.packet_id)
                client.acknowledge(PUBREC, packet.packet_id)
            elif packet.kind == PUBREL:
                unreleased.discard(packet.packet_id)
                client.acknowledge(PUBCOMP, packet.packet_id)
        node.settle()
    return seen


# -- the publisher's side --


def test_a_qos_2_publication_and_its_packet_identifier_survive_together_or_not_at_all(node: SurvivingNode) -> None:
    reader = subscriber(node)
    reader.vanish()
    writer = node.client("writer")
    node.settle()
    before = len(node.disk.journal_bytes())
    writer.publish("t/a", b"1", 2, packet_id=7)
    node.begin_commit()
    whole = node.disk.journal_bytes()
    for kept in range(before, len(whole) + 1):
        node.disk.hold(whole[:kept])
        node.crash()
        writer = node.client("writer")
        writer.publish("t/a", b"1", 2, packet_id=7)
        node.settle()
        assert kinds(writer.take()) == [(PUBREC, 7)]
        assert complete(node, Client(node, "reader")) == [b"1"], kept


def test_a_publication_the_journal_refused_is_new_when_it_is_sent_again(node: SurvivingNode) -> None:
    reader = subscriber(node)
    writer = node.client("writer")
    writer.publish("t/a", b"1", 2, packet_id=7)
    node.refuse()
    node.commit()
    writer = node.client("writer")
    writer.publish("t/a", b"1", 2, packet_id=7)
    node.settle()
    assert kinds(writer.take()) == [(PUBREC, 7)]
    assert complete(node, reader) == [b"1"]
    node.crash()
    writer = node.client("writer")
    writer.publish("t/a", b"1", 2, packet_id=7)
    node.settle()
    assert kinds(writer.take()) == [(PUBREC, 7)]
    assert complete(node, Client(node, "reader")) == []


def test_a_repetition_is_not_confirmed_when_what_it_repeats_was_refused(node: SurvivingNode) -> None:
    subscriber(node)
    first = node.client("writer")
    first.publish("t/a", b"1", 2, packet_id=7)
    under_way = node.broker.commitments.close()
    again = Client(node, "writer")
    node.broker.failed(under_way, "the disk is full")
    node.settle()
    assert PUBREC not in [packet.kind for packet in again.take()]
    again = node.client("writer")
    again.publish("t/a", b"1", 2, packet_id=7)
    under_way = node.broker.commitments.close()
    again.publish("t/a", b"1", 2, packet_id=7)
    node.broker.failed(under_way, "the disk is full")
    node.settle()
    assert PUBREC not in [packet.kind for packet in again.take()]


def test_what_waits_for_a_journal_that_refuses_is_bounded(node: SurvivingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sterna.broker.session_lifecycle.NOTES_WAITING_MAX", 20)
    for number in range(50):
        Client(node, f"client-{number}")
        node.refuse()
    assert 20 < node.node.journal.pending_events < 30
    node.commit()
    assert node.node.journal.pending_events == 0
    assert node.client("reader").connection.session is not None


def test_a_will_that_the_journal_refused_is_published_later(node: SurvivingNode) -> None:
    reader = subscriber(node)
    node.client("writer", will=("t/will", b"gone", 1)).vanish()
    node.refuse()
    node.settle()
    assert complete(node, reader) == [b"gone"]


def test_a_repetition_is_confirmed_though_it_would_be_refused_today() -> None:
    """Told that it was refused, its publisher would use the packet identifier again, and lose what it says then."""
    node = SurvivingNode(Limits(retained=1))
    reader = subscriber(node)
    writer = node.client("writer", version=5)
    writer.publish("t/a", b"1", 2, packet_id=7, retain=True)
    node.settle()
    other = node.client("other")
    other.publish("t/a", b"", 0, retain=True)
    other.publish("t/b", b"2", 0, retain=True)
    node.settle()
    writer = node.client("writer", version=5)
    writer.publish("t/a", b"1", 2, packet_id=7, retain=True)
    node.settle()
    assert writer.take() == [Packet(PUBREC, 0, 7)]
    writer.acknowledge(PUBREL, 7)
    writer.publish("t/c", b"3", 2, packet_id=7)
    node.settle()
    assert sorted(complete(node, reader)) == [b"", b"1", b"2", b"3"]


# -- the subscriber's side --


@pytest.mark.parametrize("qos", [1, 2])
def test_whatever_was_committed_reaches_the_subscriber_wherever_the_crash_comes(qos: int) -> None:
    """The exchange of one message in steps; a crash after any number of them, and then the exchange to its end."""
    for steps in range(8):
        node = SurvivingNode()
        reader = subscriber(node)
        writer = node.client("writer")
        writer.publish("t/a", b"1", qos, packet_id=7)
        begun = node.begin_commit()
        seen: list[bytes] = []
        unreleased: set[int] = set()
        for step in range(steps):
            if step == 0:
                node.finish_commit(begun)
            else:
                node.commit()
            for packet in reader.take():
                if packet.kind == PUBLISH:
                    seen.append(packet.payload)
                    unreleased.add(packet.packet_id)
                    reader.acknowledge(PUBACK if qos == 1 else PUBREC, packet.packet_id)
                elif packet.kind == PUBREL:
                    unreleased.discard(packet.packet_id)
                    reader.acknowledge(PUBCOMP, packet.packet_id)
        node.crash()
        for packet in node_hears(node, "reader"):
            if packet.kind == PUBLISH and (qos == 1 or packet.packet_id not in unreleased):
                seen.append(packet.payload)
        if qos == 2:
            assert seen == [b"1"], f"crash after {steps} steps"
        else:
            assert set(seen) == {b"1"}, f"crash after {steps} steps"


def node_hears(node: SurvivingNode, name: str) -> list[Packet]:
    client = node.client(name)
    node.settle()
    return client.take()


def test_what_a_full_queue_and_a_full_window_held_is_all_there_after_a_crash() -> None:
    node = SurvivingNode(Limits(inflight=4, queued=6))
    subscriber(node, qos=1)
    writer = node.client("writer")
    for number in range(10):
        writer.publish("t/a", b"%d" % number, 1, packet_id=1 + number)
    node.settle()
    assert len(writer.take()) == 10
    node.crash()
    assert complete(node, Client(node, "reader")) == [b"%d" % number for number in range(10)]


def test_what_is_sent_again_comes_before_what_waited(node: SurvivingNode) -> None:
    """Also when the journal is busy with others as the client comes back."""
    reader = node.client("reader", version=5, receive_maximum=1)
    reader.subscribe("t/#", 1)
    node.settle()
    assert reader.take()[0].kind == SUBACK
    writer = node.client("writer")
    writer.publish("t/a", b"1", 1, packet_id=1)
    writer.publish("t/a", b"2", 1, packet_id=2)
    node.settle()
    assert reader.payloads() == [b"1"]
    reader.vanish()
    reader = Client(node, "reader", version=5)
    begun = node.begin_commit()
    writer.publish("t/b", b"other", 1, packet_id=3)
    node.finish_commit(begun)
    node.settle()
    assert reader.payloads() == [b"1", b"2", b"other"]


# -- sessions --


def test_a_session_that_ended_after_the_checkpoint_stays_ended_after_the_next_one(node: SurvivingNode) -> None:
    subscriber(node).vanish()
    node.checkpoint()
    node.client("reader", clean=True).vanish()
    node.settle()
    node.crash()
    assert node.broker.sessions == {}
    node.checkpoint()
    node.crash()
    assert node.broker.sessions == {}


def test_a_session_that_is_no_longer_to_be_kept_is_not_kept_by_a_checkpoint(node: SurvivingNode) -> None:
    node.client("reader", version=5, expiry_s=1000).vanish()
    node.checkpoint()
    node.client("reader", version=5, expiry_s=0)
    node.checkpoint()
    node.crash()
    assert node.broker.sessions == {}


def test_a_client_hears_that_its_session_is_no_longer_kept_only_when_a_crash_cannot_change_it(
    node: SurvivingNode,
) -> None:
    node.client("reader", version=5, expiry_s=1000).vanish()
    node.settle()
    reader = Client(node, "reader", version=5, expiry_s=0)
    node.broker.flush()
    assert reader.take() == []
    node.settle()
    assert [packet.kind for packet in reader.take()] == [2]
    node.crash()
    assert node.broker.sessions == {}


def test_a_will_is_published_once_however_often_the_node_crashes(node: SurvivingNode) -> None:
    subscriber(node).vanish()
    node.client("writer", will=("t/will", b"gone", 1))
    for _ in range(3):
        node.settle()
        node.crash()
    assert complete(node, Client(node, "reader")) == [b"gone"]


def test_a_session_does_not_live_longer_because_the_node_crashes_again_and_again() -> None:
    node = SurvivingNode(Limits(session_expiry_s=100))
    node.client("reader")
    for _ in range(3):
        node.crash()
        node.settle()
        node.wait(40)
    assert node.broker.sessions == {}


HOUR, DAY = 3600, 86400


def clocks_set(node: SurvivingNode) -> list[tuple[str, int]]:
    return [(event, fields["seconds"]) for event, fields in node.reports if event.startswith("the clock was set")]


@pytest.mark.parametrize("cleanly", [False, True])
@pytest.mark.parametrize("errors_s", [[-DAY, 0], [0, -DAY, 0], [0, DAY, 0, DAY], [-30 * DAY, 0, -30 * DAY, 0]])
def test_no_session_expires_because_the_clock_is_set_between_two_starts(cleanly: bool, errors_s: list[int]) -> None:
    node = SurvivingNode(Limits(session_expiry_s=2 * HOUR))
    for number, error_s in enumerate(errors_s):
        node.clock_error_s = float(error_s)
        node.be_off(10)
        node.wait(1)
        assert list(node.broker.sessions) == [b"reader"][:number]
        node.client("reader").vanish()
        node.settle()
        node.wait(30)
        node.tidy()
        if cleanly:
            node.checkpoint()
    back = [seconds for event, seconds in clocks_set(node) if event == "the clock was set back"]
    by = [before - after for before, after in pairwise(errors_s) if after < before]
    assert [round(seconds / DAY) * DAY for seconds in back] == by


def test_no_session_expires_because_the_clock_is_set_while_the_node_runs() -> None:
    node = SurvivingNode(Limits(session_expiry_s=2 * HOUR))
    node.client("reader").vanish()
    for error_s in (-DAY, 0, 400 * DAY):
        node.clock_error_s = float(error_s)
        node.tidy()
        node.tidy()
        node.wait(60)
    node.crash()
    assert list(node.broker.sessions) == [b"reader"]
    node.wait(2 * HOUR - 60)
    assert node.broker.sessions == {}
    assert clocks_set(node) == [
        ("the clock was set back", DAY),
        ("the clock was set forward", DAY),
        ("the clock was set forward", 400 * DAY),
    ]


def test_time_in_which_the_node_was_off_counts_for_a_minute_at_most_and_time_in_which_it_ran_for_all() -> None:
    node = SurvivingNode(Limits(session_expiry_s=HOUR))
    node.client("reader").vanish()
    node.settle()
    for _ in range(300):
        node.wait(10)
        node.tidy()
    node.be_off(30 * DAY)
    node.wait(400)
    assert list(node.broker.sessions) == [b"reader"]
    node.wait(200)
    assert node.broker.sessions == {}


# -- subscriptions and retained messages --


def test_a_subscription_is_there_once_it_was_confirmed_and_gone_once_that_was(node: SurvivingNode) -> None:
    reader = subscriber(node)
    node.crash()
    assert list(node.broker.sessions[b"reader"].subscriptions) == [b"t/#"]
    reader = node.client("reader")
    reader.unsubscribe("t/#")
    node.settle()
    assert [packet.kind for packet in reader.take()] == [11]
    node.crash()
    assert not node.broker.sessions[b"reader"].subscriptions


def test_requests_in_one_group_are_carried_out_in_their_order(node: SurvivingNode) -> None:
    reader = node.client("reader")
    reader.subscribe("t/#", 1)
    reader.unsubscribe("t/#")
    reader.subscribe("u/#", 1)
    node.settle()
    for _ in range(2):
        assert list(node.broker.sessions[b"reader"].subscriptions) == [b"u/#"]
        node.crash()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_published_while_its_subscriber_subscribes_comes_once(qos: int) -> None:
    for subscribe_first in (False, True):
        node = SurvivingNode()
        writer, reader = node.client("writer"), node.client("reader")
        if subscribe_first:
            reader.subscribe("t/#", 2)
        writer.publish("t/a", b"1", qos, packet_id=1, retain=True)
        if not subscribe_first:
            reader.subscribe("t/#", 2)
        node.settle()
        assert complete(node, reader) == [b"1"]


@pytest.mark.parametrize("qos", [1, 2])
def test_retained_messages_that_wait_for_room_are_not_forgotten_once_the_subscription_is_confirmed(qos: int) -> None:
    node = SurvivingNode(Limits(inflight=2))
    writer, reader = node.client("writer"), node.client("reader")
    for number in range(5):
        writer.publish(f"t/{number}", b"%d" % number, qos, packet_id=1 + number, retain=True)
    node.settle()
    reader.subscribe("t/#", qos)
    heard: list[Packet] = []
    while not any(packet.kind == SUBACK for packet in heard):
        node.commit()
        heard += reader.take()
    node.crash()
    seen = {packet.payload for packet in heard if packet.kind == PUBLISH}
    assert seen | set(complete(node, Client(node, "reader"))) == {b"%d" % number for number in range(5)}


def test_the_newest_retained_message_wins_whatever_its_qos_before_and_after_a_crash(node: SurvivingNode) -> None:
    for newest in (b"new", b""):
        writer = node.client("writer")
        writer.publish("t/a", b"old", 1, packet_id=1, retain=True)
        writer.publish("t/a", newest, 0, retain=True)
        node.settle()
        for _ in range(2):
            kept = node.broker.retained.get(b"t/a")
            assert (kept.payload if kept else b"") == newest
            node.crash()


# -- shared subscriptions --


def share(node: SurvivingNode, name: str, qos: int, **how: object) -> Client:
    client = node.client(name, **how)
    client.subscribe("$share/group/t/#", qos)
    node.settle()
    client.early = [packet for packet in client.take() if packet.kind != SUBACK]
    return client


def test_what_a_member_had_not_acknowledged_goes_to_another_after_a_crash(node: SurvivingNode) -> None:
    share(node, "first", 1)
    writer = node.client("writer")
    writer.publish("t/a", b"1", 1, packet_id=1)
    node.settle()
    node.crash()
    assert complete(node, share(node, "second", 1)) == [b"1"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_passing_member_has_done_is_not_given_to_a_lasting_one_after_a_crash(qos: int) -> None:
    node = SurvivingNode()
    share(node, "lasting", 2).vanish()
    passing = share(node, "passing", qos, clean=True)
    writer = node.client("writer")
    writer.publish("t/a", b"1", 2, packet_id=1)
    node.settle()
    assert (complete(node, passing) if qos else passing.payloads()) == [b"1"]
    node.settle()
    node.crash()
    assert complete(node, Client(node, "lasting")) == []


def test_a_qos_2_message_leaves_for_a_passing_member_only_when_no_other_can_get_it(node: SurvivingNode) -> None:
    share(node, "lasting", 2).vanish()
    passing = share(node, "passing", 2, clean=True)
    writer = node.client("writer")
    writer.publish("t/a", b"1", 2, packet_id=1)
    seen: list[bytes] = []
    while not seen:
        node.commit()
        seen = passing.payloads()
    node.crash()
    assert complete(node, Client(node, "lasting")) == []


def test_what_a_passing_member_had_not_acknowledged_goes_to_a_lasting_one_after_a_crash(node: SurvivingNode) -> None:
    share(node, "lasting", 1).vanish()
    passing = share(node, "passing", 1, clean=True)
    writer = node.client("writer")
    writer.publish("t/a", b"1", 1, packet_id=1)
    node.settle()
    assert passing.payloads() == [b"1"]
    node.crash()
    assert complete(node, Client(node, "lasting")) == [b"1"]


def test_a_checkpoint_that_cannot_be_read_says_whose_and_what_to_do() -> None:
    replay = Replay(BrokerState(Limits()), AccessList([], "allow"))
    with pytest.raises(JournalError, match=r"session 'meter' cannot be read .* restore the data directory"):
        replay.load({"meter": b"\x93\x01\x02\x03"}, {})
