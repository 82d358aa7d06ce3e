"""Identifiers that a node which crashed uses again: the client's answers are never given for another message."""

from __future__ import annotations

from sterna.gateway.deliveries import ANSWER, HOLD, PASS, SWALLOW, Deliveries
from sterna.mqtt.packets import PUBACK, PUBCOMP, PUBREC

ONCE, EXACTLY, REPEATED = 0x32, 0x34, 0x08


def interrupted(*packet_ids: int) -> Deliveries:
    """The client has these messages at QoS 1 and yet to answer; another one was answered.  The node is away."""
    deliveries = Deliveries(256)
    for packet_id in (1, *packet_ids):
        assert deliveries.publish(ONCE, packet_id) == PASS
    assert deliveries.acknowledge(PUBACK, 1, refused=False) == PASS
    deliveries.interrupted()
    return deliveries


def test_what_the_node_repeats_is_answered_or_left_to_the_client() -> None:
    deliveries = interrupted(2, 3)
    assert deliveries.publish(ONCE | REPEATED, 1) == ANSWER
    assert deliveries.publish(ONCE | REPEATED, 2) == SWALLOW
    assert deliveries.acknowledge(PUBACK, 2, refused=False) == PASS


def test_what_it_has_not_repeated_before_it_sends_something_new_it_has_forgotten() -> None:
    """Answers of the client to 3 are for the message that it has, not for the one that the node sends under 3 later."""
    deliveries = interrupted(2, 3)
    assert deliveries.publish(ONCE | REPEATED, 2) == SWALLOW
    assert deliveries.publish(EXACTLY, 9) == PASS
    assert deliveries.acknowledge(PUBACK, 3, refused=False) == SWALLOW
    assert deliveries.acknowledge(PUBACK, 2, refused=False) == PASS
    deliveries.interrupted()
    assert deliveries.publish(ONCE | REPEATED, 1) == PASS, "its answer was for another message"


def test_a_client_has_no_more_under_way_than_it_takes_those_included_that_the_node_forgot() -> None:
    deliveries = interrupted(2, 3)
    deliveries.client_window = 3
    assert deliveries.publish(ONCE, 4) == PASS
    assert deliveries.publish(ONCE, 5) == HOLD
    assert deliveries.acknowledge(PUBACK, 2, refused=False) == SWALLOW
    assert deliveries.publish(ONCE, 5) == PASS


# -- a client with two sessions --

FIRST, OTHER = (1, 2, 3), (101, 102, 103, 104)


def changed_session(*, received: bool) -> Deliveries:
    """The client has messages at QoS 2 of one session under way; now it is connected to its other session."""
    deliveries = Deliveries(256)
    deliveries.client_window = 4
    for packet_id in FIRST:
        assert deliveries.publish(EXACTLY, packet_id) == PASS
        if received:
            assert deliveries.acknowledge(PUBREC, packet_id, refused=False) == PASS
    deliveries.interrupted()
    return deliveries


def test_messages_of_both_its_sessions_count_against_what_it_takes() -> None:
    deliveries = changed_session(received=False)
    assert [deliveries.publish(EXACTLY, packet_id) for packet_id in OTHER[:2]] == [PASS, HOLD]
    assert not deliveries.is_stuck, "it has yet to answer"
    deliveries.acknowledge(PUBREC, OTHER[0], refused=False)
    assert deliveries.release(OTHER[0]) == PASS
    deliveries.acknowledge(PUBCOMP, OTHER[0], refused=False)
    assert deliveries.publish(EXACTLY, OTHER[1]) == PASS


def test_one_that_waits_for_its_other_session_alone_is_stuck() -> None:
    deliveries = changed_session(received=True)
    assert deliveries.publish(ONCE, OTHER[0]) == PASS
    assert deliveries.publish(ONCE, OTHER[1]) == HOLD
    assert not deliveries.is_stuck
    deliveries.acknowledge(PUBACK, OTHER[0], refused=False)
    assert deliveries.publish(EXACTLY, OTHER[1]) == PASS
    deliveries.acknowledge(PUBREC, OTHER[1], refused=False)
    assert deliveries.publish(ONCE, OTHER[2]) == HOLD
    assert deliveries.is_stuck


def test_it_goes_on_where_it_was_when_it_is_back_at_the_first() -> None:
    deliveries = changed_session(received=True)
    assert deliveries.publish(ONCE, OTHER[0]) == PASS
    deliveries.interrupted()
    assert deliveries.publish(EXACTLY | REPEATED, FIRST[0]) == ANSWER
    assert [deliveries.release(packet_id) for packet_id in FIRST] == [PASS] * 3
    for packet_id in FIRST:
        deliveries.acknowledge(PUBCOMP, packet_id, refused=False)
    assert deliveries.publish(EXACTLY | REPEATED, FIRST[0]) == ANSWER


def test_a_node_that_repeats_one_more_than_it_is_known_to_have_waits_too() -> None:
    """It has forgotten in a crash under which identifiers it had sent messages at QoS 1."""
    deliveries = interrupted(2, 3)
    deliveries.client_window = 3
    assert deliveries.publish(ONCE | REPEATED, 7) == PASS
    assert deliveries.publish(ONCE | REPEATED, 8) == HOLD
    deliveries.acknowledge(PUBACK, 2, refused=False)
    assert deliveries.publish(ONCE | REPEATED, 8) == PASS
