"""Faults while a client is moved, and the town in which they happen."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from town import Town

from sterna.simulation.gateway import GatewayMachine
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.network import Path
from sterna.simulation.network_checkers import one_owner

CLIENT = "node1s"
AWAY_S = 1.5

FAR_S = 0.08
WAYS: dict[str, tuple[str, str] | None] = {
    "all near": None,
    "gateway far from the old node": ("gateway", "node1"),
    "gateway far from the new node": ("gateway", "node2"),
    "nodes far from each other": ("node1", "node2"),
}
"""Which hosts of a move are far from each other."""

Fault = Callable[[Town], None]


def lengthen(town: Town, way: str) -> None:
    if ends := WAYS[way]:
        town.scene.network.set_path(*ends, Path(latency_s=FAR_S))


def crash(name: str, *, power: bool) -> Fault:
    def fault(town: Town) -> None:
        machine: SimulatedMachine | GatewayMachine = (
            town.gateway if town.gateway and name == "gateway" else town.machine(name)
        )
        machine.kill(power=power)
        town.scene.kernel.after(AWAY_S, machine.boot)

    return fault


def cut(town: Town) -> None:
    """The two nodes of the move no longer hear each other, nor does anybody hear them."""
    heal = town.scene.network.partition([[name] for name in town.names])
    town.scene.kernel.after(AWAY_S, heal)


def sever(town: Town) -> None:
    """Every connection between nodes breaks, and is made again."""
    for one, other in combinations(town.names, 2):
        town.scene.network.sever(one, other, silently=False)


FAULTS: dict[str, Fault] = {
    "the source is killed": crash("node1", power=False),
    "the source loses power": crash("node1", power=True),
    "the target is killed": crash("node2", power=False),
    "the target loses power": crash("node2", power=True),
    "nobody hears anybody": cut,
    "all links break": sever,
}


def begun(size: int, seed: int, *, gateway: bool = False, way: str = "all near") -> Town:
    town = Town(size, "subscription-flooding", seed=seed, gateway=gateway)
    lengthen(town, way)
    town.begin()
    for machine in town.scene.machines:
        assert machine.running is not None
    town.publish(40, 4.0)
    town.scene.run(1.0)
    return town


def ordered(town: Town) -> None:
    """The client is to be moved from the first node to the second."""
    running = town.machine("node1").running
    assert running is not None
    assert running.node.network is not None
    moving = running.node.network.moving

    def order() -> None:
        moving.plans.move(CLIENT.encode(), "node2")

    running.work(order)


def checked(town: Town, heard: list[str], kind: str) -> None:
    town.scene.run(12.0)
    assert kind in heard, "the protocol came so far"
    assert town.end() == []
    assert one_owner(town.scene.machines) == []
    had = {arrival.identity for arrival in town.scene.records.arrivals[CLIENT]}
    assert len(had) > 20 * len(town.names)
