"""The workloads, as data: who publishes what to whom, how fast, and what we set out to reach.

A `Lane` is a group of publishers and subscribers whose messages stay among themselves.  Nothing here knows a broker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Durability = Literal["memory", "fsync"]
Figure = Literal["cpu_us_per_message", "cost_spread", "latency_p99_us", "kib_per_connection"]


@dataclass(frozen=True, slots=True)
class Lane:
    publishers: tuple[tuple[str, ...], ...]
    """For each publisher the topics it goes through, in turn.  Each `*` in them stands for a digit of a number that is
    another one every time the publisher begins again."""
    subscribers: tuple[tuple[str, ...], ...]
    """For each subscriber its filters."""
    fan: int
    """Deliveries of one message."""
    step: int = 1
    """A subscriber gets every `step`-th message of a publisher."""
    numbers: int = 0
    """So many numbers stand in place of `*`, over and over; 0: no topic ever comes again."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """QoS 0 as fast as the broker goes, in a closed loop so that no queue overflows and nothing need be dropped."""

    lanes: tuple[Lane, ...]
    block: int
    """Messages per write of a publisher.  Larger blocks flatter brokers that batch."""
    window: int
    """Most messages of a lane between publisher and slowest subscriber, so also a bound on any subscriber's backlog."""


@dataclass(frozen=True, slots=True)
class InTurn:
    """Several loads one after the other against the same process: what differs between them should cost nothing."""

    loads: tuple[Saturation, ...]


@dataclass(frozen=True, slots=True)
class Paced:
    """QoS 0 at a fixed rate, one message per write, evenly spaced over time and publishers."""

    lanes: tuple[Lane, ...]
    rate: int
    """Messages per second into the broker, all publishers together."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Pairs of one publisher and one subscriber at QoS 1 or 2; each publisher refills its window on every answer."""

    pairs: int
    qos: Literal[1, 2]
    window: int = 20
    """Messages without PUBACK (QoS 1) or PUBCOMP (QoS 2) per publisher."""
    clean: bool = True
    """False: sessions persist, so that a durable broker has a promise to keep."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Connections that do nothing.  Those of `before` come first, so that one-time costs are not counted."""

    connections: int
    before: int = 100


@dataclass(frozen=True, slots=True)
class Target:
    """To reach: `ratio` (peer's figure / ours) at least, or our figure at most `ceiling`."""

    ratio: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    summary: str
    load: Saturation | InTurn | Paced | Acknowledged | Idle
    target: Target | None = None
    """None: the figure is shown, nothing was promised."""
    figure: Figure = "cpu_us_per_message"
    durability: Durability = "memory"
    seconds_min: float = 0.0
    """Measured interval needed for enough samples (not with --quick)."""
    repeats: int = 1
    """Runs per round (not with --quick): the tail of a distribution varies more than its mean."""
    note: str = ""


def fan_out(topics: int, publishers: int, subscribers: int) -> tuple[Lane, ...]:
    """Each topic has its own publishers and subscribers; everyone on a topic hears everything on it."""
    names = [f"bench/fan-out/{number:02}" for number in range(topics)]
    return tuple(Lane(((name,),) * publishers, ((name,),) * subscribers, fan=subscribers) for name in names)


def fan_in(publishers: int) -> tuple[Lane, ...]:
    """Devices with a topic each, one collector."""
    return (Lane(tuple((f"bench/fan-in/{n:03}",) for n in range(publishers)), (("bench/fan-in/+",),), fan=1),)


def wildcards(subscriptions: int, publishers: int, subscribers: int) -> tuple[Lane, ...]:
    """As many topics as filters, each matched by exactly one; half the filters have `+` last, half have it first.

    Neighbouring topics of a publisher belong to different subscribers, so a block never lands on one of them alone.
    """
    each = subscriptions // publishers
    topics = [f"wild/{number:05}/state" for number in range(subscriptions)]
    filters = [
        f"wild/{number:05}/+" if number < subscriptions // 2 else f"+/{number:05}/state"
        for number in range(subscriptions)
    ]
    return (
        Lane(
            tuple(tuple(topics[start : start + each]) for start in range(0, subscriptions, each)),
            tuple(tuple(filters[number::subscribers]) for number in range(subscribers)),
            fan=1,
            step=subscribers,
        ),
    )


