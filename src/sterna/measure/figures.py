"""Figures beside what was set out to be reached: JSON, a table and a picture from the same values."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from sterna.measure.workloads.brokers.report import Verdict


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing measured."""

    name: str
    summary: str
    unit: str
    figure: float | None = None
    """Ours; None if there is none because it failed."""
    beside: float | None = None
    """The same figure of what it is compared with, in the same run."""
    ratio: float | None = None
    target: str = "-"
    verdict: Verdict
    rounds: list[tuple[float, float | None]] = []
    """Figure and what stands beside it, round by round."""
    remarks: list[str] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str
    title: str
    setting: str
    """Who shared the machine with whom."""
    versions: dict[str, str]
    machine: dict[str, str | int | bool]
    quick: bool
    rows: list[Row]

    @property
    def failed(self) -> bool:
        return any(row.verdict == "failed" for row in self.rows)


def show(report: Report, console: Console) -> None:
    remarks = [Text(f"{row.name}: {remark}") for row in report.rows for remark in (row.summary, *row.remarks)]
    missed = [row.name for row in report.rows if row.verdict == "missed"]
    told = Text("Targets missed: " + (", ".join(missed) or "none") + ".")
    console.print(Group(_table(report), Text(_method(report)), *remarks, told))


def _table(report: Report) -> Table:
    table = Table(title=report.title)
    table.add_column("row", no_wrap=True)
    table.add_column("figure")
    for heading in ("sterna", "beside", "ratio", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in report.rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        table.add_row(row.name, row.unit, _number(row.figure), _number(row.beside), ratio, row.target, row.verdict)
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _method(report: Report) -> str:
    machine = report.machine
    quick = "  A quick run: smaller sizes, one round." if report.quick else ""
    return (
        f"{', '.join(f'{name} {version}' for name, version in report.versions.items())}.  "
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; {report.setting}.{quick}"
    )


def bound_of(row: Row) -> float | None:
    """The figure at which the target is just reached: "<= 250" itself, "<= 1.5x" times what stands beside."""
    number = re.search(r"[\d.]+", row.target)
    if number is None:
        return None
    if not row.target.endswith("x"):
        return float(number[0])
    return None if row.beside is None else float(number[0]) * row.beside


def draw(report: Report, file: Path) -> None:
    """Write a PNG: a panel per row, ours beside the other where there is one.  Needs matplotlib."""
    import_module("matplotlib").use("Agg")
    rows = [row for row in report.rows if row.figure is not None]
    figure, panels = import_module("matplotlib.pyplot").subplots(
        1, max(1, len(rows)), figsize=(2.6 * len(rows) + 1, 4), squeeze=False
    )
    for panel, row in zip(panels[0], rows, strict=False):
        values = {"sterna": row.figure, "beside": row.beside}
        shown = {name: value for name, value in values.items() if value is not None}
        panel.bar(list(shown), list(shown.values()), color=["tab:blue", "tab:gray"][: len(shown)])
        bound = bound_of(row)
        if bound is not None:
            panel.axhline(bound, color="tab:orange", linestyle="--")
        told = row.verdict if row.target == "-" else f"{row.target}: {row.verdict}"
        panel.set_title(f"{row.name}\n{told}", fontsize=9)
        panel.set_ylabel(row.unit)
    figure.tight_layout()
    figure.savefig(file)
