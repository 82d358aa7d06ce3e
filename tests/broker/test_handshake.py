"""From CONNECT to CONNACK and on to the end: sessions found and begun, taken over, kept alive and given up."""

from __future__ import annotations

import pytest

from broker.lone_node import LoneNode
from conformance.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, Sent, Subscribe, Will
from sterna.broker.access.authorization import AccessRule
from sterna.broker.limits import Limits

BOTH = pytest.mark.parametrize("version", [4, 5])


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


# -- what the client is told --


def test_an_mqtt_5_client_is_told_every_limit_it_has_to_keep() -> None:
    node = LoneNode(Limits(receive_maximum=7, packet_bytes=1000, topic_aliases=3))
    told = node.join("c").connack.properties
    assert told == {"receive_maximum": 7, "maximum_packet_size": 1000, "topic_alias_maximum": 3}


@BOTH
def test_a_client_without_a_name_gets_one_of_its_own(node: LoneNode, version: int) -> None:
    first, second = node.join("", version), node.join("", version)
    assert len(node.broker.sessions) == 2
    names = [client.connack.properties.get("assigned_client_id") for client in (first, second)]
    if version == 5:
        assert set(names) == {name.decode() for name in node.broker.sessions}
    else:
        assert names == [None, None]


def test_a_3_1_1_client_without_a_name_cannot_have_a_lasting_session(node: LoneNode) -> None:
    client = node.dial(4)
    assert client.say(Connect("", clean=False)) == [Connack(2)]
    assert client.wire.closed


def test_a_longer_session_than_allowed_is_shortened_and_said_so() -> None:
    node = LoneNode(Limits(session_expiry_s=50))
    assert node.join("c", session_expiry=40).connack.properties.get("session_expiry") is None
    assert node.join("d", session_expiry=0xFFFFFFFF).connack.properties.get("session_expiry") == 50


# -- sessions --


@BOTH
def test_a_session_is_found_again_until_it_expires(version: int) -> None:
    node = LoneNode(Limits(session_expiry_s=100))
    first = node.resume("c", version)
    assert not first.connack.session_present
    first.subscribe("t", 1)
    first.leave()
    node.pass_time(99)
    again = node.resume("c", version)
    assert again.connack.session_present
    node.pass_time(1000)
    assert list(node.broker.sessions) == [b"c"], "a connected session does not expire"
    again.vanish()
    node.pass_time(100)
    assert node.broker.sessions == {}
    assert node.broker.routes.size == 0
    assert node.broker.counters.sessions_expired == 1
    assert not node.resume("c", version).connack.session_present


def test_a_session_used_in_between_does_not_expire_by_its_first_deadline(node: LoneNode) -> None:
    node.resume("c").leave()
    node.pass_time(60)
    node.resume("c").leave()
    node.pass_time(60)
    assert node.resume("c").connack.session_present


@BOTH
def test_a_clean_start_forgets_everything(node: LoneNode, version: int) -> None:
    first = node.resume("c", version)
    first.subscribe("t", 1)
    first.leave()
    node.join("writer").publish("t", b"x", 1)
    again = node.join("c", version)
    assert not again.connack.session_present
    assert again.payloads() == []
    assert node.broker.routes.size == 0


def test_a_client_may_change_its_mind_about_its_session_when_it_leaves(node: LoneNode) -> None:
    node.resume("c").leave(session_expiry=0)
    assert node.broker.sessions == {}
    node.join("d", session_expiry=5).leave(session_expiry=50)
    node.pass_time(49)
    assert list(node.broker.sessions) == [b"d"]


def test_sessions_that_begin_again_and_again_wait_for_one_end(node: LoneNode) -> None:
    """Each might have lived for long; what will look after the first of them looks after the last, too."""
    for _ in range(50):
        node.join("c", session_expiry=1000).leave()
        node.pass_time(1)
    node.pass_time(98)  # what was to happen if it had not said who it is
    assert len(node.broker.deadlines._heap) < 10
    node.pass_time(900)
    assert list(node.broker.sessions) == [b"c"]
    node.pass_time(1)
    assert node.broker.sessions == {}


def test_a_session_that_was_to_end_cannot_be_kept_by_a_disconnect(node: LoneNode) -> None:
    client = node.join("c")
    client.send(Disconnect(0, {"session_expiry": 5}))
    assert client.farewell() == 0x82
    assert node.broker.sessions == {}


# -- taking over --


@BOTH
@pytest.mark.parametrize("clean", [True, False])
def test_a_second_connection_takes_over(node: LoneNode, version: int, clean: bool) -> None:
    first = node.resume("c", version)
    first.subscribe("t")
    second = node.join("c", version, clean=clean)
    assert first.farewell() == (0x8E if version == 5 else None)
    assert second.connack.session_present == (not clean)
    node.join("writer").publish("t", b"x")
    assert second.payloads() == ([] if clean else [b"x"])
    assert node.broker.lifecycle.clients_connected == 2


def test_the_end_of_the_old_connection_does_not_concern_the_new_one(node: LoneNode) -> None:
    first = node.resume("c")
    second = node.resume("c")
    first.connection.lost()
    second.subscribe("t")
    assert node.broker.lifecycle.clients_connected == 1
    assert second.say(Pingreq()) == [Pingresp()]


