"""A Mosquitto with a stock bridge section dials a node, or a gateway before it: messages cross both ways, once each."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from sterna.measure.harness.ports import free_port

from .clients import Paho
from .conftest import Join
from .gateways import LiveGateway
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

_CONF = """
user root
allow_anonymous true
persistence false
listener {port} 127.0.0.1

connection x
address 127.0.0.1:{there}
topic br/# both 1
{more}
"""
STATE = "$SYS/broker/connection/+/state"


class Bridge:
    """A Mosquitto with one bridge."""

    def __init__(self, directory: Path, there: int, more: str = "") -> None:
        self.port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "mosquitto.conf"
        self._file.write_text(_CONF.format(port=self.port, there=there, more=more))
        self._log = directory / "mosquitto.log"

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["/usr/sbin/mosquitto", "-v", "-c", str(self._file)], stdout=log, stderr=log
            )
        wait_until(lambda: "Received SUBACK" in self.log(), "the bridge has subscribed")
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.kill()
        if error is not None:
            print(f"--- log of Mosquitto ---\n{self.log()[-8_000:]}")

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


@pytest.fixture(params=["a lone node", "a network of two", "a gateway"])
def doors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The port that the bridge dials, and the one that our clients come in by."""
    if request.param == "a network of two":
        with LiveNetwork(tmp_path, ["ab"]) as network:
            yield network["a"].port, network["b"].port
            network.check_logs()
        return
    with LiveNode(tmp_path / "node") as node:
        if request.param == "a lone node":
            yield node.port, node.port
        else:
            with LiveGateway(tmp_path / "gateway", [node.port]) as gateway:
                yield gateway.port, node.port
        assert "Traceback" not in node.log()


def received(client: Paho, count: int) -> list[tuple[str, bytes, bool]]:
    return [(message.topic, bytes(message.payload), message.retain) for message in client.receive(count)]


@pytest.mark.slow
def test_messages_cross_a_stock_bridge_both_ways_once_each(doors: tuple[int, int], join: Join, tmp_path: Path) -> None:
    with Bridge(tmp_path / "mosquitto", doors[0]) as bridge:
        ours, theirs = join(doors[1], version=4), join(bridge.port, version=4)
        for client in ours, theirs:
            client.subscribe("br/#", 1)
        expected = []
        for number in range(20):
            for client, name in (ours, "ours"), (theirs, "theirs"):
                payload = b"%d" % number
                client.publish(f"br/{name}", payload, number % 2)
                expected.append((f"br/{name}", payload, False))
        # A message that circled would have come before the last one that did not: links, and sessions, keep the order.
        for client in ours, theirs:
            assert sorted(received(client, len(expected))) == sorted(expected)
        for client, name in (ours, "ours"), (theirs, "theirs"):
            client.publish(f"br/{name}", b"last", 1)
        for client in ours, theirs:
            found = received(client, len(expected) + 2)
            assert sorted(found[len(expected) :]) == [("br/ours", b"last", False), ("br/theirs", b"last", False)]


@pytest.mark.slow
def test_retained_messages_stay_retained_across_a_bridge(doors: tuple[int, int], join: Join, tmp_path: Path) -> None:
    early = join(doors[1], version=4)
    early.publish("br/before", b"was there before the bridge", 1, retain=True)
    with Bridge(tmp_path / "mosquitto", doors[0]) as bridge:
        ours, theirs = join(doors[1], version=4), join(bridge.port, version=4)
        for client in ours, theirs:
            client.subscribe("br/+/live", 1)
        ours.publish("br/ours/live", b"kept", 1, retain=True)
        theirs.publish("br/theirs/live", b"kept", 1, retain=True)
        for client in ours, theirs:
            client.receive(2)
        for port in doors[1], bridge.port:
            late = join(port, version=4)
            late.subscribe("br/#", 1)
            assert sorted(received(late, 3)) == [
                ("br/before", b"was there before the bridge", True),
                ("br/ours/live", b"kept", True),
                ("br/theirs/live", b"kept", True),
            ]
        # And what is taken away on one side is gone on the other.
        ours.publish("br/theirs/live", b"", 1, retain=True)
        theirs.publish("br/ours/live", b"", 1, retain=True)
        for client in ours, theirs:
            client.receive(4)
        for port in doors[1], bridge.port:
            late = join(port, version=4)
            late.subscribe("br/+/live", 1)
            mark = b"nothing retained before this, at %d" % port
            late.publish("br/none/live", mark, 1)
            late.receive_payload(mark)
            # The mark of the other side may still cross the bridge: it is live, not retained.
            assert {retain for _, _, retain in received(late, 1)} == {False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    ["", "try_private false", "bridge_protocol_version mqttv31", "bridge_protocol_version mqttv50"],
    ids=["stock", "without the bridge bit", "3.1", "5.0"],
)
def test_the_state_of_a_bridge_is_to_be_read(node: LiveNode, join: Join, tmp_path: Path, more: str) -> None:
    watcher = join(node, version=4)
    with Bridge(tmp_path / "mosquitto", node.port, more) as bridge:
        watcher.subscribe(STATE, 1)
        topic, payload, is_retained = received(watcher, 1)[0]
        assert (payload, is_retained) == (b"1", True)
        assert topic.endswith(".x/state")
        bridge.kill()
        assert received(watcher, 2)[1] == (topic, b"0", False)
    watcher.publish(topic, b"", 1, retain=True)


@pytest.mark.slow
def test_a_bridge_needs_no_rule_of_its_own_to_say_that_it_is_there(tmp_path: Path, join: Join) -> None:
    """`#` does not reach `$SYS`; a bridge with the rights of its topics is let in all the same."""
    toml = """
[authorization]
default = "deny"
[[authorization.rule]]
user = ["*"]
filters = ["#", "$SYS/#"]
access = "subscribe"
[[authorization.rule]]
user = ["*"]
filters = ["br/#"]
access = "publish"
"""
    with LiveNode(tmp_path / "node", toml) as node, Bridge(tmp_path / "mosquitto", node.port) as bridge:
        ours, theirs = join(node, version=4), join(bridge.port, version=4)
        ours.subscribe("br/#", 1)
        theirs.publish("br/x", b"crossed", 1)
        assert received(ours, 1) == [("br/x", b"crossed", False)]
        ours.subscribe(STATE, 1)
        assert received(ours, 2)[1][1:] == (b"1", True)
        # Somebody else's it may not write.
        ours.publish("$SYS/broker/connection/somebody/state", b"1", 1, retain=True)
        late = join(node, version=4)
        late.subscribe(STATE, 1)
        late.subscribe("br/#", 1)
        theirs.publish("br/x", b"crossed again", 1)
        assert len(received(late, 2)) == 2
