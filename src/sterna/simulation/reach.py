"""Hosts in reach of each other: they move about in a square, and two of them reach each other while they are near.

Out of reach is a cut of the network in both directions: datagrams are lost, streams stall, nobody answers a dial.
Random waypoint: a host goes straight to a random place at a random speed, and then to another.  When the moving stops
the hosts stand in a line, each in reach of the next, so that what is owed can be delivered over many hops.
"""

from __future__ import annotations

from itertools import combinations
from math import hypot
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sterna.simulation.network import SimulatedNetwork

STEP_S = 0.2
"""How often it is looked who hears whom."""
REACH_M = 100.0
SPEEDS_M_S = (2.0, 20.0)
CROWDING = 0.75
"""Side of the square, in reaches times the root of the number of hosts: partitions come and go."""
LINE = 0.7
"""Distance between two hosts of the final line, in reaches."""


class MapPosition(NamedTuple):
    x: float
    y: float

    def distance(self, other: MapPosition) -> float:
        return hypot(self.x - other.x, self.y - other.y)


class Reach:
    def __init__(self, network: SimulatedNetwork, names: list[str], *, reach_m: float = REACH_M) -> None:
        self._network = network
        self._kernel = network.kernel
        self._dice = network.kernel.dice("mobility")
        self._reach_m = reach_m
        self._side = max(reach_m / 2, CROWDING * reach_m * len(names) ** 0.5)
        self.places = {name: self._anywhere() for name in names}
        self._goals: dict[str, tuple[MapPosition, float]] = {}
        self._apart: dict[tuple[str, str], None] = {}
        self._moving = False
        #: How often two hosts came into reach, or went out of it.
        self.changes = 0

    def start(self) -> None:
        """Let everybody move."""
        self._moving = True
        self._step()

    def stop(self) -> None:
        """Everybody stands still, in a line."""
        self._moving = False
        self.stand({name: MapPosition(number * LINE * self._reach_m, 0.0) for number, name in enumerate(self.places)})

    def stand(self, places: dict[str, MapPosition]) -> None:
        """These are there now."""
        self.places.update(places)
        self._look()

    def hears(self, one: str, other: str) -> bool:
        return self.places[one].distance(self.places[other]) <= self._reach_m

    def _anywhere(self) -> MapPosition:
        return MapPosition(self._dice.uniform(0, self._side), self._dice.uniform(0, self._side))

    def _step(self) -> None:
        if self._moving:
            for name in self.places:
                self._move(name)
            self._look()
            self._kernel.after(STEP_S, self._step)

    def _move(self, name: str) -> None:
        goal, speed = self._goals.get(name) or (self._anywhere(), self._dice.uniform(*SPEEDS_M_S))
        here, way = self.places[name], speed * STEP_S
        distance = here.distance(goal)
        if distance <= way:
            self.places[name] = goal
            self._goals.pop(name, None)
            return
        self._goals[name] = (goal, speed)
        part = way / distance
        self.places[name] = MapPosition(here.x + (goal.x - here.x) * part, here.y + (goal.y - here.y) * part)

    def _look(self) -> None:
        for one, other in combinations(self.places, 2):
            is_apart = not self.hears(one, other)
            if is_apart == ((one, other) in self._apart):
                continue
            self.changes += 1
            self._kernel.tell(f"{one} and {other} are {'out of' if is_apart else 'in'} reach")
            change = self._network.cut if is_apart else self._network.mend
            change(one, other)
            change(other, one)
            if is_apart:
                self._apart[one, other] = None
            else:
                del self._apart[one, other]
