"""`sterna bench operators`: subscriptions that compute, part by part, each figure beside what it was set out to be.

A part is a function that measures and gives rows of the report; `PARTS` is the table, to which the command adds what
needs Spark.  One that fails is a row that says so, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import Report, Row
from sterna.measure.harness.comparison import Say, machine
from sterna.measure.workloads.operators.between_nodes import measure_network
from sterna.measure.workloads.operators.in_node import measure_node

Part = Callable[[Say, bool], list[Row]]
"""Told where to say how far it is, and whether to be quick."""

PARTS: dict[str, Part] = {"node": measure_node, "network": measure_network}


def run(parts: Mapping[str, Part], say: Say, *, quick: bool) -> Report:
    rows: list[Row] = []
    for number, (part, measure) in enumerate(parts.items(), 1):
        say(f"[{number}/{len(parts)}] {part}")
        try:
            found = measure(say, quick)
        except MeasurementError as error:
            found = [Row(name=part, summary=f"failed: {error}", unit="-", verdict="failed")]
        for row in found:
            figure = "-" if row.figure is None else f"{row.figure:,.2f} {row.unit}"
            say(f"    {row.name}: {figure}, target {row.target}: {row.verdict}")
        rows += found
    return Report(
        benchmark="operators",
        title="Subscriptions that compute",
        setting="broker and generator each on a core of its own" if machine()["pinned"] else "nothing pinned",
        versions={"sterna": version("sterna")},
        machine=machine(),
        quick=quick,
        rows=rows,
    )
