"""Scenarios as TOML files: who publishes and subscribes what at which node of a row, and where latency is measured.

    about = "..."            one line for people
    nodes = 5                in a row; 1 is a single broker, or one pair of a broker and a node
    brokers = [...]          kinds of the brokers behind the nodes, one for each; Mosquittos if left out
    [latency]                topic, node of the publisher, nodes of the subscribers
    [[place]]                node (from 1), topic, publishers, subscribers

Unknown keys, nodes that the row does not have and a scenario without a delivery are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.load.packets import SMALL, publish_bytes

CLIENTS_MAX = 10_000
NODES_MAX = 100


class LoadPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """t-clients at one node: they make the load."""

    node: int
    topic: str
    publishers: int
    subscribers: int


class LatencyPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """l-clients: a publisher and its subscribers on a topic of their own."""

    topic: str
    publisher: int
    subscribers: tuple[int, ...]


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    nodes: int
    latency: LatencyPlace
    places: tuple[LoadPlace, ...] = msgspec.field(name="place")
    brokers: tuple[str, ...] = ()

    @property
    def publishers(self) -> Counter[str]:
        """Topic -> how many."""
        return _sum((place.topic, place.publishers) for place in self.places)

    @property
    def subscribers(self) -> Counter[str]:
        return _sum((place.topic, place.subscribers) for place in self.places)

    @property
    def sp_ratio(self) -> float:
        """Deliveries of a publication on average: sum of P(t) S(t) over sum of P(t)."""
        subscribers = self.subscribers
        deliveries = sum(count * subscribers[topic] for topic, count in self.publishers.items())
        return deliveries / self.publishers.total()


def _sum(counts: Iterable[tuple[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for topic, count in counts:
        found[topic] += count
    return found


def read_scenario(file: Path) -> Scenario:
    try:
        scenario = msgspec.toml.decode(file.read_bytes(), type=Scenario)
    except OSError as error:
        raise MeasurementError(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise MeasurementError(f"{file}: {error}; see docs/experiments.md for the keys") from None
    for problem in _problems(scenario):
        raise MeasurementError(f"{file}: {problem}")
    return scenario


def built_in(name: str) -> Scenario:
    return read_scenario(Path(str(files("sterna.measure.ildm") / "scenarios" / f"{name}.toml")))


def _problems(scenario: Scenario) -> list[str]:
    problems = []
    if not 1 <= scenario.nodes <= NODES_MAX:
        problems.append(f"nodes is {scenario.nodes}; use 1 to {NODES_MAX}")
    if scenario.brokers and len(scenario.brokers) != scenario.nodes:
        problems.append(f"there are {scenario.nodes} nodes and {len(scenario.brokers)} brokers; name one for each")
    named = [place.node for place in scenario.places] + [scenario.latency.publisher, *scenario.latency.subscribers]
    problems += [
        f"there is no node {node}; use 1 to {scenario.nodes}" for node in named if not 1 <= node <= scenario.nodes
    ]
    counts = [count for place in scenario.places for count in (place.publishers, place.subscribers)]
    if any(count < 0 for count in counts) or sum(counts) > CLIENTS_MAX:
        problems.append(f"give each place 0 or more clients, and all together at most {CLIENTS_MAX:,}")
    elif not scenario.publishers.total() or not scenario.sp_ratio:
        problems.append("no publication would be delivered; give a topic publishers and subscribers")
    topics = {place.topic for place in scenario.places}
    if scenario.latency.topic in topics:
        problems.append(f"{scenario.latency.topic} is the topic of latency, and must have no other clients")
    if any(publish_bytes(topic) - 2 > SMALL or "+" in topic or "#" in topic for topic in topics):
        problems.append("topics must be short names without wildcards")
    return problems
