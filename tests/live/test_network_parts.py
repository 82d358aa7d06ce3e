"""An expression over publishers at five real nodes: parts travel between them, and come back after SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from .clients import Paho
from .conftest import Join
from .networks import FIVE, LiveNetwork
from .nodes import START_S, LiveNode, wait_until

pytestmark = pytest.mark.slow


def taken(node: LiveNode) -> float:
    return node.metric("sterna_network_messages_taken_total")


def wait_for(watcher: Paho, answer: bytes) -> None:
    """Results come at their pace: the last one is what counts."""
    while watcher.payloads()[-1] != answer:
        pass


@pytest.mark.parametrize(
    ("overlay", "strategy"),
    [("static", "subscription-flooding"), ("static", "advertisement"), ("spanning-tree", "subscription-flooding")],
)
def test_an_aggregate_over_five_nodes_survives_their_death(
    tmp_path: Path, join: Join, overlay: str, strategy: str
) -> None:
    with LiveNetwork(tmp_path, FIVE, strategy, overlay) as network:
        watcher = join(network["a"])
        assert watcher.subscribe("$SUM/room/+", 1) == 1
        for number, (name, node) in enumerate(network.nodes.items()):
            publisher = join(node)
            for value in range(20):
                publisher.publish(f"room/{name}", b"%d" % value, 1)
            publisher.publish(f"room/{name}", b"%d" % 10**number, 1)
        wait_for(watcher, b"11111.0")
        assert taken(network["a"]) == 0, "no message has come from another node"
        # The same topic at another node: it has one last value.
        join(network["d"]).publish("room/e", b"20000", 1)
        wait_for(watcher, b"21111.0")
        for victim in "de":
            network[victim].kill()
            network[victim].launch()
            wait_until(network[victim].is_up, f"{victim} is back", START_S)
        network.wait_until_settled()
        join(network["e"]).publish("room/f", b"300000", 1)
        wait_for(watcher, b"321111.0")
        assert taken(network["a"]) == 0
        network.check_logs()


def test_a_period_over_five_nodes(tmp_path: Path, join: Join) -> None:
    more = "[operators]\nquarter_hourly_s = 4\ngrace_s = 60\n"
    with LiveNetwork(tmp_path, FIVE, more=more) as network:
        watcher = join(network["a"])
        assert watcher.subscribe("$SUM$QUARTERHOURLYCOUNT/room/+", 1) == 1
        for node in network.nodes.values():
            publisher = join(node)
            for _ in range(10):
                publisher.publish("room/1", b"x", 1)

        def counted() -> float:
            """In all periods so far: on a busy machine it takes more than one to publish."""
            return sum(float(message.payload) for message in watcher.messages)

        wait_until(lambda: counted() >= 50, "everything is counted")
        assert counted() == 50
        assert taken(network["a"]) == 0
        network.check_logs()
