"""Every limit is kept: one test for each field, by the field's name, and a test that none is forgotten."""

from __future__ import annotations

import random
import sys
from dataclasses import fields

import argon2
import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Subscribe, Unsubscribe, Will
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.passwords import PasswordFile, hash_password
from sterna.broker.access.scram import METHODS
from sterna.broker.delivery.retained import RETAINED_BYTES
from sterna.broker.limits import Limits
from sterna.broker.session.subscriptions import memory_of
from sterna.operators.functions import Functions
from sterna.runtime.listeners.socket_quota import SocketQuota


def test_every_limit_has_a_test_here() -> None:
    tests = "\n".join(name for name in dir(sys.modules[__name__]) if name.startswith("test_limit_"))
    assert [field.name for field in fields(Limits) if f"test_limit_{field.name}__" not in tests] == []


def joined(client_id: str = "c", version: int = 5, **limits: int) -> tuple[LoneNode, Client]:
    node = LoneNode(Limits(**limits))
    return node, node.join(client_id, version)


def refused(node: LoneNode, client_id: str, version: int = 5) -> int | None:
    client = node.dial(version)
    client.send(Connect(client_id, clean=version == 4, properties={"session_expiry": 9} if version == 5 else {}))
    node.settle()
    return client.farewell()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("limit", [100, 127, 129, 130, 131, 1000])
def test_limit_packet_bytes__counts_the_whole_packet(version: int, limit: int) -> None:
    _, client = joined(version=version, packet_bytes=limit)
    largest = next(
        packet for size in range(limit, 0, -1) if len(packet := Publish("t", b"x" * size).encode(version)) <= limit
    )
    one_more = Publish("t", b"x" * (largest.count(b"x") + 1)).encode(version)
    client.send(largest)
    assert not client.wire.closed
    client.send(one_more[:5])  # its length alone is enough to refuse it
    assert client.farewell() == (0x95 if version == 5 else None)


def test_limit_packet_bytes__bounds_what_waits_for_connack() -> None:
    node = LoneNode(Limits(packet_bytes=1000))
    client = node.dial()
    client.send(Connect("c", False, properties={"session_expiry": 9}))
    for _ in range(6):
        client.send(Publish("t", b"x" * 200))
    assert client.wire.closed


def test_limit_client_messages_per_s__keeps_the_rest_unread() -> None:
    node, client = joined(client_messages_per_s=5)
    client.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(1, 9)))
    node.settle()
    assert sum(isinstance(packet, Puback) for packet in client.received()) == 5
    assert not client.wire.reading


def test_limit_client_bytes_per_s__counts_all_packets() -> None:
    node, client = joined(client_bytes_per_s=1000)
    client.send(*(Publish("t", b"x" * 500, 1, packet_id=number) for number in range(1, 9)))
    node.settle()
    assert sum(isinstance(packet, Puback) for packet in client.received()) < 4
    assert not client.wire.reading


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, 0x97)])
def test_limit_connections__refuses_one_more(version: int, code: int) -> None:
    node, first = joined(connections=1)
    assert refused(node, "d", version) == code
    first.leave()
    assert node.join("d", version).connack == Connack(0)


