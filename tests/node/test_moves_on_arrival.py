"""A client that is moved by plan is its old node's until it has come to the new one: its session follows it there.

If it cannot come, or may not, it is served where it was, at once, and has lost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import argon2
import pytest

from broker.lone_node import Client
from conformance.packets import Connect, Puback, Publish, Will
from node.joined_nodes import Town
from node.test_clients_move import row
from node.test_losses_of_moves import dropped
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.access.passwords import PasswordFile, hash_password
from sterna.broker.session.outbox import WAITING_BYTES_MAX
from sterna.migration import messages
from sterna.migration.messages import MigAbort, MigToAck, Pull
from sterna.migration.move_manager import MoveManager
from sterna.migration.move_side import WAITING_MAX
from sterna.migration.settings import MigrationSettings
from sterna.migration.tables import ArrivalState, DepartureState
from sterna.vocabulary.errors import LinkProtocolError, MigrationError

QUICK = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def called(town: Town, *, version: int = 5, will: Will | None = None) -> Client:
    """A client of A that has been sent to C and is nowhere yet."""
    client = town["A"].resume("c", version, will=will)
    for qos in (0, 1, 2):
        client.subscribe(f"t/{qos}", qos)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(0.5)
    assert client.wire.closed
    assert town["A"].network.moving.departures[b"c"].state is DepartureState.CALLED
    assert town["C"].network.moving.arrivals[b"c"].state is ArrivalState.PREPARED
    return client


def publish_at_every_qos(town: Town, name: str) -> None:
    publisher = town[name].join(f"p{name}")
    for qos in (0, 1, 2):
        publisher.publish(f"t/{qos}", b"%s%d" % (name.encode(), qos), qos)
    publisher.publish("t/0", b"%s+" % name.encode(), 2)


@pytest.mark.parametrize("where", ["A", "B", "C"])
@pytest.mark.parametrize("version", [4, 5])
def test_it_has_all_that_was_published_meanwhile_wherever_it_comes(strategy: str, version: int, where: str) -> None:
    town = row(strategy)
    called(town, version=version)
    for name in "ABC":
        publish_at_every_qos(town, name)
    town.pass_time(0.1)
    client = town[where].resume("c", version)
    assert client.connack.session_present
    town.pass_time(1)
    expected = [b"%s%s" % (name, what) for name in (b"A", b"B", b"C") for what in (b"0", b"1", b"2", b"+")]
    assert dropped(town) == {}
    assert sorted(client.payloads()) == sorted(expected)
    assert [name for name in "ABC" if b"c" in town[name].broker.sessions] == [where]
    assert not any(town[name].network.moving.departures or town[name].network.moving.arrivals for name in "ABC")


def test_what_it_acknowledges_in_time_is_not_sent_to_it_again() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    publisher = town["B"].join("p")
    publisher.publish("t", b"1", 1)
    (first,) = client.messages()
    town["A"].network.moving.plans.move(b"c", "C")
    town.settle()
    assert town["A"].network.moving.departures[b"c"].state is DepartureState.SETTLING
    publisher.publish("t", b"2", 1)
    assert not client.wire.closed
    client.send(Puback(first.packet_id))
    town.pass_time(0.02)
    assert client.wire.closed, "at once when it has"
    assert client.messages() == []
    assert town["C"].resume("c").payloads() == [b"2"]


def test_a_client_that_takes_its_time_is_sent_on_after_a_while() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town["B"].join("p").publish("t", b"1", 1)
    assert client.payloads() == [b"1"]
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(town.migration.drain_s - 0.05)
    assert not client.wire.closed
    town.pass_time(0.1)
    assert client.wire.closed
    (again,) = town["C"].resume("c").messages()
    assert (again.payload, again.dup) == (b"1", True)


def test_a_client_that_is_far_away_gets_the_time_that_its_answers_take() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    publisher = town["B"].join("p")
    far_s = 2 * town.migration.drain_s
    for number in range(2):
        publisher.publish("t", b"%d" % number, 1)
        (sent,) = client.messages()
        if number:
            town["A"].network.moving.plans.move(b"c", "C")
        town.pass_time(far_s)
        assert not client.wire.closed
        client.send(Puback(sent.packet_id))
        town.settle()
    town.pass_time(0.02)
    assert client.wire.closed, "at once when it has"
    assert town["C"].resume("c").messages() == []


def test_a_client_that_subscribes_to_something_else_before_it_is_sent_stays() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town["B"].join("p").publish("t", b"1", 1)
    (first,) = client.messages()
    town["A"].network.moving.plans.move(b"c", "C")
    town.settle()
    client.subscribe("u", 1)
    client.send(Puback(first.packet_id))
    town.pass_time(1)
    assert not client.wire.closed
    town["B"].join("q").publish("u", b"2", 1)
    town["B"].join("q").publish("t", b"3", 1)
    assert client.payloads() == [b"2", b"3"], "its window is open again"
    assert b"c" not in town["C"].broker.sessions


# -- wills --


def test_its_will_is_not_published_if_it_comes_there_or_back(strategy: str) -> None:
    for where in "AC":
        town = row(strategy)
        listener = town["B"].join("w")
        listener.subscribe("gone", 1)
        called(town, will=Will("gone", b"", 1))
        town[where].resume("c", will=Will("gone", b"", 1))
        town.pass_time(20)
        assert listener.messages() == []


def test_its_will_is_published_once_if_it_comes_nowhere() -> None:
    town = row("subscription-flooding")
    listener = town["B"].join("w")
    listener.subscribe("gone", 1)
    called(town, will=Will("gone", b"", 1))
    town.pass_time(town.migration.patience_s - 1)
    assert listener.messages() == []
    town.pass_time(30)
    assert len(listener.messages()) == 1
    moving = town["A"].network.moving
    assert (moving.counters.rolled_back, moving.counters.did_not_come) == (1, 1)
    assert [one.reason for one in moving.plans.not_moved] == ["its client did not come there"]
    assert b"c" in town["A"].broker.sessions
    assert town["C"].resume("c").connack.session_present, "later it is a client that turns up elsewhere"


# -- somebody is gone --


def test_a_client_whose_new_node_is_gone_is_served_where_it_was_at_once() -> None:
    town = row("subscription-flooding")
    called(town)
    town.cut("B", "C")
    publish_at_every_qos(town, "A")
    client = town["A"].resume("c")
    assert client.payloads() == [b"A0", b"A+", b"A1", b"A2"]


def test_a_client_that_comes_to_a_new_node_that_was_started_again_finds_its_session() -> None:
    town = row("subscription-flooding")
    called(town)
    town.crash("C")
    town.connect("BC")
    publish_at_every_qos(town, "B")
    client = town["C"].resume("c")
    assert client.connack.session_present
    assert sorted(client.payloads())[-2:] == [b"B1", b"B2"]
    town.pass_time(1)
    assert town["A"].network.moving.counters.departed == 1


def test_a_client_whose_old_node_was_started_again_finds_its_session_at_the_new_one() -> None:
    town = row("subscription-flooding")
    called(town)
    publish_at_every_qos(town, "A")
    town.crash("A")
    town.connect("AB")
    client = town["C"].resume("c")
    assert client.connack.session_present
    assert client.payloads() == [b"A1", b"A2"]


@pytest.mark.parametrize("kind", [MigToAck, Pull])
def test_what_is_lost_on_the_way_is_said_again(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding")
    original = MoveManager.directed_came
    lost: list[object] = []

    def directed_came(moving: MoveManager, source: str, body: bytes) -> None:
        message = messages.decode(body)
        is_lost = isinstance(message, kind) and not getattr(message, "is_first", False) and not lost
        if is_lost:
            lost.append(message)
        else:
            original(moving, source, body)

    monkeypatch.setattr(MoveManager, "directed_came", directed_came)
    called(town)
    if kind is Pull:
        town.crash("C")
        town.connect("BC")
    client = town["C"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(3)
    assert lost
    assert not client.wire.closed
    assert b"c" in town["C"].broker.sessions


def test_an_offer_that_comes_after_one_that_was_taken_back_unheard_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new node did not hear that the first move was off; meanwhile the client wants to hear something else."""
    town = row("subscription-flooding")
    called(town)
    original = MoveManager.directed_came
    monkeypatch.setattr(
        MoveManager,
        "directed_came",
        lambda moving, source, body: (
            None if isinstance(messages.decode(body), MigAbort) else original(moving, source, body)
        ),
    )
    client = town["A"].resume("c")
    client.subscribe("u", 1)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    assert client.wire.closed
    town["B"].join("p").publish("u", b"1", 1)
    client = town["C"].resume("c")
    assert client.payloads() == [b"1"]
    town["B"].join("p").publish("u", b"2", 1)
    assert client.payloads() == [b"2"]


