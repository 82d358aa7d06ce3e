"""The `$SYS` tree is read like retained messages and counted as none."""

from __future__ import annotations

from broker.lone_node import LoneNode


def test_the_tree_is_no_part_of_what_is_counted_as_retained() -> None:
    node = LoneNode()
    client = node.join("client")
    client.publish("shelf", b"kept", 1, retain=True)
    for uptime_s in (1.0, 20.0):
        node.pass_time(uptime_s)
        node.node.sys_tree.update(node.broker.statistics())
    found = node.broker.statistics()
    assert (found.retained, found.retained_bytes) == (1, len(b"shelf" + b"kept"))
    assert client.subscribe("$SYS/broker/retained messages/count") == 0
    assert client.payloads() == [b"1"]