def test_limit_connections_per_address__refuses_one_more_of_that_address() -> None:
    refused: list[str] = []
    quota = SocketQuota(100, Limits(connections_per_address=2), refused.append)
    assert [quota.take("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert quota.take("192.0.2.2")
    assert all(quota.take("") for _ in range(5)), "Unix sockets have no address"
    quota.give_back("192.0.2.1")
    assert quota.take("192.0.2.1")
    assert refused == ["connections-per-address"]


@pytest.mark.parametrize("version", [4, 5])
def test_limit_connect_bytes__bounds_a_connect_and_no_other_packet(version: int) -> None:
    node = LoneNode(Limits(connect_bytes=300))
    stranger = node.dial(version)
    stranger.send(Connect("c", will=Will("t", b"x" * 300)).encode(version)[:5])  # its length alone is enough
    assert stranger.wire.closed
    client = node.join("c", version)
    client.send(Publish("t", b"x" * 1000))
    assert not client.wire.closed
    eager = node.dial(version)  # CONNECT and a larger packet in one piece
    eager.send(Connect("d").encode(version) + Publish("t", b"x" * 1000).encode(version))
    assert not eager.wire.closed


def test_limit_unauthenticated_bytes__is_for_all_strangers_together() -> None:
    node = LoneNode(Limits(unauthenticated_bytes=1000))
    unfinished = Connect("c", will=Will("t", b"x" * 500)).encode(5)[:-1]
    first, second = node.dial(), node.dial()
    first.send(unfinished)
    assert not first.wire.closed
    second.send(unfinished)
    assert second.wire.closed
    assert node.broker.connections.unauthenticated.held == len(unfinished), "nothing is kept of one that was refused"
    third = node.join("third")
    third.send(Publish("t", b"x" * 2000).encode(5)[:-1])
    assert not third.wire.closed, "a client that was let in is no stranger"
    first.vanish()
    assert node.broker.connections.unauthenticated.held == 0
    assert node.broker.counters.connections_refused == {"quota-exceeded": 1}


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, 0x97)])
def test_limit_sessions__refuses_one_more(version: int, code: int) -> None:
    node = LoneNode(Limits(sessions=2))
    for client_id in ("a", "b"):
        node.resume(client_id).leave()
    assert refused(node, "c", version) == code
    assert node.resume("a").connack.session_present
    assert sorted(node.broker.sessions) == [b"a", b"b"]


def test_limit_sessions_per_user__refuses_one_more_of_that_user_only() -> None:
    node = LoneNode(Limits(sessions_per_user=2), authenticator=Authenticator(certificates=True))

    def came(client_id: str, user: str) -> int | None:
        client = node.dial(certificate_name=user)
        client.send(Connect(client_id, False, properties={"session_expiry": 9}))
        node.settle()
        return None if not client.wire.closed else client.farewell()

    assert [came(name, "ada") for name in "abc"] == [None, None, 0x97]
    assert came("d", "bob") is None
    assert came("a", "ada") is None, "an old session is not one more"
    node.broker.lifecycle.end_session(node.broker.sessions[b"b"])
    assert came("c", "ada") is None


def test_limit_will_bytes__bounds_the_wills_of_all_sessions() -> None:
    node = LoneNode(Limits(will_bytes=1000))

    def came(client_id: str, size: int) -> int | None:
        client = node.dial()
        client.send(Connect(client_id, False, will=Will("t", b"x" * size), properties={"session_expiry": 9}))
        node.settle()
        return None if not client.wire.closed else client.farewell()

    assert [came("a", 600), came("b", 600)] == [None, 0x97]
    assert came("a", 700) is None, "another will in the place of its own"
    assert came("b", 200) is None
    assert came("a", 1) is None
    assert came("c", 700) is None
    for client_id in (b"a", b"b", b"c"):
        node.broker.lifecycle.end_session(node.broker.sessions[client_id])
    assert node.broker.state.holdings.wills.held == 0