# -- who may come --


def _with_users(town: Town, name: str, *users: str) -> None:
    lines = [hash_password(user, "secret", random_bytes=bytes, hasher=QUICK) for user in users]
    text = "\n".join(lines)
    town[name].broker.access.authenticator = Authenticator(passwords=PasswordFile.parse(text, name))


def _name_rule(town: Town) -> None:
    town["C"].broker.access.rules = AccessList((), "allow", ["x-*"])


def _nobody_more(town: Town) -> None:
    town["C"].broker.limits = replace(town["C"].broker.limits, connections=0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda town: _with_users(town, "C", "another"), "it does not know user somebody"),
        (_name_rule, "it does not know user somebody"),
        (_nobody_more, "it has as many connections as it may"),
    ],
)
def test_a_client_that_would_not_be_let_in_is_not_sent(change: Callable[[Town], None], reason: str) -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town["A"].session("c").user = "somebody"
    _with_users(town, "C", "somebody")
    change(town)
    plans = town["A"].network.moving.plans
    plans.move(b"c", "C")
    town.pass_time(1)
    assert [(one.target, one.reason) for one in plans.not_moved] == [("C", reason)]
    assert not client.wire.closed
    town["B"].join("p").publish("t", b"1", 1)
    assert client.payloads() == [b"1"]


