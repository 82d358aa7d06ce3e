"""Wills: published when a client is lost, at the right time, once; taken along when it says goodbye."""

from __future__ import annotations

import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import Connect, Will
from sterna.broker.access.authorization import AccessRule

WILL = Will("will", b"gone", 1)


def delayed(delay_s: int) -> Will:
    return Will("will", b"gone", 1, properties={"will_delay": delay_s})


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


@pytest.fixture
def heir(node: LoneNode) -> Client:
    heir = node.join("heir")
    heir.subscribe("will", 2)
    return heir


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_client_leaves_its_will(node: LoneNode, heir: Client, version: int, qos: int) -> None:
    node.join("mortal", version, will=Will("will", b"gone", qos)).vanish()
    assert [(m.payload, m.qos) for m in heir.messages()] == [(b"gone", qos)]


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_says_goodbye_takes_its_will_along(node: LoneNode, heir: Client, version: int) -> None:
    node.join("mortal", version, will=WILL).leave()
    node.pass_time(1000)
    assert heir.payloads() == []


def test_a_client_may_ask_for_its_will_in_saying_goodbye(node: LoneNode, heir: Client) -> None:
    node.join("mortal", will=WILL).leave(0x04)
    assert heir.payloads() == [b"gone"]


def test_what_breaks_the_protocol_leaves_its_will(node: LoneNode, heir: Client) -> None:
    node.join("mortal", will=WILL).send(b"\xf3\xff\xff\xff\xff")
    node.settle()
    assert heir.payloads() == [b"gone"]


def test_a_delayed_will_waits_and_comes_once(node: LoneNode, heir: Client) -> None:
    node.join("mortal", clean=False, will=delayed(10), session_expiry=100).vanish()
    node.pass_time(9)
    assert heir.payloads() == []
    node.pass_time(1)
    assert heir.payloads() == [b"gone"]
    node.pass_time(1000)
    assert heir.payloads() == []


def test_a_client_that_returns_in_time_keeps_its_will_to_itself(node: LoneNode, heir: Client) -> None:
    node.join("mortal", clean=False, will=delayed(10), session_expiry=100).vanish()
    node.pass_time(5)
    node.resume("mortal")
    node.pass_time(1000)
    assert heir.payloads() == []


def test_a_delayed_will_comes_at_the_latest_when_the_session_ends(node: LoneNode, heir: Client) -> None:
    node.join("mortal", clean=False, will=delayed(50), session_expiry=20).vanish()
    node.pass_time(19)
    assert heir.payloads() == []
    node.pass_time(1)
    assert heir.payloads() == [b"gone"]


def test_a_delayed_will_without_a_session_to_outlive_comes_at_once(node: LoneNode, heir: Client) -> None:
    node.join("mortal", will=delayed(50)).vanish()
    assert heir.payloads() == [b"gone"]


def test_starting_anew_ends_the_old_session_and_publishes_its_will(node: LoneNode, heir: Client) -> None:
    node.join("mortal", clean=False, will=delayed(50), session_expiry=100).vanish()
    node.join("mortal", clean=True)
    assert heir.payloads() == [b"gone"]


@pytest.mark.parametrize(
    ("will", "clean", "expected"), [(WILL, False, 1), (delayed(9), False, 0), (delayed(9), True, 1)]
)
def test_taking_over_counts_as_losing_the_old_connection(
    node: LoneNode, heir: Client, will: Will, clean: bool, expected: int
) -> None:
    node.join("mortal", clean=False, will=will, session_expiry=100)
    node.join("mortal", clean=clean, session_expiry=100)
    node.pass_time(1000)
    assert heir.payloads() == [b"gone"] * expected


def test_a_will_carries_its_properties_and_counts_its_expiry_from_its_publication(node: LoneNode) -> None:
    heir = node.resume("heir")
    heir.subscribe("will", 1)
    heir.leave()
    will = Will(
        "will", b"gone", 1, properties={"message_expiry": 30, "content_type": "c", "user_property": [("a", "b")]}
    )
    mortal = node.join("mortal", will=will)
    node.pass_time(60)
    mortal.vanish()
    node.pass_time(10)
    (message,) = node.resume("heir").messages()
    assert message.properties == {"message_expiry": 20, "content_type": "c", "user_property": [("a", "b")]}


def test_a_retained_will_is_retained(node: LoneNode) -> None:
    node.join("mortal", will=Will("will", b"gone", 1, True)).vanish()
    late = node.join("late")
    late.subscribe("will")
    assert [(m.payload, m.retain) for m in late.messages()] == [(b"gone", True)]


@pytest.mark.parametrize(
    ("will", "code"),
    [
        (Will("a/+", b""), 0x81),
        (Will("", b""), 0x82),
        (Will("a/" * 200, b""), 0x90),
        (Will("$SYS/x", b""), 0x87),
        (Will("forbidden", b""), 0x87),
        (Will("t", b"\xff", properties={"payload_format": 1}), 0x99),
    ],
)
def test_a_will_that_could_not_be_published_is_refused_with_the_connection(will: Will, code: int) -> None:
    node = LoneNode(rules=(AccessRule(("*",), ("forbidden",), "publish", "deny"),))
    client = node.dial()
    client.send(Connect("mortal", will=will))
    node.settle()
    assert client.farewell() == code
    assert node.broker.sessions == {}


def test_shutting_down_publishes_the_wills_of_those_who_do_not_come_back(node: LoneNode, heir: Client) -> None:
    mortal = node.join("mortal", will=Will("will", b"gone", 1, True))
    node.broker.lifecycle.shut_down()
    node.settle()
    assert mortal.farewell() == 0x8B
    kept = node.broker.retained.get(b"will")
    assert kept is not None
    assert kept.payload == b"gone"