@pytest.mark.parametrize("version", [4, 5])
def test_limit_session_expiry_s__is_the_longest_a_session_stays(version: int) -> None:
    node = LoneNode(Limits(session_expiry_s=30))
    client = node.resume("c", 5, session_expiry=1000) if version == 5 else node.resume("c", 4)
    client.vanish()
    node.pass_time(29)
    assert list(node.broker.sessions) == [b"c"]
    node.pass_time(1)
    assert node.broker.sessions == {}


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x97)])
def test_limit_subscriptions_per_client__refuses_one_more(version: int, code: int) -> None:
    node, client = joined(version=version, subscriptions_per_client=2)
    assert [client.subscribe(f, 1) for f in ("a", "$share/g/b", "c", "a")] == [1, 1, code, 1]
    client.unsubscribe("a")
    assert client.subscribe("c", 1) == 1
    assert node.broker.routes.size == 2


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x97)])
def test_limit_subscription_bytes_per_client__refuses_one_more(version: int, code: int) -> None:
    node, client = joined(version=version, subscription_bytes_per_client=2 * memory_of(b"12345678"))
    assert [client.subscribe(f, 1) for f in ("12345678", "12345678/", "1234567", "12345678", "a")] == [
        1,
        code,
        1,
        1,
        code,
    ]
    client.unsubscribe("1234567")
    assert client.subscribe("a", 1) == 1
    assert node.join("other").subscribe("12345678", 1) == 1
    client.leave()
    assert node.broker.routes.subscription_bytes == memory_of(b"12345678")


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x97)])
def test_limit_subscription_bytes__is_for_all_sessions_together(version: int, code: int) -> None:
    node, client = joined(version=version, subscription_bytes=2 * memory_of(b"ab"))
    other = node.join("other", version)
    assert (client.subscribe("ab", 1), other.subscribe("a", 1), client.subscribe("b", 1)) == (1, 1, code)
    other.leave()
    assert client.subscribe("b", 1) == 1


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x97)])
def test_limit_overlapping_filters__refuses_one_more_arrangement_of_wildcards(version: int, code: int) -> None:
    _, client = joined(version=version, overlapping_filters=2)
    asked = ["a/+", "b/+/c", "a/b", "a/#", "c/#", "+/b", "$share/g/a", "a/+", "d"]
    assert [client.subscribe(f, 1) for f in asked] == [1, 1, 1, 1, 1, code, code, 1, 1]
    for topic_filter in ("a/#", "c/#"):
        client.unsubscribe(topic_filter)
    assert client.subscribe("+/b", 1) == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_limit_filters_per_packet__ends_the_connection(version: int, kind: str) -> None:
    for count in (2, 3):
        node, client = joined(version=version, filters_per_packet=2)
        names = [f"t/{number}" for number in range(count)]
        packet = Subscribe(1, [(name, 0) for name in names]) if kind == "subscribe" else Unsubscribe(1, names)
        client.send(packet)
        node.settle()
        if count == 2:
            assert not client.wire.closed
        else:
            assert client.farewell() == (0x97 if version == 5 else None)
            assert node.broker.routes.size == 0


def test_limit_topic_levels__holds_for_names_filters_and_wills() -> None:
    node, client = joined(topic_levels=3)
    assert client.subscribe("a/b/c") == 0
    assert client.subscribe("a/b/c/d") == 0x8F
    assert client.subscribe("$share/g/a/b/c") == 0
    client.send(Publish("a/b/c", b"x"))
    client.send(Publish("a/b/c/d", b"x"))
    assert client.farewell() == 0x90
    other = node.dial()
    other.send(Connect("d", will=Will("a/b/c/d")))
    assert other.farewell() == 0x90


def test_limit_topic_bytes__holds_for_names_filters_and_wills() -> None:
    node, client = joined(topic_bytes=10)
    assert client.subscribe("x" * 10) == 0
    assert client.subscribe("x" * 11) == 0x8F
    client.send(Publish("x" * 11, b""))
    assert client.farewell() == 0x90
    other = node.dial()
    other.send(Connect("d", will=Will("x" * 11)))
    assert other.farewell() == 0x90


@pytest.mark.parametrize("version", [4, 5])
def test_limit_inflight__is_the_most_that_is_sent_unacknowledged(version: int) -> None:
    node, reader = joined(version=version, inflight=2)
    reader.subscribe("t", 1)
    writer = node.join("writer")
    for number in range(4):
        writer.publish("t", b"%d" % number, 1)
    assert reader.payloads() == [b"0", b"1"]
    reader.send(Puback(1))
    node.settle()
    assert reader.payloads() == [b"2"]


