"""What is lost at QoS 0 while a node in the middle is dead, or a tree forms anew, is counted by those that live on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .conftest import Join
from .networks import STRATEGIES, LiveNetwork

pytestmark = pytest.mark.slow

PAUSE_S = 0.01
#: What the dead node may have had in its hands, which nobody can count; and what goes a new way before all know it.
A_FEW = 20


def counted(network: LiveNetwork) -> dict[str, int]:
    found: dict[str, int] = {}
    for view in network.views().values():
        for reason, number in view["loose_dropped"].items():
            found[reason] = found.get(reason, 0) + number
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("overlay", "is_back"), [("static", True), ("spanning-tree", False)])
def test_what_a_dead_node_costs_is_counted(
    tmp_path: Path, join: Join, strategy: str, overlay: str, is_back: bool
) -> None:
    with LiveNetwork(tmp_path, ("ab", "bc"), strategy, overlay) as network:
        if overlay == "spanning-tree":
            network.wait_until_formed()
        (middle,) = (name for name, links in network.links().items() if len(links) == 2)
        here, there = (name for name in "abc" if name != middle)
        subscriber, publisher = join(network[there]), join(network[here])
        subscriber.subscribe("t")
        sent = 0

        def publish_for(seconds: float) -> None:
            nonlocal sent
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                publisher.send("t", b"%d" % sent)
                sent += 1
                time.sleep(PAUSE_S)

        publish_for(2)
        network[middle].kill()
        publish_for(3)
        if is_back:
            network[middle].start()
        network.wait_until_settled()
        publish_for(0.5)
        last = b"%d" % (sent - 1)
        subscriber._wait(lambda: any(message.payload == last for message in subscriber.messages), "the last message")
        lost = sent - len({message.payload for message in subscriber.messages})
        found = counted(network)
        certain = found.get("link-ended", 0) + found.get("no-way", 0)
        print(f"{sent} sent, {lost} lost, counted {found}")
        assert lost > 0
        assert certain <= lost + A_FEW
        assert lost <= sum(found.values()) + A_FEW
        of_one = network[here].metric("sterna_network_messages_dropped_total", reason="link-ended")
        assert of_one == network[here].network()["loose_dropped"]["link-ended"]
