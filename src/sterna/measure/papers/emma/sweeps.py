"""`sterna experiment emma --sweeps`: management by brokers and gateways (Figure 7.9), and the threshold of a start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec
from rich.table import Table

from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.words import OrderState, Task, WorkerReport
from sterna.measure.command import Means
from sterna.measure.papers.emma.control_plane import PING_BYTES, REPORT_BYTES, REQUEST_BYTES, ControlPlane, Traffic
from sterna.measure.papers.emma.playbooks import EAST, WEST, emma
from sterna.measure.papers.emma.town import EMMA_EVERY_S, EMMA_PINGS, REPORT_S, Town
from sterna.measure.report import Column, table
from sterna.simulation.geography import in_cloud, regions
from sterna.simulation.kernel import Kernel

BROKERS: Final = (4, 10, 100)
GATEWAYS: Final = (10, 100, 1000, 10_000)
SIMULATED_MAX: Final = 100
"""Gateways that are simulated; more of them say so many times as much, since each says the same."""
BEFORE_S, MINUTES = 600.0, 10
THRESHOLDS: Final = (1.0, 2.0, 3.0, 4.0)


class ManagementRow(msgspec.Struct, frozen=True, kw_only=True):
    """A minute of management, by the thesis' sizes."""

    brokers: int
    gateways: int
    messages: float
    kib: float
    everything_messages: float
    """If every gateway measures every broker."""
    everything_kib: float


class ThresholdRow(msgspec.Struct, frozen=True, kw_only=True):
    up: float
    starts: list[tuple[float, str]]
    stops: list[tuple[float, str]]
    moves: int
    latency_ms: dict[str, float]
    """Mean of the last minute in which the crowds of both sides are there, by topic."""


def management(means: Means, seed: int) -> list[ManagementRow]:
    rows = []
    for brokers in BROKERS:
        of_brokers = _minute(brokers, 0, seed)
        for gateways in GATEWAYS:
            simulated = min(gateways, SIMULATED_MAX)
            if gateways == simulated:
                means.say(f"{brokers} brokers, {gateways} gateways")
                whole = _minute(brokers, simulated, seed)
            # Brokers measure each other, however many gateways there are.
            messages, size = (
                own + (total - own) * gateways / simulated for own, total in zip(of_brokers, whole, strict=True)
            )
            everything, everything_bytes = _measuring_everything(brokers)
            rows.append(
                ManagementRow(
                    brokers=brokers,
                    gateways=gateways,
                    messages=messages,
                    kib=size / 1024,
                    everything_messages=everything * gateways,
                    everything_kib=everything_bytes * gateways / 1024,
                )
            )
    return rows


def _minute(brokers: int, gateways: int, seed: int) -> tuple[float, float]:
    """Messages and bytes a minute, after ten."""
    kernel, traffic, places = Kernel(seed), Traffic(), regions()
    plane = ControlPlane(kernel, AdaptationTuning(scaling="off", selection="steady"), traffic, _nothing)
    for number in range(brokers):
        name = f"broker{number}"
        host = plane.add(name, in_cloud(name, places[number % len(places)]), is_worker=True, measures=True)
        word = WorkerReport(site="", state="off", in_state_s=0.0, echo=name, clients="")
        for at in range(int((BEFORE_S + 60 * MINUTES) / REPORT_S)):
            kernel.at(at * REPORT_S, host.report, word)
    for number in range(gateways):
        name = f"gateway{number}"
        plane.add(name, in_cloud(name, places[number % len(places)]), is_worker=False, measures=True)
    kernel.run_until(BEFORE_S)
    before = traffic.messages["management"], traffic.bytes["management"]
    kernel.run_until(BEFORE_S + 60 * MINUTES)
    after = traffic.messages["management"], traffic.bytes["management"]
    return (after[0] - before[0]) / MINUTES, (after[1] - before[1]) / MINUTES


def _measuring_everything(brokers: int) -> tuple[float, float]:
    """Of one gateway in a minute: a request, pings and pongs, and a report of each broker every 15 s."""
    rounds = 60 / EMMA_EVERY_S
    size = 2 * EMMA_PINGS * PING_BYTES + REQUEST_BYTES + REPORT_BYTES
    return rounds * brokers * (2 * EMMA_PINGS + 2), rounds * brokers * size


def _nothing(worker: str, task: Task) -> OrderState:
    raise AssertionError(f"{worker} is to do {task}, but nothing is to change")


def thresholds(means: Means, seed: int) -> list[ThresholdRow]:
    """The thesis' rules with its pressure, for thresholds of a start from 1 to 4; a stop at half of it."""
    rules = AdaptationTuning(selection="seed", scaling="seed", pressure="seed")
    rows = []
    for up in THRESHOLDS:
        means.say(f"threshold {up:g}")
        playbook = emma(scaled=True)
        town = Town(playbook, replace(rules, up=up, down=up / 2), "coordinates", seed).run()
        end = int(playbook.steps_s[7])
        last = [second.latency_ms for second in town.seconds[end - 60 : end]]
        latency = {topic: sum(one[topic] for one in last) / len(last) for topic in ("global", WEST, EAST)}
        rows.append(ThresholdRow(up=up, starts=town.starts, stops=town.stops, moves=town.moves, latency_ms=latency))
    return rows


def tables(managed: list[ManagementRow], swept: list[ThresholdRow]) -> list[Table]:
    first = table(
        f"Management a minute, by the thesis' sizes (more than {SIMULATED_MAX} gateways: in proportion)",
        [
            Column("brokers", lambda row: str(row.brokers)),
            Column("gateways", lambda row: f"{row.gateways:,}"),
            Column("messages", lambda row: f"{row.messages:,.0f}"),
            Column("KiB", lambda row: f"{row.kib:,.1f}"),
            Column("measuring all", lambda row: f"{row.everything_messages:,.0f}"),
            Column("KiB", lambda row: f"{row.everything_kib:,.1f}"),
            Column("times the bytes", lambda row: f"{row.everything_kib / row.kib:.1f}"),
        ],
        managed,
    )
    second = table(
        "EMMA by the thesis' rules, for thresholds of a start",
        [
            Column("threshold", lambda row: f"{row.up:g}"),
            Column("starts", lambda row: ", ".join(f"{name} {at:.0f} s" for at, name in row.starts) or "-", "left"),
            Column("stops", lambda row: ", ".join(f"{name} {at:.0f} s" for at, name in row.stops) or "-", "left"),
            Column("moves", lambda row: str(row.moves)),
            *(Column(f"{topic}, ms", _latency(topic)) for topic in ("global", WEST, EAST)),
        ],
        swept,
    )
    return [first, second]


def _latency(topic: str) -> Callable[[ThresholdRow], str]:
    return lambda row: f"{row.latency_ms[topic]:.1f}"