def test_limit_receive_maximum__ends_an_mqtt_5_connection_that_exceeds_it() -> None:
    _, client = joined(receive_maximum=2)
    client.send(*(Publish("t", b"", 1, packet_id=n) for n in (1, 2)))
    assert not client.wire.closed
    client.send(Publish("t", b"", 1, packet_id=3))
    assert client.farewell() == 0x93


def test_limit_receive_maximum__slows_a_3_1_1_client_down_without_loss() -> None:
    node, client = joined(version=4, receive_maximum=2)
    client.send(*(Publish("t", b"", 1, packet_id=n) for n in (1, 2, 3)))
    assert not client.wire.reading
    node.settle()
    assert client.wire.reading
    assert client.received() == [Puback(1), Puback(2), Puback(3)]


@pytest.mark.parametrize("version", [4, 5])
def test_limit_receive_maximum__bounds_qos_2_messages_that_are_not_released(version: int) -> None:
    _, client = joined(version=version, receive_maximum=2)
    assert client.say(*(Publish("t", b"", 2, packet_id=n) for n in (1, 2))) == [
        Pubrec(n, 0x10 if version == 5 else 0) for n in (1, 2)
    ]
    client.send(Publish("t", b"", 2, packet_id=3))
    assert client.farewell() == (0x93 if version == 5 else None)


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_limit_queued__drops_what_does_not_fit_and_counts_it(topic_filter: str) -> None:
    node = LoneNode(Limits(queued=2))
    reader = node.resume("reader")
    reader.subscribe(topic_filter, 1)
    reader.leave()
    writer = node.join("writer")
    for number in range(5):
        writer.publish("t", b"%d" % number, 1)
    assert node.dropped("queue-full") == 3
    assert node.resume("reader").payloads() == [b"0", b"1"]


def test_limit_output_bytes__stops_listening_to_a_client_that_does_not_read_its_answers() -> None:
    _, client = joined(output_bytes=100)
    client.wire.unsent = 201
    client.connection.congested()
    client.send(Publish("t", b""))
    assert not client.wire.reading
    client.wire.unsent = 0
    client.connection.writable()
    assert client.wire.reading


def test_limit_retained__refuses_one_more_topic() -> None:
    _, client = joined(retained=1)
    assert client.publish("a", b"x", 1, retain=True) == 0x10
    assert client.publish("b", b"x", 1, retain=True) == 0x97


def test_limit_retained_bytes__refuses_one_more_byte() -> None:
    _, client = joined(retained_bytes=RETAINED_BYTES + 2 + 9)
    assert client.publish("a", b"x" * 10, 1, retain=True) == 0x97
    assert client.publish("a", b"x" * 9, 1, retain=True) == 0x10


@pytest.mark.parametrize("where", ["connect", "will", "publish", "subscribe"])
def test_limit_user_properties__holds_in_every_packet(where: str) -> None:
    for count, allowed in [(2, True), (3, False)]:
        pairs = [("k", "v")] * count
        node, client = joined(user_properties=2)
        if where == "connect":
            client = node.dial()
            client.send(Connect("d", properties={"user_property": pairs}))
        elif where == "will":
            client = node.dial()
            client.send(Connect("d", will=Will("w", properties={"user_property": pairs})))
        elif where == "publish":
            client.send(Publish("t", properties={"user_property": pairs}))
        else:
            client.send(Subscribe(1, [("t", 0)], {"user_property": pairs}))
        node.settle()
        if allowed:
            assert not client.wire.closed
        else:
            assert client.farewell() == 0x97


def test_limit_topic_aliases__holds_both_ways() -> None:
    node, client = joined(topic_aliases=2)
    reader = node.join("reader", topic_alias_maximum=10)
    reader.subscribe("#")
    for topic in ("a", "b", "c"):
        client.publish(topic)
    assert [m.properties.get("topic_alias") for m in reader.messages()] == [1, 2, None]
    client.send(Publish("t", properties={"topic_alias": 2}))
    assert not client.wire.closed
    client.send(Publish("t", properties={"topic_alias": 3}))
    assert client.farewell() == 0x94


