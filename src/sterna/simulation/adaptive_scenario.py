"""A network that adapts itself, in a scenario of random faults: coordinators, a worker beside each node, gateways.

Nodes, gateways, words and decisions are the real ones.  A model are the distances that gateways measure, which change
as they wander, and the control line, which loses words and is cut now and then.  The first node is fixed; the others
start and stop.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from random import Random

from sterna.adaptation.coordinating import Coordinating, CoordinatingTuning, Said
from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.topics import FROM_GATEWAYS, LEADING, REPORTS, TO_WORKERS, control_topic
from sterna.adaptation.words import GatewayReport, Mailroom, Trip
from sterna.migration.drain_proof import DrainProof, prove_drain
from sterna.migration.gateway_moves import GatewayMove, GatewayPage, move_gateway, summaries
from sterna.migration.move_manager import MoveManager
from sterna.overlay.coordinates import DIMENSIONS, Coordinate
from sterna.simulation.adaptive_worker import KEY, REGION, SimulatedWorker
from sterna.simulation.clients import Client
from sterna.simulation.gateway import GatewayMachine
from sterna.simulation.kernel import Kernel
from sterna.simulation.machine import Running, SimulatedMachine
from sterna.simulation.network_checkers import known_everywhere, lacked_by
from sterna.simulation.records import Violation
from sterna.simulation.world import SimulatedWorld

COORDINATORS = 2
APART_S = 0.06
"""Round trip between two nodes that are next to each other."""
WORD_S = 0.03
LOST = 0.05
"""Share of words that the control line loses."""
TICK_S = 0.1
MEASURED_EVERY_S = 1.0
STAYS_S = 9.0
"""Mean time that a gateway stays somewhere."""
FAILS_EVERY_S = 5.0
AWAY_S = 2.0
REFUGE_S = 1.0
TUNING = AdaptationTuning(
    pass_s=0.5,
    steady_s=0.5,
    cool_down_s=2.0,
    high_s=1.0,
    calm_s=3.0,
    young_s=3.0,
    up=25.0,
    down=12.0,
    witnesses=1,
)
LEADING_TUNING = CoordinatingTuning(
    say_s=0.5, lead_after_s=1.5, settle_s=2.5, lost_s=4.0, order_valid_s=4.0, order_retry_s=0.5, order_pause_s=1.0
)


class SimulatedControlLine:
    """Words between coordinators, workers and gateways: late, lost, and cut for a while."""

    def __init__(self, kernel: Kernel, lost: float = LOST) -> None:
        self._kernel = kernel
        self._lost = lost
        self._dice = kernel.dice("control line")
        self.workers: dict[str, SimulatedWorker] = {}
        self.coordinators: dict[str, SimulatedCoordinator] = {}
        self.cut: set[str] = set()
        """Those that nobody hears, and who hear nobody."""

    def say(self, sender: str, kind: str, data: bytes) -> None:
        """To everybody who listens to this kind of words."""
        topic = control_topic(REGION, kind, REGION if kind == LEADING else sender)
        for name, one in self.coordinators.items():
            self._send(sender, name, partial(_hear, one), topic, data)
        if kind in (LEADING, REPORTS):
            for name, worker in self.workers.items():
                self._send(sender, name, partial(_hear, worker), topic, data)

    def order(self, sender: str, worker: str, data: bytes) -> None:
        topic = control_topic(REGION, TO_WORKERS, worker)
        self._send(sender, worker, partial(_hear, self.workers[worker]), topic, data)

    def _send(self, sender: str, to: str, hear: Callable[[bytes, bytes], None], topic: bytes, data: bytes) -> None:
        if sender != to and sender not in self.cut and to not in self.cut and self._dice.random() >= self._lost:
            self._kernel.after(self._dice.expovariate(1 / WORD_S), hear, topic, data)


def _hear(one: SimulatedWorker | SimulatedCoordinator, topic: bytes, data: bytes) -> None:
    if one.running is not None:
        one.running.came(topic, data)


class MachineHand:
    """A worker's hand on the real node of its machine."""

    def __init__(self, machine: SimulatedMachine, scenario: AdaptiveScenario) -> None:
        self._machine = machine
        self._scenario = scenario
        self.name = machine.name
        self.clients = machine.address

    @property
    def is_alive(self) -> bool:
        return self._machine.running is not None

    @property
    def is_joined(self) -> bool:
        running = self._machine.running
        assert running is not None
        assert running.node.network is not None
        router = running.node.network.router
        others = set(router.paths.origins) - {self.name}
        return bool(others) and all(state == "synced" for state in router.streams.states().values())

    def gateways(self) -> GatewayPage:
        return summaries(self._moving[0].broker, self.name, flows=True)

    def prove(self, told: Callable[[DrainProof], None]) -> None:
        running, moving = self._moving
        running.work(prove_drain, moving, lambda: 0, told)

    def move(self, gateway: str, to: str) -> bool | None:
        if not self.is_alive:
            return None
        running, moving = self._moving
        outcomes: list[GatewayMove] = []
        running.work(lambda: outcomes.append(move_gateway(moving, gateway, to)))
        return bool(outcomes[0].begun or outcomes[0].under_way or outcomes[0].left)

    def start(self) -> None:
        self._machine.boot()

    def open(self) -> None:
        if self.is_alive:
            running, moving = self._moving
            running.work(moving.plans.stay)

    def evacuate(self, rate: float) -> None:
        if self.is_alive:
            running, moving = self._moving
            running.work(_evacuate, moving, rate)

    def terminate(self, owed: Set[str]) -> None:
        self._scenario.ended(self._machine, owed)
        self._machine.shut_down()

    @property
    def _moving(self) -> tuple[Running, MoveManager]:
        running = self._machine.running
        assert running is not None
        assert running.node.network is not None
        return running, running.node.network.moving


