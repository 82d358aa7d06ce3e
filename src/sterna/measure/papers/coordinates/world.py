"""The world of both experiments: 20 regions, in each a cloud worker and five sites with a worker and a gateway.

A site is a network of its own behind one link (`--backhaul`), so the right neighbour of a gateway is the worker there.
Round trips are sampled packet by packet; the truth is the sum of the modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from sterna.overlay.coordinates import Coordinate
from sterna.overlay.vivaldi import Vivaldi
from sterna.overlay.vivaldi_settings import VivaldiSettings
from sterna.simulation.geography import BUSINESS_ISP, MOBILE_ISP, Geography, Location, Wan, behind, in_cloud, regions

BACKHAULS: Final = {"business": BUSINESS_ISP, "mobile": MOBILE_ISP}
"""Of a site.  The thesis does not say which it has."""
SITES = 5
"""In each region."""


class Participant:
    """A worker or gateway, where it is and where it thinks it is."""

    def __init__(self, name: str, at: Location, rng: Random, settings: VivaldiSettings) -> None:
        self.name = name
        self.at = at
        self.vivaldi = Vivaldi(rng, settings)
        self.lie: Coordinate | None = None
        """Its own word about itself, if that is not true."""

    @property
    def told(self) -> Coordinate:
        return self.lie or self.vivaldi.coordinate


@dataclass(frozen=True, slots=True)
class WorldShape:
    """The world in which a run takes place."""

    wan: Wan = "one-way"
    backhaul: str = "business"
    liars: float = 0.0
    """Share of gateways that lie about where they are."""
    mutual: bool = False
    """A worker learns from those who measure it, gateways included, as the thesis has it."""


class CoordinateWorld:
    def __init__(self, seed: int, settings: VivaldiSettings, shape: WorldShape) -> None:
        self.geography = Geography(shape.wan)
        self.shape = shape
        self.rng = Random(f"{seed}/world")
        self.settings = settings
        self._seed = seed
        self.clouds = [self._made(f"{region}/cloud", in_cloud(f"{region}/cloud", region)) for region in regions()]
        self.edges = [self._at_site(region, site, "edge") for region in regions() for site in range(SITES)]
        self.workers = self.clouds + self.edges
        self.gateways = [self._at_site(region, site, "gateway") for region in regions() for site in range(SITES)]
        # Dice of their own: the packets of a world with liars are those of one without.
        dice = Random(f"{seed}/liars")
        for liar in dice.sample(self.gateways, round(shape.liars * len(self.gateways))):
            # It claims to be sure, and to be anywhere.
            place = tuple(dice.uniform(-0.5, 0.5) for _ in range(settings.dimensions))
            liar.lie = Coordinate(place, 0.0, 0.01)

    @property
    def honest(self) -> list[Participant]:
        return [gateway for gateway in self.gateways if gateway.lie is None]

    def measure(self, one: Participant, other: Participant, samples: int = 1) -> float:
        """The least round trip of some.  Where coordinates filter samples, only that one is learned, else each."""
        trips = [self.geography.round_trip_s(one.at, other.at, self.rng) for _ in range(samples)]
        for round_trip_s in trips if self.settings.median_of == 1 else [min(trips)]:
            one.vivaldi.measured(other.told, round_trip_s, other.name)
            if self.shape.mutual:
                other.vivaldi.measured(one.told, round_trip_s, one.name)
        return min(trips)

    def another_worker(self, worker: Participant) -> Participant:
        while (other := self.rng.choice(self.workers)) is worker:
            pass
        return other

    def true_s(self, one: Participant, other: Participant) -> float:
        return self.geography.usual_round_trip_s(one.at, other.at)

    def _at_site(self, region: str, site: int, kind: str) -> Participant:
        name = f"{region}/{site}/{kind}"
        return self._made(name, behind(name, region, f"{region}/{site}", BACKHAULS[self.shape.backhaul]))

    def _made(self, name: str, at: Location) -> Participant:
        return Participant(name, at, Random(f"{self._seed}/{name}"), self.settings)
