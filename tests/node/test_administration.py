"""Bans, users and access rules set by operators: at one node, at all of them, and at those that were away."""

from __future__ import annotations

from typing import Any

import argon2
import pytest

from broker.lone_node import LoneNode
from conformance.packets import Connack, Connect
from node.joined_nodes import Town
from sterna.broker import administration
from sterna.broker.access.access_register import EntryKind
from sterna.broker.access.passwords import hash_password
from sterna.mqtt.reasons import Reason
from sterna.node.access_sharing import COMPARED_S
from sterna.node.management import ROWS_MAX, Gathered, Management, NoOtherNodes
from sterna.node.node import Saved
from sterna.vocabulary.errors import LinkProtocolError

BAN: dict[str, Any] = {"until": None, "reason": "too loud"}
CHEAP = argon2.PasswordHasher(1, 8, 1)


def change(town: Town, at: str, kind: EntryKind, name: str, value: dict[str, Any] | None) -> Gathered:
    node = town[at]
    answers: list[Gathered] = []
    argument = administration.order(node.broker, at, kind, name, value)
    node.network.management.ask("change", argument, ROWS_MAX, answers.append)
    town.settle()
    (answer,) = answers
    return answer


def change_alone(node: LoneNode, kind: EntryKind, name: str, value: dict[str, Any] | None) -> int:
    taken = administration.change(node.broker, "", administration.order(node.broker, "", kind, name, value), 1)
    node.settle()
    return int(taken.rows[0]["disconnected"])


def credential(password: str) -> dict[str, Any]:
    line = hash_password("x", password, random_bytes=lambda size: bytes(size), hasher=CHEAP)
    return {"credential": line.partition(":")[2]}


def login(node: LoneNode, client_id: str, user: str | None, password: bytes | None, version: int = 5) -> int:
    """The code of the answer."""
    client = node.dial(version)
    client.send(Connect(client_id, True, 0, None, user, password))
    node.settle()
    while node.waiting_for_verdict:
        connection, credentials = node.waiting_for_verdict.pop()
        connection.proceed_with(node.broker.access.authenticator.verify(credentials, now=node.wall))
        node.settle()
    return client.take(Connack).code


@pytest.fixture
def town() -> Town:
    town = Town("ABC")
    town.connect("AB", "BC")
    return town


# -- bans --


@pytest.mark.parametrize("name", ["client:meter", "address:192.0.2.0/30", "user:ann"])
def test_a_banned_client_is_cut_off_at_every_node_and_kept_out(town: Town, name: str) -> None:
    inside = {node: town[node].join("meter" if node == "C" else f"other-{node}", username="ann") for node in "ABC"}
    answer = change(town, "A", "ban", name, BAN)
    cut = {row["node"]: row["disconnected"] for row in answer.rows}
    if name.startswith("address"):
        assert cut == {"A": 1, "B": 1, "C": 1}
    elif name.startswith("client"):
        assert cut == {"A": 0, "B": 0, "C": 1}
        assert inside["C"].farewell() == Reason.ADMINISTRATIVE_ACTION
        assert not inside["A"].wire.closed
    else:
        assert not any(cut.values()), "nobody checks names here, so nobody is ann"
    for node in "ABC":
        assert login(town[node], "meter", "ann", b"") == Reason.BANNED
        assert login(town[node], "meter", "ann", b"", version=4) == 5
    change(town, "B", "ban", name, None)
    for node in "ABC":
        assert login(town[node], "meter", "ann", b"") == Reason.SUCCESS


def test_every_node_says_whether_it_had_what_is_removed(town: Town) -> None:
    change(town, "A", "rule", "10-ovens", {"filters": ["plant/oven/#"], "effect": "deny"})
    mistyped = change(town, "B", "rule", "10-oven", None)
    assert {row["node"]: row["removed"] for row in mistyped.rows} == dict.fromkeys("ABC", False)
    assert all(row["removed"] for row in change(town, "B", "rule", "10-ovens", None).rows)
    assert not any(row["removed"] for row in change(town, "C", "rule", "10-ovens", None).rows)


