"""How long a tree takes to form and to form again: real nodes, started and killed, while messages flow.

A run starts all nodes, kills the root and starts it again, then kills an inner node (a leaf where there is no other)
and starts it again.  All the time every node has a publisher and a subscriber at QoS 1; in the end every subscriber
must have every message that any publisher was told is safe, those of the killed nodes included.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sterna.experiments.errors import ExperimentError
from sterna.experiments.processes import Process
from sterna.experiments.sites import AtADistance, Loopback, Place, Site, may_be_at_a_distance
from sterna.experiments.steady_clients import SteadyClients
from sterna.experiments.trees import View, inner_nodes, is_tree, is_whole, leaves, look

PATIENCE_S = 60.0
LOOK_EVERY_S = 0.01
CALM_S = 1.0
"""Of traffic between events."""

Talk = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    runs: int = 10
    nodes: int = 5
    strategy: str = "subscription-flooding"
    messages_per_s: float = 20.0
    """Of every publisher."""
    at_a_distance: bool = field(default_factory=may_be_at_a_distance)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """From something happening to the tree standing again."""

    what: str
    victim: str
    tree_s: float
    """Until all nodes agree on the root and exactly the links of the tree are up."""
    whole_s: float
    """Until besides every node hears everything of every other."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    ready_s: float
    """From launching the last process until every node answers: the time programs take to load."""
    events: list[Event]
    published: int
    """Messages publishers were told are safe."""
    delivered: int
    """Of these, summed over subscribers, how many arrived at least once."""
    lost: int


def run(plan: Plan, talk: Talk) -> list[Run]:
    runs = []
    for number in range(plan.runs):
        runs.append(measure(plan))
        told = ", ".join(f"{event.what} {event.tree_s:.2f} s" for event in runs[-1].events)
        talk(f"run {number + 1} of {plan.runs}: {told}; {runs[-1].published} messages, {runs[-1].lost} lost")
    return runs


def site_of(plan: Plan) -> Site:
    return AtADistance(plan.nodes) if plan.at_a_distance else Loopback(plan.nodes)


def measure(plan: Plan) -> Run:
    with tempfile.TemporaryDirectory(prefix="sterna-convergence-") as name, site_of(plan) as site:
        nodes = Nodes(plan, site.places, Path(name))
        try:
            return asyncio.run(_measure(plan, nodes))
        finally:
            nodes.stop()


async def _measure(plan: Plan, nodes: Nodes) -> Run:
    began = nodes.start()
    ready = await asyncio.to_thread(nodes.wait_until_ready)
    events = [await _watch(nodes, "start", "", began)]
    clients = SteadyClients(nodes.places, 1 / plan.messages_per_s)
    await clients.start()
    try:
        for role in ("root", "inner"):
            await asyncio.sleep(CALM_S)
            what, victim = choose(role, nodes.views())
            killed = nodes.kill(victim)
            events.append(await _watch(nodes, f"{what} killed", victim, killed))
            await asyncio.sleep(CALM_S)
            started = nodes.restart(victim)
            events.append(await _watch(nodes, f"{what} back", victim, started))
            await clients.comfort(victim)
        await asyncio.sleep(CALM_S)
        await clients.finish()
    finally:
        await clients.leave()
    nodes.check()
    return Run(
        ready_s=ready - began,
        events=events,
        published=len(clients.safe),
        delivered=clients.delivered,
        lost=clients.lost,
    )


async def _watch(nodes: Nodes, what: str, victim: str, began: float) -> Event:
    tree, whole = await asyncio.to_thread(nodes.wait_until_formed, what)
    return Event(what=what, victim=victim, tree_s=tree - began, whole_s=whole - began)


def choose(role: str, views: dict[str, View]) -> tuple[str, str]:
    """(what it is, its name); where the tree is a star, a leaf stands in for an inner node."""
    if role == "root":
        return "root", next(iter(views.values())).root
    inner = inner_nodes(views)
    return ("inner node", inner[0]) if inner else ("leaf", leaves(views)[0])


class Nodes:
    """The processes; `places` and views go by node name."""

    def __init__(self, plan: Plan, places: list[Place], directory: Path) -> None:
        self._processes: dict[str, Process] = {}
        self.places: dict[str, Place] = {}
        self._alive: dict[str, None] = {}
        for number, place in enumerate(places):
            name = f"node-{number}"
            file = directory / f"{name}.toml"
            file.write_text(settings(plan, name, number == 0, places, place, directory))
            command = [*place.prefix, sys.executable, "-m", "sterna", "node", "--config", str(file)]
            self._processes[name] = Process(name, command, directory)
            self.places[name] = place

    def start(self) -> float:
        """All of them; the moment the last was launched."""
        for name in self._processes:
            self.restart(name)
        return time.monotonic()

    def restart(self, name: str) -> float:
        self._processes[name].start()
        self._alive[name] = None
        return time.monotonic()

    def kill(self, name: str) -> float:
        """SIGKILL; the moment it was sent."""
        at = time.monotonic()
        del self._alive[name]
        self._processes[name].kill()
        return at

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()

    def check(self) -> None:
        for name in self._alive:
            self._processes[name].check()

    def views(self) -> dict[str, View]:
        """Of those alive that answer."""
        found = {name: look(self.places[name]) for name in self._alive}
        return {name: view for name, view in found.items() if view is not None}

    def wait_until_ready(self) -> float:
        return self._wait(lambda views: True, "every node answers")

    def wait_until_formed(self, what: str) -> tuple[float, float]:
        """When the tree of all who are alive stood, and when it was whole."""
        tree = self._wait(is_tree, f"the tree has formed ({what})")
        return tree, self._wait(is_whole, f"everybody hears everybody ({what})")

    def _wait(self, holds: Callable[[dict[str, View]], bool], what: str) -> float:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            views = self.views()
            now = time.monotonic()
            if views.keys() == self._alive.keys() and holds(views):
                return now
            if now > deadline:
                raise ExperimentError(f"waited {PATIENCE_S:g} s in vain until {what}; nodes say: {views}")
            self.check()
            time.sleep(LOOK_EVERY_S)


def settings(plan: Plan, name: str, leads: bool, places: list[Place], place: Place, directory: Path) -> str:
    """Every default but what makes the first node the root, so that runs can be compared."""
    neighbours = ", ".join(f'"{other.host}:{other.links}"' for other in places if other is not place)
    return f"""\
[node]
name = "{name}"
data = "{directory}/{name}"
[journal]
durability = "os"
[admin]
bind = "{place.host}:{place.admin}"
anonymous = true
[log]
format = "json"
[[listener]]
bind = "{place.host}:{place.clients}"
anonymous = true
[network]
name = "convergence"
key = "of no use outside of this experiment"
bind = "{place.host}:{place.links}"
neighbours = [{neighbours}]
strategy = "{plan.strategy}"
overlay = "spanning-tree"
[network.tree]
multicast = ""
memory_weight = {2.0 if leads else 1.0}
"""
