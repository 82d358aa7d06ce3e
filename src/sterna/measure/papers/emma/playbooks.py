"""The playbooks of the scenarios, as data: who appears and goes, where, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sterna.simulation.geography import BUSINESS_ISP, Location, behind, in_cloud

CENTRAL, WEST, EAST = "eu-central-1", "eu-west-1", "us-east-1"

Kind = Literal["worker", "start", "stop", "gateway", "leave"]


@dataclass(frozen=True, slots=True)
class Crowd:
    """The clients behind one gateway: each publishes to the topic, or subscribes to it."""

    topic: str
    publishers: int
    subscribers: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Event:
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
    events: tuple[Event, ...]
    steps_s: tuple[float, ...]
    """When something changes: the first seconds after these are not counted as settled."""
    end_s: float


STEP_S: Final = 120.0
GROUP: Final = 10
"""Gateways of a client group."""


def _group(at_s: float, region: str) -> Iterator[Event]:
    for number in range(GROUP):
        name = f"{region}/g{number}"
        yield Event(at_s, "gateway", name, in_cloud(name, region), Crowd(region, 7, 1, 10.0))


def _broker(
    at_s: float, name: str, region: str, *, start: bool, worker_at_s: float, fixed: bool = False
) -> Iterator[Event]:
    yield Event(worker_at_s, "worker", name, in_cloud(name, region), site=region, fixed=fixed)
    if start:
        yield Event(at_s, "start", name)


def emma(*, scaled: bool = False, all_workers: bool = False, step_s: float = STEP_S) -> Playbook:
    """The eight steps of EMMA.  Scaled: workers appear instead of brokers, or all of them at the beginning."""
    steps = tuple(step_s * number for number in range(9))

    def broker(step: int, name: str, region: str) -> Iterator[Event]:
        appears = 0.0 if all_workers else steps[step]
        return _broker(steps[step], name, region, start=not scaled, worker_at_s=appears)

    events = [
        *_broker(0.0, "central", CENTRAL, start=True, worker_at_s=0.0, fixed=True),
        *(
            Event(steps[1], "gateway", f"global/{region}", in_cloud(f"global/{region}", region), crowd)
            for region, crowd in (
                (EAST, Crowd("global", 1, 1, 10.0)),
                (WEST, Crowd("global", 1, 1, 10.0)),
                (CENTRAL, Crowd("global", 0, 1, 10.0)),
            )
        ),
        *_group(steps[2], EAST),
        *broker(3, "west", WEST),
        *_group(steps[4], WEST),
        *broker(5, "east", EAST),
        *broker(6, "west2", WEST),
        Event(steps[7], "leave", f"global/{CENTRAL}"),
    ]
    if not scaled:
        events.append(Event(steps[8], "stop", "east"))
    title = "static" if not scaled else "dynamic (all workers)" if all_workers else "dynamic"
    ordered = sorted(events, key=lambda event: event.at_s)
    return Playbook(f"EMMA, {title}", tuple(ordered), steps, 10 * step_s)


LINES: Final = 3
FACTORIES: Final = {"A": CENTRAL, "B": WEST, "C": EAST}
OPEN: Final = {"A": ((0, 2), (8, 14)), "B": ((0, 4), (10, 14)), "C": ((0, 6), (12, 14))}
"""Factory: the minutes in which it works."""


def factories(*, scaled: bool) -> Playbook:
    """Three factories with three lines each open and close.  The rates are ours: the thesis names none."""
    events = [*_broker(0.0, "cloud", CENTRAL, start=True, worker_at_s=0.0, fixed=True)]
    for factory, region in FACTORIES.items():
        for line in range(LINES):
            worker = f"{factory}/line{line}"
            at = behind(worker, region, factory, BUSINESS_ISP)
            events.append(Event(0.0, "worker", worker, at, site=factory))
            if not scaled:
                events.append(Event(0.0, "start", worker))
            for number in range(4):
                name = f"{worker}/g{number}"
                place = behind(name, region, factory, BUSINESS_ISP)
                for begin, end in OPEN[factory]:
                    events.append(Event(60.0 * begin, "gateway", name, place, Crowd(factory, 3, 1, 1.0)))
                    events.append(Event(60.0 * end, "leave", name))
    ordered = sorted(events, key=lambda event: (event.at_s, event.kind != "leave"))
    steps = tuple(60.0 * minute for minute in (0, 2, 4, 6, 8, 10, 12))
    return Playbook("Factories, " + ("dynamic" if scaled else "static"), tuple(ordered), steps, 14 * 60.0)


def open_factories(minute: float) -> int:
    return sum(any(begin <= minute < end for begin, end in spans) for spans in OPEN.values())
