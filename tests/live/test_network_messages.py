"""Five real nodes are one broker: whatever node a client comes to, it hears everybody, and everybody hears it.

Every promise is tried with each routing, on neighbours given by hand and on a tree that formed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import pytest

from .clients import Will, mosquitto, output
from .conftest import Join
from .networks import FIVE, STRATEGIES, LiveNetwork, linked
from .nodes import wait_until

pytestmark = pytest.mark.slow

KINDS = [(overlay, strategy) for overlay in ("static", "spanning-tree") for strategy in STRATEGIES]
#: A machine with too much to do must not look like one that died: at QoS 0 a change of the tree may cost messages.
PATIENT = {"static": "", "spanning-tree": "[network.tree]\ndead_after_s = 10\nprobe_s = 5\nsteady_s = 60\n"}


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    overlay, strategy = request.param
    with LiveNetwork(tmp_path_factory.mktemp("network"), FIVE, strategy, overlay, more=PATIENT[overlay]) as network:
        if overlay == "spanning-tree":
            network.wait_until_formed()
        yield network
        network.check_logs()


def test_the_links_are_those_asked_for_or_make_a_tree(network: LiveNetwork) -> None:
    links = network.links()
    pairs = {"".join(sorted((one, other))) for one, others in links.items() for other in others}
    assert len(pairs) == 4
    if network.overlay == "static":
        assert pairs == set(FIVE)
    else:
        assert {view["overlay"]["root"] for view in network.views().values()} == {"a"}
        wait_until(lambda: network["a"].network()["overlay"]["state"] == "root", "the first node is the root")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_reach_subscribers_on_every_node(network: LiveNetwork, join: Join, topic: str, qos: int) -> None:
    versions = cycle((4, 5))
    subscribers = [join(node, version=next(versions)) for node in network.nodes.values()]
    for subscriber in subscribers:
        assert subscriber.subscribe(f"{topic}/+", qos) == qos
    expected = {}
    for name, node in network.nodes.items():
        publisher = join(node, version=next(versions))
        # Whoever is the first to publish on a topic may have to wait for the news of it (QoS 0 does not wait).
        publisher.publish(f"{topic}/{name}", b"first", 1)
        expected[f"{topic}/{name}"] = [b"first"] + [b"%d" % number for number in range(20)]
    for subscriber in subscribers:
        subscriber.receive(len(expected))
    for name, node in network.nodes.items():
        join(node, version=next(versions)).publish_all(f"{topic}/{name}", expected[f"{topic}/{name}"][1:], qos)
    for subscriber in subscribers:
        got: dict[str, list[bytes]] = {}
        for message in subscriber.receive(21 * len(expected)):
            got.setdefault(message.topic, []).append(bytes(message.payload))
        assert got == expected


def test_mosquittos_clients_at_both_ends(network: LiveNetwork, topic: str, client_id: str, version: int) -> None:
    lines = b"".join(b"%d\n" % number for number in range(50))
    session = ["-c", "-i", client_id, "-q", "2", "-t", topic, *(["-x", "300"] if version == 5 else [])]
    with mosquitto("mosquitto_sub", network["a"].port, version, *session, "-E") as subscriber:
        output(subscriber)  # it ends when its subscription is acknowledged
    with mosquitto("mosquitto_sub", network["a"].port, version, *session, "-C", "50") as subscriber:
        with mosquitto("mosquitto_pub", network["e"].port, version, "-t", topic, "-q", "2", "-l") as publisher:
            output(publisher, lines)
        assert output(subscriber) == lines


def test_what_was_taken_away_at_one_node_is_not_found_at_another(network: LiveNetwork, join: Join, topic: str) -> None:
    """Once its publisher has been told so, and somebody subscribes then."""
    publisher = join(network["a"], version=4)
    for number in range(20):
        name = f"{topic}/{number}"
        publisher.publish(name, b"old", 1, retain=True)
        early, late = join(network["d"], version=4), join(network["d"], version=4)
        early.subscribe(name, 1)
        assert early.payloads() == [b"old"]
        publisher.publish(name, b"", 1, retain=True)
        late.subscribe(name, 1)
        late.subscribe(f"{name}/last", 1)
        late.publish(f"{name}/last", b"last", 1)
        wait_until(lambda: b"last" in [message.payload for message in late.messages], "the last message")  # noqa: B023
        assert [bytes(message.payload) for message in late.messages] in ([b"last"], [b"", b"last"])
        for client in early, late:
            client.close()


def test_what_is_retained_anywhere_is_found_everywhere(network: LiveNetwork, join: Join, topic: str) -> None:
    join(network["d"]).publish(topic, b"old", 1, retain=True)
    join(network["d"]).publish(topic, b"kept", 1, retain=True)

    def found(name: str) -> list[tuple[bytes, bool]]:
        late = join(network[name])
        late.subscribe(topic, 1)
        return [(bytes(message.payload), message.retain) for message in late.receive(1)]

    for name in network.nodes:
        wait_until(lambda: found(name)[-1] == (b"kept", True), f"node {name} has what is retained")  # noqa: B023


def test_a_will_is_heard_on_every_other_node(network: LiveNetwork, join: Join, topic: str) -> None:
    listeners = [join(node) for node in network.nodes.values()]
    for listener in listeners:
        listener.subscribe(topic, 1)
    join(network["a"], will=Will(topic, b"gone", 1)).vanish()
    for listener in listeners:
        assert listener.payloads() == [b"gone"]


@pytest.mark.parametrize("qos", [1, 2])
def test_members_on_different_nodes_share_what_comes(network: LiveNetwork, join: Join, topic: str, qos: int) -> None:
    members = [join(network[name]) for name in "ace"]
    for member in members:
        member.subscribe(f"$share/group/{topic}", qos)
    publisher = join(network["d"])
    payloads = [b"%d" % number for number in range(60)]
    publisher.publish_all(topic, payloads, qos)
    wait_until(lambda: sum(len(member.messages) for member in members) >= len(payloads), "all messages came")
    got = [bytes(message.payload) for member in members for message in member.messages]
    assert sorted(got) == sorted(payloads)
    if qos == 2:
        assert all(member.messages for member in members)


def test_a_persistent_session_finds_what_came_from_other_nodes_meanwhile(
    network: LiveNetwork, join: Join, topic: str, client_id: str
) -> None:
    sleeper = join(network["b"], client_id=client_id, persistent=True)
    sleeper.subscribe(topic, 1)
    sleeper.close()
    payloads = [b"%d" % number for number in range(30)]
    join(network["e"]).publish_all(topic, payloads, 1)
    awake = join(network["b"], client_id=client_id, persistent=True)
    assert awake.session_present
    assert awake.payloads(len(payloads)) == payloads


def test_nothing_circled_and_everybody_is_counted(network: LiveNetwork) -> None:
    for name, view in network.views().items():
        if network.overlay == "static":  # a tree may have had other shapes
            assert view["refused"] == 0, name
        assert network[name].metric("sterna_links") == len(linked(view))
        assert network[name].metric("sterna_streams", state="synced") == 4
        for link in [link for link in view["links"] if link["connected"]]:
            assert link["messages"] > 0
            assert link["bytes_sent"] >= link["control_bytes"] > 0
            assert network[name].metric("sterna_link_bytes_total", peer=link["peer"]) > 0