def test_a_client_that_is_refused_at_its_new_node_after_all_is_served_where_it_was() -> None:
    """Its password is another one there, which no node can know."""
    town = row("subscription-flooding")
    town["A"].resume("c").subscribe("t", 1)
    town["A"].session("c").user = "somebody"
    _with_users(town, "C", "somebody")
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    town["B"].join("p").publish("t", b"1", 1)
    refused = town["C"].dial()
    refused.send(Connect("c", False, username="somebody", password=b"wrong", properties={"session_expiry": 100}))
    town.settle()
    for connection, _ in town["C"].waiting_for_verdict:
        connection.fail(0x86, "wrong password")
    town.settle()
    assert refused.farewell() == 0x86
    town["A"].session("c").user = None
    assert town["A"].resume("c").payloads() == [b"1"]


# -- bounds --


def test_clients_on_their_way_do_not_hold_up_others_but_are_bounded() -> None:
    town = row("subscription-flooding", migration=MigrationSettings(at_once=1))
    plans = town["A"].network.moving.plans
    for number in range(WAITING_MAX + 1):
        town["A"].resume(f"c{number}")
    for number in range(WAITING_MAX):
        plans.move(b"c%d" % number, "C")
        town.pass_time(0.1)
    assert len(town["C"].network.moving.arrivals) == WAITING_MAX
    with pytest.raises(MigrationError, match=f"{WAITING_MAX} clients are on their way already"):
        plans.move(b"c%d" % WAITING_MAX, "C")


def test_what_is_kept_at_qos_0_for_a_client_on_its_way_is_bounded_and_the_rest_counted() -> None:
    town = row("subscription-flooding")
    called(town)
    publisher = town["A"].join("p")
    size, count = 10_000, 2 * WAITING_BYTES_MAX // 10_000
    for _ in range(count):
        publisher.publish("t/0", bytes(size))
    client = town["C"].resume("c")
    town.pass_time(1)
    kept = len(client.payloads())
    assert 5 < kept < WAITING_BYTES_MAX / size
    assert kept + sum(dropped(town).values()) == count


@pytest.mark.parametrize("unsaid", [b"\x30\x05\x00\x01t", b"\x32\x03\x00\x01t", b"\x30", b"\x30\xff\xff\xff\xff\x7f"])
def test_packets_that_are_no_messages_are_refused(unsaid: bytes) -> None:
    town = row("subscription-flooding")
    town["A"].resume("c").vanish()
    state = town["A"].session("c").state()
    with pytest.raises(LinkProtocolError):
        messages.decode(messages.encode(messages.MigSync(b"c", 1, 0, [], session=state, unsaid=unsaid)))
    whole = Publish("t", b"1").encode(5)
    messages.decode(messages.encode(messages.MigSync(b"c", 1, 0, [], session=state, unsaid=2 * whole)))
