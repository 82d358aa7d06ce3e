"""The place of every client: the five brokers of the traffic experiment, their tree, and clients by locality.

The tree is the balanced one of five nodes that the paper's bridges form (its figure 5.5).  Localities are the paper's
(section 5.2.1): at 100 % everybody is on one broker, at 0 % publishers are on one and subscribers on another, at 50 %
everybody is on a broker drawn at random.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

BROKERS = 5
Links = tuple[tuple[int, int], ...]
TREE: Links = ((0, 1), (0, 2), (1, 3), (2, 4))
"""Links of the tree; the first of a pair is the one that connects to the other."""
LOCALITIES = (0, 50, 100)
PUBLISHERS = 20
SUBSCRIBERS = 5


class ClientPlacement(NamedTuple):
    """For every client, the broker it connects to."""

    publishers: tuple[int, ...]
    subscribers: tuple[int, ...]


def place(locality: int, publishers: int, subscribers: int, rng: Random) -> ClientPlacement:
    """Clients on brokers; the same dice give every system the same places."""
    if locality == 50:
        return ClientPlacement(
            tuple(rng.randrange(BROKERS) for _ in range(publishers)),
            tuple(rng.randrange(BROKERS) for _ in range(subscribers)),
        )
    home = rng.randrange(BROKERS)
    away = home if locality == 100 else rng.choice([broker for broker in range(BROKERS) if broker != home])
    return ClientPlacement((home,) * publishers, (away,) * subscribers)


def copies(placement: ClientPlacement, links: Links = TREE) -> int:
    """How often a round of one message per publisher must cross a link of the tree if it goes only where it has to."""
    wanted = frozenset(placement.subscribers)
    return sum(len(_links_to(home, wanted, links)) for home in placement.publishers)


def _links_to(home: int, wanted: frozenset[int], links: Links) -> set[tuple[int, int]]:
    """The links between a broker and all who want its messages."""
    return {link for target in wanted for link in _path(home, target, links)}


def _path(source: int, target: int, links: Links) -> list[tuple[int, int]]:
    """The links from one to the other; in a tree there is one way only."""
    ways: dict[int, list[tuple[int, int]]] = {source: []}
    reached = [source]
    for place in reached:
        for link in links:
            if place in link:
                (other,) = set(link) - {place}
                if other not in ways:
                    ways[other] = [*ways[place], link]
                    reached.append(other)
    return ways[target]
