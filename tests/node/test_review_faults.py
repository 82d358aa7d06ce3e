"""Disks that fail or stall, clocks that differ, slow links and crashes between nodes: nothing lost, nothing twice."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from conformance.packets import Puback, Publish, Subscribe, Will
from node.faulty_nodes import FaultyTown
from sterna.broker.backpressure import BACKLOG_BYTES_MAX
from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalError


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


# -- disks --


def test_what_a_full_disk_refused_is_read_again_and_qos_0_comes_once(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    kept, loose = town["b"].join("kept"), town["b"].join("loose")
    kept.subscribe("t", 1)
    loose.subscribe("u", 0)
    publisher = town["a"].join("publisher")
    for topic in "tu":
        publisher.publish(topic, b"first", 1)
    town.pass_time(0.1)
    assert (payloads(kept), payloads(loose)) == ([b"first"], [b"first"])
    town["b"].disk_stalls = True
    publisher.publish("t", b"1", 1)
    publisher.publish("u", b"2", 1)
    town["b"].disk_stalls, town["b"].disk_is_full = False, True
    town.settle()
    town["b"].disk_is_full = False
    kept, loose = (town["b"].join(name) for name in ("kept", "loose")) if kept.wire.closed else (kept, loose)
    town.pass_time(3)
    assert (payloads(kept), payloads(loose)) == ([b"1"], [b"2"])


def test_a_note_of_how_far_was_read_does_not_outlive_what_was_read(strategy: str) -> None:
    """b takes a message and notes its vector in one group; the group fails, its events are written with the next one,
    and b is killed before it has read the message again."""
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    subscriber = town["b"].resume("subscriber", session_expiry=1000)
    subscriber.subscribe("t", 1)
    subscriber.vanish()
    publisher = town["a"].join("publisher")
    town["b"].disk_stalls = True
    town["b"].join_unheard("x")
    publisher.publish("t", b"1", 1)
    town["b"].network.note_vector()
    town["b"].disk_stalls, town["b"].disk_is_full = False, True
    town.settle()
    town["b"].disk_is_full = False
    town["b"].resume("other", session_expiry=1000)  # something is written
    town.kill("b")
    town.start("b")
    town.connect("ab")
    town.pass_time(1)
    assert payloads(town["b"].resume("subscriber", session_expiry=1000)) == [b"1"]


def test_a_stalled_disk_does_not_let_memory_grow_over_new_connections(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    subscriber = town["b"].resume("subscriber", session_expiry=1000)
    subscriber.subscribe("t", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"", 1)
    town["b"].disk_stalls = True
    for _ in range(100):
        publisher.publish("t", bytes(500_000), 1)
        town.pass_time(0.2)
        if "b" not in town["a"].network.links.links or not town["a"].network.links.links["b"].connected:
            town.connect("ab")
    assert town["b"].broker.journal.pending_bytes < 1.5 * BACKLOG_BYTES_MAX
    town["b"].disk_stalls = False
    town.pass_time(5)
    town.connect("ab")
    town.pass_time(10)
    town["b"].session("subscriber").packet_bytes_max = 0
    assert len(town["b"].session("subscriber").queue) + len(town["b"].session("subscriber").inflight) == 101


def test_a_node_that_does_not_listen_for_a_while_does_not_take_its_neighbour_for_dead(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    town["b"].resume("subscriber", session_expiry=1000).subscribe("t", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"", 1)
    session = town["b"].network.links.links["a"].session_id
    town["b"].disk_stalls = True
    for _ in range(38):
        publisher.publish("t", bytes(500_000), 1)
    assert town["b"].broker.overloaded()
    town.pass_time(10)
    town["b"].disk_stalls = False
    town.pass_time(1)
    assert town["b"].network.links.links["a"].session_id == session
    assert len(town["b"].session("subscriber").queue) + len(town["b"].session("subscriber").inflight) == 39


def test_an_origin_that_cannot_read_its_journal_for_a_moment_loses_nothing(strategy: str) -> None:
    """The question and a message of the asker come in one batch; the session goes on, so the message must not be
    missing in it."""
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    at_a, at_b = town["a"].join("at-a"), town["b"].join("at-b")
    at_a.subscribe("t", 1)
    at_b.subscribe("t", 1)
    town["a"].join("pa").publish("t", b"0", 1)
    publisher = town["b"].join("pb")
    publisher.publish("t", b"1", 1)
    town.settle()
    journal = town["a"].broker.journal
    read = journal.read
    town.cut("a", "b")
    town["a"].join("pa").publish("t", b"2", 1)

    def fail(offset: int) -> None:
        raise JournalError("the disk does not answer")

    journal.read = fail  # type: ignore[method-assign]
    try:
        town.connect("ab")
    except JournalError:
        pytest.fail("an error of the journal fell through to the transport")
    journal.read = read  # type: ignore[method-assign]
    publisher.publish("t", b"3", 1)
    town.pass_time(12)
    assert payloads(at_a) == [b"0", b"1", b"2", b"3"]
    assert sorted(payloads(at_b)) == [b"0", b"1", b"2", b"3"]


# -- who subscribes when --


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_taken_for_qos_0_alone_does_not_enter_queues_it_cannot_wait_in(strategy: str, qos: int) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    town["b"].join("loose").subscribe("t", 0)
    away = town["b"].resume("away", session_expiry=1000)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"first", qos)
    town["b"].disk_stalls = True
    town["b"].broker.ingress.publish_qos0(Message(b"state", b"x", 0, True), None)
    town["b"].join_unheard("x")
    town.settle()
    publisher.publish("t", b"1", qos)
    away.send(Subscribe(away.next_packet_id(), [("t", qos)], {}))
    town.settle()
    away.wire.unsent = 0
    session = town["b"].session("away")
    session.packet_bytes_max = 0
    away.connection.lost()
    town["b"].disk_stalls = False
    town.settle()
    town.pass_time(1)
    publisher.publish("t", b"2", qos)
    town.settle()
    back = town["b"].resume("away", session_expiry=1000)
    assert payloads(back)[-1:] == [b"2"]
    assert town["b"].dropped("retention") == 0


def test_a_new_topic_is_not_overtaken_by_messages_of_a_known_one(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    subscriber = town["c"].join("subscriber")
    subscriber.subscribe("new", 1)
    subscriber.subscribe("known", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("known", b"0", 1)
    town.pass_time(0.1)
    publisher.send(
        Publish("new", b"1", 1, packet_id=100),
        *(Publish("known", bytes(200_000), 1, packet_id=101 + number) for number in range(4)),
    )
    town.pass_time(6)
    for message in (got := subscriber.messages()):
        subscriber.send(Puback(message.packet_id))
    town.pass_time(1)
    got += subscriber.messages()
    assert sorted(len(message.payload) for message in got) == [1, 1, 200_000, 200_000, 200_000, 200_000]


# -- retained --


def test_a_topic_cleared_by_a_node_whose_clock_is_ahead_can_be_set_again(strategy: str) -> None:
    town = FaultyTown("abc", strategy, clocks={"c": 100.0})
    town.connect("ab", "bc")
    ahead = town["c"].join("ahead")
    ahead.publish("state", b"old", 1, retain=True)
    ahead.publish("state", b"", 1, retain=True)
    town.pass_time(0.1)
    town["a"].join("publisher").publish("state", b"new", 1, retain=True)
    town.pass_time(0.1)
    kept = [town[name].broker.retained.get(b"state") for name in "abc"]
    assert [message and message.payload for message in kept] == [b"new"] * 3


def test_a_retained_will_replaces_what_a_node_whose_clock_is_ahead_had_retained(strategy: str) -> None:
    town = FaultyTown("abc", strategy, clocks={"c": 100.0})
    town.connect("ab", "bc")
    town["c"].join("ahead").publish("status", b"online", 1, retain=True)
    town.settle()
    town["a"].join("mortal", will=Will("status", b"offline", 1, True)).vanish()
    town.pass_time(0.1)
    kept = [town[name].broker.retained.get(b"status") for name in "abc"]
    assert [message and message.payload for message in kept] == [b"offline"] * 3


def test_a_cleared_topic_stays_cleared_over_a_checkpoint(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    town.connect("ab", "bc")
    town.cut("a", "b")
    town["a"].join("one").publish("state", b"old", 1, retain=True)
    town.pass_time(1)
    town["c"].join("two").publish("state", b"", 1, retain=True)
    town.settle()
    town["c"].checkpoint()
    town.kill("c")
    town.start("c")
    town.connect("bc", "ab")
    town.pass_time(1)
    assert [town[name].broker.retained.get(b"state") for name in "abc"] == [None, None, None]


# -- slow links --


def test_a_reader_behind_a_slow_link_gets_on(strategy: str) -> None:
    """Answers take longer than the time after which they are asked for again."""
    town = FaultyTown("ab", strategy, dead_after_s=60.0)
    town.connect("ab")
    subscriber = town["b"].join("subscriber")
    subscriber.subscribe("t", 1)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"0", 1)
    town.cut("a", "b")
    for number in range(1, 4):
        publisher.publish("t", b"%d" % number, 1)
    town.connect_slowly("a", "b", 7.0)
    town.pass_time(60)
    publisher.publish("t", b"4", 1)
    town.pass_time(20)
    assert payloads(subscriber) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_page_with_a_big_retained_message_and_a_big_other_one_still_fits_a_frame(strategy: str) -> None:
    town = FaultyTown("ab", strategy, frame_bytes=400_000)
    big = 300_000
    publisher = town["a"].join("publisher")
    for number in range(3):
        publisher.publish(f"state/{number}", bytes(big), 1, retain=True)
    subscriber = town["b"].join("subscriber")
    subscriber.subscribe("t", 1)
    town["b"].network.overloaded = lambda: True  # type: ignore[method-assign]  # a moment between two pages
    town.connect_slowly("a", "b", 0.0)
    while not len(town["b"].broker.retained):
        town.pass_time(0.01)
    assert len(town["b"].broker.retained) < 3
    for _ in range(3):
        publisher.publish("t", bytes(big), 1)
    town.pass_time(3)
    assert "b" in town["a"].network.links.links
    assert len(payloads(subscriber)) == 3
    assert len(town["b"].broker.retained) == 3


def test_a_node_with_more_subscriptions_than_a_link_keeps_bytes_can_be_linked() -> None:
    town = FaultyTown("ab", frame_bytes=100_000, resend_bytes=200_000, batch_bytes=20_000)
    subscriber = town["b"].join("subscriber")
    filters = [f"{number}/{'x' * 4000}" for number in range(100)]
    for topic_filter in filters:
        subscriber.subscribe(topic_filter, 1)
    town.connect("ab")
    assert "b" in town["a"].network.links.links
    town["a"].join("publisher").publish(filters[50], b"1", 1)
    town.settle()
    assert payloads(subscriber) == [b"1"]


# -- who is new --


def test_what_a_new_node_took_before_it_was_linked_reaches_those_who_waited(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    subscriber = town["a"].join("subscriber")
    subscriber.subscribe("t", 1)
    town.add("n")
    publisher = town["n"].join("publisher")
    assert publisher.publish("t", b"early", 1) in (0, 0x10)
    town.connect("bn")
    publisher.publish("t", b"late", 1)
    town.pass_time(1)
    assert payloads(subscriber) == [b"early", b"late"]


def test_the_will_of_a_client_whose_node_was_killed_is_shared_out_elsewhere(strategy: str) -> None:
    town = FaultyTown("ab", strategy)
    town.connect("ab")
    member = town["b"].join("member")
    member.subscribe("$share/g/wills", 1)
    town["a"].join("mortal", clean=False, will=Will("wills", b"gone", 1, False), session_expiry=1000)
    town.settle()
    town.kill("a")
    town.start("a")
    town.connect("ab")
    town.pass_time(2)
    assert payloads(member) == [b"gone"]
