"""Pictures over all moves: durations and silences, latencies, states over time, and what the paper's model says.

Figures 6.4 and 6.9 to 6.11 of the paper, and the one of states over time in its section 6.3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sterna.measure.papers.migration.document import MigrationDocument, MoveDuration
from sterna.measure.papers.migration.model import PAPER, Prediction, predict
from sterna.measure.plots import COLOURS, empty_figure

QOS_COLOURS = (COLOURS[3], COLOURS[1], COLOURS[2])
STATE_COLOURS = (
    "#9ecae1", "#3182bd", "#08306b", "#fdae6b", "#e6862e", "#8c2d04", "#c7e9c0", "#74c476",
    "#00441b", "#d9d9d9", "#737373", "#bcbddc", "#807dba", "#3f007d", "#fee391", "#ec7014",
)  # fmt: skip
LINES = ("-", "-", "--")
DELTAS_MS = tuple(range(-800, 801, 5))
MODEL_INTERVAL_MS = 10.0
"""Between two messages, in the paper's figures."""
COMPARED_MS = PAPER.source_to_target + PAPER.connecting
NEVER = ""


def draw_durations(told: MigrationDocument, file: Path) -> None:
    """Bars of means with least and greatest, by kind of client; lines where the model has it."""
    figure = empty_figure(14, 9)
    axes, below = figure.subplots(2, 1, sharex=True)
    durations = [one for one in told.durations if not one.experiment.startswith("latency")]
    names = list(dict.fromkeys(one.experiment for one in durations))
    width = 0.8 / len(told.kinds)
    for number, kind in enumerate(told.kinds):
        for place, name in enumerate(names):
            at = place - 0.4 + width * (number + 0.5)
            one = next(one for one in durations if (one.experiment, one.kind) == (name, kind))
            _duration_bar(axes, one, at, 0.92 * width, COLOURS[number], kind if not place else None)
            worst = _worst_silence(told, name, number)
            if worst is not None:
                below.bar(at, worst, 0.92 * width, color=COLOURS[number], edgecolor="black")
            if not number:
                axes.plot([place - 0.4, place + 0.4], [one.model_ms] * 2, "--", color=COLOURS[3])
                axes.plot([place - 0.4, place + 0.4], [one.limit_ms] * 2, "-", color=COLOURS[5])
    axes.plot([], [], "--", color=COLOURS[3], label="model, for this state")
    axes.plot([], [], "-", color=COLOURS[5], label="1.2 x the model's shortest")
    axes.set_ylabel("milliseconds")
    axes.set_title(f"From the order to move until the client is served at the target, {told.runs} run(s)")
    axes.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.06))
    below.axhline(1.0, color=COLOURS[5], linewidth=0.8)
    below.set_ylabel("times the mean gap")
    below.set_title("The longest silence of a stream around the move, worst run")
    below.set_xticks(range(len(names)), names, rotation=35, ha="right")
    for one_axes in (axes, below):
        one_axes.set_yscale("log")
        one_axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
        one_axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def _duration_bar(axes: Any, one: MoveDuration, at: float, width: float, colour: str, label: str | None) -> None:
    if one.served is not None:
        axes.bar(at, one.served.mean, width, color=colour, label=label, edgecolor="black")
        reach = [[one.served.mean - one.served.least], [one.served.greatest - one.served.mean]]
        axes.errorbar(at, one.served.mean, yerr=reach, color="black", capsize=2, linewidth=0.8)


def _worst_silence(told: MigrationDocument, name: str, kind: int) -> float | None:
    cells = [row.cells[kind] for row in told.rows if row.experiment == name]
    return max((cell.silence_ms / cell.gap_ms for cell in cells if cell.silence_ms and cell.gap_ms), default=None)


def draw_latency(told: MigrationDocument, file: Path) -> None:
    """How long a move takes over links that all take the same time."""
    figure = empty_figure(8, 5)
    axes = figure.add_subplot()
    latencies = [row.latency_ms for row in told.latency]
    axes.plot(latencies, [row.paper_ms for row in told.latency], "--", color=COLOURS[3], label="paper: 8 x latency")
    axes.plot(
        latencies,
        [row.shortest_ms for row in told.latency],
        ":",
        color=COLOURS[5],
        label="model's shortest: 6 x latency",
    )
    for number, kind in enumerate(told.kinds):
        found = [(row.latency_ms, row.served_ms[kind]) for row in told.latency if kind in row.served_ms]
        slope = next((one for one in told.slopes if one.kind == kind), None)
        fitted = "" if slope is None else f": {slope.times_latency:.1f} x latency + {slope.besides_ms:.0f} ms"
        axes.plot(*zip(*found, strict=True), "o-", color=COLOURS[number], label=f"{kind}{fitted}", markersize=5)
    axes.set_xlabel("latency of every link, one way, ms")
    axes.set_ylabel("ms until the client is served at the target")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Moves with brokers synced, by latency, {told.runs} run(s)")
    figure.savefig(file)


