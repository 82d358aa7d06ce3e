"""`sterna bench migration`: crowds of clients that move between three nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from sterna import __version__
from sterna.measure.command import Means, Rounds
from sterna.measure.report import MeasurementReport, machine
from sterna.measure.workloads.migration import crowd
from sterna.measure.workloads.migration.report import document, report


def bench(
    means: Means,
    clients: Annotated[int | None, typer.Option(min=10, max=2000, help="That move.  [default: 300]")] = None,
    rounds: Rounds = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer clients, one round, half a minute.")] = False,
) -> MeasurementReport:
    """Move clients between three nodes: moves a second, what those on the way wait longer, memory (four minutes)."""
    plan = crowd.QUICK if quick else crowd.CrowdPlan()
    plan = replace(plan, clients=clients or plan.clients, rounds=rounds or plan.rounds)
    measured = crowd.measure(plan, means.say)
    return report(document(plan, f"sterna {__version__}", machine(), measured))
