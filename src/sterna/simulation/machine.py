"""One simulated host and the node on it: booted from its disk, killed at any moment, with clocks of its own.

A Machine is what outlives the process (name, disk, clocks); a Running is the process, and the world its node sees.
The node is driven by the same `Driver`, `Committing` and `Housekeeping` as outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.access.identity import Credentials
from sterna.broker.expressions.function_calls import Done
from sterna.broker.limits import Limits
from sterna.broker.session.connection import ClientPeer, Connection
from sterna.journal.settings import JournalSettings
from sterna.node.committing import Committing
from sterna.node.driver import Driver
from sterna.node.housekeeping import ROUND_S, Housekeeping
from sterna.node.node import Node, epoch_before
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.settings import OperatorSettings as OperatorSettings
from sterna.simulation.attachments import AttachmentWorld, Foreign
from sterna.simulation.committing import SimulatedCommitter
from sterna.simulation.disk import Disk
from sterna.simulation.kernel import Kernel, KernelTimer
from sterna.simulation.links import MakeSettings, SimulatedLinkWorld
from sterna.simulation.network import SimulatedNetwork
from sterna.simulation.records import identity_of
from sterna.simulation.streams import End
from sterna.vocabulary.errors import JournalError

WALL = 1_750_000_000.0
"""The time on wall clocks, more or less, when a simulation begins."""

MQTT_PORT = 1883
MOMENTS = ("writing", "committed", "checkpoint", "saving", "saved", "started")
"""When a crash is most likely to show something: it hits them by itself once in a thousand times."""
SETTLE_STEP_S = 0.005
"""How often a node that is being shut down looks whether its disk is done."""
BOOT_AGAIN_S = 1.0
"""How long the supervisor of a node waits before it restarts a node that could not start."""


@dataclass(frozen=True, slots=True)
class MachineSettings:
    journal: JournalSettings = field(default_factory=lambda: JournalSettings(segment_bytes=16 * 1024))
    """Small segments, so that short scenarios see new ones begun and checkpoints written."""
    limits: Limits = field(default_factory=Limits)
    sync_s: float = 0.002
    slow_syncs: float = 0.01
    """Share of syncs that take thirty times as long."""
    checkpoint_s: float = 0.02
    sys_interval_s: float = 10.0
    operators: OperatorSettings = field(default_factory=OperatorSettings)
    functions: Functions = NO_FUNCTIONS
    function_workers: int = 2
    function_s: float = 0.05
    """The longest a data processing function takes."""


class Clock:
    """A steady clock that began anywhere, and a wall clock that is wrong and gets wronger."""

    def __init__(self, kernel: Kernel, steady_offset: float = 0.0, skew_s: float = 0.0, drift: float = 0.0) -> None:
        self._kernel = kernel
        self._steady_offset = steady_offset
        self.skew_s = skew_s
        self.drift = drift

    def now(self) -> float:
        return self._kernel.now + self._steady_offset

    def wall(self) -> float:
        return WALL + self.skew_s + self._kernel.now * (1 + self.drift)

    def to_kernel(self, steady: float) -> float:
        return steady - self._steady_offset


class OutOfTurn(NamedTuple):
    """A node went on without messages of another one."""

    at: float
    before: str
    """That other node."""
    first: int
    last: int
    """Offsets of the messages there."""
    waited_s: float
    clients: frozenset[str]
    """Those that had sessions at the node then."""


class MachineWatch(Protocol):
    """A worker on the machine, which starts the node and stops it."""

    @property
    def is_off(self) -> bool:
        """The node is not to run."""
        ...

    def power_lost(self) -> None: ...

    def mended(self) -> None:
        """The machine has no faults any more."""


class SimulatedMachine:
    """`make` builds the node; a test that plants a fault gives another one."""

    def __init__(
        self,
        kernel: Kernel,
        network: SimulatedNetwork,
        name: str,
        settings: MachineSettings | None = None,
        make: Callable[[Running], Node] | None = None,
        clock: Clock | None = None,
        membership: MakeSettings | None = None,
    ) -> None:
        """Without `membership` the node has no neighbours."""
        self.kernel = kernel
        self.network = network
        self.name = name
        self.settings = settings or MachineSettings()
        self.disk = Disk(self.settings.journal, name, kernel.dice(f"{name} disk"))
        self.clock = clock or Clock(kernel)
        self.make = make or make_lone_node
        self.membership = membership
        self.make_committer = SimulatedCommitter
        #: The broker of another make that its node is attached to.
        self.foreign: Foreign | None = None
        self.running: Running | None = None
        #: Without one the node is started again as soon as the machine is mended.
        self.watch: MachineWatch | None = None
        self.boots = 0
        #: Instants at which the process ended, or its disk filled up: promises that need it running may be off.
        self.troubles: list[float] = []
        #: Those of them when it was killed.
        self.crashes: list[float] = []
        #: Reports of its starts about the journal.
        self.damage: list[str] = []
        #: client -> the first words of messages at QoS 2 that were in flight in a session when that was fenced.
        self.in_flight: dict[str, set[str]] = {}
        #: Clients that went back to an old session after they had had the one that is here.
        self.went_back: set[str] = set()
        #: client -> those of messages that its new session got from an old one.
        self.handed_over: dict[str, set[str]] = {}
        #: Times that it went on without messages of another node that it had waited for.
        self.out_of_turn: list[OutOfTurn] = []
        #: The moment at which it is to be killed next, if any: one of MOMENTS.
        self.doom = ""
        self._doom_dice = kernel.dice(f"{name} doom")

    @property
    def address(self) -> str:
        return f"{self.name}:{MQTT_PORT}"

    def next_epoch(self, last: int) -> int:
        """By its clock, as `NodeServer` gives a start its number."""
        return self.disk.checkpoints.next_epoch(epoch_before(last, self.clock.wall()))

    def boot(self) -> None:
        """Start the node; if it cannot start, try again a little later, as a supervisor would."""
        if self.running is not None:
            return
        self.boots += 1
        self.network.host(self.name).up = True
        try:
            self.running = Running(self, self.boots)
        except JournalError as error:
            self.kernel.tell(f"{self.name} cannot start: {error}")
            if self.watch is None:
                self.kernel.after(BOOT_AGAIN_S, self.boot)
            return
        self.running.begin()

    def mended(self) -> None:
        """The trouble is over: the node is started again, by whoever is to do that."""
        if self.watch is None:
            self.boot()
        else:
            self.watch.mended()

    def kill(self, *, power: bool = False) -> None:
        """The process ends between two instructions; with `power`, so does the machine, and nobody is told."""
        running = self.running
        if running is None:
            return
        self.running = None
        self.doom = ""
        self.troubles.append(self.kernel.now)
        self.crashes.append(self.kernel.now)
        running.alive = False
        if running.attached is not None:
            running.attached.killed()
        self.kernel.tell(f"{self.name} {'loses power' if power else 'is killed'}")
        self.disk.crash(running.committer.writing, running.committer.saving)
        self.network.process_ended(self.name, power=power)
        if power and self.watch is not None:
            self.watch.power_lost()

    def shut_down(self) -> None:
        """As somebody who means well does it: everything is written and said before the process ends."""
        if self.running is not None:
            self.troubles.append(self.kernel.now)
            self.kernel.tell(f"{self.name} is shut down")
            self.running.work(self.running.shut_down)

    def reached(self, moment: str, seconds: float) -> None:
        """A moment that is over in `seconds`: the right one to be killed in?"""
        if moment == self.doom:
            self.doom = ""
            self.kernel.after(self._doom_dice.random() * seconds, self._meet_doom, self.boots)

    def _meet_doom(self, boot: int) -> None:
        if boot == self.boots and self.running is not None:
            self.kill(power=self._doom_dice.random() < 0.5)
            self.kernel.after(self._doom_dice.random(), self.mended)

    def fill_disk(self, full: bool) -> None:
        self.disk.full = full
        self.troubles.append(self.kernel.now)
        self.kernel.tell(f"{self.name} disk {'is full' if full else 'has room again'}")


def make_lone_node(running: Running) -> Node:
    machine = running.machine
    return Node(
        limits=machine.settings.limits,
        settings=machine.settings.journal,
        store=machine.disk.journal,
        saved=machine.disk.checkpoints.load(),
        next_epoch=machine.next_epoch,
        authenticator=Authenticator(),
        access=AccessList([], "allow"),
        world=running,
        rng=machine.kernel.dice(f"{machine.name} node {running.number}"),
        now=machine.clock.now(),
        wall=machine.clock.wall(),
        name=machine.name,
        alone=machine.membership is None,
        operators=machine.settings.operators,
        functions=machine.settings.functions,
    )


class Running:
    """A process: the broker's world, from one boot to one crash."""

    def __init__(self, machine: SimulatedMachine, number: int) -> None:
        self.machine = machine
        self.kernel = machine.kernel
        self.number = number
        self.alive = True
        self.reports: dict[str, int] = {}
        self._function_dice = machine.kernel.dice(f"{machine.name} functions {number}")
        self._computing = 0
        self.node = machine.make(self)
        self.broker = self.node.broker
        self.links: SimulatedLinkWorld | None = None
        if machine.membership is not None:
            dice = machine.kernel.dice(f"{machine.name} links {number}")
            self.links = SimulatedLinkWorld(self, machine.membership, dice)
        self._committing = Committing(self.node, machine.settings.journal)
        dice = machine.kernel.dice(f"{machine.name} committer {number}")
        self.committer = machine.make_committer(self, self._committing, dice)
        self.driver = Driver(self.node, self._committing, self.committer.perform, networked=self.links is not None)
        self.driver.begin(_Timers(self))
        self._housekeeping = Housekeeping(self.node, machine.settings.sys_interval_s, machine.clock.now())
        self.attached = AttachmentWorld(self, machine.foreign) if machine.foreign is not None else None

    def begin(self) -> None:
        machine, started = self.machine, self.node.started
        machine.damage.extend(f"{machine.name}: {damage}" for damage in started.damage)
        machine.damage.extend(f"{machine.name}: {what}" for what in started.impossible)
        if started.behind_checkpoint:
            machine.damage.append(f"{machine.name}: the journal ends before the last checkpoint")
        self.tell(
            f"boot {self.number}: {started.sessions} sessions, {started.retained} retained, "
            f"next {started.next_offset}, {len(started.cuts)} cuts"
        )
        machine.network.listen(machine.address, self.accept)
        if self.links is not None:
            self.links.open()
        if self.attached is not None:
            self.work(self.attached.attachment.start)
        machine.reached("started", 0.3)
        self.work(self._keep_house)

    def tell(self, line: str) -> None:
        self.kernel.tell(f"{self.machine.name} {line}")

    # -- turns --

    def later(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Work of this process: it is not done once the process has ended."""
        self.kernel.after(seconds, self.work, action, *arguments)

    def work(self, action: Callable[..., None], *arguments: Any) -> None:
        """One piece of work, and what has to follow it."""
        if self.alive:
            self.broker.at(self.machine.clock.now())
            action(*arguments)
            self.driver.after_work()

    def _keep_house(self) -> None:
        clock = self.machine.clock
        if self._housekeeping.round(clock.now(), clock.wall()):
            self.driver.send()
        if self.node.checkpoint_due():
            self.committer.perform(self._committing.checkpoint(clock.now()))
        if self._housekeeping.is_tidying_due:
            self._tidy()
        self.later(ROUND_S, self._keep_house)

    def _tidy(self) -> None:
        if self.node.tidy():
            self.later(0.0, self._tidy)

    # -- the end, if it is planned: the steps of `NodeServer._stop` --

    def shut_down(self) -> None:
        self._settle(self._send_clients_away)

    def _settle(self, then: Callable[[], None]) -> None:
        self.committer.perform(self._committing.settle(self.broker.now))
        self._when_settled(then)

    def _when_settled(self, then: Callable[[], None]) -> None:
        """Go on when everything is written, or will not be."""
        if self._committing.settling or self._committing.checkpointing:
            self.later(SETTLE_STEP_S, self._when_settled, then)
        else:
            then()

    def _send_clients_away(self) -> None:
        self.node.send_clients_away()
        self._settle(self._leave_the_network)

    def _leave_the_network(self) -> None:
        if self.node.network is not None:
            self.node.network.stop()
        self.committer.perform(self._committing.checkpoint(self.broker.now))
        self._when_settled(self._ended)

    def _ended(self) -> None:
        if self.machine.running is self:
            self.machine.kill()

    # -- clients --

    def accept(self, end: End) -> None:
        self.work(self._accept, end)

    def _accept(self, end: End) -> None:
        end.user = _ClientStream(self, self.broker.accept(end, ClientPeer(end.peer.address)))

    # -- what the broker asks of its world --

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self.reports[event] = self.reports.get(event, 0) + 1
        if "makes no sense" in event:  # all nodes are honest here, so that one of them has a fault
            self.machine.damage.append(f"{self.machine.name}: {event}: {fields}")
        if "in_flight" in fields or event == "an old session is taken over":
            self.tell(f"reports {event}: {fields}")
            if event == "a client went back to its old session":
                self.machine.went_back.add(fields["client"])
            if "in_flight" in fields:
                self._note_fenced(fields["client"])
            else:
                self._note_taken_over(**fields)
        if event == "a node is read out of turn":
            self._note_out_of_turn(**fields)
        about = fields.get("peer") or fields.get("origin")
        if about:
            self.tell(f"reports {event}: {about} {fields.get('reason', '')}")

    def _note_fenced(self, client: str) -> None:
        """Its session is about to give up what is in flight at QoS 2."""
        inflight = self.broker.sessions[client.encode()].inflight.values()
        sent = (entry[0] for entry in inflight if entry is not None and min(entry[0].qos, entry[1].qos) == 2)
        self.machine.in_flight.setdefault(client, set()).update(identity_of(one.payload) for one in sent)

    def _note_taken_over(self, client: str, node: str, messages: int) -> None:
        """So many at the head of its queue have come from an old session."""
        queue = islice(self.broker.sessions[client.encode()].queue, messages)
        found = (self.broker.journal.read(offset) for offset, _ in queue)
        identities = (identity_of(one.payload) for one in found if one is not None)
        self.machine.handed_over.setdefault(client, set()).update(identities)

    def _note_out_of_turn(self, before: str, first: int, last: int, waited_s: float, **_: Any) -> None:
        clients = frozenset(session.name() for session in self.broker.sessions.values())
        self.machine.out_of_turn.append(OutOfTurn(self.kernel.now, before, first, last, waited_s, clients))

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None:
        raise AssertionError("nobody has a password here")

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        """After a while, in this process: a machine that is killed meanwhile forgets it."""
        if self._computing >= self.machine.settings.function_workers:
            return False
        self._computing += 1
        self.later(
            self._function_dice.random() * self.machine.settings.function_s, self._compute, function, payload, done
        )
        return True

    def _compute(self, function: str, payload: bytes, done: Done) -> None:
        self._computing -= 1
        found = self.machine.settings.functions.get(function)
        try:
            assert found is not None
            assert found.compute is not None
            value = found.compute(payload)
        except Exception:  # as a worker process would: whatever it is, it is the function's
            done(None, "function-failed")
        else:
            done(value, "")


class _Timers:
    """The timers that virtual time lends to a `Driver`; they end with the process."""

    __slots__ = ("_clock", "_kernel", "_running")

    def __init__(self, running: Running) -> None:
        self._running = running
        self._kernel = running.kernel
        self._clock = running.machine.clock

    def soon(self, action: Callable[[], None]) -> None:
        self._kernel.after(0.0, self._act, action)

    def later(self, seconds: float, action: Callable[[float], None]) -> None:
        self._kernel.after(seconds, self._act_at, action, 0.0)

    def at(self, instant: float, action: Callable[[float], None]) -> KernelTimer:
        timer = KernelTimer(action)
        self._kernel.at(self._clock.to_kernel(instant), self._act_at, timer.ring, instant)
        return timer

    def _act(self, action: Callable[[], None]) -> None:
        if self._running.alive:
            action()

    def _act_at(self, action: Callable[[float], None], instant: float) -> None:
        if self._running.alive:
            # Not a hair before it: instants are floats that went through an addition and a subtraction.
            action(max(instant, self._clock.now()))


class _ClientStream:
    """Between a stream and a `broker.Connection`, as `client_protocol` of the runtime is between a socket and one."""

    __slots__ = ("_connection", "_running")

    def __init__(self, running: Running, connection: Connection) -> None:
        self._running = running
        self._connection = connection

    def received(self, data: bytes) -> None:
        self._running.work(self._connection.feed, data)

    def lost(self) -> None:
        self._running.work(self._connection.lost)

    def congested(self) -> None:
        self._connection.congested()

    def writable(self) -> None:
        self._running.work(self._connection.writable)
