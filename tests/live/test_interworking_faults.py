"""Real brokers of other makes among cut connections, killed nodes, rings of links and rules about who may write."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from .conftest import Join
from .foreign_brokers import ForeignProcess
from .interworking_networks import (
    Detour,
    InterworkingNetwork,
    Load,
    attached,
    check_that_it_is_quiet,
    view,
    wait_for_fences,
    wait_until_attached,
)
from .nodes import wait_until

SOAK_S = float(os.environ.get("STERNA_INTERWORKING_SOAK_S", "10"))
SEED = int(os.environ.get("STERNA_INTERWORKING_SEED", "1"))


def test_a_ring_of_links_between_nodes_delivers_once_and_then_it_is_quiet(tmp_path: Path, join: Join) -> None:
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(ForeignProcess("mosquitto", tmp_path / f"m{name}")) for name in "abc"}
        ring = ("ab", "bc", "ac")
        network = stack.enter_context(InterworkingNetwork(tmp_path, brokers, "subscription-flooding", ring))
        for node in network.nodes.values():
            wait_until_attached(node)
        clients = {name: join(broker.port, version=4) for name, broker in brokers.items()}
        for client in clients.values():
            client.subscribe("ring/#", 2)
        for name, client in clients.items():
            for qos in (0, 1, 2):
                client.publish(f"ring/{name}/{qos}", b"once", qos)
        wanted = sorted(f"ring/{name}/{qos}" for name in clients for qos in (0, 1, 2))
        for client in clients.values():
            client.receive(len(wanted), 120)
        check_that_it_is_quiet(network)
        for name, client in clients.items():
            assert sorted(message.topic for message in client.messages) == wanted, name


@pytest.mark.parametrize("version", [4, 5])
def test_messages_that_the_broker_forbids_reach_nobody_and_all_others_do(
    tmp_path: Path, join: Join, version: int
) -> None:
    """Mosquitto acknowledges a forbidden publication of 3.1.1 as if it had taken it."""
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite sterna/#\ntopic readwrite allowed/#\ntopic read forbidden/#\n")
    table = 'from_broker = ["allowed/#", "forbidden/#"]\nto_broker = ["allowed/#", "forbidden/#"]'
    with (
        ForeignProcess("mosquitto", tmp_path / "b", f"acl_file {rules}\n") as broker,
        attached(tmp_path / "n", broker.address, table) as node,
    ):
        wait_until_attached(node)
        there, here = join(broker.port, version=version), join(node, version=5)
        here.subscribe("#", 1)
        for number in range(1000):
            there.send("forbidden/x", b"%d" % number, 1)
            there.send("allowed/x", b"%d" % number, 1)
        here.receive(1000, 120)
        wait_for_fences(node, 2)
        assert [(one.topic, int(one.payload)) for one in here.messages] == [("allowed/x", n) for n in range(1000)]
        # The account of the node is bound by them, too: the message is refused, counted and named.
        here.publish("forbidden/y", b"ours", 1)
        wait_until(lambda: view(node)["not_injected"].get("refused") == 1, "the refusal is counted", 120)
        assert [event["topic"] for event in node.events("publication refused")] == ["forbidden/y"]


class _Faults:
    """Kills a node or cuts a connection now and then, until the time is over."""

    def __init__(self, network: InterworkingNetwork, ways: list[Detour]) -> None:
        self._network = network
        self._ways = ways
        self._dice = random.Random(SEED)
        self.kills = self.cuts = 0

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._dice.random() < 0.5:
                name = self._dice.choice(sorted(self._network.nodes))
                self._network[name].kill()
                self._network[name].restart()
                self.kills += 1
            else:
                self._dice.choice(self._ways).cut()
                self.cuts += 1
            time.sleep(self._dice.uniform(0.2, 1.0))
        for node in self._network.nodes.values():
            wait_until_attached(node)
        self._network.wait_until_settled()


def test_killed_nodes_and_cut_connections_lose_nothing_and_repeat_nothing_at_qos_2(tmp_path: Path, join: Join) -> None:
    """STERNA_INTERWORKING_SOAK_S=60 does it for a minute, STERNA_INTERWORKING_SEED in another order."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(ForeignProcess("mosquitto", tmp_path / f"b{number}")) for number in range(2)]
        ways = [Detour(broker.port) for broker in brokers]
        for way in ways:
            stack.callback(way.close)
        network = stack.enter_context(
            InterworkingNetwork(tmp_path, dict(zip("ab", ways, strict=True)), "subscription-flooding")
        )
        for node in network.nodes.values():
            wait_until_attached(node)
        loads = [
            Load(join, source.port, target.port, qos, name)
            for name, source, target in (("01", brokers[0], brokers[1]), ("10", brokers[1], brokers[0]))
            for qos in (1, 2)
        ]
        faults = _Faults(network, ways)
        faults.run(SOAK_S)
        for load in loads:
            load.check()
        print(f"{faults.kills} kills, {faults.cuts} cuts, {sum(load.sent for load in loads)} messages, 0 lost")
        assert faults.kills
        assert faults.cuts
        assert [view(node)["sessions_lost"] for node in network.nodes.values()] == [0, 0]