def _evacuate(moving: MoveManager, rate: float) -> None:
    moving.plans.evacuate(rate)


class SimulatedCoordinator:
    def __init__(
        self,
        kernel: Kernel,
        line: SimulatedControlLine,
        name: str,
        tuning: AdaptationTuning = TUNING,
        settings: CoordinatingTuning = LEADING_TUNING,
    ) -> None:
        self.kernel = kernel
        self.tuning = tuning
        self.settings = settings
        self.line = line
        self.name = name
        self.boots = 0
        self.frozen = False
        self.running: RunningCoordinator | None = None

    def boot(self) -> None:
        if self.running is None:
            self.boots += 1
            self.kernel.tell(f"{self.name} boot {self.boots}")
            self.running = RunningCoordinator(self)

    def kill(self) -> None:
        if self.running is not None:
            self.running = None
            self.kernel.tell(f"{self.name} is killed")


class RunningCoordinator:
    def __init__(self, owner: SimulatedCoordinator) -> None:
        self._owner = owner
        kernel = owner.kernel
        dice = kernel.dice(f"{owner.name} {owner.boots}")
        self._mail = Mailroom(REGION, REGION, owner.name, owner.boots, KEY)
        self.core = Coordinating(owner.name, REGION, owner.settings, owner.tuning, DIMENSIONS, dice, kernel.now)
        kernel.after(0.0, self._tick)

    def came(self, topic: bytes, data: bytes) -> None:
        letter = self._mail.read(topic, data)
        if letter is not None:
            self._carry(self.core.came(letter, self._owner.kernel.now))

    def _tick(self) -> None:
        if self._owner.running is self:
            if self._owner.frozen and not self.core.leadership.frozen:
                self._carry(self.core.freeze(True))
            self._carry(self.core.tick(self._owner.kernel.now))
            self._owner.kernel.after(TICK_S, self._tick)

    def _carry(self, said: list[Said]) -> None:
        for kind, name, word in said:
            data = self._mail.write(word)
            if kind == TO_WORKERS and name in self._owner.line.workers:
                self._owner.line.order(self._owner.name, name, data)
            elif kind == LEADING:
                self._owner.line.say(self._owner.name, LEADING, data)


class WanderingGateway:
    """The measuring side of a gateway: it is near one node now, and near another one later."""

    def __init__(self, scenario: AdaptiveScenario, machine: GatewayMachine) -> None:
        self._scenario = scenario
        self._machine = machine
        self._kernel = machine.kernel
        self._dice = self._kernel.dice(f"{machine.name} wanders")
        self._at = 0.0
        self._mail: tuple[int, Mailroom] = (0, Mailroom(REGION, REGION, machine.name, 0))

    def start(self, until: float) -> None:
        self._wander(until)
        self._report()

    def _wander(self, until: float) -> None:
        if self._kernel.now < until:
            self._at = self._dice.randrange(len(self._scenario.workers)) * APART_S + self._dice.uniform(0.001, 0.01)
            self._kernel.tell(f"{self._machine.name} is at {self._at:.3f}")
            self._kernel.after(self._dice.expovariate(1 / STAYS_S), self._wander, until)

    def _report(self) -> None:
        self._kernel.after(MEASURED_EVERY_S * self._dice.uniform(0.5, 1.5), self._report)
        machine = self._machine
        if machine.running is None:
            return
        if self._mail[0] != machine.boots:
            self._mail = (machine.boots, Mailroom(REGION, REGION, machine.name, machine.boots))
        trips = tuple(
            Trip(worker.name, abs(worker.place.vector[0] - self._at) + self._dice.uniform(0.001, 0.002))
            for worker in self._scenario.workers
            if worker.running is not None
        )
        data = self._mail[1].write(GatewayReport(trips), place_at(self._at))
        self._scenario.line.say(machine.name, FROM_GATEWAYS, data)


