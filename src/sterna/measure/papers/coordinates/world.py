"""The world of both experiments: 20 regions, in each a cloud worker and five sites with a worker and a gateway.

A site is a network of its own behind a mobile link, so the right neighbour of a gateway is the worker of its site.
Round trips are sampled packet by packet; the truth is the sum of the modes.
"""

from __future__ import annotations

from random import Random

from sterna.overlay.coordinates import Coordinate
from sterna.overlay.vivaldi import Vivaldi
from sterna.overlay.vivaldi_settings import VivaldiSettings
from sterna.simulation.geography import BUSINESS_ISP, MOBILE_ISP, Geography, Location, Wan, behind, in_cloud, regions

BACKHAUL = [BUSINESS_ISP]
SITES = 5
"""In each region."""


class Participant:
    """A worker or gateway, where it is and where it thinks it is."""

    def __init__(self, name: str, at: Location, rng: Random, settings: VivaldiSettings) -> None:
        self.name = name
        self.at = at
        self.vivaldi = Vivaldi(rng, settings)
        self.lie: Coordinate | None = None
        """What it says about itself, if that is not true."""

    @property
    def told(self) -> Coordinate:
        return self.lie or self.vivaldi.coordinate


class World:
    def __init__(self, seed: int, settings: VivaldiSettings, wan: Wan = "one-way", liars: float = 0.0) -> None:
        self.geography = Geography(wan)
        self.rng = Random(f"{seed}/world")
        self.settings = settings
        self._seed = seed
        self.clouds = [self._made(f"{region}/cloud", in_cloud(f"{region}/cloud", region)) for region in regions()]
        self.edges = [self._at_site(region, site, "edge") for region in regions() for site in range(SITES)]
        self.workers = self.clouds + self.edges
        self.gateways = [self._at_site(region, site, "gateway") for region in regions() for site in range(SITES)]
        for liar in self.rng.sample(self.gateways, round(liars * len(self.gateways))):
            # It claims to be sure, and to be anywhere.
            place = tuple(self.rng.uniform(-0.5, 0.5) for _ in range(settings.dimensions))
            liar.lie = Coordinate(place, 0.0, 0.01)

    @property
    def honest(self) -> list[Participant]:
        return [gateway for gateway in self.gateways if gateway.lie is None]

    def measure(self, one: Participant, other: Participant, *, mutual: bool = False) -> None:
        """A round trip; if it is mutual, both learn from it, as the thesis has it."""
        round_trip_s = self.geography.round_trip_s(one.at, other.at, self.rng)
        one.vivaldi.measured(other.told, round_trip_s, other.name)
        if mutual:
            other.vivaldi.measured(one.told, round_trip_s, one.name)

    def true_s(self, one: Participant, other: Participant) -> float:
        return self.geography.usual_round_trip_s(one.at, other.at)

    def _at_site(self, region: str, site: int, kind: str) -> Participant:
        name = f"{region}/{site}/{kind}"
        return self._made(name, behind(name, region, f"{region}/{site}", BACKHAUL[0]))

    def _made(self, name: str, at: Location) -> Participant:
        return Participant(name, at, Random(f"{self._seed}/{name}"), self.settings)