# -- states over time --


def draw_states(states: Sequence[dict[str, Any]], moves: Sequence[dict[str, Any]], name: str, file: Path) -> bool:
    """The states of each client of a run at both nodes, as their admin ports told; False: nothing is known."""
    clients = [move for move in moves if move["ordered"] is not None and move["arrived"] is not None]
    if not clients:
        return False
    figure = empty_figure(13, 1.5 + 1.5 * len(clients))
    found = figure.subplots(len(clients), 1, sharex=True, squeeze=False)[:, 0]
    colours: dict[str, str] = {}
    for axes, move in zip(found, clients, strict=True):
        _states_of(axes, [one for one in states if one["client"] == move["client"]], move, colours)
        axes.set_title(move["client"], fontsize=10, loc="left")
    found[-1].set_xlim(left=0)
    for state, colour in colours.items():
        found[0].barh(0, 0, color=colour, label=state)
    found[0].legend(frameon=False, ncols=9, loc="lower center", bbox_to_anchor=(0.5, 1.15), fontsize=8)
    found[-1].set_xlabel("milliseconds from the order to move")
    figure.suptitle(f"States of moves over time, {name}, last run (green: the client is served at the target)")
    figure.savefig(file)
    return True


def _states_of(axes: Any, states: Sequence[dict[str, Any]], move: dict[str, Any], colours: dict[str, str]) -> None:
    for row, node in enumerate(("target", "source")):
        told = sorted((one for one in states if one["node"] == node), key=lambda one: float(one["at"]))
        for one, later in pairwise(told):
            if one["state"] != NEVER:
                colour = colours.setdefault(one["state"], STATE_COLOURS[len(colours) % len(STATE_COLOURS)])
                begin, end = (1000 * (instant - move["ordered"]) for instant in (one["at"], later["at"]))
                axes.barh(row, end - begin, left=begin, color=colour, edgecolor="white", height=0.7)
    axes.axvline(1000 * (move["arrived"] - move["ordered"]), color="#31a354", linewidth=2)
    axes.set_yticks((0, 1), ("target", "source"))
    axes.set_ylim(-0.5, 1.5)
    axes.spines[["top", "right"]].set_visible(False)


# -- the model --


def swept(qos: int) -> list[Prediction]:
    """The paper varies the target's delay around a source that gets messages after 500 ms."""
    return [predict(qos, 500.0, 500.0 + COMPARED_MS - delta) for delta in DELTAS_MS]


def draw_model(file: Path) -> None:
    """Figures 6.9 to 6.11: over how far the target is ahead, by QoS."""
    figure = empty_figure(9, 12)
    sync, move, cost = figure.subplots(3, 1, sharex=True)
    for qos in range(3):
        found = swept(qos)
        style = {"color": QOS_COLOURS[qos], "linewidth": 3 - qos / 2, "linestyle": LINES[qos], "label": f"QoS {qos}"}
        sync.plot(DELTAS_MS, [one.sync for one in found], **style)
        move.plot(DELTAS_MS, [one.move for one in found], **style)
    for qos, name in enumerate(("loss", "duplication", "storage")):
        spans = [getattr(one, name) for one in swept(qos)]
        cost.plot(DELTAS_MS, spans, color=QOS_COLOURS[qos], linestyle=LINES[qos], label=f"{name}, QoS {qos}")
    messages = cost.secondary_yaxis(
        "right", functions=(lambda span: span / MODEL_INTERVAL_MS, lambda count: count * MODEL_INTERVAL_MS)
    )
    messages.set_ylabel(f"messages, one every {MODEL_INTERVAL_MS:g} ms")
    titles = (
        "Figure 6.9: until both streams are one",
        "Figure 6.10: the whole move",
        "Figure 6.11: messages of so long a time are lost, duplicated or stored",
    )
    for axes, title in zip((sync, move, cost), titles, strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_ylabel("milliseconds")
        axes.set_ylim(bottom=0)
        axes.axvspan(-PAPER.shortest, PAPER.shortest, color="#eeeeee", zorder=0)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    cost.set_xlabel("how far the target is ahead of the source when they compare, ms (grey: counts as synced)")
    figure.suptitle("The paper's model of a move: links 40, 40 and 10 ms")
    figure.savefig(file)
