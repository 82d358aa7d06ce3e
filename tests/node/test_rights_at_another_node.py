"""A session comes to a node with other access rules: what it may not read there, it does not get there."""

from __future__ import annotations

import pytest

from conformance.packets import Connect, Publish, Pubrel
from node.joined_nodes import Town
from sterna.broker.access.authorization import AccessList, AccessRule

FORBIDDEN = AccessList([AccessRule(("*",), ("work/#",), "subscribe", "deny")], "allow")


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_in_flight_is_not_sent_again_where_the_rules_forbid_it(qos: int) -> None:
    town = Town("AB")
    town.connect("AB")
    town["B"].broker.renewal.apply(town["B"].broker.access.authenticator, FORBIDDEN)
    reader, writer = town["A"].resume("reader"), town["A"].join("writer")
    reader.subscribe("#", qos)
    for topic in ("work/1", "else"):
        writer.publish(topic, topic.encode(), qos)
    sent = {message.topic: message.packet_id for message in reader.messages()}
    assert set(sent) == {"work/1", "else"}
    reader.vanish()
    town.pass_time(1)
    again = town["B"].dial()
    again.send(Connect("reader", False, properties={"session_expiry": 100}))
    town.pass_time(5)
    received = again.received()
    assert [packet.topic for packet in received if isinstance(packet, Publish)] == ["else"]
    released = [packet for packet in received if isinstance(packet, Pubrel)]
    assert released == ([Pubrel(sent["work/1"])] if qos == 2 else [])
    assert town["B"].dropped("not-authorized") == 1
