"""The simulated world of one scenario: kernel, network, machines, clients, and their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sterna.node.node import Node
from sterna.simulation.clients import Client, Habits
from sterna.simulation.foreign_broker import ForeignBroker
from sterna.simulation.gateway import GatewayMachine
from sterna.simulation.kernel import Kernel, Trace
from sterna.simulation.links import MakeSettings
from sterna.simulation.machine import Clock, MachineSettings, Running, SimulatedMachine
from sterna.simulation.network import Path, SimulatedNetwork
from sterna.simulation.records import Records

STEADY_OFFSET_S = 100_000.0
"""Steady clocks begin anywhere: nobody may compare those of two machines."""
DRIFT = 50e-6


@dataclass(slots=True)
class SimulatedWorld:
    kernel: Kernel
    network: SimulatedNetwork
    machines: list[SimulatedMachine] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    foreign_brokers: list[ForeignBroker] = field(default_factory=list)
    records: Records = field(default_factory=Records)

    def add_machine(
        self,
        name: str,
        settings: MachineSettings | None = None,
        make: Callable[[Running], Node] | None = None,
        membership: MakeSettings | None = None,
    ) -> SimulatedMachine:
        dice = self.kernel.dice(f"{name} clock")
        clock = Clock(self.kernel, dice.uniform(0, STEADY_OFFSET_S), dice.uniform(-5, 5), dice.uniform(-DRIFT, DRIFT))
        machine = SimulatedMachine(self.kernel, self.network, name, settings, make, clock, membership)
        self.machines.append(machine)
        return machine

    def add_client(self, name: str, machine: SimulatedMachine | GatewayMachine, habits: Habits, domain: str) -> Client:
        client = Client(self.network, name, machine.address, self.records, habits, domain)
        self.clients.append(client)
        return client

    def run(self, seconds: float) -> None:
        self.kernel.run_until(self.kernel.now + seconds)


def new_world(seed: int, trace: Trace | None = None, path: Path | None = None) -> SimulatedWorld:
    kernel = Kernel(seed, trace)
    return SimulatedWorld(kernel, SimulatedNetwork(kernel, path))