def test_a_ban_ends_by_itself() -> None:
    node = LoneNode()
    node.join("meter")
    assert change_alone(node, "ban", "client:meter", {"until": node.wall + 10, "reason": ""}) == 1
    assert login(node, "meter", None, None) == Reason.BANNED
    (row,) = administration.bans(node.broker, "", "", 5).rows
    assert (row["name"], row["ends_in_s"]) == ("client:meter", pytest.approx(10, abs=0.2))
    node.pass_time(10.5)
    assert administration.bans(node.broker, "", "", 5).rows == []
    assert login(node, "meter", None, None) == Reason.SUCCESS


def test_a_node_that_was_away_gets_what_was_changed_meanwhile(town: Town) -> None:
    town.cut("B", "C")
    client = town["C"].join("meter")
    answer = change(town, "A", "ban", "client:meter", BAN)
    assert [row["node"] for row in answer.rows] == ["A", "B"]
    assert not client.wire.closed
    town.connect_now("BC")
    town.pass_time(1.5)
    assert client.farewell() == Reason.ADMINISTRATIVE_ACTION
    digests = {town[node].broker.access.register.digest() for node in "ABC"}
    assert len(digests) == 1


def test_two_changes_on_both_sides_of_a_cut_end_the_same_everywhere(town: Town) -> None:
    change(town, "A", "ban", "client:meter", BAN)
    town.cut("B", "C")
    change(town, "A", "ban", "client:lamp", BAN)
    town.pass_time(0.5)
    change(town, "C", "ban", "client:meter", None)
    change(town, "C", "ban", "client:lamp", {"until": None, "reason": "the later one"})
    town.connect("BC")
    town.pass_time(1.5)
    for node in "ABC":
        rows = administration.bans(town[node].broker, node, "", 5).rows
        assert [(row["name"], row["reason"]) for row in rows] == [("client:lamp", "the later one")]


