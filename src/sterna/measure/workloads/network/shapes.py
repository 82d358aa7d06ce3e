"""Brokers in a row, as data: how many, where the subscribers are, which loads, and what we set out to reach.

Publishers are always at the first broker; subscribers there too (local) or at the last (remote).  What a hop costs is
what a row costs beyond a lone broker, divided by the hops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sterna.measure.load.shapes import Acknowledged, Lane, Paced, Saturation, Workload

Place = Literal["local", "remote"]

PAIRS = 50
BEHIND_MAX = 200
"""Messages of a pair between publisher and subscriber at QoS 1.  Acknowledgements come from the first broker, so
without this bound a row would be measured filling its queues rather than passing messages on."""
PACED_RATE = 1_000


@dataclass(frozen=True, slots=True)
class Shape:
    nodes: int
    place: Place

    @property
    def hops(self) -> int:
        return self.nodes - 1

    @property
    def name(self) -> str:
        return "1 node" if self.nodes == 1 else f"{self.nodes} nodes, {self.place}"


ALONE = Shape(1, "local")
SHAPES = (ALONE, Shape(3, "local"), Shape(3, "remote"), Shape(5, "local"), Shape(5, "remote"))


def pairs(count: int) -> tuple[Lane, ...]:
    """One publisher and one subscriber each."""
    return tuple(Lane(((f"bench/row/{n:02}",),), ((f"bench/row/{n:02}",),), fan=1) for n in range(count))


LOADS: tuple[Workload, ...] = (
    Workload("qos0", "10 pairs, QoS 0, saturated", Saturation(pairs(10), block=32, window=640)),
    Workload("qos1", f"{PAIRS} pairs, QoS 1, window 20", Acknowledged(PAIRS, 1)),
    Workload(
        "qos1-fsync",
        "the same on disk, persistent sessions",
        Acknowledged(PAIRS, 1, clean=False),
        durability="fsync",
        note="Mosquitto acknowledges long before anything is on disk: persistence saves every 30 minutes.",
    ),
    Workload(
        "paced",
        f"10 pairs, QoS 0, {PACED_RATE:,} msg/s, one message per write",
        Paced(pairs(10), rate=PACED_RATE),
        figure="latency_p99_us",
        seconds_min=5.5,
    ),
)
JUDGED = ("qos0", "qos1", "paced")
"""Loads on which a hop has to be cheaper than the peer's; the others are shown."""
ACROSS = Shape(3, "remote")
"""Where QoS 1 has to be at least as fast as the peer, in messages a second and in CPU time."""

BY_NAME = {load.name: load for load in LOADS}
