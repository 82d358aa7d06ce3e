"""A start, the moves that follow, and the drain that ends it, with a crash of every party at every step.

Coordinators, workers and their words are real; the nodes are a model that keeps its sessions over a crash.  A step is
an order, an answer or a deed of a worker.  Each of the parties dies once just before each of them and comes back a
second later.  Wherever that was, the node serves in the end what is near it, and ends when that has gone; and nobody
ends a node that is not closed, empty and proved.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

import pytest

from sterna.adaptation.coordinating import CoordinatingTuning
from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.topics import FROM_GATEWAYS
from sterna.adaptation.words import GatewayReport, Mailroom, Trip
from sterna.migration.drain_proof import DrainProof
from sterna.migration.gateway_moves import GatewayPage, GatewaySummary
from sterna.simulation.adaptive_scenario import SimulatedControlLine, SimulatedCoordinator, place_at
from sterna.simulation.adaptive_worker import REGION, SimulatedWorker, WorkerFile
from sterna.simulation.kernel import Kernel, Trace

FAR_S = 0.1
STARTED_AT, LEFT_AT, END = 6.0, 22.0, 70.0
AWAY_S = 1.0
DECIDES = AdaptationTuning(
    pass_s=1.0, steady_s=0.5, cool_down_s=2.0, high_s=1.0, calm_s=4.0, young_s=2.0, up=25.0, down=12.0, witnesses=1
)
LEADS = CoordinatingTuning(
    say_s=0.5, lead_after_s=1.5, settle_s=2.5, lost_s=4.0, order_valid_s=4.0, order_retry_s=0.5, order_pause_s=1.0
)


class ModelNode:
    """A process that takes half a second to get ready; its sessions and whether it is closed outlive it."""

    def __init__(self, town: Town, name: str) -> None:
        self._town = town
        self.name = name
        self.clients = f"{name}:1883"
        self.is_alive = False
        self.processes = 0
        self.closed = False
        self.sessions: set[str] = set()
        self.under_way: dict[str, str] = {}
        self._joined_at = 0.0
        self._have_read: set[str] = set()
        """Nodes that had all of it, safe, when it was last asked."""

    @property
    def is_joined(self) -> bool:
        return self.is_alive and self._town.kernel.now >= self._joined_at

    def gateways(self) -> GatewayPage:
        found = [GatewaySummary(one, 1, 1) for one in sorted(self.sessions) if self._town.is_there(one)]
        return GatewayPage(self.name, found)

    def prove(self, told: Callable[[DrainProof], None]) -> None:
        process = self.processes

        def answered() -> None:
            if self.is_alive and process == self.processes:
                proof = self.proof()
                self._have_read = set(self._town.nodes) - {*proof.absent, *proof.unsynced}
                told(proof)

        self._town.kernel.after(0.05, answered)

    def proof(self) -> DrainProof:
        others = [one for one in self._town.nodes.values() if one is not self]
        return DrainProof(
            node=self.name,
            closed=self.closed,
            sessions=len(self.sessions),
            remains=0,
            moves=len(self.under_way),
            control=0,
            readers_behind=0,
            unanswered=[],
            unsynced=[one.name for one in others if one.is_alive and not one.is_joined],
            absent=[one.name for one in others if not one.is_alive],
        )

    def move(self, gateway: str, to: str) -> bool | None:
        if not self.is_alive:
            return None
        if gateway not in self.sessions:
            return False
        if gateway not in self.under_way:
            self.under_way[gateway] = to
            self._town.kernel.after(0.2, self._arrives, gateway, self.processes)
        return True

    def _arrives(self, gateway: str, process: int) -> None:
        target = self._town.nodes[self.under_way.pop(gateway, self.name)]
        if self.is_alive and process == self.processes and target.is_joined and not target.closed:
            self.sessions.discard(gateway)
            target.sessions.add(gateway)

    def start(self) -> None:
        if not self.is_alive:
            self.is_alive, self.processes = True, self.processes + 1
            self._joined_at = self._town.kernel.now + 0.5
            self._town.kernel.tell(f"{self.name} starts")

    def open(self) -> None:
        if self.is_alive:
            self.closed = False

    def evacuate(self, rate: float) -> None:
        if not self.is_alive:
            return
        self.closed = True
        for gateway in sorted(self.sessions) if rate > 1 else ():
            self.move(gateway, "cloud")

    def terminate(self, owed: Set[str]) -> None:
        proof = self.proof()
        unread = {*proof.absent, *proof.unsynced} - owed - self._have_read
        if self.is_alive and (not proof.is_empty or unread):
            self._town.broken.append(f"{self.name} is ended at {self._town.kernel.now:.2f}: {proof}")
        self._town.kernel.tell(f"{self.name} gets SIGTERM")
        self._town.kernel.after(0.1, self._ends, self.processes)

    def _ends(self, process: int) -> None:
        if self.processes == process:
            self.kill()

    def kill(self) -> None:
        self.is_alive = False
        self.under_way.clear()


class Town:
    """A cloud and an edge, two coordinators, and gateways that come to the edge and leave it."""

    def __init__(self, victim: str = "", step: int = -1) -> None:
        self.kernel = Kernel(7, Trace(self._happened))
        self.steps: list[str] = []
        self.broken: list[str] = []
        self._victim, self._step = victim, step
        self.away: set[str] = set()
        self.at = 0.0
        self.nodes = {name: ModelNode(self, name) for name in ("cloud", "edge")}
        self.line = SimulatedControlLine(self.kernel, lost=0.0)
        self.workers = {
            name: SimulatedWorker(self.kernel, node, self.line, place_at(place), fixed=name == "cloud")
            for (name, node), place in zip(self.nodes.items(), (0.0, FAR_S), strict=True)
        }
        self.line.workers = self.workers
        names = ("coordinator1", "coordinator2")
        self.coordinators = {name: SimulatedCoordinator(self.kernel, self.line, name, DECIDES, LEADS) for name in names}
        self.line.coordinators = self.coordinators
        self.mails = {name: Mailroom(REGION, REGION, name, 1) for name in ("g1", "g2")}
        self.nodes["cloud"].start()
        self.nodes["cloud"].sessions |= set(self.mails)
        self.workers["edge"].file = WorkerFile(WorkerNodeState.OFF, wanted=False)

    @property
    def parties(self) -> list[str]:
        return ["worker cloud", "worker edge", "node cloud", "node edge", *self.coordinators, "g1"]

    def is_there(self, gateway: str) -> bool:
        return gateway not in self.away

    def _happened(self, line: str) -> None:
        what = line.partition(" ")[2]
        if "is ordered" in what or ("its node is" in what and "boot" not in what) or "gets SIGTERM" in what:
            self.steps.append(what)
            if len(self.steps) - 1 == self._step:
                self._dies()

    def _dies(self) -> None:
        """Before the step: a worker that dies carries nothing more out."""
        kind, _, name = self._victim.partition(" ")
        if kind == "worker":
            self.workers[name].kill()
            self.kernel.after(AWAY_S, self.workers[name].boot)
        elif kind == "node":
            self.nodes[name].kill()
        elif kind in self.coordinators:
            self.coordinators[kind].kill()
            self.kernel.after(AWAY_S, self.coordinators[kind].boot)
        else:
            self.away.add(kind)
            self.kernel.after(AWAY_S, self.away.discard, kind)

    def _report(self) -> None:
        for name, mail in self.mails.items():
            if self.is_there(name):
                trips = (Trip("cloud", self.at + 0.001), Trip("edge", FAR_S - self.at + 0.001))
                self.line.say(name, FROM_GATEWAYS, mail.write(GatewayReport(trips), place_at(self.at)))
        self.kernel.after(1.0, self._report)

    def _goes(self, at: float) -> None:
        self.at = at

    def run(self) -> Town:
        for worker in self.workers.values():
            worker.boot()
        for coordinator in self.coordinators.values():
            coordinator.boot()
        self._report()
        self.kernel.at(STARTED_AT, self._goes, FAR_S)
        self.kernel.run_until(LEFT_AT)
        self.served = set(self.nodes["edge"].sessions)
        self.kernel.at(LEFT_AT, self._goes, 0.0)
        self.kernel.run_until(END)
        return self


UNDISTURBED = Town().run()


def test_undisturbed_it_starts_serves_and_ends() -> None:
    told = " / ".join(UNDISTURBED.steps)
    for what in ("StartNode", "open it", "MoveGateway", "StopNode", "close it", "send a probe", "send SIGTERM", "off"):
        assert what in told, told
    assert_came_to_the_same_end(UNDISTURBED)
    assert UNDISTURBED.nodes["edge"].processes == 1


@pytest.mark.parametrize("victim", UNDISTURBED.parties)
def test_whoever_dies_at_whichever_step_it_ends_the_same(victim: str) -> None:
    for step in range(len(UNDISTURBED.steps)):
        town = Town(victim, step).run()
        assert len(town.steps) > step, "nobody died"
        try:
            assert_came_to_the_same_end(town)
        except AssertionError as error:
            raise AssertionError(f"{victim} dies at {UNDISTURBED.steps[step]!r}: {error}; {town.steps}") from None


def assert_came_to_the_same_end(town: Town) -> None:
    assert not town.broken
    assert town.served == {"g1", "g2"}, "the edge serves what is near it"
    assert town.workers["edge"].state is WorkerNodeState.OFF
    assert not town.nodes["edge"].is_alive
    assert not town.nodes["edge"].sessions
    assert town.nodes["cloud"].sessions == {"g1", "g2"}, "nobody is lost, nobody is at two nodes"


def test_a_worker_that_ends_a_node_without_proof_is_caught() -> None:
    town = Town()
    node = town.nodes["cloud"]
    node.terminate(set())
    assert "cloud is ended" in town.broken[0]
    assert not replace(node.proof(), closed=True).is_empty
