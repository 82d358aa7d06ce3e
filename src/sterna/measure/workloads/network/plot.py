"""The rows as a picture, where matplotlib is installed: CPU per message over the length of the row, a panel a load."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from sterna.measure.workloads.network.comparison import Cell
from sterna.measure.workloads.network.report import Report


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw(report: Report, file: Path) -> None:
    """Write a PNG; only where `can_draw`."""
    import_module("matplotlib").use("Agg")
    loads = list(dict.fromkeys(cell.load for cell in report.cells))
    figure, panels = import_module("matplotlib.pyplot").subplots(1, len(loads), figsize=(4 * len(loads), 4))
    for panel, load in zip([panels] if len(loads) == 1 else panels, loads, strict=True):
        # A lone broker is the beginning of the line: nothing is remote to it.
        row = [cell for cell in report.cells if cell.load == load and (cell.place == "remote" or cell.nodes == 1)]
        for name, points in ((report.subject, _points(row, 0)), (report.peer, _points(row, 1))):
            panel.plot([nodes for nodes, _ in points], [cost for _, cost in points], marker="o", label=name)
        panel.set_title(load)
        panel.set_xlabel("brokers in a row")
        panel.set_ylabel("us CPU per message, all brokers")
        panel.set_ylim(bottom=0)
        panel.legend()
    figure.tight_layout()
    figure.savefig(file)


def _points(row: list[Cell], side: int) -> list[tuple[int, float]]:
    found = [(cell.nodes, (cell.subject, cell.peer)[side]) for cell in row]
    return [(nodes, summary.cpu_us_per_message or 0.0) for nodes, summary in found if summary is not None]