def test_limit_connect_s__closes_who_does_not_say_who_it_is() -> None:
    node = LoneNode(Limits(connect_s=5))
    silent, slow, ready = node.dial(), node.dial(), node.join("c")
    for byte in Connect("slow").encode(5)[:4]:
        slow.send(bytes([byte]))
        node.pass_time(1)
    assert not silent.wire.closed
    node.pass_time(1)
    assert silent.wire.closed
    assert slow.wire.closed
    assert not ready.wire.closed


def with_a_password() -> Authenticator:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    line = hash_password("ann", "ann's", random_bytes=random.Random(7).randbytes, scram_methods=METHODS, hasher=hasher)
    return Authenticator(passwords=PasswordFile.parse(line, "users"), nonce=lambda: "nonce")


def test_limit_connect_s__ends_who_does_not_go_on_with_its_authentication() -> None:
    node = LoneNode(Limits(connect_s=5), authenticator=with_a_password())
    client = node.dial()
    client.send(Connect("c", properties={"authentication_method": METHODS[0]}))
    node.pass_time(4)
    assert not client.wire.closed
    node.pass_time(1)
    assert client.farewell() == 0xA0


def test_limit_connect_s__is_not_for_those_who_wait_for_us() -> None:
    """A password is being checked where that may take its time."""
    node = LoneNode(Limits(connect_s=5), authenticator=with_a_password())
    client = node.dial()
    client.send(Connect("c", username="ann", password=b"ann's"))
    node.pass_time(6)
    ((connection, credentials),) = node.waiting_for_verdict
    connection.proceed_with(node.broker.access.authenticator.verify(credentials, now=node.wall))
    node.settle()
    assert client.take(Connack).code == 0


def test_limit_keep_alive_s__is_the_longest_silence_for_both_versions() -> None:
    node = LoneNode(Limits(keep_alive_s=10))
    clients = [node.join(f"{version}", version, keep_alive=1000) for version in (4, 5)]
    node.pass_time(15)
    assert all(client.wire.closed for client in clients)


@pytest.mark.parametrize(("version", "code"), [(4, 2), (5, 0x85)])
def test_limit_client_id_bytes__refuses_a_longer_one(version: int, code: int) -> None:
    node = LoneNode(Limits(client_id_bytes=8))
    assert node.join("x" * 8, version).connack == Connack(0)
    assert refused(node, "x" * 9, version) == code


def test_limit_inflight_bytes__is_what_may_be_on_its_way_and_a_larger_message_goes_alone() -> None:
    node, reader = joined(inflight_bytes=100)
    reader.subscribe("t", 1)
    writer = node.join("writer")
    for size in (60, 60, 60, 1000, 10):
        writer.publish("t", bytes(size), 1)
    for packet_id, expected in [(1, [60, 60]), (2, [60]), (3, [1000]), (4, []), (5, [10])]:
        assert [len(payload) for payload in reader.payloads()] == expected
        reader.send(Puback(packet_id))
        node.settle()
    assert node.session("c").inflight_bytes == 0


def test_limit_inflight_bytes__forgets_a_qos_2_message_the_client_has() -> None:
    node, reader = joined(inflight_bytes=100)
    reader.subscribe("t", 2)
    writer = node.join("writer")
    for _ in range(2):
        writer.publish("t", bytes(100), 2)
    assert len(reader.messages()) == 1
    reader.send(Pubrec(1))
    node.settle()
    assert node.session("c").inflight_bytes == 0
    assert [type(packet).__name__ for packet in reader.received()] == ["Pubrel"]
    reader.send(Pubcomp(1))
    node.settle()
    assert len(reader.messages()) == 1


