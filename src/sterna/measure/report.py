"""One kind of report: a JSON document for machines; tables, notes and a picture for people, from the same values.

A measurement defines its document, a struct whose fields are the JSON fields.  `failed` decides about the exit status:
something could not be measured, or a promise was broken.  A target that was missed is told, and is no failure.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from sterna.measure.harness import meter

Verdict = Literal["reached", "missed", "shown", "failed"]
Machine = dict[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class MeasurementReport:
    document: msgspec.Struct
    tables: Sequence[Table]
    notes: Sequence[str]
    """Below the tables, a paragraph each."""
    failed: bool = False
    draw: Callable[[Path], object] | None = None
    """Write the picture, or the pictures, to this place; None: there is none."""

    def as_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self.document)).decode()

    def as_table(self, console: Console) -> None:
        console.print(Group(*self.tables, *map(Text, self.notes)))

    def as_plot(self, file: Path) -> None:
        assert self.draw is not None, "there is no picture of it"
        self.draw(file)


@dataclass(frozen=True, slots=True)
class Column:
    """Of a table: what stands above it, and what it says of a row."""

    heading: str
    text: Callable[[Any], str]
    justify: Literal["left", "right"] = "right"
    no_wrap: bool = True


def table(title: str, columns: Sequence[Column], rows: Iterable[Any]) -> Table:
    made = Table(title=title)
    for column in columns:
        made.add_column(column.heading, justify=column.justify, no_wrap=column.no_wrap)
    for row in rows:
        made.add_row(*(column.text(row) for column in columns))
    return made


def verdict(reached: bool | None) -> Verdict:
    """None: nothing was set out to be reached."""
    return "shown" if reached is None else "reached" if reached else "missed"


def number(value: float | None, whole_from: float = 100) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= whole_from else f"{value:.2f}"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def targets_missed(names: Sequence[str]) -> str:
    return f"Targets missed: {', '.join(names) or 'none'}."


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of one figure over several runs."""

    mean: float
    deviation: float
    least: float
    greatest: float


def spread(values: Sequence[float]) -> Spread:
    deviation = stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=mean(values), deviation=deviation, least=min(values), greatest=max(values))


def machine() -> Machine:
    """Where the figures come from."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pinned": meter.two_cores()[0] is not None,
    }


def machine_in_words(given: Machine) -> str:
    return f"{given['cpu']}, {given['cores']} cores, Linux {given['kernel']}"
