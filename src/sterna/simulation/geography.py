"""Where hosts are, and how long packets take between them: regions of a cloud, and the links that lead to them.

A host has links between itself and its region, nearest first.  Two hosts that share their outer links (the machines of
one factory) meet where these begin.  A packet takes a sample of every link on its way, and the latency between the two
regions.  Links are log-normal, so most packets are quick and some are not.

The regions are those of the thesis' data: see the head of the file.  The thesis takes its numbers for one way, which
makes the world twice as large as it is; `wan="round-trip"` takes them for what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp
from random import Random
from typing import Final, Literal

Wan = Literal["one-way", "round-trip"]


@dataclass(frozen=True, slots=True)
class LogNormalLink:
    """loc + scale * exp(shape * N(0, 1)), in milliseconds, one way."""

    shape: float
    loc: float
    scale: float

    def sample_ms(self, rng: Random) -> float:
        return self.loc + self.scale * exp(self.shape * rng.gauss(0.0, 1.0))

    @property
    def mode_ms(self) -> float:
        return self.loc + self.scale * exp(-self.shape * self.shape)

    @property
    def mean_ms(self) -> float:
        return self.loc + self.scale * exp(self.shape * self.shape / 2)


LAN: Final = LogNormalLink(0.25, 0.35, 0.16)
WLAN: Final = LogNormalLink(0.635, 1.18, 3.27)
BUSINESS_ISP: Final = LogNormalLink(0.87, 5.95, 1.21)
MOBILE_ISP: Final = LogNormalLink(0.49, 16.2, 8.02)


@dataclass(frozen=True, slots=True)
class Cable:
    """One cable: a kind, and a name that hosts behind the same one share."""

    name: str
    kind: LogNormalLink


@dataclass(frozen=True, slots=True)
class Location:
    """Where a host is: its links, from its own to the one that ends in the region."""

    region: str
    links: tuple[Cable, ...]

    def __hash__(self) -> int:
        """Ways are looked up for every packet: its own cable tells a host from nearly all others."""
        return hash((self.region, self.links[0].name))


def in_cloud(name: str, region: str) -> Location:
    """A machine of the region's data centre."""
    return Location(region, (Cable(name, LAN),))


def behind(name: str, region: str, site: str, backhaul: LogNormalLink) -> Location:
    """A machine on the network of a site, which has one way out."""
    return Location(region, (Cable(name, LAN), Cable(site, backhaul)))


@cache
def _read() -> dict[tuple[str, str], float]:
    text = files("sterna.simulation").joinpath("data/cloudping-2020-06-20.csv").read_text()
    rows = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    return {(source, target): float(latency) for source, target, latency in rows[1:]}


def regions() -> list[str]:
    return sorted({source for source, _ in _read()})


class Geography:
    """Latencies between locations.  The dice are handed in with each packet."""

    def __init__(self, wan: Wan = "one-way") -> None:
        factor = 1.0 if wan == "one-way" else 0.5
        self._between: Mapping[tuple[str, str], float] = {pair: factor * ms for pair, ms in _read().items()}
        self._ways: dict[tuple[Location, Location], tuple[float, tuple[LogNormalLink, ...]]] = {}

    def way(self, source: Location, target: Location) -> tuple[float, tuple[LogNormalLink, ...]]:
        """The milliseconds that are always the same, and the links."""
        found = self._ways.get((source, target))
        if found is None:
            shared = {link.name for link in source.links} & {link.name for link in target.links}
            links = tuple(link.kind for link in source.links + target.links if link.name not in shared)
            same = source.region == target.region or shared
            found = self._ways[source, target] = (0.0 if same else self._between[source.region, target.region], links)
        return found

    def one_way_s(self, source: Location, target: Location, rng: Random) -> float:
        """The time of one packet."""
        base, links = self.way(source, target)
        return (base + sum(link.sample_ms(rng) for link in links)) / 1000

    def round_trip_s(self, source: Location, target: Location, rng: Random) -> float:
        return self.one_way_s(source, target, rng) + self.one_way_s(target, source, rng)

    def usual_round_trip_s(self, source: Location, target: Location) -> float:
        """The truth that estimates are held against: the sum of the links' modes."""
        total = 0.0
        for one, other in ((source, target), (target, source)):
            base, links = self.way(one, other)
            total += base + sum(link.mode_ms for link in links)
        return total / 1000