def test_a_change_whose_letter_was_lost_comes_with_the_next_comparison(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(town["C"].network.management, "letter", lambda _sender, _body: None)
        node = town["A"]
        argument = administration.order(node.broker, "A", "ban", "client:meter", BAN)
        node.network.management.ask("change", argument, ROWS_MAX, lambda _gathered: None)
        town.settle()
    assert len(town["C"].broker.access.register) == 0
    town.pass_time(2 * COMPARED_S + 1)
    assert len(town["C"].broker.access.register) == 1


def test_a_large_register_reaches_a_new_node_in_pages(town: Town) -> None:
    town.cut("B", "C")
    node = town["A"]
    for number in range(1500):
        change_alone(node, "ban", f"client:{number:050d}", {"until": None, "reason": "x" * 150})
    town.connect("BC")
    town.pass_time(2.5)
    assert town["C"].broker.access.register.digest() == node.broker.access.register.digest()
    assert set(town["C"].network.links.links) == {"B"}


def test_nonsense_of_another_node_is_refused(town: Town) -> None:
    management = town["A"].network.management
    for argument in ("", "{}", '["ban","x",{},1,"B"]', '["ban","client:x",{"until":"never"},1,"B"]'):
        with pytest.raises(LinkProtocolError):
            administration.change(town["A"].broker, "A", argument, 1)
    for body in (b"\x93\x03\xc4\x11" + bytes(17) + b"\xc2", b"\x92\x04\x91\x95\xa3ban\xa1x\x80\x01\xa1B"):
        with pytest.raises(LinkProtocolError):
            management.letter("B", body)
    assert len(town["A"].broker.access.register) == 0


# -- users --


def test_a_user_is_set_changed_barred_and_reset_at_every_node(town: Town) -> None:
    change(town, "A", "user", "ann", credential("one"))
    for node in "ABC":
        assert login(town[node], f"c-{node}", "ann", b"one") == Reason.SUCCESS
        assert login(town[node], "x", "ann", b"two") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert sum(row["disconnected"] for row in change(town, "B", "user", "ann", credential("two")).rows) == 3
    for node in "ABC":
        assert login(town[node], f"c-{node}", "ann", b"one") == Reason.BAD_USER_NAME_OR_PASSWORD
        assert login(town[node], f"c-{node}", "ann", b"two") == Reason.SUCCESS
    (row,) = administration.users(town["C"].broker, "C", "", 5).rows
    assert (row["user"], row["set_by"], row["barred"], row["at_node"]) == ("ann", "command", False, "B")
    assert sum(row["disconnected"] for row in change(town, "C", "user", "ann", {"credential": ""}).rows) == 3
    for node in "ABC":
        assert login(town[node], f"c-{node}", "ann", b"two") == Reason.BAD_USER_NAME_OR_PASSWORD
    change(town, "C", "user", "ann", None)
    assert login(town["A"], "c", "ann", b"anything") == Reason.SUCCESS, "an open listener, as before"


# -- rules --


def test_a_rule_counts_at_once_for_clients_that_are_there(town: Town) -> None:
    subscriber, publisher = town["C"].join("subscriber"), town["A"].join("publisher")
    subscriber.subscribe("plant/#", 1)
    assert publisher.publish("plant/secret", b"1", 1) == Reason.SUCCESS
    deny = {"filters": ["plant/secret"], "effect": "deny"}
    change(town, "B", "rule", "10-secret", deny)
    assert publisher.publish("plant/secret", b"2", 1) == Reason.NOT_AUTHORIZED
    assert publisher.publish("plant/other", b"3", 1) == Reason.SUCCESS
    change(town, "C", "rule", "05-publisher", {"filters": ["plant/secret"], "client": ["publisher"]})
    assert publisher.publish("plant/secret", b"4", 1) == Reason.SUCCESS, "the first rule that fits decides"
    assert subscriber.payloads() == [b"1", b"3"], "it may not read what it may not receive"
    rows = administration.access_rules(town["A"].broker, "A", "", 9).rows
    assert [(row["name"], row["effect"]) for row in rows] == [
        ("05-publisher", "allow"),
        ("10-secret", "deny"),
        (None, "allow"),
    ]
    change(town, "A", "rule", "10-secret", None)
    change(town, "A", "rule", "05-publisher", None)
    publisher.publish("plant/secret", b"5", 1)
    assert subscriber.payloads() == [b"5"]


def test_a_check_names_the_rule_that_decides() -> None:
    node = LoneNode()
    change_alone(node, "rule", "r", {"filters": ["a/%u/#"], "user": ["ann"], "effect": "deny", "access": "publish"})

    def asked(request: str) -> tuple[bool, str]:
        (row,) = administration.check_access(node.broker, "", request, 1).rows
        return row["allowed"], row["reason"]

    assert asked('{"topic": "a/ann/x", "user": "ann"}') == (False, "rule 1 denies a/%u/#")
    assert asked('{"topic": "a/bob/x", "user": "ann"}')[0]
    assert asked('{"topic": "$share/g/a/ann/x", "user": "ann", "access": "subscribe"}')[0]
    for request in ("", "{}", '{"topic": 5}'):
        with pytest.raises(ValueError, match=r"Input|Object|Expected"):
            administration.check_access(node.broker, "", request, 1)


# -- after a restart --


def test_changes_outlive_a_crash_with_and_without_a_checkpoint(town: Town) -> None:
    change(town, "A", "ban", "client:meter", BAN)
    town.crash("C")
    assert login(town["C"], "meter", None, None) == Reason.BANNED


def test_changes_are_in_a_checkpoint_and_rights_are_those_of_the_rules() -> None:
    node = LoneNode()
    client = node.resume("meter")
    client.subscribe("plant/#", 1)
    change_alone(node, "rule", "r", {"filters": ["plant/secret"], "effect": "deny"})
    change_alone(node, "user", "ann", credential("one"))
    changes = node.node.changes()
    node.settle()
    saved = Saved(node.broker.journal.position, changes.sessions, changes.retained)
    again = LoneNode(store=node.store, saved=saved, epoch=2)
    again.settle()
    assert again.broker.access.register.digest() == node.broker.access.register.digest()
    assert not again.session("meter").permissions.may_publish(b"plant/secret")
    assert login(again, "c", "ann", b"two") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert login(again, "c", "ann", b"one") == Reason.SUCCESS


def test_a_lone_node_needs_nobody_else() -> None:
    node = LoneNode()
    node.join("meter")
    answers: list[Gathered] = []
    argument = administration.order(node.broker, "lone", "ban", "client:meter", BAN)
    Management("lone", node.broker, NoOtherNodes()).ask("change", argument, 5, answers.append)
    assert [answer.rows for answer in answers] == [[{"node": "lone", "disconnected": 1}]]


def test_nodes_without_such_entries_say_nothing_of_them(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[str] = []
    for node in "ABC":
        monkeypatch.setattr(town[node].network.router, "post", lambda to, *_: posted.append(to))
    town.cut("B", "C")
    town.connect("BC")
    town.pass_time(2 * COMPARED_S)
    assert posted == []
