"""Two Mosquittos joined by nodes, beside a chain of three Mosquittos with bridges: the same outage, the same load.

The bridges' figures are printed, not judged; `pytest -s` shows them.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import Join
from .foreign_brokers import ForeignProcess
from .interworking_networks import InterworkingNetwork, view, wait_until_attached
from .nodes import wait_until

WAITING = int(os.environ.get("STERNA_BRIDGED_MESSAGES", "2000"))
"""Messages while the far broker is down; at QoS 1, for of a burst at QoS 2 Mosquitto 2.0.11 itself keeps only 400."""
_BRIDGE = """
connection {name}
address 127.0.0.1:{port}
topic load/# out 2
cleansession false
restart_timeout 1
"""


class Way(NamedTuple):
    """From one Mosquitto to another, over something in the middle."""

    near: ForeignProcess
    far: ForeignProcess
    middle: list[int]
    """Processes there."""


@contextmanager
def over_nodes(tmp_path: Path) -> Iterator[Way]:
    with (
        ForeignProcess("mosquitto", tmp_path / "near") as near,
        ForeignProcess("mosquitto", tmp_path / "far") as far,
        InterworkingNetwork(tmp_path, {"a": near, "b": far}, "subscription-flooding") as network,
    ):
        for node in network.nodes.values():
            wait_until_attached(node)
        yield Way(near, far, [node.pid for node in network.nodes.values()])
        assert [view(node)["sessions_lost"] for node in network.nodes.values()] == [0, 0]


@contextmanager
def over_bridges(tmp_path: Path) -> Iterator[Way]:
    with ExitStack() as stack:
        far = stack.enter_context(ForeignProcess("mosquitto", tmp_path / "far"))
        bridge = _BRIDGE.format(name="middle", port=far.port)
        middle = stack.enter_context(ForeignProcess("mosquitto", tmp_path / "middle", bridge))
        bridge = _BRIDGE.format(name="near", port=middle.port)
        near = stack.enter_context(ForeignProcess("mosquitto", tmp_path / "near", bridge))
        yield Way(near, far, [middle.pid])


def cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


MEANS = {"nodes": over_nodes, "bridges": over_bridges}


@pytest.mark.parametrize("name", MEANS)
def test_messages_that_waited_for_a_broker_arrive_once_each(tmp_path: Path, join: Join, name: str) -> None:
    with MEANS[name](tmp_path) as way:
        reader = join(way.far.port, version=4, client_id="reader", persistent=True)
        reader.subscribe("load/#", 2)
        writer = join(way.near.port, version=4)
        writer.publish("load/first", b"0", 2)
        reader.receive(1, 120)
        reader.close()
        way.far.end(signal.SIGTERM)
        before = cpu_s(way.middle)
        writer.publish_all("load/x", [b"%d" % number for number in range(WAITING)], 1)
        way.far.start()
        late = join(way.far.port, version=4, client_id="reader", persistent=True)
        wanted = {b"%d" % number for number in range(WAITING)}

        def came() -> Counter[bytes]:
            return Counter(bytes(one.payload) for one in late.messages if one.topic == "load/x")

        late.subscribe("load/#", 2)
        enough = WAITING if name == "nodes" else WAITING * 0.9
        wait_until(lambda: len(came().keys() & wanted) >= enough, f"{enough:.0f} messages over {name}", 300)
        writer.publish("load/last", b"0", 2)
        wait_until(lambda: any(one.topic == "load/last" for one in late.messages), f"the last one over {name}", 120)
        found = came()
        spent_us = 1e6 * (cpu_s(way.middle) - before) / WAITING
        lost, repeated = WAITING - len(found), found.total() - len(found)
        print(
            f"{name}: {len(found):,} of {WAITING:,} arrived, {lost} lost, {repeated} repeated; {spent_us:.0f} us of CPU"
        )
        if name == "nodes":
            assert (lost, repeated) == (0, 0)
            assert [int(one.payload) for one in late.messages if one.topic == "load/x"] == list(range(WAITING))
