"""The figures of the thesis from the records of runs: latency, nodes and management by minute, and comparisons.

`PlainAnalysis` reads records in memory.  `on_spark.py` has the same figures from Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import Final, NamedTuple, Protocol

import msgspec

from sterna.adaptation.groups import LatencyGroups
from sterna.adaptation.settings import GROUPS_MS
from sterna.measure.papers.emma.playbooks import MINUTE_S, Kind, Playbook, open_factories
from sterna.measure.papers.emma.records import RunRecords, Second, TownAccount, TrafficSecond

SETTLED_S: Final = 30
"""The first seconds after each step are not counted as settled; fewer where minutes are shorter."""
SPIKE_RATIO, SPIKE_MS = 1.1, 1.0


class TownRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    title: str
    way: str
    moves: int
    starts: list[tuple[float, str]]
    stops: list[tuple[float, str]]
    management_messages: float
    """Share of all messages."""
    management_bytes: float
    managed_bytes: int
    """By the sizes of the thesis."""
    wire_bytes: int
    """The same, true bytes."""
    nodes: list[int]
    """At the end of each minute."""
    managed: list[int]
    """Management messages of each minute."""
    latency_ms: dict[str, list[float | None]]
    """Mean of each minute, by topic."""
    account: TownAccount | None = None


class RecordAnalysis(Protocol):
    def row(self, run: RunRecords) -> TownRow: ...

    def same_choice(self, measured: RunRecords, placed: RunRecords) -> float:
        """Settled gateway-seconds in which a gateway is in the same latency group as when everything is measured."""
        ...

    def slower(self, static: RunRecords, dynamic: RunRecords) -> float:
        """The worst ratio of latencies in the last minute of a step, up to the one in which a broker is stopped by
        hand."""
        ...

    def spikes(self, static: RunRecords, dynamic: RunRecords) -> list[int]:
        """After each step, the seconds in which a topic was slower than with nodes that had always been there."""
        ...

    def node_seconds(self, run: RunRecords) -> int: ...

    def matched(self, run: RunRecords) -> float:
        """Share of seconds in which as many nodes run as factories are open, and the cloud's."""
        ...


class PlainAnalysis:
    def row(self, run: RunRecords) -> TownRow:
        minutes = [run.seconds[begin:end] for begin, end in _minutes(run.playbook)]
        topics = sorted({topic for second in run.seconds for topic in second.latency_ms})
        sums = [sum(column) for column in zip(*(second.traffic for second in run.seconds), strict=True)]
        return made_row(
            run,
            sums=TrafficSecond(*sums),
            nodes=[minute[-1].nodes for minute in minutes],
            managed=[sum(second.traffic.management for second in minute) for minute in minutes],
            latency_ms={topic: [_mean_of(minute, topic) for minute in minutes] for topic in topics},
        )

    def same_choice(self, measured: RunRecords, placed: RunRecords) -> float:
        groups = LatencyGroups(GROUPS_MS)
        same = count = 0
        for number, (one, other) in enumerate(zip(measured.seconds, placed.seconds, strict=True)):
            if not is_settled(placed.playbook, number):
                continue
            for gateway in one.on.keys() & other.on.keys():
                count += 1
                there = placed.usual_s(one.at[gateway], one.on[gateway])
                here = placed.usual_s(other.at[gateway], other.on[gateway])
                same += groups.of(here) <= groups.of(there)
        return same / max(count, 1)

    def slower(self, static: RunRecords, dynamic: RunRecords) -> float:
        ratios = []
        for begin, end in last_minutes(static.playbook):
            one, other = (_means(run.seconds[begin:end]) for run in (static, dynamic))
            ratios += [other[topic] / one[topic] for topic in one.keys() & other.keys()]
        return max(ratios)

    def spikes(self, static: RunRecords, dynamic: RunRecords) -> list[int]:
        begin, end = settled_minute(static.playbook)
        calm = _means(static.seconds[begin:end])
        slow = [number for number, second in enumerate(dynamic.seconds) if is_slow(second.latency_ms, calm)]
        return spikes_of(dynamic.playbook, slow)

    def node_seconds(self, run: RunRecords) -> int:
        return sum(second.nodes for second in run.seconds)

    def matched(self, run: RunRecords) -> float:
        wanted = wanted_nodes(run.playbook)
        return fmean(second.nodes == nodes for second, nodes in zip(run.seconds, wanted, strict=True))


class CrowdVisit(NamedTuple):
    """Gateways that come to a site and leave it together, where a worker may start a node."""

    site: str
    at_s: float
    """By the playbook."""
    served_s: float | None
    """From when all its clients (and a worker) were there until all its gateways were at nodes of the site; None: they
    never were."""
    leaves: bool
    """Before the end."""
    off_s: float | None
    """From when the last of them had left until no node of the site was there; None: one stayed."""


