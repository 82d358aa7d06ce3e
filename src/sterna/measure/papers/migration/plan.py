"""The paper's experiments with a client that moves (its table 6.2), what it measured (table 6.4, figure 6.4), and ours.

The paper mocks a network: every message is published at both brokers, at one of them later.  Ours is a network, and
links keep their order: nothing can overtake a message, no word about a move either.  So a broker lags behind the other
exactly as long as the link to it takes, and that is how it is made to lag in the paper's sets:

    ahead    published at the target only; what goes from target to source takes 2000 ms
    behind   published at the source only; what goes from source to target takes 2000 ms
    synced   published at both, by two publishers per topic; 40 ms either way
    mixed    some topics ahead and some behind; 2000 ms either way

The words of the move itself take as long as everything else on the link, which the model is told.  So in "behind" the
target has heard all that the source has when it hears of the move.  It has not only after an interruption: the word of
the move crosses the new link at once, what was published meanwhile has to be asked for at the node it entered at.  The
sets called "cut" make that state: messages enter at a third node, 1000 ms away; the link between source and target is
cut and laid again, and the move is ordered while the target waits for the third node's answer.

The other sets are variations: more nodes (synced, one publisher per topic), other QoS of publication, other latencies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.migration.model import Latencies, SyncState, predict

Where = Literal["source", "target", "third"]
WHERE: dict[SyncState, tuple[Where, ...]] = {
    "ahead": ("target",),
    "behind": ("source",),
    "synced": ("source", "target"),
}

ClientKind = Literal["gateway", "mqtt5", "mqtt311"]
KINDS: tuple[ClientKind, ...] = ("gateway", "mqtt5", "mqtt311")
"""Of clients: behind a gateway; MQTT 5, following the Server Reference; MQTT 3.1.1, knowing where else to go."""

INTERVAL_MS = 100.0
"""Between two messages of a topic."""
NEAR_MS = 40.0
"""Between source and target, one way, and between source and client."""
CLIENT_TARGET_MS = 10.0
LAG_MS = 2000.0
JITTER_MS = 5.0
SWEEP_MS = (5, 10, 20, 40, 80, 160)
"""One way, of all links alike."""


@dataclass(frozen=True, slots=True)
class MovedTopic:
    name: str
    qos: int
    """Of the subscription."""
    state: SyncState
    losses: int = 0
    """As the paper counted them over its ten runs,"""
    duplicates: int = 0
    published: int = 2
    """The QoS of publications."""
    is_cut: bool = False
    is_alone: bool = False
    """One publisher, at the source, though brokers are synced."""

    @property
    def published_at(self) -> tuple[Where, ...]:
        if self.is_alone:
            return ("source",)
        return ("third",) if self.is_cut else WHERE[self.state]

    @property
    def delivered_at(self) -> int:
        """The QoS of deliveries, whose promise counts."""
        return min(self.qos, self.published)


@dataclass(frozen=True, slots=True)
class MoveExperiment:
    name: str
    topics: tuple[MovedTopic, ...]
    part: str = "paper"
    nodes: int = 2
    all_ms: float = 0.0
    """All links alike; 0: those of the paper."""

    @property
    def is_cut(self) -> bool:
        """The link between source and target is cut just before the move, and laid again."""
        return any(topic.is_cut for topic in self.topics)

    @property
    def is_synced(self) -> bool:
        """With the paper's latencies: where a client behind a gateway is to notice nothing."""
        return not self.all_ms and all(topic.state == "synced" for topic in self.topics)

    def latencies(self, near_ms: float = NEAR_MS, lag_ms: float = LAG_MS) -> Latencies:
        """One way, by what its topics ask for."""
        if self.all_ms:
            one_way = self.all_ms if near_ms else 0.0
            return Latencies(one_way, one_way, one_way, one_way)
        states = {topic.state for topic in self.topics if not topic.is_cut}
        return Latencies(
            source_to_target=lag_ms if "behind" in states else near_ms,
            target_to_source=lag_ms if "ahead" in states else near_ms,
            source_client=near_ms,
            target_client=near_ms and CLIENT_TARGET_MS,
        )

    def slowest_ms(self, lag_ms: float = LAG_MS) -> float:
        """One way, of all that a message may take."""
        return max(self.latencies(lag_ms=lag_ms).longest, lag_ms if self.is_cut else 0.0)

    def predicted_ms(self, latencies: Latencies, lag_ms: float = LAG_MS) -> float:
        """Of the model: a move takes as long as its slowest subscription."""
        return max(_predicted(topic, latencies, lag_ms) for topic in self.topics)