def new_topics(subscriptions: int, publishers: int, subscribers: int, numbers: int = 0) -> tuple[Lane, ...]:
    """The same filters, and the level that each leaves open is another one from message to message."""
    (lane,) = wildcards(subscriptions, publishers, subscribers)
    filters = {name.split("/")[1]: name for names in lane.subscribers for name in names}
    topics = tuple(tuple(_opened(topic, filters[topic.split("/")[1]]) for topic in each) for each in lane.publishers)
    return (replace(lane, publishers=topics, numbers=numbers),)


def _opened(topic: str, topic_filter: str) -> str:
    pairs = zip(topic.split("/"), topic_filter.split("/"), strict=True)
    return "/".join("*" * len(level) if wanted == "+" else level for level, wanted in pairs)


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "fan-out",
        "5 topics x 10 publishers x 10 subscribers, QoS 0, saturated",
        Saturation(fan_out(5, 10, 10), block=64, window=2560),
        Target(ratio=6.0),
    ),
    Workload(
        "fan-out-10k",
        "the same at 10,000 msg/s in, 100,000 out",
        Paced(fan_out(5, 10, 10), rate=10_000),
        Target(ratio=1.2),
    ),
    Workload(
        "fan-in",
        "100 publishers : 1 subscriber, QoS 0, saturated",
        Saturation(fan_in(100), block=32, window=6400),
        Target(ratio=2.0),
    ),
    Workload("qos1", "50 pairs, QoS 1, window 20", Acknowledged(50, 1), Target(ratio=1.2)),
    Workload("qos2", "50 pairs, QoS 2, window 20", Acknowledged(50, 2), Target(ratio=1.2)),
    Workload(
        "qos1-fsync",
        "the same on disk, persistent sessions, QoS 1",
        Acknowledged(50, 1, clean=False),
        durability="fsync",
    ),
    Workload(
        "qos2-fsync",
        "the same on disk, persistent sessions, QoS 2",
        Acknowledged(50, 2, clean=False),
        durability="fsync",
    ),
    Workload(
        "wildcards",
        "10,000 wildcard subscriptions of 100 subscribers, 20 publishers, QoS 0, saturated",
        Saturation(wildcards(10_000, 20, 100), block=100, window=4000),
        Target(ratio=2.0),
        note="Each of 10,000 topics matches one filter; topics recur, so a broker may remember what it matched.",
    ),
    Workload(
        "new-topics",
        "the same subscriptions, and every message on a topic that was never used before",
        Saturation(new_topics(10_000, 20, 100), block=100, window=4000),
        Target(ratio=8.0),
        note="Each message matches one filter of 10,000; no topic comes twice, so nothing can be remembered of it.",
    ),
    Workload(
        "topics-in-turn",
        "1,000 wildcard subscriptions of 100 subscribers; 1,000, 100,000 and 1,000,000 topics in turn",
        InTurn(tuple(Saturation(new_topics(1_000, 10, 100, n), block=100, window=4000) for n in (1, 100, 1000))),
        Target(ceiling=1.3),
        figure="cost_spread",
        note="The dearest of the three per message, as a multiple of the cheapest.",
    ),
    Workload(
        "latency",
        "10 pairs, QoS 0, 1,000 msg/s",
        Paced(tuple(Lane(((f"bench/pair/{n}",),), ((f"bench/pair/{n}",),), fan=1) for n in range(10)), rate=1_000),
        Target(ratio=1 / 1.5),
        figure="latency_p99_us",
        seconds_min=5.5,
        repeats=3,
    ),
    Workload(
        "idle",
        "5,000 connections that do nothing",
        Idle(5_000),
        Target(ceiling=12.0),
        figure="kib_per_connection",
        note="Memory of the broker process; the kernel's socket buffers are the same for everyone and not counted.",
    ),
)

BY_NAME = {workload.name: workload for workload in WORKLOADS}
