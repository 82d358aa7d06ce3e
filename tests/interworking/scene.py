"""Nodes attached to model brokers, in the simulator: clients on our side, calls on theirs, faults at chosen packets."""

from __future__ import annotations

from collections.abc import Callable

from sterna.interworking.attachment import Attachment
from sterna.interworking.settings import InterworkingSettings
from sterna.interworking.states import State
from sterna.simulation.attachments import AttachmentWorld, Foreign
from sterna.simulation.clients import Client, Habits
from sterna.simulation.foreign_broker import ForeignBroker, Quirks
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.membership import NETWORK, members
from sterna.simulation.network import Path
from sterna.simulation.world import new_world

SETTINGS = InterworkingSettings(fence_s=1.0, pause_s=0.2, pause_max_s=1.0, answer_s=3.0)
PATIENCE_S = 60.0


class Scene:
    """As many nodes as brokers, each attached to its own; the nodes are one network."""

    def __init__(
        self,
        *quirks: Quirks,
        settings: InterworkingSettings = SETTINGS,
        brokers: list[int] | None = None,
        seed: int = 1,
        strategy: str = "subscription-flooding",
    ) -> None:
        """`brokers`: for each node the number of the broker it is attached to, if not its own."""
        self.world = new_world(seed, path=Path(loss=0.0))
        self.kernel = self.world.kernel
        self.brokers = [
            ForeignBroker(self.kernel, self.world.network, f"broker{number}", one) for number, one in enumerate(quirks)
        ]
        places = brokers or list(range(len(quirks)))
        names = [f"node{number}" for number in range(len(places))]
        joined = members(names, strategy, "static", self.kernel.dice("members")) if len(names) > 1 else {}
        self.machines: list[SimulatedMachine] = []
        self.publishers: list[Client] = []
        self.subscribers: list[Client] = []
        for name, place in zip(names, places, strict=True):
            machine = self.world.add_machine(name, membership=joined.get(name))
            machine.foreign = Foreign(self.brokers[place], settings)
            self.machines.append(machine)
            domain = NETWORK if joined else name
            self.publishers.append(self.world.add_client(f"{name}p", machine, Habits(window=1), domain))
            subscriber = self.world.add_client(f"{name}s", machine, Habits(version=4), domain)
            subscriber.subscribe(b"t/#", 2)
            self.subscribers.append(subscriber)
        self.packets = 0

    def begin(self, *, attached: bool = True) -> None:
        for broker in self.brokers:
            broker.boot()
        for machine in self.machines:
            machine.boot()
        for client in (*self.publishers, *self.subscribers):
            client.come()
        if attached:
            self.wait(self.is_attached)
            self.wait(lambda: all(client.is_welcome and not client.is_asking for client in self.subscribers))
            self.run(1.0)

    def run(self, seconds: float) -> None:
        self.world.run(seconds)

    def wait(self, condition: Callable[[], bool]) -> None:
        until = self.kernel.now + PATIENCE_S
        while not condition():
            assert self.kernel.now < until, f"{condition} did not come true"
            self.run(0.05)

    def world_of(self, number: int = 0) -> AttachmentWorld:
        running = self.machines[number].running
        assert running is not None
        assert running.attached is not None
        return running.attached

    def attachment(self, number: int = 0) -> Attachment:
        return self.world_of(number).attachment

    def is_attached(self) -> bool:
        return all(
            machine.running is not None
            and machine.running.attached is not None
            and machine.running.attached.attachment.state == State.ATTACHED
            for machine in self.machines
        )

    def reasons(self, number: int = 0) -> list[str]:
        return [str(fields.get("reason", "")) for _, fields in self.world_of(number).reports]

    # -- messages --

    def heard_here(self, number: int = 0) -> list[str]:
        """First words of what the subscriber of a node got, in order."""
        return [arrival.identity for arrival in self.world.records.arrivals.get(f"node{number}s", [])]

    def heard_there(self, number: int = 0) -> list[str]:
        """First words of what the subscriber of a broker got, in order."""
        return [message.payload.split(b" ")[0].decode() for message in self.brokers[number].heard]

    def settle(self) -> None:
        """All publications are answered, nothing is in flight to a broker, and a while went by."""
        self.wait(self.is_attached)
        self.wait(lambda: all(not client.unfinished for client in self.publishers))
        self.wait(self._is_quiet)
        self.run(3.0)

    def _is_quiet(self) -> bool:
        for machine in self.machines:
            assert machine.running is not None
            session = machine.running.broker.sessions.get(f"$interwork/{machine.name}".encode())
            if session is None or session.inflight or session.queue:
                return False
        return all(not held.inflight for broker in self.brokers for held in broker.sessions.values())

    # -- faults --

    def at_packet(self, number: int, fault: Callable[[], bool], broker: int = 0) -> None:
        """At packet `number` of the session, either way, counted from now: `fault`; if True, the packet is lost and the
        connection with it."""
        self.packets = 0

        def watch(_way: str, _kind: int) -> bool:
            self.packets += 1
            return fault() if self.packets == number else False

        self.brokers[broker].watch = watch
