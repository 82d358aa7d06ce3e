"""Which workers are near a gateway, to judge by its round trips to some others.

The worker beside a gateway is as far from everybody else as the gateway is.  So its estimated distances to the workers
that the gateway has measured are like what was measured, and those of no other worker are.  This finds a neighbour
sooner than the coordinate of the gateway does: that one is a compromise between all round trips, and no coordinate
puts two hosts that share their way out closer together than their heights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from math import dist

from sterna.overlay.coordinates import Coordinate

COMPARED_MAX = 12
"""Round trips that are compared, the shortest ones: they tell most."""
JITTER_S = 0.02
"""Round trips that differ by less than this are alike, however short they are."""
LEAST = 3
"""Fewer round trips tell nothing about the others."""


def to_measure(trips: Mapping[str, float], places: Mapping[str, Coordinate], nearest: str, count: int) -> list[str]:
    """Workers for a gateway with these trips: half of them such as it has not measured, then the nearest one that it
    has, so that this round trip stays true, then the rest.  Few or none where there are too few trips."""
    names = list(resembling(trips, places, (name for name in places if name not in trips), count // 2))
    names += [nearest] if nearest in places else []
    rest = [name for name in places if name not in names]
    return [*names, *resembling(trips, places, rest, count - len(names))]


def resembling(
    trips: Mapping[str, float], places: Mapping[str, Coordinate], among: Iterable[str], count: int
) -> Sequence[str]:
    """The workers whose distances are most like these trips, the best first; none where there are too few trips."""
    shortest = nsmallest(COMPARED_MAX, (name for name in trips if name in places), key=trips.__getitem__)
    if len(shortest) < LEAST:
        return []
    known = [(places[name].vector, places[name].height, trips[name], trips[name] + JITTER_S) for name in shortest]

    def unlike(name: str) -> tuple[float, str]:
        vector, height = places[name].vector, places[name].height
        off = sum(abs(dist(vector, there) + height + up - trip) / scale for there, up, trip, scale in known)
        return off, name

    return nsmallest(count, among, key=unlike)
