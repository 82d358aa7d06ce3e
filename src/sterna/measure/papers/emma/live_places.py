"""Where the hosts of a playbook are when they are real: network namespaces as far from each other as in the geography.

Each worker has a place of its own.  The gateways of one network share one; they are processes there.
"""

from __future__ import annotations

from random import Random

from sterna.measure.papers.emma.playbooks import Playbook
from sterna.simulation.geography import Cable, Geography, Location


class LivePlaces:
    """Numbers of places; the first is that of the node that always runs, and of the coordinator."""

    def __init__(self, playbook: Playbook, rng: Random) -> None:
        """The dice are the switch's: it asks in a thread of its own."""
        self._rng = rng
        self._geography = Geography()
        self._locations: list[Location] = []
        self.numbers: dict[str, int] = {}
        networks: dict[tuple[str, tuple[Cable, ...]], int] = {}
        for event in sorted(playbook.events, key=lambda one: not one.fixed):
            if event.at is None or event.name in self.numbers:
                continue
            if event.kind == "worker":
                self.numbers[event.name] = self._add(event.at)
            elif event.kind == "gateway":
                network = event.at.region, event.at.links[1:]
                if network not in networks:
                    networks[network] = self._add(event.at)
                self.numbers[event.name] = networks[network]

    def _add(self, at: Location) -> int:
        self._locations.append(at)
        return len(self._locations) - 1

    def __len__(self) -> int:
        return len(self._locations)

    def delay_s(self, one: int, other: int) -> float:
        """Of one packet.  The place after the last is this process', which is nowhere."""
        if max(one, other) >= len(self._locations):
            return 0.0
        return self._geography.one_way_s(self._locations[one], self._locations[other], self._rng)
