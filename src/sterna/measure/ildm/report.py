"""The report of `sterna bench ildm`: both tables, the model beside the measurement, targets, and a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.table import Table

from sterna.measure import plots
from sterna.measure.ildm import model
from sterna.measure.ildm.cell import Cell
from sterna.measure.ildm.scenario import built_in
from sterna.measure.report import Column, Machine, MeasurementReport, machine_in_words, number, table

PAPER = {"A": "0.9x, ~10 ms", "B": "2x to 4x", "C": "up to 4.3x (SF)", "D": "2x to 4x"}
"""As far as the paper's text says; its figures carry no numbers."""
BASE = {"sterna": "sterna", "reference": "mosquitto", "proxy": "mosquitto"}
"""The single broker that a system's rows are held against."""
ROWS_MIN = 2.0
BEST_MIN = 4.3
MODEL_WITHIN = 0.15
JOINING_MAX = 200


class IldmDocument(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str
    versions: dict[str, str]
    machine: Machine
    quick: bool
    is_confined: bool
    share: float
    node_factor: float
    search: str
    measure_s: float
    cells: list[Cell]
    costs: dict[str, model.Costs]
    failures: list[str]

    def find(self, system: str, pattern: str, algorithm: str = "-") -> Cell | None:
        wanted = system, pattern, algorithm
        return next((one for one in self.cells if (one.system, one.pattern, one.algorithm) == wanted), None)

    def times_alone(self, cell: Cell) -> float | None:
        """Its limit as a multiple of that of its broker alone."""
        alone = self.find(BASE.get(cell.system, cell.system), "single")
        return cell.egress / alone.egress if alone and alone.egress else None

    def predicted(self, cell: Cell) -> float | None:
        """Deliveries a second by the model: costs of the broker alone, those of the node from pattern A."""
        costs = self.costs.get(BASE.get(cell.system, ""))
        if costs is None or cell.pattern not in "ABCD":
            return None
        scenario = built_in(cell.pattern)
        is_proxied = cell.system != "sterna"
        if is_proxied:
            alone = self.find(cell.system, "A", "SF")
            if alone is None:
                return None
            relayed = alone.cpu_us["node1"] / (1 + scenario.sp_ratio)
            costs = msgspec.structs.replace(costs, relayed=relayed, moved=relayed)
        else:
            costs = msgspec.structs.replace(costs, moved=costs.taken)
        node_share = min(1.0, self.share * self.node_factor)
        loads = model.node_loads(scenario, cell.algorithm)
        return model.limit(loads, costs, self.share, node_share, is_proxied=is_proxied) * scenario.sp_ratio


def report(document: IldmDocument) -> MeasurementReport:
    singles = [cell for cell in document.cells if cell.pattern == "single"]
    layers = [cell for cell in document.cells if cell.pattern not in ("single", "fan1")]
    tables = [_single_table(singles)] if singles else []
    if layers:
        tables.append(_layer_table(document, layers))
    return MeasurementReport(
        document,
        tables,
        _notes(document),
        failed=bool(document.failures) or not document.cells,
        draw=lambda file: draw(document, file),
    )


def _p50(pair: tuple[float | None, float | None]) -> str:
    return "-" if pair[0] is None else f"{pair[0]:.2f}"


LETTERS = {"the generator": "G", "messages were sent late": "L", "noisy": "N", "starved": "S"}
"""Marks by how they begin."""
LEGEND = (
    "Marks: G the generator did not get the load out, L it sent late, N a longer interval failed where a shorter one "
    "passed, S hosts did not get their share of the machine.  Such a limit is a lower bound."
)


def _letters(cell: Cell) -> str:
    found = [letter for begin, letter in LETTERS.items() if any(mark.startswith(begin) for mark in cell.marks)]
    return " ".join(found) or "-"


_COMMON = [
    Column("out/s", lambda cell: number(cell.egress)),
    Column("CPU out/s", lambda cell: number(cell.cpu_limit)),
]
_LAST = [
    Column("ms", lambda cell: _p50(cell.latency_half_ms)),
    Column("ms max", lambda cell: _p50(cell.latency_limit_ms)),
    Column("loss", lambda cell: f"{cell.loss_rate:.2%}"),
    Column("CPU us", lambda cell: f"{sum(cell.cpu_us.values()):.0f}/{sum(cell.gentle_cpu_us.values()):.0f}"),
    Column("marks", _letters, "left"),
]


def _single_table(cells: list[Cell]) -> Table:
    columns = [
        Column("broker", lambda cell: cell.system, "left"),
        Column("in/s", lambda cell: number(cell.ingress)),
        *_COMMON,
        *_LAST,
    ]
    return table("Single brokers at their limit", columns, cells)


def _layer_table(document: IldmDocument, cells: list[Cell]) -> Table:
    def predicted(cell: Cell) -> str:
        return number(document.predicted(cell))

    def times_alone(cell: Cell) -> str:
        found = document.times_alone(cell)
        return "-" if found is None else f"{found:.2f}x"

    columns = [
        Column("system", lambda cell: cell.system, "left"),
        Column("", lambda cell: f"{cell.pattern} {cell.algorithm}", "left"),
        *_COMMON,
        Column("of one", times_alone),
        Column("model", predicted),
        *_LAST,
        Column("transfers", _transfers),
    ]
    return table("Brokers that cooperate, at their limit", columns, cells)


def _transfers(cell: Cell) -> str:
    if cell.transfers is None:
        return "-"
    return f"{cell.transfers:,} ({cell.transfers - (cell.transfers_due or 0):+})"


def _notes(document: IldmDocument) -> list[str]:
    if document.is_confined:
        how = (
            f"Each broker had {document.share:.0%} of a core, a node before one {document.node_factor:g} times that. "
            f"Search by {document.search}, {document.measure_s:g} s counted in each run."
        )
    else:
        how = (
            "No right to make control groups: out/s is in CPU terms, what the busiest host could deliver with "
            f"{document.share:.0%} of a core (a node {document.node_factor:g} times that)."
        )
    notes = [f"{'; '.join(document.versions.values())}.  {machine_in_words(document.machine)}.  {how}"]
    notes.append(
        "CPU out/s: in CPU terms, deliveries a second that the busiest host has CPU time for.  ms, ms max: p50 latency "
        "at half the limit and at the limit.  CPU us: of all hosts, per publication, at the limit and at 200 a second. "
        "transfers: between nodes, and how many more than the placement says (those that showed that the row is "
        f"joined).  {LEGEND}"
    )
    notes.append("The paper says of one broker: " + ", ".join(f"{name} {text}" for name, text in PAPER.items()) + ".")
    notes += targets(document)
    if document.quick:
        notes.append("Quick: fewer cells and short runs; nothing to quote.")
    notes += [f"Failed: {failure}" for failure in document.failures]
    return notes


def targets(document: IldmDocument) -> list[str]:
    """Each that can be judged by the cells at hand, reached or missed."""
    found: list[str] = []
    for told in _row_targets(document), _loss_targets(document), _ahead(document), _model_target(document):
        found += told
    return found


def _judged(what: str, holds: bool, figure: str) -> str:
    return f"{'Reached' if holds else 'Missed'}: {what} ({figure})."


def _row_targets(document: IldmDocument) -> list[str]:
    found = []
    for system in dict.fromkeys(cell.system for cell in document.cells):
        cells = [cell for cell in document.cells if cell.system == system and cell.pattern in ("single", "B", "C", "D")]
        bound = [f"{cell.pattern} {cell.algorithm}".removesuffix(" -") for cell in cells if _is_of_generator(cell)]
        if bound:
            found.append(f"Not judged: {system}, as the generator was too slow or late in {', '.join(bound)}.")
            continue
        times = {
            (cell.pattern, cell.algorithm): ratio
            for cell in cells
            if cell.pattern != "single" and (ratio := document.times_alone(cell)) is not None
        }
        if ("C", "SF") in times:
            best = times["C", "SF"]
            found.append(
                _judged(f"{system}: C with SF at least {BEST_MIN}x one broker", best >= BEST_MIN, f"{best:.2f}x")
            )
        if times:
            least = min(times, key=lambda key: times[key])
            words = f"{least[0]} {least[1]} {times[least]:.2f}x"
            found.append(_judged(f"{system}: every cell at least {ROWS_MIN:g}x", times[least] >= ROWS_MIN, words))
        order = [times.get((pattern, "SF")) for pattern in "CDB"]
        if None not in order:
            holds = order == sorted(order, key=lambda value: -(value or 0))
            found.append(
                _judged(f"{system}: C > D > B under SF", holds, ", ".join(f"{one:.2f}x" for one in order if one))
            )
    return found


def _is_of_generator(cell: Cell) -> bool:
    """Its limit is that of the generator, so no ratio can be made with it."""
    return not {"G", "L"}.isdisjoint(_letters(cell).split())


def _loss_targets(document: IldmDocument) -> list[str]:
    cells = [cell for cell in document.cells if cell.pattern != "fan1"]
    lossy = [f"{cell.system} {cell.pattern} {cell.algorithm}" for cell in cells if cell.loss_rate]
    found = [_judged("loss 0 at the limit", not lossy, ", ".join(lossy) or "none")] if cells else []
    counted = [cell for cell in cells if cell.transfers is not None]
    off = [f"{cell.pattern} {cell.algorithm} {_transfers(cell)}" for cell in counted if not _is_as_due(cell)]
    if counted:
        found.append(_judged("transfers are what the placement says", not off, ", ".join(off) or "all"))
    return found


def _is_as_due(cell: Cell) -> bool:
    """Messages that showed that the row is joined are transferred too."""
    assert cell.transfers is not None
    assert cell.transfers_due is not None
    return 0 <= cell.transfers - cell.transfers_due <= JOINING_MAX


def _ahead(document: IldmDocument) -> list[str]:
    pairs = [
        (cell, rival)
        for cell in document.cells
        if cell.system == "sterna" and (rival := document.find("reference", cell.pattern, cell.algorithm)) is not None
    ]
    if not pairs:
        return []

    def cost(cell: Cell) -> float:
        return sum(cell.gentle_cpu_us.values())

    behind = [f"{cell.pattern} {cell.algorithm}" for cell, rival in pairs if cost(cell) >= cost(rival)]
    what = "less CPU per publication than the literal PF and SF in every cell, at the same load"
    return [_judged(what, not behind, ", ".join(behind) or "all")]


def _model_target(document: IldmDocument) -> list[str]:
    ratios = {
        f"{cell.system} {cell.pattern} {cell.algorithm}": cell.egress / predicted
        for cell in document.cells
        if not _is_of_generator(cell) and (predicted := document.predicted(cell))
    }
    if not ratios:
        return []
    off = {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > MODEL_WITHIN}
    words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in off.items()) or "all"
    return [_judged(f"measured within {MODEL_WITHIN:.0%} of the model", not off, words)]


