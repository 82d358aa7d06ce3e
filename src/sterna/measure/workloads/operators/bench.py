"""`sterna bench operators`: subscriptions that compute, part by part, each figure beside what it was set out to be.

A part is a function that measures and gives rows of the report; `PARTS` is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer

from sterna.measure import figures
from sterna.measure.command import Means, known
from sterna.measure.figures import FigureRow, Figures
from sterna.measure.harness.comparison import Say
from sterna.measure.report import MeasurementReport, machine
from sterna.measure.workloads.operators.between_nodes import measure_network
from sterna.measure.workloads.operators.in_node import measure_node

Part = Callable[[Say, bool], list[FigureRow]]
"""Told where to say how far it is, and whether to be quick."""


def _on_spark(say: Say, quick: bool) -> list[FigureRow]:
    from sterna.measure.workloads.operators.on_spark import measure_spark

    return measure_spark(say, quick)


def _in_order_on_spark(say: Say, quick: bool) -> list[FigureRow]:
    from sterna.measure.workloads.operators.in_order import measure_in_order

    return measure_in_order(say, quick)


PARTS: dict[str, Part] = {
    "node": measure_node,
    "network": measure_network,
    "spark": _on_spark,
    "spark-in-order": _in_order_on_spark,
}


def bench(
    means: Means,
    part: Annotated[str, typer.Option(help=f"Only this one: {', '.join(PARTS)}, or all.")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="One short round of everything.")] = False,
) -> MeasurementReport:
    """Subscriptions that compute: in a node, between nodes, on Spark; what they cost those who do not (ten minutes)."""
    parts = PARTS if part == "all" else {part: known(part, {**PARTS, "all": None}, "part", "--part")}
    return figures.report(run(parts, means.say, quick=quick))


def run(parts: Mapping[str, Part], say: Say, *, quick: bool) -> Figures:
    rows = figures.measure_parts({name: partial(measure, say, quick) for name, measure in parts.items()}, say)
    setting = "broker and generator each on a core of its own" if machine()["pinned"] else "nothing pinned"
    return figures.figures("operators", "Subscriptions that compute", setting, rows, quick=quick)
