"""Two sessions of one client, because nodes could not hear each other: what both were owed comes, once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from broker.lone_node import Client
from broker.noted import RECORDED, deliveries
from conformance.packets import Connect, Publish
from node.joined_nodes import JoinedNode, Town
from sterna.broker.inheritance import owner_of, remains_key
from sterna.broker.session.snapshots import snapshot
from sterna.migration.messages import Message, RemainsAck, RemainsPage, RemainsWanted, Rivals
from sterna.node.moving import Moving
from sterna.node.questions import ASKED_A_TURN

AWAY_S = 60


class NotingTown(Town):
    journal = RECORDED


def row(names: str = "ABC", strategy: str = "subscription-flooding", kind: type[Town] = Town) -> Town:
    town = kind(names, strategy)
    town.connect(*(one + other for one, other in pairwise(names)))
    return town


def begun_anew(town: Town, qos: int = 2) -> tuple[Client, Client]:
    """The client was at A, which is cut off; it has begun anew at C.  And somebody who publishes at A."""
    publisher = town["A"].join("p")
    client = town["A"].resume("c")
    client.subscribe("t/#", qos)
    client.vanish()
    town["B"].join("b").publish("t/1", b"waits at A", qos)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t/#", qos)
    return again, publisher


def left_over(town: Town) -> list[bytes]:
    return [key for node in town.nodes.values() for key in node.broker.sessions if owner_of(key)[1]]


def test_what_waited_at_the_old_node_comes_once_it_is_back(strategy: str) -> None:
    town = row(strategy=strategy)
    client, publisher = begun_anew(town)
    publisher.publish("t/1", b"published while it was cut off", 2)
    town["B"].join("q").publish("t/2", b"at the other side", 2)
    assert client.payloads() == [b"at the other side"]
    town.connect("AB")
    town.pass_time(5)
    assert sorted(client.payloads()) == [b"published while it was cut off", b"waits at A"]
    assert left_over(town) == []
    counters = town["A"].network.moving.counters
    assert (counters.fenced, counters.remains_lost, counters.remains_doubtful) == (1, 0, 0)
    assert town["C"].network.moving.counters.remains_added == 1


def test_what_it_has_not_subscribed_to_again_is_counted(strategy: str) -> None:
    town = row(strategy=strategy)
    client, _ = begun_anew(town)
    client.unsubscribe("t/#")
    client.subscribe("u", 1)
    town.connect("AB")
    town.pass_time(5)
    assert client.payloads() == []
    assert town["C"].network.moving.counters.remains_unwanted == 1
    assert left_over(town) == []


def test_at_qos_2_what_may_have_come_is_not_sent_again() -> None:
    """It was sent, and not acknowledged: whether the client has it, nobody can tell.  At QoS 1 it comes again."""
    for qos, comes in ((1, [b"1"]), (2, [])):
        town = row(kind=NotingTown)
        client = town["A"].resume("c")
        client.subscribe("t", qos)
        town["A"].join("p").publish("t", b"1", qos)
        assert [message.payload for message in client.messages()] == [b"1"]
        client.vanish()
        town.cut("A", "B")
        town.pass_time(AWAY_S)
        again = town["C"].resume("c")
        again.subscribe("t", qos)
        town.connect("AB")
        town.pass_time(5)
        assert again.payloads() == comes
        assert town["A"].network.moving.counters.remains_doubtful == (qos == 2)
        given_up = [("c", 0, 2, False, "owned-elsewhere")] if qos == 2 else []
        assert deliveries(town["A"]) == given_up


def test_what_the_old_node_had_served_does_not_come_again() -> None:
    """C reads A's messages when the cut has healed: among them what the client had there."""
    town = row()
    publisher = town["A"].join("p")
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town.cut("A", "B")
    publisher.publish("t", b"served at A", 2)
    assert client.payloads() == [b"served at A"]
    client.vanish()
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    again.subscribe("t", 2)
    town.connect("AB")
    town.pass_time(5)
    publisher.publish("t", b"after it", 2)
    assert again.payloads() == [b"after it"]


