"""A gateway in a scenario of random faults: the clients behind it, and how it dies and comes back.

It begins with one node.  It may move its clients to any node once every node knows of them and has survived long
enough to have written that down.  Before that, no node could find the session of a client whose node is away.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.simulation.gateway import GatewayMachine
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.membership import NETWORK
from sterna.simulation.network_checkers import known_everywhere
from sterna.simulation.population import SimulatedPublisher, habits
from sterna.simulation.world import SimulatedWorld

PUBLISH_PAUSE_S = 1.0
FAILS_EVERY_S = 4.0
AWAY_S = 1.0
LOOK_S = 0.5


class GatewayScenario:
    def __init__(
        self,
        scene: SimulatedWorld,
        name: str,
        there: Callable[[], list[SimulatedMachine]],
        first: SimulatedMachine | None = None,
    ) -> None:
        """`there`: the machines whose nodes are to run.  It begins at the first, or anywhere."""
        self._scene = scene
        self._there = there
        self._dice = dice = scene.kernel.dice(name)
        nodes = [machine.address for machine in scene.machines]
        if first is None:
            dice.shuffle(nodes)
        else:
            nodes.sort(key=lambda address: address != first.address)
        self._others = nodes[1:]
        self.machine = GatewayMachine(scene.kernel, scene.network, name, nodes[:1])
        publisher = scene.add_client(f"{name}p", self.machine, habits(dice, persistent=True), NETWORK)
        self.publisher = SimulatedPublisher(publisher, PUBLISH_PAUSE_S)
        self._clients = [publisher]
        for number in range(2):
            client = scene.add_client(f"{name}s{number}", self.machine, habits(dice, persistent=True), NETWORK)
            client.subscribe(dice.choice((b"#", b"t/#")), dice.choice((1, 2)))
            self._clients.append(client)
        scene.records.wandering.update(client.name for client in self._clients)

    def start(self, until: float) -> None:
        self.machine.boot()
        self._look(until)
        self._scene.kernel.after(self._dice.expovariate(1 / FAILS_EVERY_S), self._fail, until)

    def _look(self, until: float, known: int = -1) -> None:
        """Are the clients known, and were they when so many nodes had been started?"""
        kernel = self._scene.kernel
        boots = sum(machine.boots for machine in self._scene.machines)
        is_known = all(known_everywhere(self._there(), client.name) for client in self._clients)
        if is_known and boots == known:
            self.machine.nodes.extend(self._others)
            kernel.tell(f"{self.machine.name} may go anywhere")
        elif kernel.now < until:
            kernel.after(LOOK_S, self._look, until, boots if is_known else -1)

    def _fail(self, until: float) -> None:
        kernel, dice = self._scene.kernel, self._dice
        if kernel.now < until:
            self.machine.kill(power=dice.random() < 0.5)
            kernel.after(dice.random() * AWAY_S, self.machine.boot)
            kernel.after(dice.expovariate(1 / FAILS_EVERY_S), self._fail, until)
