"""Loads and workloads as data: who publishes what to whom, how fast, and which figure counts.

A `Lane` is a group of publishers and subscribers whose messages stay among themselves.  A load is handed to the
generator as it is, as JSON.  Nothing here knows a broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Durability = Literal["memory", "fsync"]
Figure = Literal["cpu_us_per_message", "cost_spread", "latency_p99_us", "kib_per_connection"]


class Lane(msgspec.Struct, frozen=True):
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


class Saturation(msgspec.Struct, frozen=True, tag=True):
    """QoS 0 as fast as the broker goes, in a closed loop so that no queue overflows and nothing need be dropped."""

    lanes: tuple[Lane, ...]
    block: int
    """Messages per write of a publisher.  Larger blocks flatter brokers that batch."""
    window: int
    """Most messages of a lane between publisher and slowest subscriber, so also a bound on any subscriber's backlog."""


class InTurn(msgspec.Struct, frozen=True, tag=True):
    """Several loads one after the other against the same process: what differs between them should cost nothing."""

    loads: tuple[Saturation, ...]


class Paced(msgspec.Struct, frozen=True, tag=True):
    """QoS 0 at a fixed rate, one message per write, evenly spaced over time and publishers."""

    lanes: tuple[Lane, ...]
    rate: int
    """Messages per second into the broker, all publishers together."""


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """Pairs of one publisher and one subscriber at QoS 1 or 2; each publisher refills its window on every answer."""

    pairs: int
    qos: Literal[1, 2]
    window: int = 20
    """Messages without PUBACK (QoS 1) or PUBCOMP (QoS 2) per publisher."""
    clean: bool = True
    """False: sessions persist, so that a durable broker has a promise to keep."""
    behind_max: int | None = None
    """Most messages of a pair between publisher and subscriber.  Acknowledgements come from the first broker of a row,
    so without this bound a row would be measured filling its queues rather than passing messages on."""


class SensorNumbers(msgspec.Struct, frozen=True, tag=True):
    """Numbers from a thousand sensors at QoS 0 as fast as the broker goes, to one subscriber."""

    topic_filter: str


class Idle(msgspec.Struct, frozen=True, tag=True):
    """Connections that do nothing.  Those of `before` come first, so that one-time costs are not counted."""

    connections: int
    before: int = 100


Load = Saturation | InTurn | Paced | Acknowledged | SensorNumbers | Idle


@dataclass(frozen=True, slots=True)
class WorkloadTarget:
    """To reach: `ratio` (peer's figure / ours) at least, or our figure at most `ceiling`."""

    ratio: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    summary: str
    load: Load
    target: WorkloadTarget | None = None
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
    return (msgspec.structs.replace(lane, publishers=topics, numbers=numbers),)


def _opened(topic: str, topic_filter: str) -> str:
    pairs = zip(topic.split("/"), topic_filter.split("/"), strict=True)
    return "/".join("*" * len(level) if wanted == "+" else level for level, wanted in pairs)
