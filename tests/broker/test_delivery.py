"""From a message to its subscribers: QoS, windows, order, aliases, expiry and what is sent again."""

from __future__ import annotations

import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import (
    NO_LOCAL,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
)
from sterna.broker.limits import Limits

QOS = [0, 1, 2]


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


@pytest.fixture
def writer(node: LoneNode) -> Client:
    return node.join("writer")


# -- fan-out --


@pytest.mark.parametrize("published", QOS)
@pytest.mark.parametrize("granted", QOS)
@pytest.mark.parametrize("version", [4, 5])
def test_a_message_comes_at_the_lower_of_both_qos(
    node: LoneNode, writer: Client, published: int, granted: int, version: int
) -> None:
    reader = node.join("reader", version)
    reader.subscribe("t", granted)
    writer.publish("t", b"x", published)
    assert reader.messages() == [Publish("t", b"x", min(published, granted))]


@pytest.mark.parametrize("published", QOS)
def test_overlapping_subscriptions_deliver_once_at_the_highest_qos(
    node: LoneNode, writer: Client, published: int
) -> None:
    reader = node.join("reader", 4)
    for topic_filter, granted in [("a/#", 0), ("a/+", 2), ("a/b", 1)]:
        reader.subscribe(topic_filter, granted)
    writer.publish("a/b", b"x", published)
    assert [(m.payload, m.qos) for m in reader.messages()] == [(b"x", published)]


@pytest.mark.parametrize("published", QOS)
def test_all_identifiers_of_overlapping_subscriptions_come_along(
    node: LoneNode, writer: Client, published: int
) -> None:
    reader = node.join("reader")
    reader.subscribe("a/#", 1, subscription_id=[1])
    reader.subscribe("a/+", 1, subscription_id=[200])
    reader.subscribe("a/b", 1)
    writer.publish("a/b", b"x", published)
    (message,) = reader.messages()
    assert sorted(message.properties["subscription_id"]) == [1, 200]


@pytest.mark.parametrize("qos", QOS)
def test_no_local_concerns_ones_own_messages_only(node: LoneNode, writer: Client, qos: int) -> None:
    writer.subscribe("t", qos | NO_LOCAL)
    other = node.join("other")
    other.subscribe("t", qos)
    writer.publish("t", b"own", qos)
    other.publish("t", b"foreign", qos)
    assert [m.payload for m in writer.messages()] == [b"foreign"]
    assert [m.payload for m in other.messages()] == [b"own", b"foreign"]


def test_a_run_of_qos_0_messages_reaches_readers_of_both_versions_in_order(node: LoneNode) -> None:
    readers = [node.join("v4", 4), node.join("v5", 5), node.join("careful", 5, maximum_packet_size=1000)]
    for reader in readers:
        reader.subscribe("t")
    payloads = [b"%03d" % number for number in range(50)]
    for version in (4, 5):
        writer = node.join(f"writer {version}", version)
        writer.publish("t", b"000")
        writer.send(*(Publish("t", payload) for payload in payloads))
        node.settle()
        for reader in readers:
            assert reader.payloads() == [b"000", *payloads]


@pytest.mark.parametrize("length", [100, 117, 118, 119, 120, 121, 122, 123, 124, 125, 130, 16_370, 16_377, 16_380])
@pytest.mark.parametrize("version", [4, 5])
def test_lengths_around_the_edges_of_the_length_field_are_translated_between_versions(
    node: LoneNode, version: int, length: int
) -> None:
    readers = [node.join("v4", 4), node.join("v5", 5)]
    for reader in readers:
        reader.subscribe("topic")
    writer = node.join("writer", version)
    writer.publish("topic", b"first")
    writer.send(Publish("topic", b"a" * length), Publish("topic", b"b" * length))
    node.settle()
    for reader in readers:
        assert reader.payloads() == [b"first", b"a" * length, b"b" * length]