def test_a_connection_taken_over_before_its_connack_hears_no_disconnect(node: LoneNode) -> None:
    first, second = node.dial(), node.dial()
    for client in (first, second):
        client.send(Connect("c", False, 0, properties={"session_expiry": 9}))
    node.settle()
    assert first.wire.closed
    assert first.received() == []
    assert second.take(Connack) == Connack(0, True)


def test_at_the_limit_of_connections_a_client_may_still_take_over_its_own() -> None:
    node = LoneNode(Limits(connections=1))
    node.resume("c")
    assert node.resume("c").connack.session_present


def test_another_user_does_not_get_the_session(node: LoneNode) -> None:
    node.resume("c")
    node.session("c").user = "ann"
    client = node.dial()
    client.send(Connect("c"))
    node.settle()
    assert client.farewell() == 0x87


# -- in one piece, in many pieces, too early, too late --


@BOTH
def test_a_conversation_may_arrive_byte_by_byte_or_all_at_once(version: int) -> None:
    packets: list[Sent] = [
        Connect("c", False, 0, Will("w", b"x"), properties={"session_expiry": 9} if version == 5 else {}),
        Subscribe(1, [("t", 2), ("u", 0)]),
        Publish("t", b"1"),
        Publish("t", b"x" * 200),
        Publish("t", b"2", 1, packet_id=2),
        Publish("u", b"3", 2, packet_id=3),
        Pingreq(),
    ]
    talk = b"".join(packet.encode(version) for packet in packets)
    answers = []
    for size in (1, 2, 3, 7, len(talk)):
        node = LoneNode()
        client = node.dial(version)
        for start in range(0, len(talk), size):
            client.send(talk[start : start + size])
            node.settle()
        answers.append(sorted(map(repr, client.received())))
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == 9


def test_what_a_client_sends_before_its_connack_is_not_lost(node: LoneNode) -> None:
    reader = node.join("reader")
    reader.subscribe("t")
    client = node.dial()
    client.send(Connect("c", False, 0, properties={"session_expiry": 9}))
    client.send(Publish("t", b"early"))
    assert client.received() == []
    node.settle()
    assert reader.payloads() == [b"early"]


@pytest.mark.parametrize("packet", [Publish("t"), Pingreq(), Subscribe(1, [("t", 0)]), Disconnect()])
@BOTH
def test_anything_before_connect_closes_the_connection_without_a_word(
    node: LoneNode, version: int, packet: Publish
) -> None:
    client = node.dial(version)
    client.send(packet)
    assert client.wire.closed
    assert client.received() == []


@BOTH
def test_a_second_connect_ends_the_connection(node: LoneNode, version: int) -> None:
    client = node.join("c", version)
    client.send(Connect("c"))
    assert client.farewell() == (0x82 if version == 5 else None)


@pytest.mark.parametrize("code", [0x80, 0x81, 0x82, 0x97])
def test_the_reason_of_a_disconnect_from_the_client_decides_nothing_but_the_will(node: LoneNode, code: int) -> None:
    client = node.join("c")
    client.leave(code)
    assert client.received() == []


# -- keep-alive --


@BOTH
def test_a_silent_client_is_given_up_after_one_and_a_half_intervals(node: LoneNode, version: int) -> None:
    client = node.join("c", version, keep_alive=10)
    node.pass_time(14)
    assert not client.wire.closed
    node.pass_time(1)
    assert client.farewell() == (0x8D if version == 5 else None)


def test_any_packet_keeps_a_client_alive(node: LoneNode) -> None:
    client = node.join("c", keep_alive=10)
    for _ in range(5):
        node.pass_time(14)
        assert client.say(Pingreq()) == [Pingresp()]
    node.pass_time(15)
    assert client.farewell() == 0x8D


def test_without_a_keep_alive_a_client_may_be_silent_for_ever(node: LoneNode) -> None:
    client = node.join("c", keep_alive=0)
    node.pass_time(1e6)
    assert client.say(Pingreq()) == [Pingresp()]


@pytest.mark.parametrize(("asked", "told"), [(0, 20), (21, 20), (20, None), (5, None)])
def test_the_servers_keep_alive_is_told_and_holds(asked: int, told: int | None) -> None:
    node = LoneNode(Limits(keep_alive_s=20))
    client = node.join("c", keep_alive=asked)
    assert client.connack.properties.get("server_keep_alive") == told
    node.pass_time(1.5 * (told or asked))
    assert client.farewell() == 0x8D


def test_a_peer_that_does_not_read_the_farewell_is_cut_off(node: LoneNode) -> None:
    client = node.join("c", keep_alive=10)
    node.pass_time(15)
    assert not client.wire.aborted
    node.pass_time(5)
    assert client.wire.aborted


# -- permissions --


def test_a_client_may_do_what_the_access_list_says_and_no_more() -> None:
    rules = (
        AccessRule(("*",), ("in/%c/#",), "publish"),
        AccessRule(("*",), ("out/%c/#",), "subscribe"),
        AccessRule(("*",), ("#",), "both", "deny"),
    )
    node = LoneNode(rules=rules)
    client = node.join("c")
    assert client.publish("in/c/x", b"", 1) in (0, 0x10)
    assert client.publish("in/d/x", b"", 1) == 0x87
    assert client.publish("in/d/x", b"", 2) == 0x87
    assert client.subscribe("out/c/+", 1) == 1
    assert client.subscribe("out/#", 1) == 0x87
    assert client.subscribe("$share/g/out/d/#", 1) == 0x87
    for _ in range(2):
        client.publish("in/d/x", b"")
    assert node.dropped("not-authorized") == 4
