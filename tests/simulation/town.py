"""A network with somebody on every node who publishes and somebody who listens, for scenarios with a script."""

from __future__ import annotations

from sterna.simulation.checkers import check_delivery
from sterna.simulation.clients import Client, Habits
from sterna.simulation.gateway import GatewayMachine
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.membership import NETWORK, members
from sterna.simulation.network_checkers import everybody_in_step, nothing_left_over
from sterna.simulation.records import Violation
from sterna.simulation.world import new_world

PATIENCE_S = 30.0


class Town:
    def __init__(
        self, nodes: int, strategy: str, overlay: str = "spanning-tree", seed: int = 1, *, gateway: bool = False
    ) -> None:
        """With a gateway, the clients of the first node are behind it."""
        self.scene = new_world(seed)
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        self._joined = members(self.names, strategy, overlay, self.scene.kernel.dice("members"))
        self.publishers: dict[str, Client] = {}
        self.subscribers: dict[str, Client] = {}
        for name in self.names:
            self._settle_down(name)
        self.gateway: GatewayMachine | None = None
        if gateway:
            addresses = [machine.address for machine in self.scene.machines]
            self.gateway = GatewayMachine(self.scene.kernel, self.scene.network, "gateway", addresses)
            for client in (self.publishers["node1"], self.subscribers["node1"]):
                client.address = self.gateway.address

    def _settle_down(self, name: str) -> None:
        machine = self.scene.add_machine(name, membership=self._joined[name])
        publisher = self.scene.add_client(f"{name}p", machine, Habits(window=5), NETWORK)
        subscriber = self.scene.add_client(f"{name}s", machine, Habits(version=4), NETWORK)
        subscriber.subscribe(b"t/#", 2)
        self.publishers[name], self.subscribers[name] = publisher, subscriber

    def machine(self, name: str) -> SimulatedMachine:
        return next(machine for machine in self.scene.machines if machine.name == name)

    def begin(self, *names: str) -> float:
        """Boot these nodes (all, if none is named), wait until they are one network; how long that took."""
        began = self.scene.kernel.now
        for name in names or self.names:
            self.machine(name).boot()
        if self.gateway is not None:
            self.gateway.boot()
        self.wait_until_in_step()
        took = self.scene.kernel.now - began
        for name in names or self.names:
            self.publishers[name].come()
            self.subscribers[name].come()
        self.scene.run(1.0)
        return took

    def wait_until_in_step(self) -> None:
        deadline = self.scene.kernel.now + PATIENCE_S
        running = [machine for machine in self.scene.machines if machine.running is not None]
        names = [machine.name for machine in running]
        while strangers := [found for machine in running for found in everybody_in_step(machine, names)]:
            assert self.scene.kernel.now < deadline, strangers
            self.scene.run(0.05)

    def publish(self, count: int, seconds: float) -> None:
        """Everybody publishes so many messages at QoS 1 and 2, spread over so long."""
        for publisher in self.publishers.values():
            for number in range(count):
                self.scene.kernel.after(
                    seconds * number / count, publisher.publish, b"t/%d" % (number % 3), 1 + number % 2
                )

    def end(self) -> list[Violation]:
        """Let everything come to rest, and look at what became of it."""
        for machine in self.scene.machines:
            machine.boot()
        if self.gateway is not None:
            self.gateway.boot()
        self.wait_until_in_step()
        deadline = self.scene.kernel.now + PATIENCE_S
        while any(client.unfinished for client in self.scene.clients) and self.scene.kernel.now < deadline:
            self.scene.run(0.5)
        self.scene.run(3.0)
        assert any(self.scene.records.arrivals.values())
        left_over = [found for machine in self.scene.machines for found in nothing_left_over(machine)]
        return [*check_delivery(self.scene.records), *left_over]
