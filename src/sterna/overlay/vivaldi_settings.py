"""Settings of the coordinates, and the two presets: the paper's, and ours.

The springs, their adaptive time step and the height are Dabek, Cox, Kaashoek, Morris, "Vivaldi: a decentralized network
coordinate system", 2004.  The median filter, gravity and remembered coordinates are Ledlie, Gardner, Seltzer, "Network
coordinates in the wild", 2007.  The adjustment is Lee, Zhang, Sahu, Saha, "On suitability of Euclidean embedding of
internet hosts", 2006.  All but `height_step` and `replays` are as HashiCorp's serf has them, which also settled that
the error is relative and taken before the move.  Each of the additions can be switched off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from sterna.overlay.coordinates import DIMENSIONS, DIMENSIONS_MAX, HEIGHT_LEAST_S
from sterna.vocabulary.settings import Allowed, Choice

ADJUSTMENT_WINDOW: Final = 20
"""As serf has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VivaldiSettings:
    dimensions: Annotated[int, Allowed(1, DIMENSIONS_MAX)] = DIMENSIONS
    """Of the space.  All participants must say the same: coordinates of other dimensions are refused."""
    heights: bool = True
    """Coordinates have a height, the access link.  Off: a height stays at the least one."""
    height_step: Annotated[str, Choice(("whole", "plane"))] = "whole"
    """How a push is divided.  `whole`: between place and height by their parts of the distance, as in Vivaldi's paper.
    `plane`: the place takes all of it, and the height as much again as it is longer, as in ether and serf; heights of
    hosts that are near each other then never come to rest."""
    height_least_s: Annotated[float, Allowed(0, 1)] = HEIGHT_LEAST_S
    error_gain: Annotated[float, Allowed(0.001, 1)] = 0.25
    """The weight of a new sample in the error (c_e); higher forgets sooner."""
    error_floor_s: Annotated[float, Allowed(0, 1)] = 0.01
    """A round trip below this counts as this long in the error, so that the jitter of a local network is none.  0: the
    error is relative to every round trip."""
    move_gain: Annotated[float, Allowed(0.001, 1)] = 0.25
    """How much of the way to the right distance one sample moves the coordinate (c_c); higher is quicker, shakier."""
    median_of: Annotated[int, Allowed(1, 99)] = 3
    """A sample counts as the median of so many last ones to the same peer.  1: as itself."""
    replays: Annotated[int, Allowed(0, 1000)] = 4
    """With each sample, so many of the last ones to other peers are learned again, at random.  It costs no measurement,
    and a newcomer finds its place in a few rounds.  0: none."""
    adjustment_window: Annotated[int, Allowed(0, 1000)] = 0
    """The adjustment is half the mean of the last so many remaining errors.  0: none.  It brings hosts that
    are near each other apart: beside a node at 2 ms, estimates were 25 ms with it."""
    gravity_s: Annotated[float, Allowed(0, 1e9)] = 150.0
    """At this distance from the origin the pull back is one second per sample; it falls with the square.  0: none."""
    remembered_error: Annotated[float, Allowed(0, 1.5)] = 0.4
    """A participant begins where it last was, with at least this error, so that it soon leaves a place that is no
    longer true.  0: it begins at the origin and forgets where it was."""


DEFAULT: Final = VivaldiSettings()

PAPER: Final = VivaldiSettings(
    dimensions=8,
    height_step="plane",
    error_gain=0.9,
    error_floor_s=0.0,
    median_of=1,
    replays=0,
    adjustment_window=0,
    gravity_s=0.0,
    remembered_error=0.0,
)
"""The constants with which the paper's experiments were run."""

IN_THE_TREE: Final = VivaldiSettings(
    error_floor_s=0.0, median_of=1, replays=0, adjustment_window=0, remembered_error=0.0
)
"""Of the spanning tree, which filters round trips itself and whose datagrams carry no adjustment."""

PRESETS: Final = {"default": DEFAULT, "seed": PAPER}
