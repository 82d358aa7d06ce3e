"""A scenario of random clients and random faults, a quiet time, and then the checkers.

The same Plan gives the same trace, in any process; a Plan is what the command line says, so a failure can name the
command that repeats it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from sterna.migration.planned_moves import PlannedMoves
from sterna.migration.settings import MigrationSettings
from sterna.node.network_settings import for_strategy
from sterna.node.node import Node
from sterna.operators.settings import OperatorSettings as OperatorSettings
from sterna.routing.mobile import MobileRouting
from sterna.routing.strategy import RoutingSettings
from sterna.simulation import checkers
from sterna.simulation.adaptive_scenario import AdaptiveScenario
from sterna.simulation.clients import Client, Habits
from sterna.simulation.computed import CheckedComputation
from sterna.simulation.faults import LONE_KINDS, Faults
from sterna.simulation.foreign_scenario import ROUNDS_S, ForeignScenario
from sterna.simulation.gateway_scenario import GatewayScenario
from sterna.simulation.kernel import Trace
from sterna.simulation.machine import MachineSettings, Running, SimulatedMachine
from sterna.simulation.membership import MIGRATION, NETWORK, members
from sterna.simulation.network import Path
from sterna.simulation.network_checkers import (
    everybody_in_step,
    frames_sent,
    hands_over,
    known_everywhere,
    note_overtaken,
    nothing_left_over,
    one_owner,
    tables_without,
    waited_long_enough,
    within_bounds,
)
from sterna.simulation.population import Mover, Roamer, SimulatedPublisher, habits, shared_habits
from sterna.simulation.reach import Reach
from sterna.simulation.records import Violation
from sterna.simulation.world import new_world
from sterna.vocabulary.errors import MigrationError

ROAMERS = 1
GATEWAYS = 1
EXPRESSIONS = 1
FOREIGN_BROKERS = 2
FAULT_PAUSE_S = 0.8
PUBLISH_PAUSE_S = 0.4
QUIET_STEP_S = 0.5
QUIET_S = 2.0
"""Nothing has arrived for so long, and nobody waits for an answer: it is quiet."""
STUCK_S = 20.0
"""Somebody waits for an answer, and nothing has moved for so long: it will not come."""
LONGEST_S = 900.0
"""However slowly it moves, the quiet time ends."""
PROGRESS_S = 10.0
BOUNDS_S = 1.0
REST_S = 3.0
GUESTS_S = 3.0
"""Clients of nodes that may stop begin to publish when the nodes have met: before that no other node knows who shares
a subscription."""
MOBILITIES = ("waypoint",)
RESTS = 4
"""How often a tree that changes its shape is given another rest."""
LONG_OUTAGES = 0.1
DEFAULTS = MigrationSettings()
FUNERALS = 0.3
"""Share of the runs that end with one: it takes as long as a third of a short run."""
MOURNING_S = 8.0
"""How long after the death of a node the others may still have it in their tables."""


@dataclass(frozen=True, slots=True)
class StormPlan:
    seed: int
    nodes: int = 3
    seconds: float = 25.0
    """Of faults and traffic; the quiet time comes after."""
    faults: tuple[str, ...] = LONE_KINDS
    fault_pause_s: float = FAULT_PAUSE_S
    publish_pause_s: float = PUBLISH_PAUSE_S
    """Mean time between what one publisher publishes."""
    strategy: str = ""
    """How messages are routed between the nodes; empty: each node is by itself."""
    overlay: str = "spanning-tree"
    mobility: str = ""
    """How the nodes move, of those that hear each other only while they are near; empty: all hear all."""
    carry: str = "none"
    """Messages that nodes keep for nodes that are away."""
    roamers: int = 0
    """Clients that turn up at one node after the other."""
    gateways: int = 0
    """Each with clients behind it; gateways die too."""
    expressions: int = 0
    """Subscriptions that compute, each with publishers of its own."""
    foreign_brokers: int = 0
    """Brokers of other makes, each beside a node that is attached to it; at most as many as nodes."""
    server_references: bool = False
    """Clients that are moved by plan are told where to go."""
    owner_unreachable: str = DEFAULTS.owner_unreachable
    """The answer to a client whose node is away: a new session, or no connection."""
    owner_absent_s: float = DEFAULTS.owner_absent_s
    """For how long it has to be away before."""
    long_outages: float = LONG_OUTAGES
    """Share of the crashes and partitions that last for longer than that."""
    adaptive: bool = False
    """Coordinators and workers start and stop all nodes but the first; they die too."""


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: StormPlan
    violations: tuple[Violation, ...]
    digest: str
    """Of the trace."""
    events: int
    published: int
    acknowledged: int
    arrived: int
    boots: int
    faults: int
    torn: int
    checkpoints: int
    stops: int
    """Nodes that a worker ended."""
    alarms: tuple[str, ...]
    """Damage that nodes reported about their journals.  Whether anything was lost, the other checks tell."""
    virtual_s: float

    @property
    def kept(self) -> bool:
        return not self.violations


class Chaos:
    def __init__(
        self,
        plan: StormPlan,
        trace: Trace | None = None,
        settings: MachineSettings | None = None,
        make: Callable[[Running], Node] | None = None,
        prepare: Callable[[SimulatedMachine], object] | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """`make` and `prepare` are for those who plant a fault of their own; `progress` hears how far the storm is."""
        self.plan = plan
        self.scene = new_world(plan.seed, trace)
        gives_new_sessions = self.scene.records.gives_new_sessions = plan.owner_unreachable == "new-session"
        names = [f"node{number}" for number in range(1, plan.nodes + 1)]
        dice = self.scene.kernel.dice("members")
        migration = replace(
            MIGRATION,
            server_references=plan.server_references or plan.adaptive,
            owner_unreachable="new-session" if gives_new_sessions else "refuse",
            owner_absent_s=plan.owner_absent_s,
        )
        routing = RoutingSettings(carry=plan.carry)
        joined = {}
        if plan.strategy:
            joined = members(names, plan.strategy, plan.overlay, dice, migration, routing, star=plan.adaptive)
        for name in names:
            machine = self.scene.add_machine(name, settings or self._any_disk(name), make, joined.get(name))
            self.scene.records.crashes[name] = machine.crashes
            if prepare is not None:
                prepare(machine)
        self._lay_paths(names)
        self.reach = Reach(self.scene.network, names) if plan.mobility else None
        self._progress = progress or (lambda _: None)
        self._publishers: list[SimulatedPublisher] = []
        self._guests: list[SimulatedPublisher] = []
        self._movers: list[Mover] = []
        self._until = 0.0
        self._out_of_bounds: list[Violation] = []
        long = plan.long_outages if gives_new_sessions else 0.0
        self._faults = Faults(self.scene, plan.faults, plan.fault_pause_s, plan.owner_absent_s, long)
        for machine in self.scene.machines[:1] if plan.adaptive else self.scene.machines:
            self._populate(machine)
        self._auditors = [self._auditor(machine) for machine in self.scene.machines]
        self._orders = self.scene.kernel.dice("orders")
        self._roamers = [self._roamer(number) for number in range(plan.roamers)]
        lasting = self.scene.machines[:1] if plan.adaptive else self.scene.machines
        first = lasting[0] if plan.adaptive else None
        gateways = range(1, plan.gateways + 1)
        self._gateways = [GatewayScenario(self.scene, f"gateway{number}", self._there, first) for number in gateways]
        self._publishers += [gateway.publisher for gateway in self._gateways]
        self._computations = [CheckedComputation(self.scene, number, lasting) for number in range(plan.expressions)]
        self._adaptive = self._adapting() if plan.adaptive else None
        attached = lasting[: plan.foreign_brokers]
        self._foreign = [ForeignScenario(self.scene, machine, number) for number, machine in enumerate(attached, 1)]

    def _auditor(self, machine: SimulatedMachine) -> Client:
        domain = NETWORK if self.plan.strategy else machine.name
        return Client(self.scene.network, f"{machine.name}a", machine.address, self.scene.records, Habits(), domain)

    def _adapting(self) -> AdaptiveScenario:
        """A client of a node that may stop, and clients that turn up anywhere, know more than one node."""
        guests = [roamer.client for roamer in self._roamers]
        for machine in self.scene.machines[1:]:
            dice = self.scene.kernel.dice(f"guest of {machine.name}")
            guest = self.scene.add_client(f"{machine.name}guest", machine, shared_habits(dice), NETWORK)
            guest.subscribe(b"#", dice.choice((1, 2)))
            self._guests.append(SimulatedPublisher(guest, self.plan.publish_pause_s * self.plan.nodes))
            guests.append(guest)
        return AdaptiveScenario(self.scene, [gateway.machine for gateway in self._gateways], guests)

    def _there(self) -> list[SimulatedMachine]:
        """Machines whose nodes are to run."""
        return [machine for machine in self.scene.machines if machine.watch is None or not machine.watch.is_off]

    def _roamer(self, number: int) -> Roamer:
        scene = self.scene
        dice = scene.kernel.dice(f"roamer {number}")
        machines = scene.machines
        client = scene.add_client(f"roamer{number}", dice.choice(machines), habits(dice, persistent=True), NETWORK)
        return Roamer(client, [machine.address for machine in machines], 1.0, partial(known_everywhere, machines))

    def _lay_paths(self, names: list[str]) -> None:
        """Some nodes are next to each other, some on other continents, some behind a thin line."""
        dice = self.scene.kernel.dice("paths")
        for one, other in combinations(names, 2):
            latency_s = dice.choice((0.0002, 0.002, 0.02, 0.06))
            path = Path(latency_s, latency_s / 4, dice.choice((12_500_000.0, 200_000.0)), dice.choice((0.0, 0.01, 0.1)))
            self.scene.network.set_path(one, other, path)

    def _any_disk(self, name: str) -> MachineSettings:
        """Quick or slow: a slow one has more people waiting for each sync."""
        dice = self.scene.kernel.dice(f"settings of {name}")
        return MachineSettings(
            sync_s=dice.choice((0.001, 0.005, 0.03)),
            checkpoint_s=dice.choice((0.005, 0.1)),
            operators=for_strategy(OperatorSettings(), self.plan.strategy),
        )

    def _populate(self, machine: SimulatedMachine) -> None:
        scene, node = self.scene, machine.name
        dice = scene.kernel.dice(f"population of {node}")
        domain = NETWORK if self.plan.strategy else node
        for number in range(2):
            client = scene.add_client(f"{node}p{number}", machine, habits(dice, persistent=True), domain)
            pause_s = self.plan.publish_pause_s * dice.choice((0.3, 1.0, 3.0))
            if self.plan.strategy:
                pause_s *= self.plan.nodes  # everybody hears everybody
            self._publishers.append(SimulatedPublisher(client, pause_s))
        steady = scene.add_client(f"{node}s0", machine, habits(dice, persistent=True), domain)
        steady.subscribe(b"#", dice.choice((1, 2)))
        zero = scene.add_client(f"{node}s1", machine, habits(dice, persistent=dice.random() < 0.5), domain)
        zero.subscribe(b"t/+", 0)
        for number in range(2):
            will = (b"w/" + node.encode(), dice.choice((0, 1, 2)))
            own = habits(dice, persistent=number == 0, will=will)
            client = scene.add_client(f"{node}m{number}", machine, own, domain)
            self._movers.append(Mover(client, 1.0))
        for number in range(2):
            member = scene.add_client(f"{node}g{number}", machine, shared_habits(dice), domain)
            member.subscribe(b"$share/g/t/#", 2)

    # -- the course of it --

    def run(self) -> Outcome:
        violations: list[Violation] = []
        try:
            self._storm()
            violations += self._calm()
            self._audit()
            violations += self._check()
            violations += self._rest()
            violations += self._funeral()
        except Exception:
            violations.append(Violation("crashed", traceback.format_exc()))
        return self._outcome(violations)

    def _strangers(self) -> list[Violation]:
        there = self._there()
        names = [machine.name for machine in there]
        return [found for machine in there for found in everybody_in_step(machine, names)]

    def _storm(self) -> None:
        """From the first moment: nodes that have not met yet owe each other everything already."""
        scene = self.scene
        self._until = until = scene.kernel.now + self.plan.seconds
        for machine in scene.machines:
            machine.boot()
        for client in scene.clients:
            client.come()
        for publisher in self._publishers:
            publisher.start(until)
        for mover in self._movers:
            mover.start(until)
        for roamer in self._roamers:
            roamer.start(until)
        for gateway in self._gateways:
            gateway.start(until)
        for computation in self._computations:
            computation.start(until)
        for foreign in self._foreign:
            foreign.start(until)
        if self._adaptive is not None:
            self._adaptive.start(until)
            for guest in self._guests:
                scene.kernel.after(GUESTS_S, guest.start, until)
        if self._roamers or self._gateways:
            scene.kernel.after(1.0, self._order_a_move, until)
        self._faults.start(until)
        if self.reach is not None:
            self.reach.start()
        self._look_at_bounds()
        while scene.kernel.now < until:
            scene.kernel.run_until(min(until, scene.kernel.now + PROGRESS_S))
            self._progress(self.plan.seconds - (until - scene.kernel.now))

    def _order_a_move(self, until: float) -> None:
        """Somebody has a client moved by plan."""
        kernel, dice = self.scene.kernel, self._orders
        machine = dice.choice(self.scene.machines)
        running = machine.running
        if running is not None and running.node.network is not None:
            clients = sorted(c for c, s in running.broker.sessions.items() if s.persistent and s.connection is not None)
            client, target = dice.choice(clients) if clients else b"", dice.choice(self.scene.machines).name
            if client:
                kernel.tell(f"{client.decode()} is to be moved from {machine.name} to {target}")
                running.work(_move, running.node.network.moving.plans, client, target)
        if kernel.now < until:
            kernel.after(dice.expovariate(2.0), self._order_a_move, until)

    def _calm(self) -> list[Violation]:
        """Everything is mended and everybody is there: within bounded time every promise must be kept."""
        scene = self.scene
        self._faults.mend_all()
        if self.reach is not None:
            self.reach.stop()
        scene.network.end_half_open()
        for machine in scene.machines:
            machine.mended()
        if self._adaptive is not None:
            self._adaptive.calm()
        for gateway in self._gateways:
            gateway.machine.boot()
        for foreign in self._foreign:
            foreign.broker.boot()
        for client in scene.clients:
            client.come()
        self._wait_until_quiet(scene.clients)
        if self._foreign:
            scene.run(ROUNDS_S)
            self._wait_until_quiet(scene.clients)
        return [
            Violation("unanswered", f"{client.name}: {client.unfinished} things have no answer", (client.name,))
            for client in scene.clients
            if client.unfinished or not client.is_welcome
        ]

    def _wait_until_quiet(self, clients: list[Client]) -> None:
        """Until everybody has an answer and nothing arrives any more, or nothing has moved for too long."""
        scene = self.scene
        quiet = stuck = 0.0
        before = -1
        while quiet < QUIET_S and stuck < STUCK_S and scene.kernel.now < self._until + LONGEST_S:
            scene.run(QUIET_STEP_S)
            busy = any(client.unfinished or not client.is_welcome for client in clients) or bool(self._strangers())
            busy = busy or any(hands_over(machine) for machine in scene.machines)
            busy = busy or not all(foreign.is_quiet for foreign in self._foreign)
            busy = busy or (self._adaptive is not None and not self._adaptive.is_quiet)
            moved, before = before != (now := self._movement(clients)), now
            quiet = 0.0 if busy or moved else quiet + QUIET_STEP_S
            stuck = 0.0 if moved else stuck + QUIET_STEP_S

    def _movement(self, clients: list[Client]) -> int:
        """A number that changes with every arrival and every answer."""
        waiting = sum(client.unfinished for client in clients) + len(self._strangers())
        return self.scene.records.arrived_count * 1000 - waiting

    def _audit(self) -> None:
        off = {machine.address for machine in self.scene.machines} - {machine.address for machine in self._there()}
        self._auditors = [auditor for auditor in self._auditors if auditor.address not in off]
        for auditor in self._auditors:
            auditor.subscribe(b"#", 1)
            auditor.come()
        self._wait_until_quiet(self._auditors)

    def _check(self) -> list[Violation]:
        scene = self.scene
        records = scene.records
        for machine in scene.machines:
            for client, identities in machine.in_flight.items():
                records.in_flight.setdefault(client, set()).update(identities)
            records.went_back |= machine.went_back
            for client, identities in machine.handed_over.items():
                records.handed_over.setdefault(client, set()).update(identities)
            note_overtaken(records, machine, scene.machines)
        for gateway in self._gateways:
            for identity, nodes in gateway.machine.sends.items():
                publication = records.publications[identity]
                publication.sends, publication.nodes = len(nodes), set(nodes)
            for client, instants in gateway.machine.sessions_lost.items():
                records.new_sessions[client] = sorted([*records.new_sessions.get(client, []), *instants])
            for client, instants in gateway.machine.connected.items():
                records.connected[client] = instants
        auditors = [(auditor.name, auditor.domain) for auditor in self._auditors]
        for foreign in self._foreign:
            foreign.note()
            if foreign.broker.quirks.retained_for_wildcards:  # others are not compared
                auditors.append((f"{foreign.broker.name}a", NETWORK))
                records.arrivals[f"{foreign.broker.name}a"] = foreign.retained()
        return [
            *checkers.check_delivery(records),
            *checkers.retained_values(records, auditors),
            *checkers.wills_published(records, {machine.name: machine.troubles for machine in scene.machines}),
            *(found for machine in self._there() for found in nothing_left_over(machine)),
            *one_owner(self._there()),
            *(found for computation in self._computations for found in computation.check()),
            *(found for foreign in self._foreign for found in foreign.check()),
            *self._strangers(),
            *(found for machine in scene.machines for found in waited_long_enough(machine)),
            *self._out_of_bounds,
            *(self._adaptive.violations if self._adaptive is not None else ()),
        ]

    def _look_at_bounds(self) -> None:
        for machine in self.scene.machines:
            self._out_of_bounds.extend(within_bounds(machine))
        if not self._out_of_bounds:
            self.scene.kernel.after(BOUNDS_S, self._look_at_bounds)

    def _rest(self) -> list[Violation]:
        """Nobody publishes: nothing may go round between the nodes.  A tree may have found a better shape meanwhile;
        then those who have new neighbours have something to tell them, and it rests again.  Parts of expressions are
        confirmed seconds after they came, once; news that can wait takes a second for each hop."""
        late = bool(self._computations) or self.plan.strategy == MobileRouting.name
        for _ in range(RESTS):
            before = [frames_sent(machine) for machine in self.scene.machines]
            self.scene.run(REST_S)
            after = [frames_sent(machine) for machine in self.scene.machines]
            if before == after:
                return []
            if [links.keys() for links in before] == [links.keys() for links in after] and not late:
                break
            self.scene.run(QUIET_S)
        return [Violation("circulates", f"frames sent before and after: {before}, {after}")]

    def _funeral(self) -> list[Violation]:
        """One node dies for good: the others forget it."""
        machines = self.scene.machines
        dice = self.scene.kernel.dice("funeral")
        if not self.plan.strategy or len(machines) < 2 or self.plan.adaptive or dice.random() > FUNERALS:
            return []
        dead = dice.choice(machines)
        dead.kill(power=True)
        self.scene.run(MOURNING_S)
        return [found for machine in machines if machine is not dead for found in tables_without(machine, dead.name)]

    def _outcome(self, violations: list[Violation]) -> Outcome:
        scene = self.scene
        publications = scene.records.publications.values()
        return Outcome(
            plan=self.plan,
            violations=tuple(violations),
            digest=scene.kernel.trace.digest,
            events=scene.kernel.handled,
            published=len(publications),
            acknowledged=sum(publication.acknowledged_at is not None for publication in publications),
            arrived=sum(len(arrivals) for arrivals in scene.records.arrivals.values()),
            boots=sum(machine.boots for machine in scene.machines),
            faults=self._faults.count + (self._adaptive.kills if self._adaptive is not None else 0),
            stops=self._adaptive.stops if self._adaptive is not None else 0,
            torn=sum(machine.disk.journal.torn for machine in scene.machines),
            checkpoints=sum(machine.disk.checkpoints.checkpoints for machine in scene.machines),
            alarms=tuple(damage for machine in scene.machines for damage in machine.damage),
            virtual_s=scene.kernel.now,
        )


def _move(plans: PlannedMoves, client: bytes, target: str) -> None:
    with suppress(MigrationError):
        plans.move(client, target)
