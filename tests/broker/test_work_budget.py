"""No client holds the loop: dear work is done a turn's worth at a time, in order, and others are heard in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import Pingresp, Puback, Publish, Suback, Subscribe, Unsuback, Unsubscribe
from sterna.broker import work_budget
from sterna.broker.limits import Limits

#: The dearest single step there is: an overrun of a turn is never more.
STEP_MAX = 2 * work_budget.TURN // 4 + work_budget.FILTER + work_budget.PACKET


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


def back_and_forth(count: int, version: int = 5) -> bytes:
    """Subscribe to a wildcard and unsubscribe again, that often."""
    packets: list[Subscribe | Unsubscribe] = []
    for number in range(count):
        packets += [Subscribe(2 * number + 1, [("+/x", 0)]), Unsubscribe(2 * number + 2, ["+/x"])]
    return b"".join(packet.encode(version) for packet in packets)


def test_dear_packets_in_one_piece_are_taken_over_several_turns_in_order(node: LoneNode) -> None:
    client = node.join("c")
    client.send(back_and_forth(300))
    node.broker.flush()
    answered = len(client.wire.written)
    turns = 0
    while node.broker.turns:
        assert not client.wire.reading
        node.take_turn()
        node.broker.flush()
        assert len(client.wire.written) > answered
        answered = len(client.wire.written)
        turns += 1
        assert node.broker.work_budget.spent <= work_budget.TURN + STEP_MAX
    assert turns > 3
    assert client.wire.reading
    answers = client.received()
    assert [answer.packet_id for answer in answers if isinstance(answer, (Suback, Unsuback))] == list(range(1, 601))


def test_what_comes_while_a_client_is_held_back_waits_behind(node: LoneNode) -> None:
    client = node.join("c")
    client.send(back_and_forth(300), b"\xc0")
    client.send(b"\x00", Subscribe(1000, [("t", 0)]))
    assert client.wire.written.count(b"\xd0\x00") == 0
    node.settle()
    *_, pong, last = client.received()
    assert isinstance(pong, Pingresp)
    assert isinstance(last, Suback)
    assert last.packet_id == 1000


def test_clients_take_turns(node: LoneNode) -> None:
    clients = [node.join(name) for name in "abc"]
    for client in clients:
        client.send(back_and_forth(300))
    node.broker.flush()
    for _ in range(6):
        node.take_turn()
    node.broker.flush()
    answered = [len(client.received()) for client in clients]
    assert max(answered) - min(answered) <= 2
    late = node.join("late")  # joining lets the others finish; it is served like them
    assert late.connack.code == 0
    assert [len(client.received()) + before for client, before in zip(clients, answered, strict=True)] == [600] * 3


def test_the_next_turn_begins_only_when_time_is_told_again(node: LoneNode) -> None:
    client = node.join("c")
    client.send(back_and_forth(300))
    node.take_turn()
    packets = node.broker.counters.packets_received
    node.broker.handle_deadlines(node.now)
    assert node.broker.counters.packets_received == packets
    node.take_turn()
    assert node.broker.counters.packets_received > packets


@pytest.mark.parametrize("packet", [b"\xc0\x00", Publish("t", b"", 1, packet_id=1).encode(4)])
def test_cheap_packets_are_bounded_too(node: LoneNode, packet: bytes) -> None:
    client = node.join("c", 4)
    client.send(packet * 2000)
    assert node.broker.counters.packets_received <= work_budget.TURN // work_budget.PACKET + 1
    node.settle()
    assert len([answer for answer in client.received() if isinstance(answer, (Pingresp, Puback))]) == 2000


def test_topics_nobody_has_used_yet_are_bounded_too(node: LoneNode) -> None:
    writer, reader = node.join("writer"), node.join("reader")
    reader.subscribe("#")
    writer.send(*(Publish(f"t/{number}", b"%d" % number) for number in range(2000)))
    assert len(node.broker.routes.remembered) < 500
    node.settle()
    assert reader.payloads() == [b"%d" % number for number in range(2000)]


def test_publications_that_go_straight_through_are_never_held_back(node: LoneNode) -> None:
    writer, reader = node.join("writer"), node.join("reader")
    reader.subscribe("#")
    writer.publish("a")
    writer.publish("b")
    reader.received()
    writer.send(*(Publish("ab"[number % 2], b"x") for number in range(10_000)))
    assert writer.wire.reading
    assert not node.broker.turns
    node.settle()
    assert len(reader.payloads()) == 10_000


def test_a_client_that_vanishes_is_not_worked_for_any_more(node: LoneNode) -> None:
    client = node.join("c")
    client.send(back_and_forth(300))
    node.broker.flush()
    client.wire.closed = True
    client.connection.lost()
    packets = node.broker.counters.packets_received
    node.take_turn()
    assert not node.broker.turns
    assert node.broker.counters.packets_received == packets
    assert node.broker.routes.size == 0


def test_a_mistake_found_in_a_later_turn_ends_the_connection_with_its_code(node: LoneNode) -> None:
    client = node.join("c")
    client.send(Subscribe(1, [*((f"t/{number}", 0) for number in range(500)), ("a/#/b", 0), ("z", 0)]))
    assert not client.wire.closed
    node.settle()
    assert client.farewell() == 0x81
    assert node.broker.routes.size == 0


def test_one_packet_with_many_filters_takes_several_turns_and_one_answer(node: LoneNode) -> None:
    client = node.join("c")
    client.send(Subscribe(1, [(f"t/{number}", 1) for number in range(1000)]), b"\xc0\x00")
    assert node.broker.routes.size < 300
    while node.broker.turns:
        node.take_turn()
        assert node.broker.work_budget.spent <= work_budget.TURN + STEP_MAX
    node.settle()
    answer, pong = client.received()
    assert isinstance(answer, Suback)
    assert answer.codes == [1] * 1000
    assert isinstance(pong, Pingresp)
    client.send(Unsubscribe(2, [f"t/{number}" for number in range(1000)]))
    assert node.broker.routes.size > 700
    node.settle()
    (done,) = client.received()
    assert isinstance(done, Unsuback)
    assert done.codes == [0] * 1000


@pytest.mark.parametrize("first", ["journal", "turn"])
def test_who_is_not_listened_to_for_two_reasons_is_read_from_when_both_are_gone(node: LoneNode, first: str) -> None:
    client = node.join("c")
    client.send(back_and_forth(100))
    node.broker.backpressure.pause(client.connection)
    ends: dict[str, Callable[[], object]] = {"journal": node.broker._resume_reading, "turn": lambda: finish(node)}
    for place, end in enumerate(sorted(ends, key=lambda name: name != first)):
        assert not client.wire.reading
        ends[end]()
        assert client.wire.reading == (place == 1)


def finish(node: LoneNode) -> None:
    while node.broker.turns:
        node.take_turn()


def test_a_client_held_back_does_not_lose_its_keep_alive(node: LoneNode) -> None:
    client = node.join("c", keep_alive=10)
    client.send(back_and_forth(1000))
    for _ in range(5):
        node.now += 9
        node.broker.handle_deadlines(node.now)
    assert node.broker.turns
    assert not client.wire.closed


def test_more_than_a_packet_may_wait_behind_a_client_held_back() -> None:
    node = LoneNode(Limits(packet_bytes=1000))
    client, reader = node.join("c"), node.join("reader")
    reader.subscribe("t")
    client.send(back_and_forth(300))
    for _ in range(4):
        client.send(Publish("t", b"x" * 500))
    node.settle()
    assert not client.wire.closed
    assert len(reader.payloads()) == 4


# -- retained messages --


def keep(node: LoneNode, count: int, qos: int) -> None:
    writer = node.join("keeper")
    for start in range(0, count, 100):
        for number in range(start, start + 100):
            writer.send(Publish(f"r/{number}", b"%d" % number, qos, True, packet_id=number + 1 if qos else 0))
        node.settle()


def enter(node: LoneNode, lasting: bool) -> Client:
    return node.resume("reader", receive_maximum=65535) if lasting else node.join("reader", receive_maximum=65535)


def begin(node: LoneNode, reader: Client, qos: int, *packets: Unsubscribe) -> None:
    """Subscribe, and let everything be written that has to be before the messages come."""
    reader.send(Subscribe(1, [("r/+", qos)]), *packets)
    while node.broker.commitments.pending:
        node.finish(node.broker.commitments.close())
    node.broker.flush()


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_many_retained_messages_come_over_several_turns_each_once(qos: int, lasting: bool) -> None:
    node = LoneNode(Limits(inflight=65535))
    keep(node, 2000, qos)
    reader = enter(node, lasting)
    begin(node, reader, qos)
    turns = 0
    while node.broker.turns:
        sent = node.broker.counters.publish_sent
        node.take_turn()
        assert node.broker.work_budget.spent <= work_budget.TURN + STEP_MAX
        if not (qos and lasting):  # those wait in the session's queue, and its window bounds what is sent at once
            assert node.broker.counters.publish_sent - sent <= work_budget.TURN // work_budget.MESSAGE + 1
        turns += 1
    assert turns > 3
    node.settle()
    first, *rest = reader.received()
    assert isinstance(first, Suback)
    assert [p.payload for p in rest if isinstance(p, Publish) and p.retain] == [b"%d" % n for n in range(2000)]
    assert len(node.broker.retained._observers) == 0


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_replaces_one_not_yet_sent_comes_once_and_one_taken_back_never(qos: int, lasting: bool) -> None:
    node = LoneNode(Limits(inflight=65535))
    keep(node, 2000, qos)
    reader, writer = enter(node, lasting), node.join("writer")
    begin(node, reader, qos)
    for number in (5, 1999):
        writer.send(Publish(f"r/{number}", b"new %d" % number, qos, True, packet_id=number if qos else 0))
    writer.send(Publish("r/1998", b"", qos, True, packet_id=1 if qos else 0))
    writer.send(Publish("r/another", b"another", qos, True, packet_id=2 if qos else 0))
    node.settle()
    found = [packet for packet in reader.received() if isinstance(packet, Publish)]
    assert [p.payload for p in found if p.topic == "r/1999"] == [b"new 1999"]
    assert [p.payload for p in found if p.topic == "r/5"][-1] == b"new 5"
    assert [p.payload for p in found if p.topic == "r/1998"] == [b""]
    assert [p.payload for p in found if p.topic == "r/another"] == [b"another"]
    assert len({p.topic for p in found}) == 2001


def test_unsubscribing_waits_for_what_the_subscription_brings(node: LoneNode) -> None:
    keep(node, 2000, 0)
    reader = node.join("reader")
    begin(node, reader, 0, Unsubscribe(2, ["r/+"]))
    assert reader.connection.session is not None
    assert len(reader.connection.session.subscriptions) == 1
    node.settle()
    suback, *messages, unsuback = reader.received()
    assert isinstance(suback, Suback)
    assert isinstance(unsuback, Unsuback)
    assert len(messages) == 2000


def test_a_lasting_session_that_unsubscribes_before_its_subscription_is_safe_gets_nothing(node: LoneNode) -> None:
    keep(node, 100, 1)
    reader = node.resume("reader")
    reader.send(Subscribe(1, [("r/+", 1)]), Unsubscribe(2, ["r/+"]))
    node.settle()
    assert sorted(type(packet).__name__ for packet in reader.received()) == ["Suback", "Unsuback"]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_client_that_vanishes_in_the_middle_leaves_nothing_behind(lasting: bool) -> None:
    node = LoneNode()
    keep(node, 2000, 1)
    reader = enter(node, lasting)
    begin(node, reader, 1)
    node.take_turn()
    node.broker.flush()
    reader.vanish()
    assert not node.broker.turns
    assert len(node.broker.retained._observers) == 0


def test_a_client_taken_over_in_the_middle_is_not_worked_for_twice() -> None:
    node = LoneNode(Limits(inflight=65535))
    keep(node, 2000, 1)
    first = enter(node, lasting=True)
    begin(node, first, 1)
    node.take_turn()
    second = enter(node, lasting=True)
    second.send(Subscribe(1, [("r/+", 1)]))
    node.settle()
    found = [packet.payload for packet in second.messages()]
    assert set(found) == {b"%d" % number for number in range(2000)}


def test_a_client_that_reads_again_catches_up_over_several_turns() -> None:
    node = LoneNode()
    keep(node, 2000, 0)
    reader = node.join("reader")
    reader.connection.congested()
    reader.subscribe("r/+")
    node.broker.work_budget.begin(node.now)
    reader.connection.writable()
    while node.broker.turns:
        sent = node.broker.counters.publish_sent
        node.take_turn()
        assert 0 < node.broker.counters.publish_sent - sent <= work_budget.TURN // work_budget.MESSAGE + 1
    node.broker.flush()
    assert reader.payloads() == [b"%d" % number for number in range(2000)]
    assert node.session("reader").retained_backlog is None


def test_clients_take_turns_with_what_is_retained(node: LoneNode) -> None:
    keep(node, 2000, 0)
    readers = [node.join(name) for name in "ab"]
    for reader in readers:
        begin(node, reader, 0)
    for _ in range(4):
        node.take_turn()
    node.broker.flush()
    first, second = (len(reader.received()) for reader in readers)
    assert abs(first - second) <= work_budget.TURN // work_budget.MESSAGE  # what one of them got in one turn more


def test_a_look_that_finds_nothing_is_bounded_too(node: LoneNode) -> None:
    writer = node.join("keeper")
    for number in range(5000):
        writer.send(Publish(f"r/{number}/x", b"x", 0, True))
    node.settle()
    reader = node.join("reader")
    reader.send(Subscribe(1, [("r/+/y", 0)]))
    turns = 0
    while node.broker.turns:
        node.take_turn()
        assert node.broker.work_budget.spent <= work_budget.TURN + STEP_MAX
        turns += 1
    assert turns >= 5000 * work_budget.LOOK // work_budget.TURN
    node.settle()
    (answer,) = reader.received()
    assert isinstance(answer, Suback)


def test_work_that_goes_wrong_does_not_hold_up_who_is_behind_it(node: LoneNode) -> None:
    def go_wrong() -> bool:
        raise ZeroDivisionError

    done: list[str] = []

    def go_right() -> bool:
        done.append("behind it")
        return True

    node.broker.turns.ask(go_wrong)
    node.broker.turns.ask(go_right)
    with pytest.raises(ZeroDivisionError):
        node.take_turn()
    node.take_turn()
    assert done == ["behind it"]
    assert not node.broker.turns


def test_messages_that_many_expressions_take_are_taken_over_several_turns(node: LoneNode) -> None:
    holders = [node.join(f"holder-{number}") for number in range(4)]
    taken = sum(holder.subscribe(f"$QUANTILE;0.{place:02}/t/+") == 0 for holder in holders for place in range(1, 61))
    assert taken > 150
    sensor, bystander = node.join("sensor"), node.join("bystander")
    bystander.subscribe("b")
    sensor.send(*(Publish("t/1", b"%d" % number) for number in range(50)))
    assert node.broker.turns, "all of them in one turn"
    bystander.send(Publish("b", b"answered"))
    node.broker.flush()
    assert bystander.payloads() == [b"answered"]
    assert node.broker.counters.publish_received < 50
    node.settle()
    assert node.broker.counters.publish_received == 51