def test_limit_shared_queued__bounds_what_waits_in_all_groups_and_leaves_each_its_part() -> None:
    node = LoneNode(Limits(shared_queued=20))
    greedy = node.resume("greedy")
    assert greedy.subscribe("$share/g/t", 1) == 1
    greedy.leave()
    writer = node.join("writer")
    for _ in range(30):
        writer.publish("t", b"", 1)
    assert node.broker.routes.waiting.messages == 10
    modest = node.resume("modest")
    modest.subscribe("$share/h/u", 1)
    modest.leave()
    for _ in range(30):
        writer.publish("u", b"", 1)
    assert len(node.broker.routes.shares()[1].queue) == 5
    assert node.dropped("queue-full") == 20 + 25
    node.pass_time(101)
    assert (node.broker.routes.waiting.messages, node.broker.routes.waiting.shares) == (0, 0)


def test_limit_expressions__bounds_those_of_all_clients_together() -> None:
    node, client = joined(expressions=2)
    assert [client.subscribe(f"$SUM/{name}") for name in "abc"] == [0, 0, 0x8F]
    assert node.join("other").subscribe("$SUM/a") == 0  # computed already


def test_limit_expressions_per_client__bounds_those_of_one() -> None:
    node, client = joined(expressions_per_client=2)
    assert [client.subscribe(f"$SUM/{name}") for name in "abca"] == [0, 0, 0x97, 0]
    assert node.join("other").subscribe("$SUM/c") == 0


def test_limit_overlapping_expressions__bounds_what_one_message_may_set_going() -> None:
    node, client = joined(overlapping_expressions=2)
    other = node.join("other")
    assert [client.subscribe("$SUM/a/+"), other.subscribe("$AVG/a/#")] == [0, 0]
    third = node.join("third")
    assert [third.subscribe(text) for text in ("$MAX/a/b", "$MAX/c")] == [0x8F, 0]
    other.unsubscribe("$AVG/a/#")
    assert third.subscribe("$MAX/a/b") == 0


def test_limit_overlapping_expressions__leaves_room_for_those_who_hold_few() -> None:
    node, greedy = joined(overlapping_expressions=8)
    assert [greedy.subscribe(f"$QUANTILE;0.{n}/x/#") for n in range(1, 6)] == [0, 0, 0, 0, 0x8F]
    second = node.join("second")
    assert [second.subscribe(f"$QUANTILE;0.{n}1/x/#") for n in range(1, 4)] == [0, 0, 0x8F]
    assert node.join("third").subscribe("$AVG/x/y") == 0
    greedy.unsubscribe("$QUANTILE;0.1/x/#")
    greedy.unsubscribe("$QUANTILE;0.2/x/#")
    assert second.subscribe("$QUANTILE;0.31/x/#") == 0


def computing(qos: int, **limits: int) -> LoneNode:
    """A node whose functions have room for two, and five messages for one of them."""
    functions = Functions()
    functions.register("LENGTH", None, "bytes")
    node = LoneNode(Limits(**limits), functions=functions)
    client = node.join("c")
    client.subscribe("$LENGTH/t", qos)
    for number in range(5):
        client.publish("t", b"%d" % number, qos)
    return node


@pytest.mark.parametrize("qos", [0, 1])
def test_limit_function_calls__bounds_what_waits_for_functions(qos: int) -> None:
    node = computing(qos, function_calls=1)
    assert (len(node.calls), node.broker.statistics().function_calls) == (2, 1)
    assert node.broker.statistics().expression_values == {"functions-busy": 2}


def test_limit_function_bytes__bounds_what_waits_for_functions_in_memory() -> None:
    node = computing(0, function_bytes=2)
    assert node.broker.statistics().expression_values == {"functions-busy": 1}
    assert node.broker.routes.computations.calls.waiting == 2
    assert computing(1, function_bytes=2).broker.routes.computations.calls.waiting == 3  # in the journal
