"""Pictures of experiments as PNG files, drawn without a display.

Colours differ in lightness as well as hue, so that a print in grey can still be read.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from sterna.measure.errors import MeasurementError
from sterna.measure.papers.convergence.report import Report as ConvergenceReport
from sterna.measure.papers.traffic.report import Report as TrafficReport

COLOURS = ("#9ecae1", "#3182bd", "#08306b", "#e6862e", "#bdbdbd", "#737373")
LABEL_WIDTH = 12
"""Characters of a label under a bar before it goes on below."""
BAR = 0.8
"""Share of a group's room its bars take."""


def empty_figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MeasurementError("a picture needs matplotlib: pip install matplotlib, or leave --plot out") from None
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure = empty_figure(width, height)
    return figure, figure.add_subplot()


def draw_traffic(report: TrafficReport, file: Path) -> None:
    """Grouped bars per locality; the hatched top of a bar is publish forwarding, as in the paper's figure 6.1."""
    figure, axes = _figure(10, 5.5)
    localities = list(dict.fromkeys(one.locality for one in report.figures))
    names = list(dict.fromkeys(one.system for one in report.figures))
    by_place = {(one.system, one.locality): one for one in report.figures}
    width = BAR / len(names)
    for number, name in enumerate(names):
        colour = COLOURS[3] if name == names[-1] else COLOURS[number % 3]
        for group, locality in enumerate(localities):
            one = by_place[name, locality]
            at = group - BAR / 2 + width * (number + 0.5)
            label = name if not group else None
            axes.bar(at, one.control, width * 0.92, color=colour, label=label, edgecolor="black", linewidth=0.5)
            axes.bar(at, one.publish, width * 0.92, bottom=one.control, color="white", hatch="////", edgecolor=colour)
            text = f"{one.total / 1000:,.0f}\n({one.publish / 1000:,.0f})"
            axes.annotate(text, (at, one.total), ha="center", va="bottom", fontsize=8)
    axes.bar(0, 0, 0, color="white", hatch="////", edgecolor="black", label="of it: publish forwarding (in brackets)")
    axes.set_xticks(range(len(localities)), [f"{locality} % locality" for locality in localities])
    axes.set_ylabel("kB between brokers")
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value / 1000:,.0f}")
    axes.set_ylim(0, 1.25 * max(one.total for one in report.figures))
    axes.set_title(
        f"Bytes between five brokers: {report.plan['publishers']} publishers x {report.plan['messages']} messages, "
        f"QoS {report.plan['qos']}"
    )
    axes.legend(loc="upper center", ncols=3, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def draw_convergence(report: ConvergenceReport, file: Path) -> None:
    """Bars of means with least and greatest; the paper's range as a grey band where it has one.  Seconds, logarithmic:
    the paper's times are an order of magnitude away."""
    figure, axes = _figure(10, 5.5)
    for place, row in enumerate(report.rows):
        for number, (name, one) in enumerate((("tree stands", row.tree), ("all hear all", row.whole))):
            at = place + (number - 0.5) * BAR / 2
            label = name if not place else None
            axes.bar(at, one.mean, BAR / 2 * 0.92, color=COLOURS[number], label=label, edgecolor="black", linewidth=0.5)
            reach = [[one.mean - one.least], [one.greatest - one.mean]]
            axes.errorbar(at, one.mean, yerr=reach, color="black", capsize=4)
            axes.annotate(f"{one.mean:.2f}", (at, one.greatest), ha="center", va="bottom", fontsize=9)
        if " to " in row.paper:
            low, high = (float(word) for word in row.paper.split(" to "))
            axes.fill_between([place - BAR / 2, place + BAR / 2], low, high, color=COLOURS[4])
            axes.annotate(f"paper:\n{row.paper} s", (place, high), ha="center", va="bottom", fontsize=8)
        if row.target is not None:
            axes.plot([place - BAR / 2, place + BAR / 2], [row.target] * 2, "--", color=COLOURS[3])
    axes.plot([], [], "--", color=COLOURS[3], label="target")
    axes.set_yscale("log")
    axes.set_ylim(0.05, 300)
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.set_xticks(range(len(report.rows)), [fill(row.what, LABEL_WIDTH) for row in report.rows])
    axes.set_ylabel("seconds")
    axes.set_title(f"Spanning tree of {report.nodes} nodes, {len(report.runs)} run(s)")
    axes.legend(loc="upper center", ncols=4, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