def _predicted(topic: MovedTopic, latencies: Latencies, lag_ms: float) -> float:
    """A message is at the broker it is published at in no time, and at the other after the link between them.  After a
    cut the target asks the third node, and hears of it after a round trip."""
    third = lag_ms / 2
    delays = {
        "source": (0.0, latencies.source_to_target),
        "target": (latencies.target_to_source, 0.0),
        "third": (third, third + 2 * (third + latencies.source_to_target)),
    }
    return max(predict(topic.qos, *delays[where], latencies).move for where in topic.published_at)


def _single(state: SyncState, qos: int, losses: int, duplicates: int) -> MoveExperiment:
    return MoveExperiment(f"{state}-A{qos}", (MovedTopic("topicA", qos, state, losses, duplicates),))


def _three(state: SyncState, losses: int, duplicates: int) -> MoveExperiment:
    return MoveExperiment(f"{state}-A0_B1_C2", _topics("ABC", state, losses, duplicates))


def _topics(letters: str, state: SyncState, losses: int, duplicates: int) -> tuple[MovedTopic, ...]:
    """At QoS 0, 1 and 2; the paper lost at 0 only, and repeated at 1 only."""
    counted = ((losses, 0), (0, duplicates), (0, 0))
    return tuple(MovedTopic(f"topic{letter}", qos, state, *counted[qos]) for qos, letter in enumerate(letters))


PAPER_SETS: tuple[MoveExperiment, ...] = (
    _single("ahead", 0, 247, 0),
    _single("ahead", 1, 0, 1),
    _single("ahead", 2, 0, 0),
    _three("ahead", 254, 7),
    _single("synced", 0, 0, 0),
    _single("synced", 1, 0, 101),
    _single("synced", 2, 0, 0),
    _three("synced", 0, 98),
    _single("behind", 0, 0, 0),
    _single("behind", 1, 0, 358),
    _single("behind", 2, 0, 0),
    _three("behind", 0, 353),
    MoveExperiment("mixed-A0_B1_C2_D0_E1_F2", _topics("ABC", "ahead", 261, 2) + _topics("DEF", "behind", 1, 402)),
)
_SETS = {one.name: one for one in PAPER_SETS}


def _cut(name: str) -> MoveExperiment:
    """The set of the paper in which the target is behind, as it comes about in a network."""
    topics = tuple(replace(topic, is_cut=True) for topic in _SETS[f"behind-{name}"].topics)
    return MoveExperiment(f"cut-{name}", topics, "cut", nodes=3)


def _among(nodes: int) -> MoveExperiment:
    topics = tuple(replace(topic, is_alone=True) for topic in _SETS["synced-A0_B1_C2"].topics)
    return MoveExperiment(f"{nodes}nodes", topics, "nodes", nodes)


def _published(state: SyncState, qos: int) -> MoveExperiment:
    topics = _SETS[f"{state}-A0_B1_C2"].topics
    return MoveExperiment(f"{state}-published{qos}", tuple(replace(one, published=qos) for one in topics), "published")


def _latency(one_way_ms: int) -> MoveExperiment:
    return MoveExperiment(f"latency{one_way_ms}", (MovedTopic("topicA", 1, "synced"),), "latency", all_ms=one_way_ms)


EXPERIMENTS: tuple[MoveExperiment, ...] = (
    *PAPER_SETS,
    *(_cut(name) for name in ("A0", "A1", "A2", "A0_B1_C2")),
    *(_among(nodes) for nodes in (2, 3, 5)),
    *(_published(state, qos) for state in ("ahead", "synced", "behind") for qos in (0, 1)),
    *(_latency(one_way_ms) for one_way_ms in SWEEP_MS),
)
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
PARTS = {
    "paper": "the paper's thirteen sets",
    "cut": "the target really behind, after a link was cut",
    "nodes": "two, three and five nodes",
    "published": "publications at QoS 0 and 1",
    "latency": "all links from 5 to 160 ms",
    "wire": "bytes and packets of a move",
}
PAPER_RUNS = 10
PAPER_SHORTEST_MS = "500 to 800"
"""The paper on its figure 6.4, whose bars carry no numbers: the shortest moves, with brokers synced."""
PAPER_TIMES_LATENCY = 8
"""The paper's headline: a move takes so many times the latency between brokers."""


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    experiments: tuple[MoveExperiment, ...] = EXPERIMENTS
    runs: int = 10
    kinds: tuple[ClientKind, ...] = KINDS
    lag_ms: float = LAG_MS
    seed: int = 1
    """Of the jitter."""
    at_a_distance: bool = field(default_factory=may_be_at_a_distance)

    def latencies(self, experiment: MoveExperiment) -> Latencies:
        return experiment.latencies(NEAR_MS, self.lag_ms) if self.at_a_distance else experiment.latencies(0.0, 0.0)

    def slowest_s(self, experiment: MoveExperiment) -> float:
        return experiment.slowest_ms(self.lag_ms) / 1000 if self.at_a_distance else 0.0