def test_what_is_subscribed_to_once_more_was_heard_before_all_the_same() -> None:
    """The node that served it crashes after that, so it knows it from its journal alone."""
    town = row()
    publisher = town["A"].join("p")
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town.cut("A", "B")
    publisher.publish("t", b"served at A", 2)
    assert client.payloads() == [b"served at A"]
    client.vanish()
    town.pass_time(AWAY_S)
    elsewhere = town["C"].resume("c")
    elsewhere.subscribe("t", 2)
    elsewhere.vanish()
    back = town["A"].resume("c")
    back.subscribe("t", 2)
    town.crash("A")
    again = town["C"].resume("c")
    town.connect("AB")
    town.pass_time(5)
    assert again.messages() == []
    assert left_over(town) == []


def test_a_node_that_was_started_again_meets_the_others_before_it_sends_again_what_is_in_doubt() -> None:
    """Its client may have begun anew meanwhile; then it has forgotten what it had at QoS 2, and would take it twice."""
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town["A"].join("p").publish("t", b"1", 2)
    assert [message.payload for message in client.messages()] == [b"1"]
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    elsewhere = town["C"].resume("c")
    elsewhere.subscribe("t", 2)
    elsewhere.vanish()
    town.crash("A")
    back = town["A"].dial()
    back.send(Connect("c", False, properties={"session_expiry": 100}))
    town.settle()
    town.connect("AB")
    town.pass_time(5)
    assert back.messages() == []
    assert town["A"].network.moving.counters.remains_doubtful == 1


def test_what_is_sent_again_to_a_client_that_had_begun_anew_elsewhere_is_counted() -> None:
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town["A"].join("p").publish("t", b"1", 2)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    elsewhere = town["C"].resume("c")
    elsewhere.subscribe("t", 2)
    elsewhere.vanish()
    back = town["A"].resume("c")
    assert [message.payload for message in back.messages()] == [b"1"]
    counters = town["A"].network.moving.counters
    assert counters.remains_resent == 0
    town.connect("AB")
    town.pass_time(5)
    assert counters.remains_resent == 1
    assert left_over(town) == []


@pytest.mark.parametrize("hangs_up", [False, True])
def test_what_the_session_that_stays_had_sent_is_in_doubt_too_if_its_client_has_begun_anew(hangs_up: bool) -> None:
    """The clock of A is ahead, so the session there is taken for the later one."""
    town = row()
    town["A"].broker.tell_time(town.now, town["A"].wall + 1000)
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    client.vanish()
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    client = town["A"].resume("c")
    town["A"].join("p").publish("t", b"1", 2)
    assert [message.payload for message in client.messages()] == [b"1"]
    if hangs_up:
        client.vanish()
    elsewhere = town["C"].resume("c")
    assert not elsewhere.connack.session_present
    elsewhere.subscribe("t", 2)
    elsewhere.vanish()
    town.connect("AB")
    town.pass_time(5)
    again = town["C"].resume("c")
    town.pass_time(5)
    assert again.connack.session_present
    assert again.messages() == []
    assert sum(town[name].network.moving.counters.remains_doubtful for name in "ABC") == 1
    assert left_over(town) == []


@pytest.mark.parametrize("crashes", [False, True])
def test_what_it_retains_anew_is_later_than_what_it_retained_before_whatever_the_clocks_say(crashes: bool) -> None:
    """The clock of A is ahead by more than A is away for, and the last word said there has not come to C."""
    town = row()
    town["A"].broker.tell_time(town.now, town["A"].wall + 2 * AWAY_S)
    client = town["A"].resume("c")
    client.publish("r", b"heard everywhere", 1, retain=True)
    town.cut("A", "B")
    client.publish("r", b"heard at A", 1, retain=True)
    client.vanish()
    if crashes:
        town.crash("C")
        town.connect("BC")
    town.pass_time(AWAY_S)
    town["C"].resume("c").publish("r", b"the last word", 1, retain=True)
    town.connect("AB")
    town.pass_time(5)
    for name in "ABC":
        found = town[name].broker.retained.get(b"r")
        assert found is not None
        assert found.payload == b"the last word"


def test_a_client_that_did_not_hear_that_it_began_anew_is_told_again() -> None:
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    town["C"].resume("c").vanish()
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t", 1)
    again.vanish()
    assert town["C"].resume("c").connack.session_present


