"""A worker in virtual time: it looks at its node, and starts and stops it as `draining.py` says.

Its process dies and comes back apart from the node's; a small file outlives it, as the worker's `state.json` does.  A
look takes a moment, and so does what follows from it: the node goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from sterna.adaptation.draining import DrainAction, DrainEvent, DrainingTuning, Facts, NodeLife
from sterna.adaptation.orders import NOBODY, Authority, OrderDesk
from sterna.adaptation.picture import READING, WorkerNodeState
from sterna.adaptation.serving import ServedTopic, ServedTotals, ServingRates, served_flows
from sterna.adaptation.topics import REPORTS
from sterna.adaptation.words import (
    Leading,
    Mailroom,
    MoveGateway,
    Order,
    OrderState,
    ResumeNode,
    Served,
    ServedFlow,
    StartNode,
    Word,
    WorkerReport,
)
from sterna.migration.drain_proof import DrainProof
from sterna.migration.gateway_moves import GatewayPage
from sterna.overlay.coordinates import Coordinate
from sterna.simulation.kernel import Kernel
from sterna.vocabulary.errors import MigrationError

REGION = "simulated"
KEY = b"a key of all coordinators and workers"
LOOK_S = 0.25
REPORT_S = 1.0
DEED_S = 0.2
"""At most so long between a look at the node and what follows from it."""
PROOF_S = 8.0
"""An answer of the node that takes longer is not waited for."""
MOVE_LOOK_S, MOVE_S = 0.25, 15.0
HEARD_S = 4.0
CLOSED_RATE = 0.001
EVACUATION_RATE = 50.0
OPENED = frozenset({WorkerNodeState.SERVING, WorkerNodeState.LEAVING, WorkerNodeState.DRAINING})
TUNING = DrainingTuning(
    ready_s=15.0, leave_s=3.0, stalled_s=12.0, reader_patience_s=2.0, stop_s=10.0, coordinator_s=5.0, bar_s=1.0
)
_EVENTS = {StartNode: DrainEvent.START_ORDERED, ResumeNode: DrainEvent.RESUME_ORDERED}


class SaysWords(Protocol):
    """The control line."""

    def say(self, sender: str, kind: str, data: bytes) -> None: ...


class NodeHand(Protocol):
    """A worker's hand on its node."""

    name: str
    clients: str
    """Where the node takes clients."""

    @property
    def is_alive(self) -> bool: ...

    @property
    def is_joined(self) -> bool:
        """Linked, with the streams of all others."""
        ...

    def gateways(self) -> GatewayPage: ...

    def prove(self, told: Callable[[DrainProof], None]) -> None: ...

    def move(self, gateway: str, to: str) -> bool | None:
        """Some of its clients are still to go; None: the node does not answer."""
        ...

    def start(self) -> None: ...

    def open(self) -> None: ...

    def evacuate(self, rate: float) -> None:
        """MigrationError if it cannot be."""

    def terminate(self, owed: Set[str]) -> None:
        """`owed`: nodes that are away, to which the worker will owe what they missed."""


@dataclass(slots=True)
class WorkerFile:
    """All that the next process of the worker knows."""

    state: WorkerNodeState = WorkerNodeState.SERVING
    owed: set[str] = field(default_factory=set)
    wanted: bool = True
    terminated: bool = False
    highest: Authority = NOBODY


class SimulatedWorker:
    """It outlives its process: `running` is that."""

    def __init__(self, kernel: Kernel, hand: NodeHand, line: SaysWords, place: Coordinate, *, fixed: bool) -> None:
        self.kernel = kernel
        self.hand = hand
        self.name = hand.name
        self.line = line
        self.place = place
        self.fixed = fixed
        self.file = WorkerFile()
        self.boots = 0
        self.running: RunningWorker | None = None

    @property
    def state(self) -> WorkerNodeState:
        return self.running.life.state if self.running is not None else self.file.state

    @property
    def is_off(self) -> bool:
        return self.state is WorkerNodeState.OFF

    def boot(self) -> None:
        if self.running is None:
            self.boots += 1
            self.kernel.tell(f"worker of {self.name} boot {self.boots}, its node is {self.file.state}")
            self.running = RunningWorker(self)
            self.running.begin()

    def kill(self) -> None:
        if self.running is not None:
            self.running.alive = False
            self.running = None
            self.kernel.tell(f"worker of {self.name} is killed")

    # -- what happens to its machine --

    def power_lost(self) -> None:
        self.kill()

    def mended(self) -> None:
        self.boot()


