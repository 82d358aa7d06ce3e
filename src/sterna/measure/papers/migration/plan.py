"""The paper's experiments with a client that moves (its table 6.2), and what it measured (table 6.4, figure 6.4).

The paper mocks a network: every message is published at both brokers, at one of them later.  Ours is a network, and
links keep their order: nothing can overtake a message, no word about a move either.  So a broker lags behind the other
exactly as long as the link to it takes, and that is how it is made to lag here:

    ahead    published at the target only; what goes from target to source takes 2000 ms
    behind   published at the source only; what goes from source to target takes 2000 ms
    synced   published at both, by two publishers per topic; 40 ms either way
    mixed    some topics ahead and some behind; 2000 ms either way

The words of the move itself take as long as everything else on the link, which the model is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.migration.model import Latencies, SyncState, predict

Where = Literal["source", "target"]
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


@dataclass(frozen=True, slots=True)
class MovedTopic:
    name: str
    qos: int
    """Of the subscription; everything is published at QoS 2."""
    state: SyncState
    losses: int
    """What the paper counted over its ten runs,"""
    duplicates: int

    @property
    def published_at(self) -> tuple[Where, ...]:
        return WHERE[self.state]


@dataclass(frozen=True, slots=True)
class MoveExperiment:
    name: str
    topics: tuple[MovedTopic, ...]

    def latencies(self, near_ms: float = NEAR_MS, lag_ms: float = LAG_MS) -> Latencies:
        """One way, by what its topics ask for."""
        states = {topic.state for topic in self.topics}
        return Latencies(
            source_to_target=lag_ms if "behind" in states else near_ms,
            target_to_source=lag_ms if "ahead" in states else near_ms,
            source_client=near_ms,
            target_client=near_ms and CLIENT_TARGET_MS,
        )

    def predicted_ms(self, latencies: Latencies) -> float:
        """Of the model: a move takes as long as its slowest subscription."""
        return max(_predicted(topic, latencies) for topic in self.topics)


def _predicted(topic: MovedTopic, latencies: Latencies) -> float:
    """A message is at the broker it is published at in no time, and at the other after the link between them."""
    delays = {
        "source": (0.0, latencies.source_to_target),
        "target": (latencies.target_to_source, 0.0),
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


EXPERIMENTS: tuple[MoveExperiment, ...] = (
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
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
PAPER_RUNS = 10
PAPER_SHORTEST_MS = "500 to 800"
"""The paper on its figure 6.4, whose bars carry no numbers: the shortest moves, with brokers synced."""


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
