"""Identifiers that a node which crashed uses again: the client's answers are never given for another message."""

from __future__ import annotations

from sterna.gateway.deliveries import ANSWER, HOLD, PASS, SWALLOW, Deliveries
from sterna.mqtt.packets import PUBACK

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
