"""The cost of moving clients: the document, and the table of it.

The peer is the same crowd connecting again to the node it is on, and clients that stay, both in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from sterna.measure.report import Column, Machine, MeasurementReport, table
from sterna.measure.workloads.migration.crowd import (
    CONNECT_AGAIN,
    CrowdMeasured,
    CrowdPhase,
    CrowdPlan,
    DeliveryAccount,
    SessionMemory,
)


class CrowdRow(msgspec.Struct, frozen=True, kw_only=True):
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


class CrowdDocument(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str = "migration"
    version: str
    machine: Machine
    clients: int
    stayers: int
    messages_per_s: int
    pace: float
    rounds: int
    rows: list[CrowdRow]
    memory: SessionMemory
    accounts: list[DeliveryAccount]
    anew: int
    phases: list[CrowdPhase]

    @property
    def failed(self) -> bool:
        """A promise was broken, or a session not found."""
        return bool(self.anew) or any(
            (one.qos and one.lost) or (one.qos != 1 and one.duplicated) or one.reordered for one in self.accounts
        )


def document(plan: CrowdPlan, version: str, machine: Machine, measured: CrowdMeasured) -> CrowdDocument:
    kinds = dict.fromkeys(phase.what for phase in measured.phases)
    peer = _middle([phase.per_s for phase in measured.phases if phase.at_once and phase.what == CONNECT_AGAIN])
    return CrowdDocument(
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


def _row(what: str, phases: Sequence[CrowdPhase], peer: float) -> CrowdRow:
    at_once = [phase for phase in phases if phase.what == what and phase.at_once]
    paced = [phase for phase in phases if phase.what == what and not phase.at_once]
    per_s = _middle([phase.per_s for phase in at_once])
    p99_ms, stayers_p99_ms = (
        _middle([one.movers.p99_ms for one in paced]),
        _middle([one.stayers.p99_ms for one in paced]),
    )
    return CrowdRow(
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


COLUMNS = (
    Column("what", lambda row: row.what, "left"),
    Column("clients/s", lambda row: f"{row.per_s:,.0f}", no_wrap=False),
    Column("of peer", lambda row: f"{row.ratio:.2f}", no_wrap=False),
    Column("p50", lambda row: f"{row.p50_ms:,.0f} ms", no_wrap=False),
    Column("p99", lambda row: f"{row.p99_ms:,.0f} ms", no_wrap=False),
    Column("p99 of stayers", lambda row: f"{row.stayers_p99_ms:,.0f} ms", no_wrap=False),
    Column("added p99", lambda row: f"{row.added_p99_ms:,.0f} ms", no_wrap=False),
    Column("p99, all at once", lambda row: f"{row.crowded_p99_ms:,.0f} ms", no_wrap=False),
)


def report(told: CrowdDocument) -> MeasurementReport:
    memory = told.memory
    accounts = [
        f"QoS {one.qos}: {one.sent:,} sent, {one.lost:,} lost, {one.duplicated:,} duplicated, "
        f"{one.reordered:,} out of order."
        for one in told.accounts
    ]
    return MeasurementReport(
        document=told,
        tables=[table(f"{told.clients} clients on their way, {told.rounds} round(s)", COLUMNS, told.rows)],
        notes=[
            f"Resident memory a session, connection included: {memory.opened:.1f} KiB where it was opened, "
            f"{memory.arrived:.1f} KiB where it was moved to; {memory.grown:.2f} KiB on all nodes for every further "
            "move.",
            *accounts,
            *([f"{told.anew} times a client did not find its session."] if told.anew else []),
            _method(told),
        ],
        failed=told.failed,
    )


def _method(told: CrowdDocument) -> str:
    machine = told.machine
    return (
        f"{told.version}; {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}.  Three nodes in a "
        f"row on loopback, on disk (fsync); {told.messages_per_s:,} messages a second to all clients meanwhile, "
        f"published at all nodes.  The peer is the same crowd connecting again to its own node; {told.stayers} "
        f"clients stay.  Clients a second: all at once.  Latencies: {told.pace:g} clients a second, one after "
        f"another, of messages that came while a client was on its way, or half a second after; medians of rounds."
    )
