"""Figures 7.3 (estimates against the truth), 7.4 (error by runs), 7.5 and 7.6 (neighbours by round) of the thesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sterna.measure.papers.coordinates.neighbours import RoundResult
from sterna.measure.plots import COLOURS, empty_figure

LINES = ("-", "--", ":", "-.")


def draw_pairs(pairs: Mapping[int, Sequence[tuple[float, float]]], file: Path) -> None:
    """Quantiles of estimates against quantiles of the truth, and the pairs themselves in grey."""
    figure = empty_figure(10, 3.2)
    for place, (count, points) in enumerate(pairs.items(), 1):
        axes = figure.add_subplot(1, len(pairs), place)
        true, guessed = sorted(one for one, _ in points), sorted(other for _, other in points)
        axes.plot(*zip(*points[::5], strict=True), ".", color=COLOURS[4], markersize=1, alpha=0.4)
        axes.plot(true, guessed, color=COLOURS[1], linewidth=2)
        axes.plot([0, max(true)], [0, max(true)], color=COLOURS[3], linewidth=1, linestyle="--")
        axes.set_title(f"{count} measurements", fontsize=9)
        axes.set_xlabel("true round trip, ms", fontsize=8)
        axes.set_ylim(0, 1.3 * max(true))
        if place == 1:
            axes.set_ylabel("estimated, ms", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.savefig(file)


def draw_errors(rows: Mapping[str, Mapping[int, float]], file: Path) -> None:
    figure = empty_figure(7, 4)
    axes = figure.add_subplot()
    for number, (name, errors) in enumerate(rows.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number // len(COLOURS)]}
        axes.plot(list(errors), list(errors.values()), label=name, **style)
    axes.set_ylim(0)
    axes.set_xlabel("measurements of each worker")
    axes.set_ylabel("RMSE of estimates, ms")
    axes.legend(frameon=False, fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def draw_neighbours(mixes: Mapping[str, Sequence[RoundResult]], file: Path) -> None:
    """By mix: the share of right neighbours, by coordinates and among those that answered, and of right regions."""
    columns = (len(mixes) + 1) // 2
    figure = empty_figure(2.3 * columns, 5)
    for place, (title, rounds) in enumerate(mixes.items(), 1):
        axes = figure.add_subplot(2, columns, place)
        numbers = range(1, len(rounds) + 1)
        axes.plot(numbers, [100 * one.region for one in rounds], color=COLOURS[4], label="region")
        axes.plot(numbers, [100 * one.neighbour for one in rounds], color=COLOURS[1], label="by coordinates")
        axes.plot(numbers, [100 * one.chosen for one in rounds], color=COLOURS[3], label="among answers")
        axes.set_title(title.replace(": ", "\n").replace(", ", "\n"), fontsize=7)
        axes.set_ylim(0, 103)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if place == 1:
            axes.legend(frameon=False, fontsize=6)
            axes.set_ylabel("% right", fontsize=8)
        if place > columns:
            axes.set_xlabel("round", fontsize=8)
    figure.savefig(file)
