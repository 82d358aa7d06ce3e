"""`sterna experiment adaptation`: situations in which the thesis' rules do badly, each with its rules beside ours.

The town is the one of EMMA (`town.py`): measuring, selection, scaling and orders are the product's code.  Hosts, MQTT
and their load are a model.  A message is never lost here: that is for the simulator with real nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec

from sterna.adaptation.groups import LatencyGroups
from sterna.adaptation.settings import GROUPS_MS, AdaptationTuning
from sterna.measure.command import Means
from sterna.measure.papers.emma.playbooks import (
    CUT_S,
    HOT_S,
    KILLED_S,
    MERGED_S,
    Playbook,
    far_subscribers,
    hot_site,
    leader_killed,
    noisy,
    two_regions,
    wandering,
)
from sterna.measure.papers.emma.records import Second
from sterna.measure.papers.emma.report import Seed
from sterna.measure.papers.emma.town import Town
from sterna.measure.report import Column, MeasurementReport, Verdict, table, targets_missed, verdict

SEED_RULES: Final = AdaptationTuning(selection="seed", scaling="seed", pressure="seed")
OURS: Final = AdaptationTuning()
MISPLACED_S, MOVES = 20.0, 1.2
NOISE_STARTS: Final = 2
SOON_S: Final = 30
"""After this a hot site is as quick again ..."""
ACTS_S: Final = 10
IDLE_TIMES: Final = 2.0
"""... as so many times what it was while it was idle."""


class BeyondRow(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    what: str
    thesis: float
    """By the rules of the thesis."""
    ours: float
    bound: str
    verdict: Verdict


class BeyondDocument(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    seed: int
    rows: list[BeyondRow]


class BeyondScenario(NamedTuple):
    title: str
    playbook: Callable[[], Playbook]
    figures: Callable[[Playbook, Town], list[Figure]]
    scales: bool = True
    loaded: bool = False
    coordinators: int = 1
    """With our rules; the thesis has one."""


class Figure(NamedTuple):
    what: str
    value: float
    bound: str
    is_reached: bool


def experiment(means: Means, seed: Seed = 1) -> MeasurementReport:
    """Wandering gateways, noisy load, far subscribers, hot site, killed leader, cut: the thesis' rules beside ours.

    Simulated: coordinator and measuring are those of the product, hosts, load and MQTT traffic are a model.
    """
    rows = [row for scenario in SCENARIOS for row in _compared(means, scenario, seed)]
    columns = [
        Column("scenario", lambda row: row.scenario, "left"),
        Column("figure", lambda row: row.what, "left", False),
        Column("thesis' rules", lambda row: f"{row.thesis:.1f}"),
        Column("ours", lambda row: f"{row.ours:.1f}"),
        Column("to reach", lambda row: row.bound),
        Column("verdict", lambda row: row.verdict, "left"),
    ]
    missed = [f"{row.scenario}: {row.what}" for row in rows if row.verdict == "missed"]
    return MeasurementReport(
        document=BeyondDocument(experiment="adaptation", seed=seed, rows=rows),
        tables=[table("Beyond the thesis", columns, rows)],
        notes=["The product's measuring and decisions over simulated hosts; MQTT is a model.", targets_missed(missed)],
    )


def _compared(means: Means, scenario: BeyondScenario, seed: int) -> list[BeyondRow]:
    playbook = scenario.playbook()
    told = []
    for name, rules in (("the thesis' rules", SEED_RULES), ("ours", OURS)):
        means.say(f"{scenario.title}, {name}")
        tuning = rules if scenario.scales else replace(rules, scaling="off")
        count = scenario.coordinators if rules is OURS else 1
        town = Town(playbook, tuning, "coordinates", seed, loaded=scenario.loaded, coordinators=count).run()
        told.append(scenario.figures(playbook, town))
    return [
        BeyondRow(
            scenario=scenario.title,
            what=ours.what,
            thesis=theirs.value,
            ours=ours.value,
            bound=ours.bound,
            verdict=verdict(ours.is_reached),
        )
        for theirs, ours in zip(*told, strict=True)
    ]


def _wandering(playbook: Playbook, town: Town) -> list[Figure]:
    """Of each relocation: the seconds at a node of a higher latency group than the nearest, and the moves."""
    misplaced, moves = [], []
    relocations = [event for event in playbook.events if event.kind == "relocate"]
    for event in relocations:
        later = [one.at_s for one in relocations if one.name == event.name and one.at_s > event.at_s]
        leg = town.seconds[int(event.at_s) : int(min(later, default=playbook.end_s))]
        misplaced.append(sum(_is_misplaced(town, second, event.name) for second in leg))
        nodes = [second.on[event.name] for second in leg]
        moves.append(sum(one != other for one, other in pairwise(nodes)))
    late, many = median(misplaced), fmean(moves)
    return [
        Figure("seconds at a far node after a relocation, median", late, f"<= {MISPLACED_S:g}", late <= MISPLACED_S),
        Figure("moves per relocation", many, f"<= {MOVES:g}", many <= MOVES),
    ]


def _is_misplaced(town: Town, second: Second, gateway: str) -> bool:
    groups, at = LatencyGroups(GROUPS_MS), second.at[gateway]
    here = groups.of(town.records.usual_s(at, second.on[gateway]))
    return here > min(groups.of(town.records.usual_s(at, node)) for node in town.serving)


def _noisy(_playbook: Playbook, town: Town) -> list[Figure]:
    count = len(town.starts) + len(town.stops)
    return [Figure("starts and stops in twenty minutes", count, f"<= {NOISE_STARTS}", count <= NOISE_STARTS)]


def _far(_playbook: Playbook, town: Town) -> list[Figure]:
    count = len(town.starts)
    return [Figure("nodes started that shorten nobody's way", count, "0", count == 0)]


def _hot(_playbook: Playbook, town: Town) -> list[Figure]:
    idle = fmean(max(second.slowest_ms.values()) for second in town.seconds[60 : int(HOT_S)])
    slow = [
        number
        for number, second in enumerate(town.seconds[int(HOT_S) :])
        if max(second.slowest_ms.values()) > IDLE_TIMES * idle
    ]
    last = max(slow, default=-1) + 1
    return [
        Figure("seconds until p99 is below twice that of the idle site", last, f"<= {SOON_S}", last <= SOON_S),
        Figure("nodes started", len(town.starts), "1", len(town.starts) == 1),
    ]


def _killed(playbook: Playbook, town: Town) -> list[Figure]:
    later = town.seconds[int(KILLED_S) + 1 :]
    acts = next((number for number, second in enumerate(later) if second.acting), int(playbook.end_s - KILLED_S))
    served = next((at_s - KILLED_S - 1 for at_s, _ in town.starts), playbook.end_s - KILLED_S)
    return [
        Figure("seconds until one leads and acts again", acts, f"<= {ACTS_S}", acts <= ACTS_S),
        Figure("seconds until a node is ordered for a crowd that came then", served, f"<= {SOON_S}", served <= SOON_S),
    ]


def _cut(_playbook: Playbook, town: Town) -> list[Figure]:
    cut, merged, last = (town.seconds[int(number)] for number in (CUT_S, MERGED_S, len(town.seconds) - 1))
    several = [number for number, second in enumerate(town.seconds[int(MERGED_S) :]) if second.acting != 1]
    one_leads = several[-1] + 1 if several else 0
    moves = last.moves - cut.moves
    starts = sum(at_s > CUT_S for at_s, _ in town.starts + town.stops)
    both = town.seconds[int(MERGED_S) - 1].acting
    return [
        Figure("coordinators that act while the regions are apart", both, "2", both == 2),
        Figure("moves, starts and stops because of it", moves + starts, "0", not moves + starts),
        Figure("seconds until one leads for both again", one_leads, f"<= {ACTS_S}", one_leads <= ACTS_S),
        Figure("nodes at the end", last.nodes, f"{merged.nodes}", last.nodes == cut.nodes),
    ]


SCENARIOS: Final = (
    BeyondScenario("wandering gateways", wandering, _wandering, scales=False),
    BeyondScenario("noisy load", noisy, _noisy),
    BeyondScenario("far subscribers", far_subscribers, _far),
    BeyondScenario("hot site", hot_site, _hot, loaded=True),
    BeyondScenario("leader killed", leader_killed, _killed, coordinators=2),
    BeyondScenario("two regions cut and merged", two_regions, _cut, coordinators=2),
)
