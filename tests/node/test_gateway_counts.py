"""How much each gateway's clients are given, and of whose topics: what a worker reads from its node."""

from __future__ import annotations

from node.joined_nodes import Town
from sterna.broker.topic_flows import LEASE_S, ROUND_S
from sterna.migration.gateway_moves import GatewayPage, summaries


def page(town: Town, node: str) -> GatewayPage:
    return summaries(town[node].broker, node, flows=True)


def test_deliveries_and_bytes_count_at_every_qos_from_here_and_from_other_nodes() -> None:
    town = Town("AB")
    town.connect("AB")
    readers = [town["A"].resume(name, version, gateway=True) for name, version in (("r4", 4), ("r5", 5))]
    for qos, reader in enumerate(readers):
        reader.subscribe("t/#", 2 * qos)
    idle = town["A"].resume("idle", gateway=True)
    before = page(town, "A")
    here, there = town["A"].join("here"), town["B"].join("there")
    for publisher in (here, there):
        for qos in (0, 1, 2):
            for number in range(5):
                publisher.publish("t/x", b"%d" % number, qos)
    town.settle()
    given = [len(reader.payloads()) for reader in readers]
    assert given == [30, 30]
    (gateway,) = page(town, "A").gateways
    assert (gateway.gateway, gateway.clients, gateway.deliveries) == ("g", 3, 60)
    assert before.gateways[0].deliveries == 0
    assert 60 * 5 < gateway.bytes - before.gateways[0].bytes < 60 * 40
    assert page(town, "A").bytes > before.bytes + gateway.bytes
    # A client that comes back begins at nothing, and one that goes takes its own away.
    idle.leave()
    readers[0].vanish()
    town.settle()
    assert page(town, "A").gateways[0].deliveries == 30
    town["A"].resume("r4", 4, gateway=True)
    assert page(town, "A").gateways[0].deliveries == 30


def test_busy_topics_are_told_with_their_publishers_and_readers_while_somebody_asks() -> None:
    town = Town("AB")
    town.connect("AB")
    publisher, plain = town["A"].resume("p", gateway=True), town["A"].join("plain")
    reader, member = town["B"].resume("r", gateway=True), town["B"].resume("m", gateway=True)
    reader.subscribe("plant/line/+", 1)
    member.subscribe("$share/s/hall/#", 0)
    assert page(town, "A").flows == page(town, "B").flows == []
    for _ in range(10):
        town.pass_time(ROUND_S / 2)
        for qos in (0, 1):
            publisher.publish("plant/line/1", b"x", qos)
        plain.publish("hall/door", b"x", 0)
    at_a, at_b = ({flow.topic: flow for flow in page(town, name).flows} for name in "AB")
    assert at_a.keys() == at_b.keys() == {"plant/line", "hall/door"}
    assert at_a["plant/line"].publishers.keys() == {"g"}
    assert not at_a["plant/line"].readers
    assert 1.0 <= at_a["plant/line"].publishers["g"] <= 3.0
    assert not at_b["plant/line"].publishers
    assert not at_a["hall/door"].publishers
    assert at_b["plant/line"].readers == at_b["hall/door"].readers == ["g"]
    town.pass_time(LEASE_S + ROUND_S)
    assert town["A"].broker.counters.flows is None
