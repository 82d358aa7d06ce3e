"""The playbooks of the scenarios, as data: who appears and goes, where, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, pi
from typing import Final, Literal

from sterna.simulation.geography import BUSINESS_ISP, Location, behind, in_cloud

CENTRAL, WEST, EAST = "eu-central-1", "eu-west-1", "us-east-1"

Kind = Literal["worker", "start", "stop", "gateway", "leave", "relocate", "crowd", "kill", "cut", "merge"]


@dataclass(frozen=True, slots=True)
class Crowd:
    """The clients behind one gateway: each publishes to the topic, or subscribes to it."""

    topic: str
    publishers: int
    subscribers: int
    per_s: float


@dataclass(frozen=True, slots=True)
class PlaybookEvent:
    """At this second, something happens to the one with this name."""

    at_s: float
    kind: Kind
    name: str
    at: Location | None = None
    crowd: Crowd | None = None
    site: str = ""
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Playbook:
    title: str
    events: tuple[PlaybookEvent, ...]
    steps_s: tuple[float, ...]
    """When something changes: the first seconds after these are not counted as settled."""
    end_s: float
    minute_s: float = 60.0
    """Figures show this as a minute; less where a playbook is run in a shorter time."""


MINUTE_S: Final = 60.0
STEP_S: Final = 120.0
GROUP: Final = 10
"""Gateways of a client group."""


def _group(at_s: float, region: str, size: int, per_s: float) -> Iterator[PlaybookEvent]:
    for number in range(size):
        name = f"{region}/g{number}"
        yield PlaybookEvent(at_s, "gateway", name, in_cloud(name, region), Crowd(region, 7, 1, per_s))


def _broker(
    at_s: float, name: str, region: str, *, start: bool, worker_at_s: float, fixed: bool = False
) -> Iterator[PlaybookEvent]:
    yield PlaybookEvent(worker_at_s, "worker", name, in_cloud(name, region), site=region, fixed=fixed)
    if start:
        yield PlaybookEvent(at_s, "start", name)


def emma(
    *, scaled: bool = False, all_workers: bool = False, step_s: float = STEP_S, size: int = GROUP, per_s: float = 10.0
) -> Playbook:
    """The eight steps of EMMA.  Scaled: workers appear instead of brokers, or all of them at the beginning.

    `size`: gateways of a client group; `per_s`: messages of each publisher."""
    steps = tuple(step_s * number for number in range(9))

    def broker(step: int, name: str, region: str) -> Iterator[PlaybookEvent]:
        appears = 0.0 if all_workers else steps[step]
        return _broker(steps[step], name, region, start=not scaled, worker_at_s=appears)

    events = [
        *_broker(0.0, "central", CENTRAL, start=True, worker_at_s=0.0, fixed=True),
        *(
            PlaybookEvent(steps[1], "gateway", f"global/{region}", in_cloud(f"global/{region}", region), crowd)
            for region, crowd in (
                (EAST, Crowd("global", 1, 1, per_s)),
                (WEST, Crowd("global", 1, 1, per_s)),
                (CENTRAL, Crowd("global", 0, 1, per_s)),
            )
        ),
        *_group(steps[2], EAST, size, per_s),
        *broker(3, "west", WEST),
        *_group(steps[4], WEST, size, per_s),
        *broker(5, "east", EAST),
        *broker(6, "west2", WEST),
        PlaybookEvent(steps[7], "leave", f"global/{CENTRAL}"),
    ]
    if not scaled:
        events.append(PlaybookEvent(steps[8], "stop", "east"))
    title = "static" if not scaled else "dynamic (all workers)" if all_workers else "dynamic"
    ordered = sorted(events, key=lambda event: event.at_s)
    return Playbook(f"EMMA, {title}", tuple(ordered), steps, 10 * step_s, step_s * MINUTE_S / STEP_S)


LINES: Final = 3
FACTORIES: Final = {"A": CENTRAL, "B": WEST, "C": EAST}
PER_LINE: Final = 4
"""Gateways at each line."""
OPEN: Final = {"A": ((0, 2), (8, 14)), "B": ((0, 4), (10, 14)), "C": ((0, 6), (12, 14))}
"""Factory: the minutes in which it works."""


def factories(*, scaled: bool, minute_s: float = MINUTE_S, per_line: int = PER_LINE) -> Playbook:
    """Three factories with three lines each open and close.  The rates are ours: the thesis names none."""
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    for factory, region in FACTORIES.items():
        for line in range(LINES):
            worker = f"{factory}/line{line}"
            at = behind(worker, region, factory, BUSINESS_ISP)
            events.append(PlaybookEvent(0.0, "worker", worker, at, site=factory))
            if not scaled:
                events.append(PlaybookEvent(0.0, "start", worker))
            for number in range(per_line):
                name = f"{worker}/g{number}"
                place = behind(name, region, factory, BUSINESS_ISP)
                for begin, end in OPEN[factory]:
                    events.append(PlaybookEvent(minute_s * begin, "gateway", name, place, Crowd(factory, 3, 1, 1.0)))
                    events.append(PlaybookEvent(minute_s * end, "leave", name))
    ordered = sorted(events, key=lambda event: (event.at_s, event.kind != "leave"))
    steps = tuple(minute_s * minute for minute in (0, 2, 4, 6, 8, 10, 12))
    title = "Factories, " + ("dynamic" if scaled else "static")
    return Playbook(title, tuple(ordered), steps, 14 * minute_s, minute_s)


WANDER_S: Final = 120.0
WANDERERS: Final = 5


def wandering() -> Playbook:
    """Gateways on trucks: each is in another region every two minutes, and loses its connections on the way."""
    regions = (CENTRAL, WEST, EAST)
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    for region in (WEST, EAST):
        events += _broker(0.0, f"edge/{region}", region, start=True, worker_at_s=0.0)
    legs = 6
    for number in range(WANDERERS):
        name = f"truck{number}"
        events.append(PlaybookEvent(1.0, "gateway", name, in_cloud(name, CENTRAL), Crowd(name, 1, 1, 1.0)))
        for leg in range(1, legs + 1):
            # Not all at the same moment.
            at_s = leg * WANDER_S + 7.0 * number
            region = regions[(leg + number) % len(regions)]
            events.append(PlaybookEvent(at_s, "relocate", name, in_cloud(name, region)))
    steps = tuple(WANDER_S * leg for leg in range(legs + 1))
    return Playbook("wandering gateways", _in_order(events), steps, (legs + 1) * WANDER_S)


NOISE_S: Final = 120.0
"""The period of a load that comes and goes."""


def noisy() -> Playbook:
    """A crowd far from the cloud that grows and shrinks like a sine, for twenty minutes."""
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    events += _broker(0.0, "edge", EAST, start=False, worker_at_s=0.0)
    here: set[str] = set()
    for second in range(10, 1200, 5):
        wanted = round(3 - 3 * cos(2 * pi * (second - 10) / NOISE_S))
        for number in range(6):
            name = f"visitor{number}"
            if number < wanted and name not in here:
                place = in_cloud(name, EAST)
                events.append(PlaybookEvent(float(second), "gateway", name, place, Crowd("talk", 1, 1, 1.0)))
                here.add(name)
            elif number >= wanted and name in here:
                events.append(PlaybookEvent(float(second), "leave", name))
                here.remove(name)
    return Playbook("noisy load", _in_order(events), (0.0,), 1200.0)


def far_subscribers() -> Playbook:
    """Publishers beside an idle worker, and everybody who reads them beside the cloud."""
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    events += _broker(0.0, "edge", EAST, start=False, worker_at_s=0.0)
    for number in range(10):
        sensor, reader = f"sensor{number}", f"reader{number}"
        events.append(PlaybookEvent(10.0, "gateway", sensor, in_cloud(sensor, EAST), Crowd("measured", 1, 0, 5.0)))
        events.append(PlaybookEvent(10.0, "gateway", reader, in_cloud(reader, CENTRAL), Crowd("measured", 0, 1, 5.0)))
    return Playbook("far subscribers", _in_order(events), (0.0, 10.0), 300.0)


HOT_S: Final = 120.0
"""When the site becomes hot."""


def hot_site() -> Playbook:
    """A site with one node and an idle worker beside it; after two minutes its machines say ten times as much."""
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    events += _broker(0.0, "first", EAST, start=True, worker_at_s=0.0, fixed=True)
    events += _broker(0.0, "second", EAST, start=False, worker_at_s=0.0)
    for number in range(20):
        name = f"machine{number:02}"
        # Each hears itself, so that two nodes can share the work.
        calm, busy = Crowd(name, 30, 1, 1.0), Crowd(name, 30, 1, 10.0)
        events.append(PlaybookEvent(10.0, "gateway", name, in_cloud(name, EAST), calm))
        events.append(PlaybookEvent(HOT_S, "crowd", name, crowd=busy))
    return Playbook("hot site", _in_order(events), (0.0, HOT_S), 300.0)


KILLED_S: Final = 60.0


def leader_killed() -> Playbook:
    """The leader is killed, and a moment later a crowd appears beside an idle worker."""
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    events += _broker(0.0, "edge", EAST, start=False, worker_at_s=0.0)
    events.append(PlaybookEvent(KILLED_S, "kill", "the leader"))
    for number in range(6):
        name = f"visitor{number}"
        events.append(PlaybookEvent(KILLED_S + 1, "gateway", name, in_cloud(name, EAST), Crowd("talk", 1, 1, 1.0)))
    return Playbook("leader killed", _in_order(events), (0.0, KILLED_S), 180.0)


CUT_S, MERGED_S = 120.0, 240.0


def two_regions() -> Playbook:
    """Two regions with crowds and nodes of their own are cut apart for two minutes, each with a coordinator."""
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    events += _broker(0.0, "far", EAST, start=True, worker_at_s=0.0)
    for region in (CENTRAL, EAST):
        for number in range(6):
            name = f"{region}/g{number}"
            events.append(PlaybookEvent(5.0, "gateway", name, in_cloud(name, region), Crowd(region, 1, 1, 1.0)))
    events += [PlaybookEvent(CUT_S, "cut", EAST), PlaybookEvent(MERGED_S, "merge", EAST)]
    return Playbook("two regions cut and merged", _in_order(events), (0.0, CUT_S, MERGED_S), 360.0)


def _in_order(events: list[PlaybookEvent]) -> tuple[PlaybookEvent, ...]:
    return tuple(sorted(events, key=lambda event: (event.at_s, event.kind != "leave")))


def open_factories(minute: float) -> int:
    return sum(any(begin <= minute < end for begin, end in spans) for spans in OPEN.values())