def test_whoever_wants_a_clean_start_gets_nothing_of_what_was() -> None:
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town["B"].join("p").publish("t", b"1", 1)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    town["C"].join("c", session_expiry=100).subscribe("t", 1)
    town.connect("AB")
    town.pass_time(5)
    assert town["C"].network.moving.counters.remains_added == 0
    assert left_over(town) == []
    assert town["A"].network.moving.counters.remains_lost == 1


def test_a_session_with_more_subscriptions_than_a_frame_holds_is_handed_over_too() -> None:
    town = row()
    client = town["A"].resume("c")
    for number in range(600):
        client.subscribe(f"{number}/" + "x" * 4000, 1)
    client.subscribe("t/#", 1)
    client.vanish()
    town["B"].join("b").publish("t/1", b"1", 1)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    again.subscribe("t/#", 1)
    town.connect("AB")
    town.pass_time(5)
    assert again.payloads() == [b"1"]
    assert town["A"].network.moving.counters.too_big == 0
    assert left_over(town) == []


def test_a_crash_of_either_at_any_step_loses_nothing_and_repeats_nothing() -> None:
    for crashes in ("A", "C"):
        for step in (RemainsPage, RemainsAck):
            town = row()
            _, publisher = begun_anew(town)
            publisher.publish("t/1", b"2", 2)
            moving = town["A" if step is RemainsPage else "C"].network.moving
            moving.send = lambda node, message, moving=moving, step=step: (  # type: ignore[method-assign, misc]
                None if isinstance(message, step) else Moving.send(moving, node, message)
            )
            town.connect("AB")
            town.pass_time(5)
            assert left_over(town) == [remains_key(b"c", owner_of(left_over(town)[0])[1])]
            town.crash(crashes)
            town.crash("A" if step is RemainsPage else "C")  # whoever did not speak
            town.connect("AB", "BC")
            town.pass_time(5)
            client = town["C"].resume("c")
            town.pass_time(15)
            assert client.connack.session_present
            assert sorted(client.payloads()) == [b"2", b"waits at A"]
            assert left_over(town) == []


def test_who_has_no_rival_after_all_remembers_nothing_of_it() -> None:
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t/#", 1)
    before = snapshot(town["A"].session("c"))
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    town.connect("AB")
    town.pass_time(3)
    assert town["A"].session("c").inheritance is None
    assert snapshot(town["A"].session("c")) == before
    town["B"].join("b").publish("t/1", b"1", 1)
    assert client.payloads() == [b"1"]


@pytest.mark.parametrize("is_late", [False, True])
def test_from_where_on_it_has_heard_is_kept_until_the_session_before_it_has_expired(is_late: bool) -> None:
    town = row()
    client, _ = begun_anew(town)
    client.vanish()
    town.pass_time(1)
    session = town["C"].session("c")
    expiry_s = 50 if is_late else 100_000
    town.connect("AB")
    town.pass_time(5)
    assert session.inheritance is not None, "somebody else may have had one, too"
    town.pass_time(60)
    again = town["C"].join("c", clean=False, session_expiry=expiry_s)
    town.pass_time(3)
    assert again.connack.session_present
    assert (session.inheritance is None) == is_late


