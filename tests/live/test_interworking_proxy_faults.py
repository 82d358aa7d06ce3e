"""Nodes in proxy mode and their brokers are killed, restarted and held up; nothing is lost between brokers."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from .conftest import Join
from .foreign_brokers import ForeignProcess
from .interworking_networks import view, wait_until_attached
from .nodes import wait_until
from .proxy_networks import ProxiedPair, PublishingStream, ResendingPublisher, before, check_stream, proxy

SOAK_S = float(os.environ.get("STERNA_INTERWORKING_SOAK_S", "10"))
SEED = int(os.environ.get("STERNA_INTERWORKING_SEED", "1"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_is_restarted_under_load_while_its_clients_stay_connected_and_nothing_is_lost_between_brokers(
    tmp_path: Path, join: Join, number: signal.Signals
) -> None:
    with ExitStack() as stack:
        pair = ProxiedPair(stack, tmp_path)
        there = join(pair.port("b"), version=4)
        there.subscribe("load/#", 2)
        here = join(pair.port("a"), version=5)
        here.subscribe("back/#", 1)
        streams = [
            PublishingStream(join, pair.port("a"), f"load/{version}/{qos}", qos, version)
            for version in (4, 5)
            for qos in (1, 2)
        ]
        for _ in range(2):
            for stream in streams:
                stream.wait_for(30)
            pair.brokers["a"].end(number)
            pair.brokers["a"].start()
            for stream in streams:
                stream.wait_for(30)
        found = proxy(pair.network["a"])
        repeats = found["in_doubt"].get("repeated", 0) + view(pair.network["a"])["in_doubt"].get("repeated", 0)
        if number == signal.SIGTERM:
            assert repeats == 0, "Mosquitto keeps its sessions"
        for stream in streams:
            check_stream(stream, there, repeats=repeats)
        assert here.client.is_connected()
        back = join(pair.port("b"), version=4)
        back.publish("back/x", b"still there", 1)
        assert here.payloads() == [b"still there"], "its subscription outlived the broker"
        print(f"{number.name}: {json.dumps(found)}")


def test_kill_9_of_the_node_before_a_broker_loses_nothing_and_repeats_nothing_at_qos_2(
    tmp_path: Path, join: Join
) -> None:
    with ExitStack() as stack:
        pair = ProxiedPair(stack, tmp_path)
        there = join(pair.port("b"), version=4)
        there.subscribe("load/#", 2)
        streams = [ResendingPublisher(pair.network["a"], f"load/{qos}", qos) for qos in (1, 2)]
        for _ in range(3):
            for stream in streams:
                stream.wait_for(100)
            pair.network["a"].kill()
            pair.network["a"].restart()
        for stream in streams:
            check_stream(stream, there)
        assert view(pair.network["a"])["sessions_lost"] == 0


def _read(connection: socket.socket, kind: int, count: int) -> list[bytes]:
    """Bodies of so many packets of this kind; all are short."""
    found: list[bytes] = []
    while len(found) < count:
        first, length = connection.recv(2, socket.MSG_WAITALL)
        body = connection.recv(length, socket.MSG_WAITALL)
        if first >> 4 == kind:
            found.append(body)
    return found


def test_broker_and_node_are_killed_together_after_pubrec_and_nothing_is_lost_elsewhere(
    tmp_path: Path, join: Join
) -> None:
    connect = b"\x10\x10\x00\x04MQTT\x04\x00\x00\x00\x00\x04twin"
    count = 20
    with ExitStack() as stack:
        pair = ProxiedPair(stack, tmp_path)
        there = join(pair.port("b"), version=4)
        there.subscribe("both/#", 2)
        node, broker = pair.network["a"], pair.brokers["a"]
        with socket.create_connection(node.address, 60) as client:
            client.sendall(connect)
            assert _read(client, 2, 1) == [b"\0\0"]
            for number in range(1, count + 1):
                client.sendall(b"\x34\x0c\x00\x06both/x\x00%c%02d" % (number, number))
            assert len(_read(client, 5, count)) == count
            broker.end(signal.SIGKILL)
            node.kill()
        assert not there.messages, "a Mosquitto passes on what is released"
        for file in broker.directory.glob("*.db*"):
            file.unlink()
        broker.start()
        node.restart()
        wait_until_attached(node)
        with socket.create_connection(node.address, 60) as client:
            client.sendall(connect)
            assert _read(client, 2, 1) == [b"\0\0"], "its session is gone, and it hears so"
            for number in range(1, count + 1):
                client.sendall(b"\x62\x02\x00%c" % number)
            assert sorted(_read(client, 7, count)) == [b"\0%c" % number for number in range(1, count + 1)]
            wanted = [b"%02d" % number for number in range(1, count + 1)]
            assert there.payloads(count) == wanted
            assert proxy(node)["in_doubt"] == {"repeated": count}


def test_a_broker_that_hangs_is_found_out_and_its_clients_are_served_when_it_goes_on(
    tmp_path: Path, join: Join
) -> None:
    with ForeignProcess("mosquitto", tmp_path / "b") as broker, before(tmp_path / "n", broker.address) as node:
        wait_until_attached(node)
        relayed = join(node.port, version=5)
        here = join(node.ports[1], version=5)
        here.subscribe("up/#", 2)
        broker.send_signal(signal.SIGSTOP)
        try:
            mids = [relayed.send("up/x", b"%d" % qos, qos) for qos in (1, 2)]
            wait_until(lambda: view(node)["state"] != "attached", "it is found out", 120)
            assert not any(mid in relayed.acknowledged for mid in mids)
        finally:
            broker.send_signal(signal.SIGCONT)
        for mid in mids:
            relayed.code_of(mid)
        wait_until(lambda: {bytes(m.payload) for m in here.messages} == {b"1", b"2"}, "both arrive", 120)
        assert relayed.client.is_connected()


class ProxyFaults:
    """Kills the broker, its node, or both at once, again and again under load; counts what the node repeated."""

    def __init__(self, pair: ProxiedPair, name: str) -> None:
        self._broker, self._node = pair.brokers[name], pair.network[name]
        self._dice = random.Random(SEED)
        self.kills: Counter[str] = Counter()
        self._repeated_before = 0

    def run(self, seconds: float, streams: list[ResendingPublisher]) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(self.kills) < 3:
            for stream in streams:
                stream.wait_for(self._dice.randint(1, 50))
            self._kill(self._dice.choice(("broker", "node", "both")))

    def _kill(self, which: str) -> None:
        """Only when the node is attached: what it repeats it has counted by then."""
        self.kills[which] += 1
        if which != "broker":
            self._repeated_before = self.repeated
            self._node.kill()
        if which != "node":
            self._broker.end(signal.SIGKILL)
            self._broker.start()
        if which != "broker":
            self._node.restart()
        wait_until_attached(self._node)

    @property
    def repeated(self) -> int:
        """Publications that were in doubt when a session was lost, and went out once more."""
        found = view(self._node)
        counts = (found["in_doubt"], found["proxy"]["in_doubt"])
        return self._repeated_before + sum(int(count.get("repeated", 0)) for count in counts)


def test_kill_9_of_broker_and_node_under_load_loses_nothing_between_brokers_and_counts_what_was_in_doubt(
    tmp_path: Path, join: Join
) -> None:
    """STERNA_INTERWORKING_SOAK_S=60 does it for a minute, STERNA_INTERWORKING_SEED in another order."""
    with ExitStack() as stack:
        pair = ProxiedPair(stack, tmp_path)
        there = join(pair.port("b"), version=4)
        there.subscribe("load/#", 2)
        node = pair.network["a"]
        streams = [ResendingPublisher(node, f"load/{qos}", qos, may_be_forgotten=True) for qos in (1, 2)]
        for stream in streams:
            stack.callback(stream.end)
        faults = ProxyFaults(pair, "a")
        faults.run(SOAK_S, streams)
        for stream in streams:
            check_stream(stream, there, repeats=faults.repeated)
        print(
            f"kills {dict(faults.kills)}, {sum(s.sent for s in streams)} messages, {faults.repeated} repeated, 0 lost"
        )
