"""Figures 4.4 to 4.8 of the thesis, drawn from our runs: all protocols, with 95 % confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sterna.measure.papers.mobile.document import CellFigures, MobileDocument
from sterna.measure.papers.mobile.statements import SPEED
from sterna.measure.papers.mobile.statistics import Estimate
from sterna.measure.plots import COLOURS, empty_figure, finish

MARKERS = "osD^vP"
LINES = ("-", "--", "-.", ":", "-", "--")


def draw(told: MobileDocument, directory: Path) -> list[Path]:
    """All pictures into the directory; their names."""
    directory.mkdir(parents=True, exist_ok=True)
    speed = SPEED if SPEED in told.speeds else told.speeds[-1]
    drawn = [_rates(told, directory / "figure-4-4.png"), _delivered(told, speed, directory / "figure-4-5.png")]
    for name, figure, label, log in (
        ("figure-4-6.png", "delay_s", "delay, s", True),
        ("figure-4-7.png", "hops", "hops", False),
    ):
        drawn.append(_by_size(told, speed, figure, label, directory / name, log=log))
    drawn.append(_frames(told, speed, directory / "figure-4-8.png"))
    return drawn


def _line(axes: Any, places: Sequence[Any], found: Sequence[Estimate | None], number: int, label: str) -> None:
    known = [(place, one) for place, one in zip(places, found, strict=True) if one is not None]
    if not known:
        return
    axes.errorbar(
        [place for place, _ in known],
        [one.mean for _, one in known],
        yerr=[one.margin for _, one in known],
        label=label,
        color=_COLOURS[number % len(_COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        linestyle=LINES[number % len(LINES)],
        markersize=4,
        capsize=2,
        linewidth=1.2,
    )


_COLOURS = (COLOURS[2], COLOURS[1], COLOURS[5], COLOURS[3], "#31a354", COLOURS[0])


def _cells(told: MobileDocument) -> dict[tuple[str, str, float], CellFigures]:
    return {(one.protocol, one.configuration, one.speed_m_s): one for one in told.cells}


def _rates(told: MobileDocument, file: Path) -> Path:
    """Figure 4.4, and beside it the fair rate."""
    cells = _cells(told)
    figure = empty_figure(3.1 * len(told.configurations), 6.4)
    for row, (name, label) in enumerate((("rate", "rate of the thesis"), ("fair_rate", "fair rate"))):
        for column, size in enumerate(told.configurations):
            axes = figure.add_subplot(2, len(told.configurations), row * len(told.configurations) + column + 1)
            for number, protocol in enumerate(told.protocols):
                found = [cells[protocol, size, speed].figures[name] for speed in told.speeds]
                _line(axes, told.speeds, found, number, protocol)
            axes.set_ylim(0, 1.05)
            axes.set_title(size, fontsize=9)
            axes.set_xlabel("m/s")
            if not column:
                axes.set_ylabel(label)
            axes.spines[["top", "right"]].set_visible(False)
            if not row and not column:
                axes.legend(loc="lower left", frameon=False, fontsize=8)
    return _save(figure, "Figure 4.4: delivery rate, by size and speed", file)


def _delivered(told: MobileDocument, speed: float, file: Path) -> Path:
    cells = _cells(told)
    figure = empty_figure(11, 4.2)
    by_size, by_speed = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    size = "C16" if "C16" in told.configurations else told.configurations[-1]
    for number, protocol in enumerate(told.protocols):
        found = [cells[protocol, one, speed].figures["delivered"] for one in told.configurations]
        _line(by_size, told.configurations, found, number, protocol)
        found = [cells[protocol, size, one].figures["delivered"] for one in told.speeds]
        _line(by_speed, told.speeds, found, number, protocol)
    by_size.set_title(f"a: at {speed:g} m/s", fontsize=9)
    by_speed.set_title(f"b: {size}", fontsize=9)
    by_speed.set_xlabel("m/s")
    by_size.set_ylabel("messages delivered")
    for axes in (by_size, by_speed):
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        finish(axes, 3)
    return _save(figure, "Figure 4.5: messages delivered to all subscribers", file)


def _by_size(told: MobileDocument, speed: float, name: str, label: str, file: Path, *, log: bool) -> Path:
    cells = _cells(told)
    figure = empty_figure(6.5, 4.2)
    axes = figure.add_subplot(1, 1, 1)
    for number, protocol in enumerate(told.protocols):
        found = [cells[protocol, size, speed].figures[name] for size in told.configurations]
        _line(axes, told.configurations, found, number, protocol)
    if log:
        means = [one.figures[name] for one in told.cells if one.speed_m_s == speed]
        least = min((one.mean for one in means if one is not None and one.mean > 0), default=0.01)
        axes.set_yscale("log")
        axes.set_ylim(least / 3, 10 * axes.get_ylim()[1])
    else:
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_ylabel(label)
    finish(axes, 3)
    number_of = "4.6" if log else "4.7"
    return _save(figure, f"Figure {number_of}: {label.split(',')[0]} of delivered messages, {speed:g} m/s", file)


def _frames(told: MobileDocument, speed: float, file: Path) -> Path:
    """Figure 4.8, and beside it by role."""
    cells = _cells(told)
    figure = empty_figure(13, 4.2)
    panels = {role: figure.add_subplot(1, 4, place) for place, role in enumerate(("", *_ROLES), 1)}
    for number, protocol in enumerate(told.protocols):
        for role, axes in panels.items():
            of_size = [cells[protocol, size, speed] for size in told.configurations]
            found = [(one.roles[role] if role else one.figures)["frames"] for one in of_size]
            _line(axes, told.configurations, found, number, protocol)
    for role, axes in panels.items():
        axes.set_yscale("log")
        axes.set_title(f"per {role or 'node'}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    first = panels[""]
    first.set_ylabel("frames sent")
    first.legend(loc="upper left", frameon=False, fontsize=8)
    return _save(figure, f"Figure 4.8: frames sent, {speed:g} m/s (acknowledgements of hops apart)", file)


_ROLES = ("broker", "subscriber", "publisher")


def _save(figure: Any, title: str, file: Path) -> Path:
    figure.suptitle(title, fontsize=11)
    figure.savefig(file)
    return file