def test_what_travels_with_a_message_arrives_unaltered_and_in_order(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader")
    reader.subscribe("t", 2)
    for qos in QOS:
        pairs = [("a", "1"), ("b", "2"), ("a", "3")]
        writer.publish(
            "t",
            b"{}",
            qos,
            payload_format=1,
            content_type="json",
            response_topic="r",
            correlation_data=b"\0\1",
            user_property=pairs,
        )
        (message,) = reader.messages()
        assert message.properties == {
            "payload_format": 1,
            "content_type": "json",
            "response_topic": "r",
            "correlation_data": b"\0\1",
            "user_property": pairs,
        }


@pytest.mark.parametrize("qos", QOS)
def test_a_payload_that_is_not_the_text_it_claims_to_be_is_refused(node: LoneNode, writer: Client, qos: int) -> None:
    reader = node.join("reader")
    reader.subscribe("t", 2)
    assert writer.publish("t", b"\xff", qos, payload_format=1) == (0x99 if qos else 0)
    assert reader.payloads() == []
    assert node.dropped("payload-format-invalid") == 1
    assert writer.publish("t", b"\xff", qos, payload_format=0) == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_learns_that_nobody_wanted_it(writer: Client, qos: int) -> None:
    assert writer.publish("nobody/reads/this", b"", qos) == 0x10


# -- the receiver's window --


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_is_in_flight_than_the_reader_allows(node: LoneNode, writer: Client, qos: int) -> None:
    reader = node.join("reader", receive_maximum=3)
    reader.subscribe("t", qos)
    payloads = [b"%d" % number for number in range(8)]
    for payload in payloads:
        writer.publish("t", payload, qos)
    received: list[bytes] = []
    while messages := reader.messages():
        assert len(messages) <= 3
        for message in messages:
            received.append(message.payload)
            if qos == 1:
                reader.send(Puback(message.packet_id))
            else:
                assert reader.say(Pubrec(message.packet_id)) == [Pubrel(message.packet_id)]
        if qos == 2:
            assert reader.payloads() == [], "the window opens with PUBCOMP, not before"
            reader.send(*(Pubcomp(message.packet_id) for message in messages))
        node.settle()
    assert received == payloads


def test_a_reader_that_refuses_a_qos_2_message_is_done_with_it(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader", receive_maximum=1)
    reader.subscribe("t", 2)
    for payload in (b"1", b"2"):
        writer.publish("t", payload, 2)
    (message,) = reader.messages()
    reader.send(Pubrec(message.packet_id, 0x80))
    node.settle()
    assert reader.payloads() == [b"2"]


def test_packet_identifiers_go_round_and_skip_those_in_flight(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader")
    reader.subscribe("t", 1)
    writer.publish("t", b"first", 1)
    node.session("reader").next_packet_id = 65535
    for payload in (b"2", b"3", b"4"):
        writer.publish("t", payload, 1)
    assert [m.packet_id for m in reader.messages()] == [1, 65535, 2, 3]


@pytest.mark.parametrize("kind", [Puback, Pubcomp])
def test_acknowledging_what_was_never_sent_changes_nothing(node: LoneNode, kind: type[Puback]) -> None:
    reader = node.join("reader")
    assert reader.say(kind(77)) == []
    assert not reader.wire.closed


def test_pubrec_for_what_was_never_sent_is_answered_so(node: LoneNode) -> None:
    assert node.join("reader").say(Pubrec(77)) == [Pubrel(77, 0x92)]


@pytest.mark.parametrize(("qos", "kind"), [(1, Pubrec), (2, Puback)])
def test_the_wrong_acknowledgement_ends_the_connection(
    node: LoneNode, writer: Client, qos: int, kind: type[Puback]
) -> None:
    reader = node.join("reader")
    reader.subscribe("t", qos)
    writer.publish("t", b"x", qos)
    reader.send(kind(1))
    assert reader.farewell() == 0x82


# -- slow and absent readers --


def test_a_slow_reader_loses_qos_0_counted_and_nothing_else(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader")
    reader.subscribe("t", 2)
    reader.connection.congested()
    for qos in QOS:
        writer.publish("t", b"%d" % qos, qos)
    assert reader.payloads() == []
    assert node.dropped("slow-consumer") == 1
    reader.connection.writable()
    node.settle()
    assert reader.payloads() == [b"1", b"2"]


def test_an_absent_reader_finds_what_waited_in_order(node: LoneNode, writer: Client) -> None:
    node_reader = node.resume("reader")
    node_reader.subscribe("t", 2)
    node_reader.leave()
    for number, qos in enumerate([1, 2, 0, 1, 2]):
        writer.publish("t", b"%d" % number, qos)
    assert node.dropped("offline") == 1
    reader = node.resume("reader")
    assert reader.connack.session_present
    messages = reader.messages()
    assert [m.payload for m in messages if m.qos == 1] == [b"0", b"3"]
    assert [m.payload for m in messages if m.qos == 2] == [b"1", b"4"]
    assert not any(m.dup for m in messages)


def test_a_message_that_expired_while_it_waited_is_not_sent(node: LoneNode, writer: Client) -> None:
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    reader.leave()
    writer.publish("t", b"short", 1, message_expiry=5)
    writer.publish("t", b"long", 1, message_expiry=50)
    node.pass_time(5)
    reader = node.resume("reader")
    (message,) = reader.messages()
    assert (message.payload, message.properties) == (b"long", {"message_expiry": 45})
    assert node.dropped("expired") == 1


# -- sending again --


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_acknowledged_comes_again_in_order_as_duplicate(node: LoneNode, version: int, qos: int) -> None:
    writer, reader = node.join("writer"), node.resume("reader", version)
    reader.subscribe("t", qos)
    for number in range(3):
        writer.publish("t", b"%d" % number, qos)
    first = reader.messages()
    reader.vanish()
    again = node.resume("reader", version).messages()
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in first]


def test_what_is_sent_again_is_not_overtaken_by_what_waited(node: LoneNode, writer: Client) -> None:
    reader = node.resume("reader", 4)
    reader.subscribe("t", 1)
    writer.publish("t", b"1", 1)
    reader.vanish()
    writer.publish("t", b"2", 1)
    reader = node.dial(4)
    reader.send(Connect("reader", False, 0))
    commit = node.broker.commitments.close()
    node.dial().send(Connect("another", False, 0, properties={"session_expiry": 9}))  # something waits for the disk
    node.finish(commit)
    node.settle()
    assert [m.payload for m in reader.messages()] == [b"1", b"2"]


def test_a_smaller_window_is_respected_when_sending_again(node: LoneNode, writer: Client) -> None:
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    for number in range(4):
        writer.publish("t", b"%d" % number, 1)
    reader.vanish()
    reader = node.resume("reader", receive_maximum=2)
    seen = []
    while messages := reader.messages():
        assert len(messages) <= 2
        seen += [m.payload for m in messages]
        reader.send(*(Puback(m.packet_id) for m in messages))
        node.settle()
    assert seen == [b"0", b"1", b"2", b"3"]


def test_acknowledging_from_memory_what_was_not_yet_sent_again_is_fine(node: LoneNode, writer: Client) -> None:
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    for number in range(3):
        writer.publish("t", b"%d" % number, 1)
    last = reader.messages()[-1]
    reader.vanish()
    reader = node.resume("reader", receive_maximum=1)
    (first,) = reader.messages()
    assert reader.say(Puback(last.packet_id)) == []
    assert [m.payload for m in reader.say(Puback(first.packet_id)) if isinstance(m, Publish)] == [b"1"]
    assert reader.say(Puback(2)) == []
    assert not node.session("reader").inflight


@pytest.mark.parametrize("version", [4, 5])
def test_after_pubrec_only_the_release_is_repeated(node: LoneNode, version: int) -> None:
    writer, reader = node.join("writer"), node.resume("reader", version)
    reader.subscribe("t", 2)
    writer.publish("t", b"x", 2)
    (message,) = reader.messages()
    assert reader.say(Pubrec(message.packet_id)) == [Pubrel(message.packet_id)]
    reader.vanish()
    reader = node.resume("reader", version)
    assert reader.received() == [Pubrel(message.packet_id)]
    assert reader.say(Pubcomp(message.packet_id)) == []
    reader.vanish()
    assert node.resume("reader", version).received() == []


def test_a_qos_2_message_sent_again_by_its_publisher_is_delivered_once(node: LoneNode) -> None:
    reader, writer = node.join("reader"), node.resume("writer")
    reader.subscribe("t", 2)
    assert writer.say(Publish("t", b"x", 2, packet_id=9)) == [Pubrec(9)]
    writer.vanish()
    writer = node.resume("writer")
    assert writer.say(Publish("t", b"x", 2, dup=True, packet_id=9)) == [Pubrec(9)]
    assert writer.say(Pubrel(9)) == [Pubcomp(9)]
    assert reader.payloads() == [b"x"]
    assert writer.say(Publish("t", b"y", 2, packet_id=9)) == [Pubrec(9)]
    assert reader.payloads() == [b"y"]
    assert writer.say(Pubrel(9), Pubrel(9)) == [Pubcomp(9), Pubcomp(9, 0x92)]


# -- the disk --


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_acknowledged_or_delivered_before_it_is_safe(node: LoneNode, writer: Client, qos: int) -> None:
    reader = node.join("reader")
    reader.subscribe("t", 2)
    writer.send(Publish("t", b"x", qos, packet_id=1))
    commit = node.broker.commitments.close()
    node.broker.flush()
    assert (writer.received(), reader.received()) == ([], [])
    node.finish(commit)
    node.settle()
    assert len(writer.received()) == len(reader.received()) == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_what_could_not_be_written_is_new_when_it_is_sent_again_and_keeps_its_place(node: LoneNode, qos: int) -> None:
    reader, writer = node.join("reader"), node.resume("writer")
    reader.subscribe("t", qos)
    writer.send(Publish("t", b"1", qos, packet_id=1))
    commit = node.broker.commitments.close()
    writer.send(Publish("t", b"2", qos, packet_id=2))  # comes while the first is being written
    node.broker.failed(commit, "disk full")
    node.settle()
    assert writer.farewell() == 0x88
    assert reader.received() == []
    writer = node.resume("writer")
    writer.send(*(Publish("t", b"%d" % n, qos, dup=True, packet_id=n) for n in (1, 2)))
    node.settle()
    assert reader.payloads() == [b"1", b"2"]


def test_a_bystander_does_not_notice_that_the_disk_failed(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader")
    reader.subscribe("t")
    writer.send(Publish("t", b"1", 1, packet_id=1))
    node.broker.failed(node.broker.commitments.close(), "disk full")
    node.join("another").publish("t", b"2")
    assert reader.payloads() == [b"2"]


# -- topic aliases --


def test_a_reader_that_takes_aliases_gets_each_topic_once(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader", topic_alias_maximum=2)
    reader.subscribe("#", 1)
    for topic in ("a", "b", "c", "a", "b", "c"):
        for qos in (0, 1):
            writer.publish(topic, topic.encode(), qos)
    known: dict[int, str] = {}
    topics = []
    for message in reader.messages():
        alias = message.properties.get("topic_alias", 0)
        assert alias <= 2
        if message.topic and alias:
            assert alias not in known
            known[alias] = message.topic
        topics.append(message.topic or known[alias])
        assert topics[-1].encode() == message.payload
    assert known == {1: "a", 2: "b"}


def test_aliases_do_not_outlive_the_connection(node: LoneNode, writer: Client) -> None:
    for expected in ("t", "t"):
        reader = node.join("reader", topic_alias_maximum=5)
        reader.subscribe("t")
        writer.publish("t", b"x")
        (message,) = reader.messages()
        assert (message.topic, message.properties) == (expected, {"topic_alias": 1})
        reader.vanish()


def test_a_publishers_alias_stands_for_its_topic_until_redefined(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader")
    reader.subscribe("#", 1)
    for topic, payload in [("a", b"1"), ("", b"2"), ("b", b"3"), ("", b"4")]:
        writer.publish(topic, payload, 1, topic_alias=1)
    assert [(m.topic, m.payload) for m in reader.messages()] == [("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")]


def test_an_alias_never_defined_ends_the_connection(node: LoneNode, writer: Client) -> None:
    writer.send(Publish("", b"x", properties={"topic_alias": 1}))
    assert writer.farewell() == 0x82


def test_an_empty_topic_without_alias_ends_the_connection(node: LoneNode, writer: Client) -> None:
    writer.send(Publish("", b"x"))
    assert writer.farewell() in (0x82, 0x90)


# -- packets too large for the reader --


@pytest.mark.parametrize("qos", QOS)
def test_a_packet_larger_than_the_reader_takes_is_dropped_counted_and_does_not_block(
    node: LoneNode, writer: Client, qos: int
) -> None:
    reader = node.join("reader", maximum_packet_size=60, receive_maximum=1)
    reader.subscribe("t", qos)
    writer.publish("t", b"x" * 100, qos)
    writer.publish("t", b"small", qos)
    assert reader.payloads() == [b"small"]
    assert node.dropped("packet-too-large") == 1


def test_a_reader_that_comes_back_taking_less_is_not_sent_what_is_too_large(node: LoneNode, writer: Client) -> None:
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    for payload in (b"x" * 100, b"small"):
        writer.publish("t", payload, 1)
    reader.vanish()
    assert node.resume("reader", maximum_packet_size=60).payloads() == [b"small"]


# -- subscribing --


def test_every_filter_of_a_subscribe_gets_its_own_answer(node: LoneNode) -> None:
    node = LoneNode(Limits(subscriptions_per_client=2))
    reader = node.join("reader")
    (answer,) = reader.say(Subscribe(1, [("a", 0), ("b", 2), ("c", 1), ("a", 1)]))
    assert getattr(answer, "codes", None) == [0, 2, 0x97, 1]


def test_a_disconnected_client_is_told_nothing_more(node: LoneNode, writer: Client) -> None:
    reader = node.join("reader")
    reader.subscribe("t", 1)
    reader.send(Disconnect())
    written = len(reader.wire.written)
    writer.publish("t", b"x", 1)
    reader.send(Publish("t", b"late", 1, packet_id=1))
    node.settle()
    assert len(reader.wire.written) == written


def test_a_message_with_the_longest_life_there_is_outlives_a_clock_that_is_behind() -> None:
    """Its own node's clock may be set back, and that of another node may be behind."""
    node = LoneNode()
    node.join("publisher").publish("t", b"old", retain=True, message_expiry=0xFFFFFFFF)
    node.broker.tell_time(node.now, node.wall - 100.0)
    subscriber = node.join("subscriber")
    subscriber.subscribe("t")
    (message,) = subscriber.messages()
    assert message.properties["message_expiry"] == 0xFFFFFFFF
