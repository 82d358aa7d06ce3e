"""Settings of a coordinator's decisions.  Those that cannot work are named at the start, with the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Final

from sterna.vocabulary.settings import Allowed, Choice

SELECTIONS: Final = ("steady", "seed", "measure-all")
SCALINGS: Final = ("steady", "seed", "off")
PRESSURES: Final = ("benefit", "seed", "ln-sum", "distance")
WEIGHTS: Final = ("gateways", "clients", "subscriptions", "deliveries")

GROUPS_MS: Final = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""The upper bounds of the paper's latency groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionTuning:
    """Which gateway goes to which node."""

    selection: Annotated[str, Choice(SELECTIONS)] = "steady"
    """`steady`: moves that no later pass undoes.  `seed`: the paper's rule, which can send a gateway to and fro.
    `measure-all`: the same by measured round trips only, as EMMA does it."""
    groups_ms: tuple[float, ...] = GROUPS_MS
    """Upper bounds (inclusive) of latency groups, rising.  Nodes of one group count as equally near."""
    theta: Annotated[float, Allowed(0, 1)] = 0.1
    """Within a group a gateway moves only if the other node has less to do by more than this part of the group's."""
    weight: Annotated[str, Choice(WEIGHTS)] = "subscriptions"
    """How much a gateway counts when nodes are compared."""
    usable_error: Annotated[float, Allowed(0.01, 1.5)] = 0.6
    """Of a gateway whose coordinate has a larger error only round trips that it measured count: it moves if it has
    measured its node, and causes starts if it has measured all nodes that run."""
    gain_ms: Annotated[float, Allowed(0, 10_000)] = 1.0
    """A nearer node must be nearer by this, ..."""
    gain_ratio: Annotated[float, Allowed(0, 1)] = 0.1
    """... by this part of the present distance, and by more than the estimates may be wrong, ..."""
    steady_s: Annotated[float, Allowed(0, 3600)] = 2.0
    """... for this long."""
    cool_down_s: Annotated[float, Allowed(0, 86_400)] = 20.0
    """A gateway that was moved is left alone for this long, unless its node stops."""
    moves_at_once: Annotated[int, Allowed(1, 10_000)] = 32
    """Gateways moved to one node in one pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTuning(SelectionTuning):
    """Which nodes run."""

    scaling: Annotated[str, Choice(SCALINGS)] = "steady"
    """`steady`: with patience, least life, floors and ceilings.  `seed`: the paper's listing, which has none of these.
    `off`: nodes are started and stopped by people."""
    pressure: Annotated[str, Choice(PRESSURES)] = "benefit"
    """`benefit`: milliseconds saved, by weight, per unit of price.  `seed`: orders of magnitude of milliseconds saved,
    summed over gateways.  `ln-sum` and `distance`: for comparison."""
    value: Annotated[str, Choice(WEIGHTS)] = "gateways"
    """How much a gateway counts in the benefit."""
    up: Annotated[float, Allowed(0, 1e12)] = 0.0
    """A node is started where the pressure is above this.  0: the model's own threshold."""
    down: Annotated[float, Allowed(0, 1e12)] = 0.0
    """A node is stopped where the pressure is below this.  0: the model's own threshold."""
    high_s: Annotated[float, Allowed(0, 3600)] = 4.0
    """The pressure must be high for so long."""
    calm_s: Annotated[float, Allowed(0, 86_400)] = 300.0
    """The pressure must be low for so long.  Lower: cheaper, and more starts when a crowd comes and goes."""
    young_s: Annotated[float, Allowed(0, 86_400)] = 60.0
    """A node that has served for less than this is not stopped."""
    starts_at_once: Annotated[int, Allowed(1, 100)] = 4
    """Nodes started in one pass."""
    witnesses: Annotated[int, Allowed(0, 100)] = 3
    """So many of the gateways concerned (all, if fewer) must have measured a worker before its node starts."""
    busy_cpu: Annotated[float, Allowed(0.05, 1)] = 0.8
    """A node that uses more of its processors than this is overloaded: a second one is started near it, ..."""
    busy_lag_ms: Annotated[float, Allowed(1, 60_000)] = 200.0
    """... one that runs later than this, ..."""
    busy_bytes_per_s: Annotated[float, Allowed(0)] = 0.0
    """... and one whose clients send and get more bytes in a second.  0: bytes are reported and decide nothing."""
    floors: Mapping[str, int] = field(default_factory=dict)
    """Site: nodes that are left running there at least."""
    ceilings: Mapping[str, int] = field(default_factory=dict)
    """Site: nodes that run there at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationTuning(ScalingTuning):
    """All that decisions depend on, besides the picture."""

    pass_s: Annotated[float, Allowed(0.1, 3600)] = 2.0
    """How often a coordinator decides."""


def problems(settings: AdaptationTuning, up: float, down: float) -> list[str]:
    """Sentences that say what cannot work and what to write instead.  The thresholds are those that will be used."""
    found = []
    bounds = settings.groups_ms
    if not bounds or bounds[0] <= 0 or any(low >= high for low, high in pairwise(bounds)):
        found.append(
            f"groups_ms must rise from a first bound above 0, such as {list(GROUPS_MS)}; it is {list(bounds)}."
        )
    if up <= down:
        found.append(
            f"up is {up:g} and down is {down:g}: a node would be stopped as soon as it was started. "
            f"Write up above down, such as up = {max(2 * down, 1):g}."
        )
    for site, floor in settings.floors.items():
        ceiling = settings.ceilings.get(site, floor)
        if floor < 0 or ceiling < floor:
            found.append(f"Site {site}: floor {floor} and ceiling {ceiling}. Write a ceiling of at least the floor.")
    if settings.cool_down_s < settings.pass_s and settings.selection == "steady":
        found.append(
            f"cool_down_s ({settings.cool_down_s:g}) is shorter than a pass ({settings.pass_s:g}): a gateway could be "
            f"moved again before anybody heard that it moved. Write cool_down_s = {2 * settings.pass_s:g} or more."
        )
    return found