class RunningWorker:
    def __init__(self, worker: SimulatedWorker) -> None:
        self.worker = worker
        self.hand = worker.hand
        self.kernel = worker.kernel
        self.alive = True
        self._dice = self.kernel.dice(f"worker {worker.name} {worker.boots}")
        self._mail = Mailroom(REGION, REGION, worker.name, worker.boots, KEY)
        self._desk = OrderDesk(worker.boots, worker.file.highest)
        file, now = worker.file, self.kernel.now
        self.life = NodeLife(
            TUNING,
            state=file.state,
            since=now,
            owed=set(file.owed),
            wanted=worker.fixed or file.wanted,
            terminated=file.terminated,
        )
        self.reads_at: dict[str, float] = {}
        self.coordinator_heard_at = now
        self._undone: list[DrainAction] = []
        self._looks = 0
        self._serves: tuple[Served, ...] = ()
        self._flows: tuple[ServedFlow, ...] = ()
        self._bytes_per_s = 0.0
        self._rates = ServingRates()
        self._plain = 0

    def begin(self) -> None:
        self._later(0.0, self._look)
        self._later(self._dice.random() * REPORT_S, self._report)

    def _later(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        self.kernel.after(seconds, self._do_if_alive, action, *arguments)

    def _do_if_alive(self, action: Callable[..., None], *arguments: object) -> None:
        if self.alive:
            action(*arguments)

    # -- looking --

    def _look(self) -> None:
        undone, self._undone = self._undone, []
        self._carry_out(tuple(undone))
        self._looks += 1
        if not self.hand.is_alive:
            self._serves, self._flows, self._plain, self._bytes_per_s = (), (), 0, 0.0
            self._seen(self._looks, Facts(back=self._back()))
            return
        movable = self._look_at_gateways() if self.life.state in OPENED else 0
        if self.life.state in (WorkerNodeState.LEAVING, WorkerNodeState.DRAINING):
            self._later(PROOF_S, self._seen, self._looks, Facts(alive=True, sessions=1))
            self.hand.prove(partial(self._proved, self._looks, movable))
        else:
            is_joined = self.worker.fixed or self.hand.is_joined
            self._seen(self._looks, Facts(alive=True, ready=is_joined))

    def _look_at_gateways(self) -> int:
        """Those that can be moved."""
        page = self.hand.gateways()
        totals = [ServedTotals(one.gateway, one.clients, one.subscriptions, one.deliveries) for one in page.gateways]
        self._serves, self._bytes_per_s = self._rates.look(totals, page.bytes, self.kernel.now)
        topics = [ServedTopic(one.topic, one.publishers, one.readers) for one in page.flows]
        self._flows = served_flows(topics, self._serves)
        self._plain = page.plain
        return sum(one.clients - one.immovable for one in page.gateways)

    def _proved(self, look: int, movable: int, proof: DrainProof) -> None:
        facts = Facts(
            alive=True,
            sessions=proof.sessions if proof.closed else max(1, proof.sessions),
            movable=movable,
            remains=proof.remains,
            moves=proof.moves,
            probe_back=not proof.unanswered,
            synced=not proof.unsynced,
            absent=frozenset(proof.absent),
        )
        self._do_if_alive(self._seen, look, facts)

    def _seen(self, look: int, facts: Facts) -> None:
        """Of this look; a moment later the worker does something about it."""
        if look == self._looks:
            self._looks += 1
            self._later(self._dice.random() * DEED_S, self._judge, facts)

    def _judge(self, facts: Facts) -> None:
        if self.hand.is_alive == facts.alive:
            seen = replace(facts, coordinator_heard_at=self.coordinator_heard_at)
            self._carry_out(self.life.look(seen, self.kernel.now))
        self._later(LOOK_S, self._look)

    def _back(self) -> frozenset[str]:
        now = self.kernel.now
        return frozenset(name for name in self.life.owed if now - self.reads_at.get(name, -HEARD_S - 1) <= HEARD_S)

    # -- deeds --

    def _carry_out(self, deeds: tuple[DrainAction, ...]) -> None:
        if not deeds:
            return
        self._save()
        state = self.life.state
        self.kernel.tell(f"worker of {self.worker.name}: {', '.join(deeds)}; its node is {state}")
        for deed in deeds:
            try:
                self._do(deed)
            except MigrationError as error:
                self.kernel.tell(f"worker of {self.worker.name}: {error}")
                self._undone.append(deed)
        self._save()

    def _do(self, deed: DrainAction) -> None:
        if deed in (DrainAction.START, DrainAction.START_CLOSED):
            self.hand.start()
        elif deed is DrainAction.TERMINATE:
            self.hand.terminate(self.life.owed)
        elif deed is DrainAction.OPEN:
            self.hand.open()
        elif deed in (DrainAction.CLOSE, DrainAction.EVACUATE):
            self.hand.evacuate(CLOSED_RATE if deed is DrainAction.CLOSE else EVACUATION_RATE)
        elif deed is DrainAction.REPORT:
            self._later(0.0, self._report_now)

    def _save(self) -> None:
        life, file = self.life, self.worker.file
        file.state, file.owed = life.state, set(life.owed)
        file.wanted, file.terminated, file.highest = life.wanted, life.terminated, self._desk.highest

    # -- words --

    def _report(self) -> None:
        self._report_now()
        self._later(REPORT_S, self._report)

    def _report_now(self) -> None:
        life, now = self.life, self.kernel.now
        self._say(
            WorkerReport(
                site=self.worker.name,
                state=life.state.value,
                in_state_s=now - life.since,
                echo=self.worker.name,
                clients=self.hand.clients,
                fixed=self.worker.fixed,
                bytes_per_s=self._bytes_per_s,
                serves=self._serves,
                others=self._plain,
                barred_s=max(0.0, life.barred_until - now),
                term=self._desk.highest.term,
                flows=self._flows,
            )
        )
        self._desk.reported(self._mail.counter, now)

    def _say(self, word: Word) -> None:
        self.worker.line.say(self.worker.name, REPORTS, self._mail.write(word, self.worker.place))

    def came(self, topic: bytes, data: bytes) -> None:
        letter = self._mail.read(topic, data)
        if letter is None:
            return
        word, now = letter.word, self.kernel.now
        if isinstance(word, Leading):
            self.coordinator_heard_at = now
        elif isinstance(word, Order):
            self._ordered(word, letter.sender)
        elif isinstance(word, WorkerReport) and word.state in READING:
            self.reads_at[letter.sender] = now

    def _ordered(self, order: Order, leader: str) -> None:
        answer = self._desk.came(order, leader, self.kernel.now)
        if answer is not None:
            self._say(answer)
            return
        self.coordinator_heard_at = self.kernel.now
        self._save()
        what = order.what
        self.kernel.tell(f"worker of {self.worker.name} is ordered {type(what).__name__}, term {order.term}")
        if isinstance(what, MoveGateway):
            self._say(self._desk.answer(order, OrderState.UNDER_WAY))
            self._move(order, what, self.kernel.now + MOVE_S)
            return
        event = _EVENTS.get(type(what), DrainEvent.STOP_ORDERED)
        is_fixed = event is DrainEvent.STOP_ORDERED and self.worker.fixed
        deeds = None if is_fixed else self.life.ordered(event, self.kernel.now)
        if deeds is None:
            self._say(self._desk.answer(order, OrderState.REFUSED, f"its node is {self.life.state}"))
            return
        self._carry_out(deeds)
        self._say(self._desk.answer(order, OrderState.UNDER_WAY))
        self._report_now()

    def _move(self, order: Order, move: MoveGateway, until: float) -> None:
        is_left = self.hand.move(move.gateway, move.to)
        if is_left and self.kernel.now < until:
            self._later(MOVE_LOOK_S, self._move, order, move, until)
        else:
            self._say(self._desk.answer(order, OrderState.DONE if is_left is False else OrderState.FAILED))