def place_at(x: float) -> Coordinate:
    return Coordinate((x, *[0.0] * (DIMENSIONS - 1)), 0.001, 0.1)


class AdaptiveScenario:
    def __init__(self, scene: SimulatedWorld, gateways: list[GatewayMachine], guests: list[Client]) -> None:
        """`guests`: clients that look for another node when theirs is off."""
        self._scene = scene
        self._dice: Random = scene.kernel.dice("adaptation faults")
        self.line = SimulatedControlLine(scene.kernel)
        self._guests = guests
        self.workers = [
            SimulatedWorker(scene.kernel, MachineHand(machine, self), self.line, place_at(at * APART_S), fixed=not at)
            for at, machine in enumerate(scene.machines)
        ]
        for machine, worker in zip(scene.machines, self.workers, strict=True):
            machine.watch = worker
        self.line.workers = {worker.name: worker for worker in self.workers}
        names = [f"coordinator{number}" for number in range(1, COORDINATORS + 1)]
        self._coordinators = [SimulatedCoordinator(scene.kernel, self.line, name) for name in names]
        self.line.coordinators = {one.name: one for one in self._coordinators}
        self._gateways = [WanderingGateway(self, machine) for machine in gateways]
        self.violations: list[Violation] = []
        self.stops = 0
        self.kills = 0

    def start(self, until: float) -> None:
        self._boot_all()
        for gateway in self._gateways:
            gateway.start(until)
        self._seek_refuge()
        self._scene.kernel.after(self._dice.expovariate(1 / FAILS_EVERY_S), self._fail, until)

    def calm(self) -> None:
        """Nobody dies any more, and nothing is ordered: what is under way comes to its end."""
        self.line.cut.clear()
        self._boot_all()
        for coordinator in self._coordinators:
            coordinator.frozen = True

    def _boot_all(self) -> None:
        for worker in self.workers:
            worker.boot()
        for coordinator in self._coordinators:
            coordinator.boot()

    @property
    def is_quiet(self) -> bool:
        """Every node serves, or is off and owes nothing to one that is there."""
        there = {worker.name for worker in self.workers if worker.state is WorkerNodeState.SERVING}
        return all(
            (worker.state is WorkerNodeState.SERVING and worker.hand.is_alive)
            or (worker.state is WorkerNodeState.OFF and not worker.file.owed & there)
            for worker in self.workers
        )

    # -- faults of its own --

    def _fail(self, until: float) -> None:
        kernel, dice = self._scene.kernel, self._dice
        if kernel.now >= until:
            return
        self.kills += 1
        victims: list[SimulatedWorker | SimulatedCoordinator] = [*self.workers, *self._coordinators]
        victim = dice.choice(victims)
        if dice.random() < 0.3:
            kernel.tell(f"{victim.name} is cut off the control line")
            self.line.cut.add(victim.name)
            kernel.after(dice.uniform(0.1, 2 * AWAY_S), self.line.cut.discard, victim.name)
        else:
            victim.kill()
            kernel.after(dice.uniform(0.05, 2 * AWAY_S), victim.boot)
        kernel.after(dice.expovariate(1 / FAILS_EVERY_S), self._fail, until)

    def _seek_refuge(self) -> None:
        """Clients know more than one node: where none is, they try the one that is always there."""
        off = {worker.hand.clients for worker in self.workers if worker.state is WorkerNodeState.OFF}
        refuge = self.workers[0].hand.clients
        for guest in self._guests:
            if guest.address in off and not guest.is_welcome and known_everywhere(self._there(), guest.name):
                self._scene.kernel.tell(f"{guest.name} goes to {refuge}")
                guest.address = refuge
        self._scene.kernel.after(REFUGE_S, self._seek_refuge)

    def _there(self) -> list[SimulatedMachine]:
        return [machine for machine in self._scene.machines if machine.watch is not None and not machine.watch.is_off]

    # -- the check --

    def ended(self, machine: SimulatedMachine, owed: Set[str]) -> None:
        """A node gets its SIGTERM: does it owe anything to anybody, by what nobody in the scenario can see?"""
        running = machine.running
        if running is None or running.node.network is None:
            return
        self.stops += 1
        moving = running.node.network.moving
        held = sorted(client.decode() for client in running.broker.sessions)
        if held or moving.departures:
            detail = (
                f"{machine.name} at {self._scene.kernel.now:.3f} had sessions of {held}, {len(moving.departures)} go"
            )
            self.violations.append(Violation("stopped owing", detail, (machine.name, *held)))
        others = [other for other in self._scene.machines if other is not machine and other.name not in owed]
        for other in others:
            if lacking := lacked_by(other, machine):
                detail = f"{other.name} lacks {', '.join(lacking)} of {machine.name} at {self._scene.kernel.now:.3f}"
                self.violations.append(Violation("stopped owing", detail, (*lacking, machine.name, other.name)))