def visits(run: RunRecords) -> list[CrowdVisit]:
    """Those that end before the next comes to the site, or the run does."""
    workers: dict[str, dict[str, float]] = {}
    for event in run.playbook.events:
        if event.kind == "worker" and not event.fixed:
            workers.setdefault(event.site, {})[event.name] = event.at_s
    crowds: dict[tuple[str, float], list[str]] = {}
    for event in run.playbook.events:
        if event.kind == "gateway" and event.crowd is not None and event.crowd.topic in workers:
            crowds.setdefault((event.crowd.topic, event.at_s), []).append(event.name)
    return [_visit(run, site, at_s, names, workers[site]) for (site, at_s), names in crowds.items()]


def _visit(
    run: RunRecords, site: str, at_s: float, gateways: Sequence[str], workers: Mapping[str, float]
) -> CrowdVisit:
    leave_s = _next(run.playbook, "leave", gateways, at_s)
    until_s = _next(run.playbook, "gateway", gateways, at_s)
    came = [run.came_s.get((gateway, at_s)) for gateway in gateways]
    left = [run.left_s.get((gateway, leave_s)) for gateway in gateways]

    def served(second: Second) -> bool:
        return all(second.on.get(gateway) in workers for gateway in gateways)

    def off(second: Second) -> bool:
        return not workers.keys() & second.states.keys()

    return CrowdVisit(
        site,
        at_s,
        _first(run.seconds, [*came, min(workers.values())], leave_s, served),
        leave_s < run.playbook.end_s,
        _first(run.seconds, left, until_s, off),
    )


def _next(playbook: Playbook, kind: Kind, names: Sequence[str], at_s: float) -> float:
    """When this happens to one of them after this moment; if it does not, the end."""
    later = (one.at_s for one in playbook.events if one.kind == kind and one.name in names and one.at_s > at_s)
    return min(later, default=playbook.end_s)


def _first(
    seconds: Sequence[Second], since: Sequence[float | None], until_s: float, holds: Callable[[Second], bool]
) -> float | None:
    """From the last of these moments until it holds; None if one of them did not come, or it does not hold."""
    known = [at_s for at_s in since if at_s is not None]
    if len(known) < len(since):
        return None
    begin = max(known)
    for number in range(ceil(begin), min(ceil(until_s), len(seconds))):
        if holds(seconds[number]):
            return number - begin
    return None


# -- what both analyses go by --


def is_settled(playbook: Playbook, second: int) -> bool:
    pause = SETTLED_S * playbook.minute_s / MINUTE_S
    return not any(0 <= second - step < pause for step in playbook.steps_s)


def settled_minute(playbook: Playbook) -> tuple[int, int]:
    """Of the first step, the seconds of a run with nodes that always run which count as calm."""
    return int(1.5 * playbook.minute_s), int(2 * playbook.minute_s)


def last_minutes(playbook: Playbook) -> list[tuple[int, int]]:
    """Of the steps, up to the one in which a broker is stopped by hand."""
    step_s = playbook.steps_s[1] - playbook.steps_s[0]
    ends = [int(begin + step_s) for begin in playbook.steps_s[1:-1]]
    return [(end - int(playbook.minute_s), end) for end in ends]


def wanted_nodes(playbook: Playbook) -> list[int]:
    return [1 + open_factories(second / playbook.minute_s) for second in range(int(playbook.end_s))]


def is_slow(latency_ms: Mapping[str, float], calm: Mapping[str, float]) -> bool:
    return any(ms > SPIKE_RATIO * calm.get(topic, 0.0) + SPIKE_MS for topic, ms in latency_ms.items())


def spikes_of(playbook: Playbook, slow: Iterable[int]) -> list[int]:
    """How many of these seconds each step has."""
    found, step_s = list(slow), playbook.steps_s[1] - playbook.steps_s[0]
    return [sum(step <= second < step + step_s for second in found) for step in playbook.steps_s]


def made_row(
    run: RunRecords,
    *,
    sums: TrafficSecond,
    nodes: list[int],
    managed: list[int],
    latency_ms: dict[str, list[float | None]],
) -> TownRow:
    """`sums`: over all seconds."""
    return TownRow(
        title=run.playbook.title,
        way=run.way,
        moves=run.seconds[-1].moves,
        starts=run.starts,
        stops=run.stops,
        management_messages=sums.management / max(sums.management + sums.data, 1),
        management_bytes=sums.management_bytes / max(sums.management_bytes + sums.data_bytes, 1),
        managed_bytes=sums.management_bytes,
        wire_bytes=sums.wire,
        nodes=nodes,
        managed=managed,
        latency_ms=latency_ms,
        account=run.account,
    )


def _minutes(playbook: Playbook) -> list[tuple[int, int]]:
    minute, end = int(playbook.minute_s), int(playbook.end_s)
    return [(begin, begin + minute) for begin in range(0, end, minute)]


def _means(seconds: Sequence[Second]) -> dict[str, float]:
    found = {topic: _mean_of(seconds, topic) for topic in {topic for second in seconds for topic in second.latency_ms}}
    return {topic: mean for topic, mean in found.items() if mean is not None}


def _mean_of(seconds: Sequence[Second], topic: str) -> float | None:
    values = [second.latency_ms[topic] for second in seconds if topic in second.latency_ms]
    return fmean(values) if values else None
