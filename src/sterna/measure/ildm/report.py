"""The report of `sterna bench ildm`: both tables, the model beside the measurement, targets, and a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
PAPER_TIMES = 2.0, 4.3
"""Of one broker, for five."""
LAYERS: dict[str, model.Layer] = {"sterna": "none", "reference": "relays", "proxy": "hears"}
SYSTEM_COLOURS = {"sterna": 1, "proxy": 2, "reference": 3}
LAYER_MIN = 0.9
LAYER_MS_MAX = 0.5
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
    left_out: list[str] = []

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
        if costs is None or cell.system not in LAYERS or cell.pattern not in ("A", "B", "C", "D"):
            return None
        scenario = built_in(cell.pattern)
        layer = LAYERS[cell.system]
        if layer != "none":
            alone = self.find(cell.system, "A", "SF")
            if alone is None:
                return None
            relayed = alone.cpu_us["node1"] / (1 + scenario.sp_ratio)
            costs = msgspec.structs.replace(costs, relayed=relayed, moved=relayed)
        else:
            costs = msgspec.structs.replace(costs, moved=costs.taken)
        node_share = min(1.0, self.share * self.node_factor)
        loads = model.node_loads(scenario, cell.algorithm)
        return model.limit(loads, costs, self.share, node_share, layer) * scenario.sp_ratio


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


LETTERS = {
    "the generator did": "G",
    "the generator's ceiling": "C",
    "messages were sent late": "L",
    "noisy": "N",
    "starved": "S",
}
"""Marks by how they begin."""
LEGEND = (
    "Marks: G the generator did not get the load out, L it sent late, N a longer interval failed where a shorter one "
    "passed, S hosts did not get their share of the machine, C no higher load was tried.  Such limits are lower bounds."
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
    notes += [f"Left out: {what}." for what in document.left_out]
    notes += [f"Failed: {failure}" for failure in document.failures]
    return notes


def targets(document: IldmDocument) -> list[str]:
    """Each that can be judged by the cells at hand, reached or missed."""
    found: list[str] = []
    for told in (
        _layer_targets(document),
        _row_targets(document),
        _loss_targets(document),
        _ahead(document),
        _model_target(document),
    ):
        found += told
    return found


def _judged(what: str, holds: bool, figure: str) -> str:
    return f"{'Reached' if holds else 'Missed'}: {what} ({figure})."


def _layer_targets(document: IldmDocument) -> list[str]:
    """A node in front of one broker, beside the broker alone."""
    found = []
    for cell in (cell for cell in document.cells if cell.pattern == "A"):
        alone, times = document.find(BASE[cell.system], "single"), document.times_alone(cell)
        if alone is None or times is None or _is_of_generator(cell) or _is_of_generator(alone):
            continue
        what = f"{cell.system}: a node takes at most {1 - LAYER_MIN:.0%} of its broker's limit"
        found.append(_judged(what, times >= LAYER_MIN, f"A {times:.2f}x"))
        behind, before = cell.latency_half_ms[0], alone.latency_half_ms[0]
        if behind is not None and before is not None:
            more = behind - before
            what = f"{cell.system}: and adds at most {LAYER_MS_MAX} ms (p50)"
            found.append(_judged(what, more <= LAYER_MS_MAX, f"{more:+.2f} ms"))
    return found


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
    """Our nodes beside the paper's, in front of the same brokers."""
    pairs = [
        (cell, rival)
        for cell in document.cells
        if cell.system == "proxy" and (rival := document.find("reference", cell.pattern, cell.algorithm)) is not None
    ]
    if not pairs:
        return []
    found = []
    for what, is_behind in (
        (
            "a higher limit than with the literal PF and SF in every cell",
            lambda ours, rival: ours.egress < rival.egress,
        ),
        ("less CPU of nodes per publication, too", lambda ours, rival: _node_cpu(ours) >= _node_cpu(rival)),
    ):
        behind = [f"{cell.pattern} {cell.algorithm}" for cell, rival in pairs if is_behind(cell, rival)]
        found.append(_judged(what, not behind, ", ".join(behind) or "all"))
    return found


def _node_cpu(cell: Cell) -> float:
    """At the load that is the same for all."""
    return sum(cost for name, cost in cell.gentle_cpu_us.items() if name.startswith("node"))


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
    """The paper's figures 11 (left) and 12 (right): limits above, latencies below; the model as short lines."""
    figure = plots.empty_figure(12, 7)
    (alone, rows), (alone_ms, rows_ms) = figure.subplots(2, 2, width_ratios=(1, 2.2))
    singles = [cell for cell in document.cells if cell.pattern == "single"]
    _draw_singles(alone, singles, "deliveries a second at the limit", lambda cell: cell.egress)
    alone.set_yscale("log")
    _draw_singles(alone_ms, singles, "latency at half the limit, ms (p50)", _latency_ms)
    _draw_rows(rows, document, lambda cell: document.times_alone(cell) or 0.0, "limit, times that of its broker alone")
    rows.axhspan(*PAPER_TIMES, color=plots.COLOURS[4], alpha=0.25, zorder=0)
    rows.annotate("paper: 2x to 4.3x", (0.01, PAPER_TIMES[1]), xycoords=("axes fraction", "data"), fontsize=8, va="top")
    rows.legend(frameon=False, fontsize=8, ncols=4, loc="upper right")
    _draw_rows(rows_ms, document, _latency_ms, "latency at half the limit, ms (p50)")
    for axes in alone, rows, alone_ms, rows_ms:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def _latency_ms(cell: Cell) -> float:
    return cell.latency_half_ms[0] or 0.0


def _draw_singles(axes: Any, cells: list[Cell], label: str, value: Callable[[Cell], float]) -> None:
    axes.bar(range(len(cells)), [value(cell) for cell in cells], 0.6, color=plots.COLOURS[1])
    axes.set_xticks(range(len(cells)), [cell.system for cell in cells], fontsize=8, rotation=20)
    axes.set_ylabel(label, fontsize=9)


def _draw_rows(axes: Any, document: IldmDocument, value: Callable[[Cell], float], label: str) -> None:
    """Groups of bars, one for each pattern and algorithm, in them one for each system."""
    cells = [cell for cell in document.cells if cell.pattern not in ("single", "fan1")]
    groups = sorted({(cell.pattern, cell.algorithm) for cell in cells}, key=lambda group: (len(group[0]), group))
    systems = list(dict.fromkeys(cell.system for cell in cells))
    width = plots.BAR / max(1, len(systems))
    for place, system in enumerate(systems):
        found = [cell for cell in cells if cell.system == system]
        places = [
            groups.index((cell.pattern, cell.algorithm)) + (place - (len(systems) - 1) / 2) * width for cell in found
        ]
        colour = plots.COLOURS[SYSTEM_COLOURS.get(system, 5)]
        axes.bar(places, [value(cell) for cell in found], width * 0.92, color=colour, label=system)
        if value is not _latency_ms:
            _draw_model(axes, document, found, places, width)
    axes.set_xticks(range(len(groups)), [" ".join(group) for group in groups], fontsize=9)
    axes.set_ylabel(label, fontsize=9)


def _draw_model(axes: Any, document: IldmDocument, cells: list[Cell], places: list[float], width: float) -> None:
    for cell, place in zip(cells, places, strict=True):
        predicted, times = document.predicted(cell), document.times_alone(cell)
        if predicted and times:
            height = predicted / cell.egress * times
            axes.plot([place - width / 2, place + width / 2], [height, height], color="black", linewidth=1.4)