def draw(document: IldmDocument, file: Path) -> None:
    """Limits and latencies as bars, as in the paper's figures 11 and 12."""
    cells = [cell for cell in document.cells if cell.pattern != "fan1"]
    figure = plots.empty_figure(9, 6.5)
    above, below = figure.subplots(2, 1)
    names = [f"{cell.system}\n{cell.pattern} {cell.algorithm}".removesuffix(" -") for cell in cells]
    values: list[tuple[object, str, Callable[[Cell], float]]] = [
        (above, "deliveries a second at the limit", lambda cell: cell.egress),
        (below, "latency at half the limit, ms (p50)", lambda cell: cell.latency_half_ms[0] or 0.0),
    ]
    for axes, label, value in values:
        colours = [plots.COLOURS[1] if cell.system == "sterna" else plots.COLOURS[3] for cell in cells]
        axes.bar(range(len(cells)), [value(cell) for cell in cells], plots.BAR, color=colours)  # type: ignore[attr-defined]
        axes.set_xticks(range(len(cells)), names, fontsize=7)  # type: ignore[attr-defined]
        axes.set_ylabel(label, fontsize=9)  # type: ignore[attr-defined]
        axes.spines[["top", "right"]].set_visible(False)  # type: ignore[attr-defined]
    figure.savefig(file)
