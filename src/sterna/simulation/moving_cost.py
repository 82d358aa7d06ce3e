"""The control traffic of a mobile overlay: bytes per node while nothing moves, and frames when one node moves.

Nodes stand in a square grid, each in reach of those beside it.  Then the last one goes to the opposite corner.
"""

from __future__ import annotations

from typing import NamedTuple

from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.membership import members
from sterna.simulation.network import Path
from sterna.simulation.reach import REACH_M, MapPosition, Reach
from sterna.simulation.world import new_world

SETTLE_S = 40.0
MEASURED_S = 20.0
BESIDE = 0.75
"""Distance between two nodes of the grid, in reaches."""


class MovingCost(NamedTuple):
    nodes: int
    strategy: str
    hello_bytes_s: float
    """Per node, while nothing moves."""
    link_bytes_s: float
    """The same, keep-alives and acknowledgements included."""
    frames: int
    """Of the whole network, for one node that moves."""
    frame_bytes: float
    parent_changes: int


def measure(nodes: int, strategy: str, seed: int = 1) -> MovingCost:
    world = new_world(seed, path=Path(0.002, 0.0005, 12_500_000.0, 0.0, 0.0))
    names = [f"node{number:02}" for number in range(nodes)]
    joined = members(names, strategy, "mobile", world.kernel.dice("members"))
    machines = [world.add_machine(name, membership=joined[name]) for name in names]
    reach = Reach(world.network, names)
    side, step = max(1, int(nodes**0.5)), BESIDE * REACH_M
    reach.stand({name: MapPosition(place % side * step, place // side * step) for place, name in enumerate(names)})
    for machine in machines:
        machine.boot()
    world.run(SETTLE_S)
    said, sent = world.network.said_bytes, _total(machines, "bytes_sent")
    world.run(MEASURED_S)
    hello_bytes_s = (world.network.said_bytes - said) / MEASURED_S
    link_bytes_s = (_total(machines, "bytes_sent") - sent) / MEASURED_S
    frames, sent, changes = _total(machines, "messages"), _total(machines, "bytes_sent"), _parent_changes(machines)
    reach.stand({names[-1]: MapPosition(-step / 2, -step / 2)})
    world.run(MEASURED_S)
    return MovingCost(
        nodes,
        strategy,
        hello_bytes_s / nodes,
        link_bytes_s / nodes,
        _total(machines, "messages") - frames,
        _total(machines, "bytes_sent") - sent - link_bytes_s * MEASURED_S,
        _parent_changes(machines) - changes,
    )


def _total(machines: list[SimulatedMachine], counter: str) -> int:
    """Of all links of all nodes."""
    networks = [machine.running.node.network for machine in machines if machine.running is not None]
    counters = [one for network in networks if network is not None for one in network.links.counters.values()]
    return sum(getattr(one, counter) for one in counters)


def _parent_changes(machines: list[SimulatedMachine]) -> int:
    networks = [machine.running.node.network for machine in machines if machine.running is not None]
    changes = [network.overlay.view()["changes"] for network in networks if network is not None]
    return sum(one["parent"] for one in changes if isinstance(one, dict))
