"""How long a tree takes to form and to form again: real nodes, started, killed, frozen, cut off, while messages flow.

A run starts all nodes; then the root, and after it an inner node (a leaf where there is no other), dies in each of the
ways there are and comes back: SIGKILL, where its system still tells the others; SIGSTOP and a cut cable, where nobody
says anything.  All the time every node has a publisher and a subscriber at QoS 1; in the end every subscriber must have
every message that any publisher was told is safe, those of the dead nodes included.

Nodes know no address of another: they find each other by multicast, unless the plan says otherwise.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import sterna_command
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.node_tables import network, toml
from sterna.measure.harness.nodes import place_tables
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import Process
from sterna.measure.harness.sites import AtADistance, Loopback, NodePlace, Site, may_be_at_a_distance
from sterna.measure.harness.switch import Cables
from sterna.measure.harness.trees import NodeView, edges, inner_nodes, is_tree, is_whole, leaves, look
from sterna.measure.papers.convergence.clients import SteadyClients
from sterna.measure.papers.traffic.placement import TREE

PATIENCE_S = 60.0
LOOK_EVERY_S = 0.01
NEAR_S = 0.002
"""One way between nodes that are linked in the tree: two cables of 1 ms, as in the paper."""
FAR_S = 0.012
"""One way between all others, so that two near hops are shorter."""
CALM_S = 2.0
"""A tree that has not changed for so long is final: the next thing may happen."""
GROUP = "239.255.83.84"
KILLED, FROZEN, CUT = "killed", "frozen", "cut off"
SILENT = (FROZEN, CUT)
"""Deaths of which nobody is told."""


@dataclass(frozen=True, slots=True)
class ConvergencePlan:
    runs: int = 10
    nodes: int = 5
    strategy: str = "subscription-flooding"
    messages_per_s: float = 20.0
    """Of every publisher."""
    at_a_distance: bool = field(default_factory=may_be_at_a_distance)
    multicast: bool = True
    """Nodes find each other by multicast alone; else each is given the addresses of all others, and no group."""

    @property
    def deaths(self) -> tuple[str, ...]:
        """There are no cables on loopback."""
        return (KILLED, FROZEN, CUT) if self.at_a_distance else (KILLED, FROZEN)


class ConvergenceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """From something happening to the tree standing again."""

    what: str
    victim: str
    ready_s: float
    """Until every node that was started answers: after a start, the time a program takes to load."""
    tree_s: float
    """Until all nodes agree on the root and exactly the links of the tree are up."""
    whole_s: float
    """Until besides every node hears everything of every other."""
    final_s: float
    """Until the last change of the tree: shorter ways may be found later."""


class ConvergenceRun(msgspec.Struct, frozen=True, kw_only=True):
    events: list[ConvergenceEvent]
    published: int
    """Messages publishers were told are safe."""
    delivered: int
    """Of these, summed over subscribers, how many arrived at least once."""
    lost: int
    missing: dict[str, int] = {}
    """Lost messages, by the way they had to go."""
    interrupted: int = 0
    """Connections of subscribers that broke though their node was not killed."""


def run(plan: ConvergencePlan, say: Say) -> list[ConvergenceRun]:
    runs = []
    for number in range(plan.runs):
        runs.append(measure(plan, say))
        told = ", ".join(f"{event.what} {event.tree_s:.2f} s" for event in runs[-1].events)
        say(f"run {number + 1} of {plan.runs}: {told}; {runs[-1].published} messages, {runs[-1].lost} lost")
    return runs


def site_of(plan: ConvergencePlan, cables: Cables) -> Site:
    return AtADistance(plan.nodes, delay_s, cables) if plan.at_a_distance else Loopback(plan.nodes)


def described(plan: ConvergencePlan) -> str:
    known = "find each other by multicast alone" if plan.multicast else "know the addresses of all others, no multicast"
    return f"{_site_in_words(plan)}; nodes {known}"


def _site_in_words(plan: ConvergencePlan) -> str:
    if not plan.at_a_distance:
        return "processes on loopback, all equally near (the tree is a star)"
    return (
        f"processes in network namespaces, {2000 * NEAR_S:g} ms of round trip between neighbours in the tree "
        f"0-1, 0-2, 1-3, 2-4 and {2000 * FAR_S:g} ms between all others"
    )


def delay_s(source: int, target: int) -> float:
    """One way: the shortest ways make the tree of the traffic experiment.  A place without a node is near to all."""
    if max(source, target) > max(max(link) for link in TREE):
        return 0.0
    return NEAR_S if (source, target) in TREE or (target, source) in TREE else FAR_S


def measure(plan: ConvergencePlan, say: Say) -> ConvergenceRun:
    """One run.  If something was lost or did not happen, what the nodes wrote is kept, and `say` tells where."""
    cables = Cables()
    with tempfile.TemporaryDirectory(prefix="sterna-convergence-") as name, site_of(plan, cables) as site:
        nodes = TreeNodes(plan, site.places, Path(name), cables)
        try:
            found = asyncio.run(_measure(plan, nodes))
        except MeasurementError:
            _keep_logs(Path(name), say)
            raise
        finally:
            nodes.stop()
        if found.lost:
            _keep_logs(Path(name), say)
        return found


def _keep_logs(directory: Path, say: Say) -> None:
    kept = tempfile.mkdtemp(prefix="sterna-convergence-failed-")
    for log in directory.glob("*.log"):
        shutil.copy(log, kept)
    say(f"the logs of the nodes are kept in {kept}")


async def _measure(plan: ConvergencePlan, nodes: TreeNodes) -> ConvergenceRun:
    began = nodes.start()
    events = [await _watch(nodes, "start", "", began)]
    clients = SteadyClients(nodes.places, 1 / plan.messages_per_s)
    await clients.start()
    try:
        for death in plan.deaths:
            for role in ("root", "inner"):
                what, victim = choose(role, await asyncio.to_thread(nodes.views))
                died = nodes.die(victim, death)
                await clients.give_up(victim)
                events.append(await _watch(nodes, f"{what} {death}", victim, died))
                came = nodes.come_back(victim, death)
                back = f"{what} back" if death == KILLED else f"{what} back, was {death}"
                events.append(await _watch(nodes, back, victim, came))
                await clients.comfort(victim)
        await clients.finish()
    finally:
        await clients.leave()
    nodes.check()
    return ConvergenceRun(
        events=events,
        published=len(clients.safe),
        delivered=clients.delivered,
        lost=clients.lost,
        missing=clients.missing(),
        interrupted=clients.interrupted,
    )


async def _watch(nodes: TreeNodes, what: str, victim: str, began: float) -> ConvergenceEvent:
    ready, tree, whole, final = await asyncio.to_thread(nodes.watch, what)
    return ConvergenceEvent(
        what=what,
        victim=victim,
        ready_s=ready - began,
        tree_s=tree - began,
        whole_s=whole - began,
        final_s=final - began,
    )


def choose(role: str, views: dict[str, NodeView]) -> tuple[str, str]:
    """(what it is, its name); where the tree is a star, a leaf stands in for an inner node."""
    if role == "root":
        return "root", next(iter(views.values())).root
    inner = inner_nodes(views)
    return ("inner node", inner[0]) if inner else ("leaf", leaves(views)[0])


class TreeNodes:
    """The processes; `places` and views go by node name."""

    def __init__(
        self, plan: ConvergencePlan, places: list[NodePlace], directory: Path, cables: Cables | None = None
    ) -> None:
        self._cables = cables or Cables()
        self._group = _group(plan, places)
        self._processes: dict[str, Process] = {}
        self.places: dict[str, NodePlace] = {}
        self._alive: dict[str, None] = {}
        for number, place in enumerate(places):
            name = f"node-{number}"
            file = directory / f"{name}.toml"
            file.write_text(settings(plan, name, number == 0, places, place, directory, self._group))
            command = [*place.prefix, *sterna_command("node", "--config", str(file))]
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

    def die(self, name: str, death: str) -> float:
        """The moment it died."""
        at = time.monotonic()
        del self._alive[name]
        if death == CUT:
            self._cables.cut(self._number(name))
        elif death == FROZEN:
            os.kill(self._processes[name].pid, signal.SIGSTOP)
        else:
            self._processes[name].kill()
        return at

    def come_back(self, name: str, death: str) -> float:
        """The moment it could be heard again."""
        if death == KILLED:
            return self.restart(name)
        if death == CUT:
            self._cables.mend(self._number(name))
        else:
            os.kill(self._processes[name].pid, signal.SIGCONT)
        self._alive[name] = None
        return time.monotonic()

    def _number(self, name: str) -> int:
        return list(self.places).index(name)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()

    def check(self) -> None:
        for name in self._alive:
            self._processes[name].check()

    def views(self) -> dict[str, NodeView]:
        """Of those alive that answer."""
        found = {name: look(self.places[name]) for name in self._alive}
        return {name: view for name, view in found.items() if view is not None}

    def watch(self, what: str) -> tuple[float, float, float, float]:
        """When all answered, when the tree of all who are alive stood, when it was whole, and when it last changed."""
        ready, _ = self._wait(lambda views: True, f"every node answers ({what})")
        tree, views = self._wait(is_tree, f"the tree has formed ({what})")
        whole, _ = self._wait(is_whole, f"everybody hears everybody ({what})")
        return ready, tree, whole, self._wait_until_final(tree, edges(views), what)

    def _wait_until_final(self, final: float, shape: frozenset[frozenset[str]], what: str) -> float:
        deadline = time.monotonic() + PATIENCE_S
        while (now := time.monotonic()) < final + CALM_S:
            views = self.views()
            if views.keys() != self._alive.keys() or not is_tree(views) or edges(views) != shape:
                shape, final = edges(views), now
            if now > deadline:
                raise MeasurementError(f"waited {PATIENCE_S:g} s in vain until the tree stays as it is ({what})")
            time.sleep(LOOK_EVERY_S)
        return final

    def _wait(self, holds: Callable[[dict[str, NodeView]], bool], what: str) -> tuple[float, dict[str, NodeView]]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            views = self.views()
            now = time.monotonic()
            if views.keys() == self._alive.keys() and holds(views):
                return now, views
            if now > deadline:
                raise MeasurementError(f"waited {PATIENCE_S:g} s in vain until {what}; nodes say: {views}")
            self.check()
            time.sleep(LOOK_EVERY_S)


def _group(plan: ConvergencePlan, places: list[NodePlace]) -> str:
    """The group in which nodes find each other; on loopback one that no other experiment uses."""
    if not plan.multicast:
        return ""
    return f"{GROUP}:{7884 if places[0].namespace else free_ports(1)[0]}"


def settings(
    plan: ConvergencePlan,
    name: str,
    leads: bool,
    places: list[NodePlace],
    place: NodePlace,
    directory: Path,
    group: str,
) -> str:
    """Every default but two: the first node has the weight of a root, so that runs can be compared, and no disk is
    waited for."""
    links = network(
        "convergence",
        place.links_address,
        [] if group else [other.links_address for other in places if other is not place],
        key="of no use outside of this experiment",
        strategy=plan.strategy,
        overlay="spanning-tree",
    )
    return toml(
        {
            **place_tables(name, place, directory),
            "journal": {"durability": "os"},
            "admin": {"bind": f"{place.host}:{place.admin}", "anonymous": True},
            "network": links,
            "network.tree": {"multicast": group, "memory_weight": 2.0 if leads else 1.0},
        }
    )
