"""Figures beside what was set out to be reached: the report of benchmarks whose rows are measured part by part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from sterna import __version__
from sterna.measure import plots
from sterna.measure.harness.comparison import Say
from sterna.measure.report import (
    Column,
    Machine,
    MeasurementReport,
    Verdict,
    machine,
    machine_in_words,
    number,
    table,
    targets_missed,
    times,
)
from sterna.vocabulary.errors import SternaError


class FigureRow(msgspec.Struct, frozen=True, kw_only=True):
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


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str
    title: str
    setting: str
    """The processes that shared the machine."""
    versions: dict[str, str]
    machine: Machine
    quick: bool
    rows: list[FigureRow]

    @property
    def failed(self) -> bool:
        return any(row.verdict == "failed" for row in self.rows)


def measure_parts(parts: Mapping[str, Callable[[], list[FigureRow]]], say: Say) -> list[FigureRow]:
    """The rows of all parts; a part that fails is a row that says so, and the rest goes on."""
    rows: list[FigureRow] = []
    for place, (name, measure) in enumerate(parts.items(), 1):
        say(f"[{place}/{len(parts)}] {name}")
        try:
            found = measure()
        except SternaError as error:
            found = [FigureRow(name=name, summary=f"failed: {error}", unit="-", verdict="failed")]
        for row in found:
            figure = "-" if row.figure is None else f"{row.figure:,.2f} {row.unit}"
            say(f"    {row.name}: {figure}, target {row.target}: {row.verdict}")
        rows += found
    return rows


def figures(
    benchmark: str, title: str, setting: str, rows: list[FigureRow], *, quick: bool, **versions: str
) -> Figures:
    return Figures(
        benchmark=benchmark,
        title=title,
        setting=setting,
        versions={"sterna": __version__, **versions},
        machine=machine(),
        quick=quick,
        rows=rows,
    )


COLUMNS = (
    Column("row", lambda row: row.name, "left"),
    Column("figure", lambda row: row.unit, "left", no_wrap=False),
    Column("sterna", lambda row: number(row.figure)),
    Column("beside", lambda row: number(row.beside)),
    Column("ratio", lambda row: times(row.ratio)),
    Column("target", lambda row: row.target),
    Column("verdict", lambda row: row.verdict, "left"),
)


def report(told: Figures) -> MeasurementReport:
    return MeasurementReport(
        document=told,
        tables=[table(told.title, COLUMNS, told.rows)],
        notes=[
            _method(told),
            *(f"{row.name}: {remark}" for row in told.rows for remark in (row.summary, *row.remarks)),
            targets_missed([row.name for row in told.rows if row.verdict == "missed"]),
        ],
        failed=told.failed,
        draw=lambda file: draw(told, file),
    )


def _method(told: Figures) -> str:
    quick = "  A quick run: smaller sizes, one round." if told.quick else ""
    versions = ", ".join(f"{name} {version}" for name, version in told.versions.items())
    return f"{versions}.  {machine_in_words(told.machine)}; {told.setting}.{quick}"


def bound_of(row: FigureRow) -> float | None:
    """The figure at which the target is just reached: "<= 250" itself, "<= 1.5x" times what stands beside."""
    given = re.search(r"[\d.]+", row.target)
    if given is None:
        return None
    if not row.target.endswith("x"):
        return float(given[0])
    return None if row.beside is None else float(given[0]) * row.beside


def draw(told: Figures, file: Path) -> None:
    """A panel per row, ours beside the other where there is one."""
    rows = [row for row in told.rows if row.figure is not None]
    figure = plots.empty_figure(2.6 * len(rows) + 1, 4)
    for place, row in enumerate(rows, 1):
        panel = figure.add_subplot(1, len(rows), place)
        values = {"sterna": row.figure, "beside": row.beside}
        shown = {name: value for name, value in values.items() if value is not None}
        panel.bar(list(shown), list(shown.values()), color=["tab:blue", "tab:gray"][: len(shown)])
        bound = bound_of(row)
        if bound is not None:
            panel.axhline(bound, color="tab:orange", linestyle="--")
        judged = row.verdict if row.target == "-" else f"{row.target}: {row.verdict}"
        panel.set_title(f"{row.name}\n{judged}", fontsize=9)
        panel.set_ylabel(row.unit)
    figure.savefig(file)
