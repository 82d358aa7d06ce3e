"""The faults of a scenario and their times: crashes, shut-downs, cuts, full disks, wrong clocks.

Every fault is mended by itself after a while, and all of them when the scenario's quiet time begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sterna.simulation.machine import MOMENTS, Running, SimulatedMachine

if TYPE_CHECKING:
    from sterna.simulation.world import SimulatedWorld

SKEW_S = 600.0
"""How wrong a wall clock may be."""


class Faults:
    def __init__(
        self, scene: SimulatedWorld, kinds: tuple[str, ...], pause_s: float, absent_s: float = 0.0, long: float = 0.0
    ) -> None:
        """`long`: the share of crashes and partitions after which nodes are away for longer than `absent_s`."""
        self._scene = scene
        self._kernel = scene.kernel
        self._dice = scene.kernel.dice("faults")
        self._pause_s = pause_s
        self._absent_s = absent_s
        self._long = long
        self._kinds = [_KINDS[kind] for kind in kinds]
        self._heal: dict[int, Callable[[], None]] = {}
        self._number = 0
        self.count = 0

    def start(self, until: float) -> None:
        if self._kinds:
            self._kernel.after(self._dice.expovariate(1 / self._pause_s), self._strike, until)

    def _strike(self, until: float) -> None:
        if self._kernel.now >= until:
            self.mend_all()
            return
        self.count += 1
        self._dice.choice(self._kinds)(self)
        next_at = self._kernel.now + self._dice.expovariate(1 / self._pause_s)
        self._kernel.at(min(next_at, until), self._strike, until)

    def mend_all(self) -> None:
        for machine in self._scene.machines:
            machine.doom = ""
        for number in list(self._heal):
            self._mend(number)

    def _for_a_while(self, seconds: float, heal: Callable[[], None]) -> None:
        self._number += 1
        self._heal[self._number] = heal
        self._kernel.after(self._dice.uniform(0.05, 2 * seconds), self._mend, self._number)

    def _outage(self, usual_s: float, heal: Callable[[], None]) -> None:
        """Of a node, or of its links."""
        is_long = self._long > 0 and self._dice.random() < self._long
        self._for_a_while(max(usual_s, 3 * self._absent_s) if is_long else usual_s, heal)

    def _mend(self, number: int) -> None:
        heal = self._heal.pop(number, None)
        if heal is not None:
            heal()

    # -- kinds --

    def crash(self) -> None:
        machine = self._dice.choice(self._scene.machines)
        if machine.running is not None:
            machine.kill()
            self._outage(0.5, machine.mended)

    def shut_down(self) -> None:
        machine = self._dice.choice(self._scene.machines)
        if machine.running is not None:
            machine.shut_down()
            self._for_a_while(2.0, partial(self._boot_once_ended, machine, machine.running))

    def _boot_once_ended(self, machine: SimulatedMachine, before: Running) -> None:
        if machine.running is before:
            self._kernel.after(0.1, self._boot_once_ended, machine, before)
        else:
            machine.mended()

    def crash_at_the_worst_moment(self) -> None:
        machine = self._dice.choice(self._scene.machines)
        machine.doom = self._dice.choice(MOMENTS)
        self._kernel.tell(f"{machine.name} is to be killed: {machine.doom}")

    def power_loss(self) -> None:
        machine = self._dice.choice(self._scene.machines)
        if machine.running is not None:
            machine.kill(power=True)
            self._outage(1.0, machine.mended)

    def cut_off_a_client(self) -> None:
        client = self._dice.choice(self._scene.clients)
        node = client.address.rpartition(":")[0]
        self._for_a_while(2.0, self._scene.network.partition([[client.name], [node]]))

    def break_streams(self) -> None:
        client = self._dice.choice(self._scene.clients)
        self._break(client.name, client.address.rpartition(":")[0])

    def _break(self, one: str, other: str) -> None:
        silently = self._dice.random() < 0.5
        broken = self._scene.network.sever(one, other, silently=silently)
        self._kernel.tell(f"{broken} streams between {one} and {other} break{' silently' if silently else ''}")

    def break_a_link(self) -> None:
        """One that is there, if any is."""
        machine = self._dice.choice(self._scene.machines)
        network = machine.running.node.network if machine.running is not None else None
        peers = list(network.links.links) if network is not None else []
        if peers:
            self._break(machine.name, self._dice.choice(peers))

    def partition(self) -> None:
        """The nodes fall apart into two parts; clients still reach theirs."""
        names = [machine.name for machine in self._scene.machines]
        if len(names) > 1:
            self._dice.shuffle(names)
            place = self._dice.randrange(1, len(names))
            self._outage(3.0, self._scene.network.partition([names[:place], names[place:]]))

    def cut_one_way(self) -> None:
        """A path that works in one direction only."""
        if len(self._scene.machines) > 1:
            one, other = (machine.name for machine in self._dice.sample(self._scene.machines, 2))
            network = self._scene.network
            network.cut(one, other)
            self._kernel.tell(f"nothing gets from {one} to {other}")
            self._for_a_while(2.0, lambda: network.mend(one, other))

    def crash_a_foreign_broker(self) -> None:
        """One that is up, if any is."""
        brokers = [broker for broker in self._scene.foreign_brokers if broker.up]
        if brokers:
            broker = self._dice.choice(brokers)
            self._kernel.tell(f"{broker.name} is killed")
            broker.kill()
            self._for_a_while(1.0, broker.boot)

    def _attached(self) -> tuple[str, str] | None:
        """A node and the foreign broker beside it, if there are any."""
        pairs = [(machine.name, machine.foreign.broker.name) for machine in self._scene.machines if machine.foreign]
        return self._dice.choice(pairs) if pairs else None

    def break_an_attachment(self) -> None:
        if pair := self._attached():
            self._break(*pair)

    def cut_off_a_foreign_broker(self) -> None:
        if pair := self._attached():
            node, broker = pair
            self._for_a_while(2.0, self._scene.network.partition([[node], [broker]]))

    def disk_full(self) -> None:
        machine = self._dice.choice(self._scene.machines)
        if not machine.disk.full:
            machine.fill_disk(True)
            self._for_a_while(1.5, lambda: machine.fill_disk(False))

    def set_a_clock(self) -> None:
        """Not before all have met, and it is on their disks: how long a node has waited for a stranger, its clock alone
        knows."""
        if not self.have_met() or any(_has_unwritten(machine) for machine in self._scene.machines):
            return
        machine = self._dice.choice(self._scene.machines)
        machine.clock.skew_s = self._dice.uniform(-SKEW_S, SKEW_S)
        self._kernel.tell(f"{machine.name} clock set to {machine.clock.skew_s:.3f}")

    def have_met(self) -> bool:
        """Is everybody there, and has everybody read of everybody?"""
        nodes = [machine.running.node if machine.running is not None else None for machine in self._scene.machines]
        networks = [node.network for node in nodes if node is not None]
        if any(network is None for network in networks):
            return True  # each node is by itself
        vectors = [network.settled_vector() for network in networks if network is not None]
        return len(vectors) == len(nodes) and all(len(vector) == len(nodes) for vector in vectors)


def _has_unwritten(machine: SimulatedMachine) -> bool:
    if machine.disk.full or machine.running is None:
        return True
    commitments = machine.running.broker.commitments
    return bool(commitments.pending or commitments.under_way)


_KINDS: dict[str, Callable[[Faults], None]] = {
    "crash": Faults.crash,
    "shut-down": Faults.shut_down,
    "worst-crash": Faults.crash_at_the_worst_moment,
    "power": Faults.power_loss,
    "client-cut": Faults.cut_off_a_client,
    "client-break": Faults.break_streams,
    "link-break": Faults.break_a_link,
    "partition": Faults.partition,
    "one-way": Faults.cut_one_way,
    "disk-full": Faults.disk_full,
    "clock": Faults.set_a_clock,
    "foreign-crash": Faults.crash_a_foreign_broker,
    "foreign-break": Faults.break_an_attachment,
    "foreign-cut": Faults.cut_off_a_foreign_broker,
}
ALL_KINDS = tuple(_KINDS)
FOREIGN_KINDS = ("foreign-crash", "foreign-break", "foreign-cut")
"""The faults of foreign brokers and of the way to them."""
KINDS = tuple(kind for kind in _KINDS if kind not in FOREIGN_KINDS)
LONE_KINDS = tuple(kind for kind in KINDS if kind not in ("link-break", "partition", "one-way"))
"""The faults of nodes without neighbours."""
