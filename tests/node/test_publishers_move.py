"""A publisher goes from one node to another: whoever reads both, and whatever is cut meanwhile, reads it in order."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect, Puback, Publish
from node.joined_nodes import Town
from sterna.broker.commitments import Commit
from sterna.routing.origin_streams import NEEDS_S, RETRY_S

SOON_S = 1.0


def come(town: Town, name: str) -> Client:
    client = town[name].dial()
    client.send(Connect("p", False, properties={"session_expiry": 1000}))
    town.pass_time(SOON_S)
    client.received()
    return client


def moved_unseen(town: Town) -> tuple[Client, Client]:
    """C is cut off while a publisher goes from A to B; then A is cut off, and C is back.  The reader at C, and the
    publisher."""
    town.connect("AB", "BC")
    reader = town["C"].resume("reader")
    reader.subscribe("t", 2)
    publisher = come(town, "A")
    publisher.publish("t", b"1", 2)
    town.settle()
    assert reader.payloads() == [b"1"]
    town.cut("B", "C")
    publisher.publish("t", b"2", 2)
    publisher.leave()
    publisher = come(town, "B")
    publisher.publish("t", b"3", 2)
    town.cut("A", "B")
    town.connect("BC")
    return reader, publisher


def test_what_it_published_before_is_read_first(strategy: str) -> None:
    town = Town("ABC", strategy)
    reader, publisher = moved_unseen(town)
    town["B"].join("another").publish("t", b"by somebody else", 2)
    publisher.publish("t", b"4", 2)
    town.pass_time(NEEDS_S / 2)
    assert reader.payloads() == []
    town.connect("AB")
    town.pass_time(SOON_S)
    payloads = reader.payloads()
    assert [payload for payload in payloads if payload.isdigit()] == [b"2", b"3", b"4"]
    assert len(payloads) == 4
    assert town["C"].network.moving.counters.out_of_turn == 0


def test_but_it_is_not_waited_for_for_ever(strategy: str) -> None:
    town = Town("ABC", strategy)
    reader, publisher = moved_unseen(town)
    town.pass_time(NEEDS_S + SOON_S)
    assert reader.payloads() == [b"3"]
    assert town["C"].network.moving.counters.out_of_turn == 1
    publisher.publish("t", b"4", 2)
    town.settle()
    assert reader.payloads() == [b"4"], "nor again"
    town.connect("AB")
    town.pass_time(SOON_S)
    assert reader.payloads() == [b"2"], "late, and not lost"


def test_the_node_it_went_to_knows_that_after_a_restart(strategy: str) -> None:
    town = Town("ABC", strategy)
    reader, publisher = moved_unseen(town)
    publisher.leave()
    town.crash("B")
    town.connect("BC")
    town.pass_time(NEEDS_S / 4)
    assert reader.payloads() == []
    town.connect("AB")
    town.pass_time(SOON_S)
    assert reader.payloads() == [b"2", b"3"]


def test_and_of_a_publisher_that_has_left_again(strategy: str) -> None:
    town = Town("ABC", strategy)
    town.connect("AB", "BC")
    reader = town["C"].resume("reader")
    reader.subscribe("t", 2)
    town.cut("B", "C")
    for number, name in ((b"1", "A"), (b"2", "B"), (b"3", "A")):
        publisher = come(town, name)
        publisher.publish("t", number, 2)
        publisher.leave()
    town.crash("B")
    town.connect("BC")
    town.pass_time(NEEDS_S / 4)
    assert reader.payloads() == []
    town.connect("AB")
    town.pass_time(SOON_S)
    assert reader.payloads() == [b"1", b"2", b"3"]


def test_what_could_not_be_written_down_has_not_been_read(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C has asked B for more, and said that it has read A, when it finds that it cannot keep what it read there."""
    town = Town("ABC", strategy)
    reader, _ = moved_unseen(town)
    node, honest = town["C"], town["C"].finish

    def finish(commit: Commit) -> None:
        if any(message is not None and message.payload == b"2" for message, *_ in commit.promises):
            monkeypatch.undo()
            node.broker.failed(commit, "the disk is full")
        else:
            honest(commit)

    monkeypatch.setattr(node, "finish", finish)
    town["A"].join("another").publish("of no use to C", b"", 1)
    town.connect("AB")
    town.pass_time(RETRY_S + SOON_S)
    assert node.finish == honest, "the disk was full"
    assert reader.payloads() == [b"2", b"3"]


def unread(town: Town) -> tuple[Client, Client]:
    """A publisher has come from A to B, which has not read all it published there: a reader at B, and the publisher."""
    town.connect("AB")
    reader = town["B"].resume("reader")
    reader.subscribe("t", 2)
    publisher = come(town, "A")
    publisher.subscribe("for it", 1)
    town["B"].network.router.streams.path_lost("A")  # in the middle of reading what it missed, it would be the same
    publisher.publish("t", b"1", 2)
    publisher.leave()
    publisher = town["B"].dial()
    publisher.send(Connect("p", False, properties={"session_expiry": 1000}))
    town.settle()
    return reader, publisher


def test_it_is_let_in_at_once_and_heard_when_what_it_published_before_has_been_read() -> None:
    town = Town("AB")
    reader, publisher = unread(town)
    assert publisher.take(Connack).session_present
    town["B"].join("another").publish("for it", b"", 1)
    (message,) = publisher.messages()
    publisher.send(Puback(message.packet_id), Publish("t", b"2", 1, packet_id=7))
    town.pass_time(SOON_S)
    assert not town["B"].session("p").inflight, "what it acknowledges is heard"
    assert publisher.received() == []
    assert reader.payloads() == []
    town["B"].network.router.streams.path_changed("A")
    town.pass_time(SOON_S)
    assert publisher.take(Puback).packet_id == 7
    assert reader.payloads() == [b"1", b"2"]


def test_and_otherwise_after_a_while() -> None:
    town = Town("AB")
    reader, publisher = unread(town)
    publisher.take(Connack)
    publisher.send(Publish("t", b"2", 1, packet_id=7))
    town.pass_time(town.migration.patience_s + SOON_S)
    assert publisher.take(Puback).packet_id == 7
    assert reader.payloads() == [b"2"]
    assert town["B"].network.moving.counters.out_of_turn == 1, "what comes late is counted"


def test_the_wait_begins_anew_for_one_that_has_gone_and_come_again() -> None:
    town = Town("AB")
    reader, publisher = unread(town)
    publisher.vanish()
    town.pass_time(town.migration.patience_s / 2)
    publisher = come(town, "A")
    publisher.publish("t", b"2", 2)
    publisher.leave()
    publisher = town["B"].resume("p")
    publisher.send(Publish("t", b"3", 1, packet_id=7))
    town.pass_time(town.migration.patience_s / 2 + SOON_S)
    assert reader.payloads() == []
    town["B"].network.router.streams.path_changed("A")
    town.pass_time(SOON_S)
    assert reader.payloads() == [b"1", b"2", b"3"]
    assert town["B"].network.moving.counters.out_of_turn == 0


def test_a_publisher_that_is_not_heard_yet_may_go_on() -> None:
    town = Town("AB")
    reader, publisher = unread(town)
    publisher.send(Publish("t", b"2", 1, packet_id=7))
    town.settle()
    publisher.vanish()
    again = town["B"].resume("p")
    again.send(Publish("t", b"2", 1, packet_id=7, dup=True))
    town["B"].network.router.streams.path_changed("A")
    town.pass_time(SOON_S)
    assert again.take(Puback).packet_id == 7
    assert reader.payloads() == [b"1", b"2"]
