"""The cost model: what brokers and nodes spend per publication, from the placement alone and a few measured costs.

A broker pays `taken` for each publication that comes in and `given` for each delivery.  A node in front of it pays
`relayed` for each packet it passes between clients and broker, and `moved` for each publication it sends to or gets
from a neighbour.  The paper's node takes publications for its neighbours from its clients; a node of Sterna takes them
from the broker, which pays for one more delivery of each.  The busiest host decides the limit.  Linked nodes that are
brokers themselves pay `moved` on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from sterna.measure.ildm.scenario import Scenario


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """CPU microseconds."""

    taken: float
    given: float
    relayed: float = 0.0
    moved: float = 0.0


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Of one node and its broker, per publication of the whole system."""

    own: float
    """From its own clients."""
    heard: float
    """Of these, publications that go on to a neighbour, or would if there was one."""
    moved_in: float
    moved_out: float
    given: float
    """Deliveries to its own clients."""


def node_loads(scenario: Scenario, algorithm: str) -> list[NodeLoad]:
    """Of a row of nodes, each linked with the next."""
    total = scenario.publishers.total()
    loads = []
    for node in range(1, scenario.nodes + 1):
        own = heard = moved_in = moved_out = given = 0.0
        for source, topic, share in _publications(scenario, total):
            reached = _reached(scenario, algorithm, source, topic)
            own += share * (node == source)
            heard += share * (node == source and (algorithm == "PF" or len(reached) > 1))
            moved_in += share * (node in reached and node != source)
            moved_out += share * _passed_on(node, source, reached)
            given += share * sum(
                place.subscribers for place in scenario.places if (place.node, place.topic) == (node, topic)
            )
        loads.append(NodeLoad(own=own, heard=heard, moved_in=moved_in, moved_out=moved_out, given=given))
    return loads


def transfers(scenario: Scenario, algorithm: str) -> float:
    """Between nodes, per publication of the t-clients."""
    return sum(load.moved_out for load in node_loads(scenario, algorithm))


def latency_transfers(scenario: Scenario, algorithm: str) -> int:
    """Between nodes, per publication of the l-client."""
    wanted = scenario.latency.subscribers
    reached = _span(scenario.latency.publisher, wanted) if algorithm == "SF" else range(1, scenario.nodes + 1)
    return len(reached) - 1


Layer = Literal["none", "relays", "hears"]
"""In front of each broker: nothing, a node that takes publications from its clients, or one that takes them from the
broker."""


def limit(loads: list[NodeLoad], costs: Costs, broker_share: float, node_share: float, layer: Layer) -> float:
    """Publications a second of the whole system; a share of a core for each broker and each node."""
    return min(rate for load in loads for rate in _limits(load, costs, broker_share, node_share, layer))


def _limits(load: NodeLoad, costs: Costs, broker_share: float, node_share: float, layer: Layer) -> Iterator[float]:
    moved = (load.moved_in + load.moved_out) * costs.moved
    if layer == "none":
        yield broker_share * 1e6 / (load.own * costs.taken + load.given * costs.given + moved)
        return
    heard = load.heard if layer == "hears" else 0.0
    broker = (load.own + load.moved_in) * costs.taken + (load.given + heard) * costs.given
    yield broker_share * 1e6 / broker
    yield node_share * 1e6 / ((load.own + load.given + heard) * costs.relayed + moved)


def _publications(scenario: Scenario, total: int) -> Iterator[tuple[int, str, float]]:
    for place in scenario.places:
        if place.publishers:
            yield place.node, place.topic, place.publishers / total


def _reached(scenario: Scenario, algorithm: str, source: int, topic: str) -> range:
    if algorithm == "PF":
        return range(1, scenario.nodes + 1)
    return _span(source, [place.node for place in scenario.places if place.topic == topic and place.subscribers])


def _span(source: int, wanted: Iterable[int]) -> range:
    nodes = [source, *wanted]
    return range(min(nodes), max(nodes) + 1)


def _passed_on(node: int, source: int, reached: range) -> int:
    """Neighbours that a node sends the publication to: those further from its source."""
    if node not in reached:
        return 0
    return (node >= source and node + 1 in reached) + (node <= source and node - 1 in reached)
