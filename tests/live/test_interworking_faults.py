"""Real brokers of other makes among cut connections, killed nodes, rings of links and rules about who may write."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sterna.measure.harness.ports import free_port

from .conftest import Join
from .exchange_matrix import ExchangeMatrix, Place
from .foreign_brokers import ForeignProcess
from .interworking_networks import (
    Detour,
    InterworkingNetwork,
    Load,
    check_that_it_is_quiet,
    view,
    wait_for_fences,
    wait_until_attached,
)
from .nodes import wait_until

CONVERGED_S = 5.0
"""Ten fence intervals: one is enough on a quiet machine."""
SOAK_S = float(os.environ.get("STERNA_INTERWORKING_SOAK_S", "10"))
SEED = int(os.environ.get("STERNA_INTERWORKING_SEED", "1"))


def test_a_ring_of_links_between_nodes_delivers_once_and_then_it_is_quiet(tmp_path: Path, join: Join) -> None:
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(ForeignProcess("mosquitto", tmp_path / f"m{name}")) for name in "abc"}
        ring = ("ab", "bc", "ac")
        network = stack.enter_context(InterworkingNetwork(tmp_path, brokers, "subscription-flooding", ring))
        for node in network.nodes.values():
            wait_until_attached(node)
        matrix = ExchangeMatrix(join, {name: Place(broker.port, {}) for name, broker in brokers.items()})
        matrix.run(network.nodes.values())
        check_that_it_is_quiet(network)
        matrix.check_that_nothing_came()


@pytest.mark.parametrize("version", [4, 5])
def test_messages_that_the_broker_forbids_reach_nobody_and_all_others_do(
    tmp_path: Path, join: Join, version: int
) -> None:
    """Mosquitto acknowledges a forbidden publication of 3.1.1 as if it had taken it."""
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite sterna/#\ntopic readwrite allowed/#\ntopic read forbidden/#\n")
    table = 'from_broker = ["allowed/#", "forbidden/#"]\nto_broker = ["allowed/#", "forbidden/#"]'
    with (
        ForeignProcess("mosquitto", tmp_path / "b0", f"acl_file {rules}\n") as broker,
        ForeignProcess("mosquitto", tmp_path / "b1") as other,
        InterworkingNetwork(tmp_path, {"a": broker, "b": other}, "subscription-flooding", more=table) as network,
    ):
        for node in network.nodes.values():
            wait_until_attached(node)
        there, elsewhere = join(broker.port, version=version), join(other.port, version=version)
        elsewhere.subscribe("#", 1)
        for number in range(1000):
            there.send("forbidden/x", b"%d" % number, 1)
            there.send("allowed/x", b"%d" % number, 1)
        wanted = [("allowed/x", number) for number in range(1000)]

        def found() -> list[tuple[str, int]]:
            return [(one.topic, int(one.payload)) for one in elsewhere.messages if one.topic.endswith("/x")]

        wait_until(lambda: len(found()) >= len(wanted), "a thousand messages reach the other broker", 120)
        for node in network.nodes.values():
            wait_for_fences(node, 2)
        assert found() == wanted
        # The account of the node is bound by them, too: the message is refused, counted and named.
        elsewhere.publish("forbidden/y", b"ours", 1)
        wait_until(lambda: view(network["a"])["not_injected"].get("refused") == 1, "the refusal is counted", 120)
        assert [event["topic"] for event in network["a"].events("publication refused")] == ["forbidden/y"]


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


@pytest.mark.parametrize("lost", ["a", "b"])
def test_retained_values_changed_on_both_sides_of_an_outage_converge_and_conflicts_are_counted(
    tmp_path: Path, join: Join, lost: str
) -> None:
    """Set, changed and cleared on either side while one broker is not heard; one value is changed on both."""
    kept = "ab".replace(lost, "")
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(ForeignProcess("mosquitto", tmp_path / f"m{name}")) for name in "ab"}
        ways = {name: Detour(broker.port) for name, broker in brokers.items()}
        for way in ways.values():
            stack.callback(way.close)
        network = stack.enter_context(InterworkingNetwork(tmp_path, ways, "subscription-flooding"))
        for node in network.nodes.values():
            wait_until_attached(node)
        values = {name: RetainedValues(join, broker.port) for name, broker in brokers.items()}
        values[lost].set(
            dict.fromkeys(("changed-there", "changed-here", "cleared-there", "cleared-here", "both"), "old")
        )
        before = dict(values[lost].seen)
        wait_until(lambda: values[kept].seen == before, "the other side has them", 120)
        for node in network.nodes.values():
            wait_for_fences(node)

        ways[lost].leads_to = free_port()
        ways[lost].cut()
        wait_until(lambda: view(network[lost])["state"] != "attached", "the broker is not heard", 120)
        values[lost].set({"new-there": "there", "changed-there": "there", "cleared-there": "", "both": "there"})
        values[kept].set({"new-here": "here", "changed-here": "here", "cleared-here": "", "both": "here"})
        ways[lost].leads_to = brokers[lost].port
        wait_until_attached(network[lost])
        since = time.monotonic()
        wanted = {"new-there": "there", "new-here": "here", "changed-there": "there", "changed-here": "here"}

        def converged() -> bool:
            """Where both were changed either value may stay, but it is one."""
            first, second = (one.seen for one in values.values())
            return first == second and first.pop("both", None) in ("here", "there") and first == wanted

        try:
            wait_until(converged, "both sides have the values", 60)
        except AssertionError:
            assert {name: one.seen for name, one in values.items()} == dict.fromkeys(values, wanted)
        took_s = time.monotonic() - since
        print(f"converged {took_s:.2f} s after the broker was heard again")
        wait_for_fences(network[lost])
        counts = {name: view(node)["held_back"].get("retained-conflict", 0) for name, node in network.nodes.items()}
        assert counts == {lost: 1, kept: 0}
        for name, broker in brokers.items():
            assert RetainedValues(join, broker.port).stored(len(wanted) + 1) == values[name].seen, name
        assert took_s < CONVERGED_S


class RetainedValues:
    """Values as a client sees them, and a way to set them."""

    def __init__(self, join: Join, port: int) -> None:
        self._client = join(port, version=4)
        self._client.subscribe("s/#", 1)

    @property
    def seen(self) -> dict[str, str]:
        """The last of each, without those that were cleared."""
        last = {message.topic[2:]: message.payload.decode() for message in self._client.messages}
        return {topic: value for topic, value in last.items() if value}

    def set(self, values: dict[str, str]) -> None:
        for topic, value in values.items():
            self._client.publish(f"s/{topic}", value.encode(), 1, retain=True)
        wait_until(lambda: values.items() <= {**dict.fromkeys(values, ""), **self.seen}.items(), "they are set", 60)

    def stored(self, count: int) -> dict[str, str]:
        self._client.receive(count)
        return self.seen
