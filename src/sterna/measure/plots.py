"""Pictures as PNG files, drawn without a display.

Colours differ in lightness as well as hue, so that a print in grey can still be read.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

COLOURS = ("#9ecae1", "#3182bd", "#08306b", "#e6862e", "#bdbdbd", "#737373")
BAR = 0.8
"""Share of a group's room its bars take."""


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def empty_figure(width: float, height: float) -> Any:
    """Only where `can_draw`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(axes: Any, columns: int) -> None:
    """A legend above the bars, and no frame."""
    axes.legend(loc="upper center", ncols=columns, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
