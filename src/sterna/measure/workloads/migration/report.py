"""What moving clients costs, told twice: one JSON document for machines, tables for people, from the same values.

The peer is the same crowd connecting again to the node it is on, and clients that stay, both in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sterna.measure.workloads.migration.bench import CONNECT_AGAIN, Account, Measured, Memory, Phase, Plan


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of rounds."""

    what: str
    per_s: float
    """All at once,"""
    ratio: float
    """and what it is of the peer's."""
    p50_ms: float
    p99_ms: float
    """Of messages to somebody on the way, one after another,"""
    stayers_p99_ms: float
    """to those who stay meanwhile,"""
    added_p99_ms: float
    """and the difference."""
    crowded_p99_ms: float
    """To somebody on the way, all at once."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str = "migration"
    version: str
    machine: dict[str, str | int | bool]
    clients: int
    stayers: int
    messages_per_s: int
    pace: float
    rounds: int
    rows: list[Row]
    memory: Memory
    accounts: list[Account]
    anew: int
    phases: list[Phase]

    @property
    def failed(self) -> bool:
        """A promise was broken, or a session not found."""
        return bool(self.anew) or any(
            (one.qos and one.lost) or (one.qos != 1 and one.duplicated) or one.reordered for one in self.accounts
        )


def build(plan: Plan, version: str, machine: dict[str, str | int | bool], measured: Measured) -> Report:
    kinds = dict.fromkeys(phase.what for phase in measured.phases)
    peer = _middle([phase.per_s for phase in measured.phases if phase.at_once and phase.what == CONNECT_AGAIN])
    return Report(
        version=version,
        machine=machine,
        clients=plan.clients,
        stayers=plan.stayers,
        messages_per_s=plan.messages_per_s,
        pace=plan.pace,
        rounds=plan.rounds,
        rows=[_row(what, measured.phases, peer) for what in kinds],
        memory=measured.memory,
        accounts=measured.accounts,
        anew=measured.anew,
        phases=measured.phases,
    )


def _row(what: str, phases: Sequence[Phase], peer: float) -> Row:
    at_once = [phase for phase in phases if phase.what == what and phase.at_once]
    paced = [phase for phase in phases if phase.what == what and not phase.at_once]
    per_s = _middle([phase.per_s for phase in at_once])
    p99_ms, stayers_p99_ms = (
        _middle([one.movers.p99_ms for one in paced]),
        _middle([one.stayers.p99_ms for one in paced]),
    )
    return Row(
        what=what,
        per_s=per_s,
        ratio=per_s / peer,
        p50_ms=_middle([phase.movers.p50_ms for phase in paced]),
        p99_ms=p99_ms,
        stayers_p99_ms=stayers_p99_ms,
        added_p99_ms=p99_ms - stayers_p99_ms,
        crowded_p99_ms=_middle([phase.movers.p99_ms for phase in at_once]),
    )


def _middle(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def show(report: Report, console: Console) -> None:
    table = Table(title=f"{report.clients} clients on their way, {report.rounds} round(s)")
    table.add_column("what", no_wrap=True)
    for heading in ("clients/s", "of peer", "p50", "p99", "p99 of stayers", "added p99", "p99, all at once"):
        table.add_column(heading, justify="right")
    for row in report.rows:
        waits = row.p50_ms, row.p99_ms, row.stayers_p99_ms, row.added_p99_ms, row.crowded_p99_ms
        table.add_row(row.what, f"{row.per_s:,.0f}", f"{row.ratio:.2f}", *(f"{wait:,.0f} ms" for wait in waits))
    console.print(table)
    memory = report.memory
    console.print(
        f"Resident memory a session, connection included: {memory.opened:.1f} KiB where it was opened, "
        f"{memory.arrived:.1f} KiB where it was moved to; {memory.grown:.2f} KiB on all nodes for every further move."
    )
    for one in report.accounts:
        console.print(
            f"QoS {one.qos}: {one.sent:,} sent, {one.lost:,} lost, {one.duplicated:,} duplicated, "
            f"{one.reordered:,} out of order."
        )
    if report.anew:
        console.print(f"{report.anew} times a client did not find its session.")
    console.print(Text(_method(report)))


def _method(report: Report) -> str:
    machine = report.machine
    return (
        f"{report.version}; {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}.  Three nodes in a "
        f"row on loopback, on disk (fsync); {report.messages_per_s:,} messages a second to all clients meanwhile, "
        f"published at all nodes.  The peer is the same crowd connecting again to its own node; {report.stayers} "
        f"clients stay.  Clients a second: all at once.  Latencies: {report.pace:g} clients a second, one after "
        f"another, of messages that came while a client was on its way, or half a second after; medians of rounds."
    )