def test_questions_after_a_long_partition_leave_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those first whose clients are connected."""
    town = row()
    for number in range(2 * ASKED_A_TURN):
        town["A"].resume(f"c{number}").vanish()
    town["A"].resume("here").subscribe("t", 1)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    asked: list[tuple[float, bytes]] = []
    original = Moving.send

    def send(moving: Moving, node: str, message: Message) -> None:
        if isinstance(message, Rivals) and moving.node == "A":
            asked.append((town.now, message.client))
        original(moving, node, message)

    monkeypatch.setattr(Moving, "send", send)
    town.connect("AB")
    town.pass_time(5)
    turns = Counter(at for at, _ in asked)
    assert max(turns.values()) <= ASKED_A_TURN
    assert asked[0][1] == b"here"
    assert len({client for _, client in asked}) == 2 * ASKED_A_TURN + 1
    assert not town["A"].network.moving.estates.is_busy


@pytest.mark.parametrize("crashes", [False, True])
def test_of_a_node_that_the_other_session_had_read_further_only_what_that_one_was_in_charge_of_is_left_out(
    strategy: str, crashes: bool
) -> None:
    """A was cut off, and has not read what D published; the session at C wanted less, and began in the middle of it."""
    town = row("ABCD", strategy)
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    client.subscribe("u", 2)
    publisher = town["D"].join("p")
    town.cut("A", "B")
    client.vanish()
    town.pass_time(AWAY_S)
    publisher.publish("t", b"before it began anew", 2)
    anew = town["C"].resume("c")
    anew.subscribe("t", 2)
    publisher.publish("t", b"served at C", 2)
    publisher.publish("u", b"not asked for at C", 2)
    publisher.publish("t", b"served at C, too", 2)
    assert anew.payloads() == [b"served at C", b"served at C, too"]
    anew.vanish()
    town.cut("C", "D")
    again = town["A"].resume("c")
    assert again.connack.session_present, "A has heard of nothing"
    town.connect("AB")
    town.pass_time(15)
    assert left_over(town) == []
    if crashes:
        town.crash("A")
        town.connect("AB")
        again = town["A"].resume("c")
    town.connect("CD")
    town.pass_time(15)
    came = [packet.payload for packet in again.received() if isinstance(packet, Publish)]
    assert came == [b"before it began anew", b"not asked for at C"]


def test_a_node_that_has_forgotten_whom_it_knew_takes_what_they_come_with(strategy: str) -> None:
    """Its disk was full, and it was killed.  For two seconds it looks for somebody, and then lets the client in."""
    town = row("AB", strategy)
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town.cut("A", "B")
    town.nodes["B"] = JoinedNode(town, "B", epoch=2)
    publisher = town["A"].join("p")
    publisher.publish("t", b"served at A", 2)
    assert client.payloads() == [b"served at A"]
    client.vanish()
    publisher.publish("t", b"waits at A", 2)
    town.pass_time(3)
    again = town["B"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t", 2)
    town["B"].join("q").publish("t", b"at B", 2)
    town.connect("AB")
    town.pass_time(15)
    assert again.payloads() == [b"at B", b"waits at A"]
    assert left_over(town) == []
    assert not town["B"].network.moving.estates.is_busy


def test_what_is_left_of_two_sessions_at_one_node_comes_from_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client began anew, came back to the old node before that had handed over what was left, and had to begin anew
    once more."""
    town = row()
    client, publisher = begun_anew(town)
    publisher.publish("t/1", b"while A was cut off", 2)
    original = Moving.send
    monkeypatch.setattr(
        Moving, "send", lambda *to: None if isinstance(to[2], RemainsWanted) else original(*to), raising=True
    )
    town.connect("AB")
    client.vanish()
    town["A"].resume("c").vanish()
    town["B"].join("q").publish("t/2", b"for the session that came back", 2)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t/#", 2)
    monkeypatch.setattr(Moving, "send", original)
    town.connect_now("AB")
    assert len(left_over(town)) == 2
    town.pass_time(30)
    assert left_over(town) == []
    came = [packet.payload for packet in again.received() if isinstance(packet, Publish)]
    assert sorted(came) == [b"for the session that came back", b"waits at A", b"while A was cut off"]


def test_remains_that_were_added_elsewhere_are_not_added_again() -> None:
    """Their node did not hear of it, and the client began anew there once more."""
    town = row()
    client, _ = begun_anew(town)
    moving = town["C"].network.moving
    moving.send = lambda node, message: (  # type: ignore[method-assign]
        None if isinstance(message, RemainsAck) else Moving.send(moving, node, message)
    )
    town.connect("AB")
    town.pass_time(5)
    assert client.payloads() == [b"waits at A"]
    client.vanish()
    town["B"].join("q").publish("t/2", b"waits at C", 2)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["A"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t/#", 2)
    del moving.send
    town.connect("AB")
    town.pass_time(30)
    assert left_over(town) == []
    assert [packet.payload for packet in again.received() if isinstance(packet, Publish)] == [b"waits at C"]
