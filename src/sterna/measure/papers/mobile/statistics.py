"""Means with their confidence, and paired differences: the same seed gave both sides the same positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from sterna.measure.papers.mobile.sweep import MobileSample
from sterna.simulation.papers.radio_run import RunFigures

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for 95 %, by degrees of freedom from 1 on; beyond that 2.1."""

FigureOf = Callable[[RunFigures], float | None]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over runs."""

    mean: float
    deviation: float
    margin: float
    """The mean is within this of the truth, with 95 % confidence."""
    runs: int

    @property
    def is_above_zero(self) -> bool:
        return self.mean - self.margin > 0

    @property
    def is_below_zero(self) -> bool:
        return self.mean + self.margin < 0


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """None if there is nothing to estimate from."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = stdev(known) if len(known) > 1 else 0.0
    freedom = len(known) - 1
    factor = 0.0 if not freedom else _T_95[freedom - 1] if freedom <= len(_T_95) else 2.1
    return Estimate(
        mean=fmean(known), deviation=deviation, margin=factor * deviation / sqrt(len(known)), runs=len(known)
    )


class MobileResults:
    """All runs, found by what was run."""

    def __init__(self, samples: Sequence[MobileSample]) -> None:
        self.samples = samples
        self._runs: dict[tuple[str, str, float], dict[int, MobileSample]] = {}
        for sample in samples:
            plan = sample.figures.plan
            self._runs.setdefault((plan.protocol, plan.configuration, plan.speed_m_s), {})[plan.seed] = sample

    def runs(self, protocol: str, configuration: str, speed: float) -> list[MobileSample]:
        found = self._runs.get((protocol, configuration, speed), {})
        return [found[seed] for seed in sorted(found)]

    def has(self, protocol: str, configuration: str, speed: float) -> bool:
        return (protocol, configuration, speed) in self._runs

    def mean(self, figure: FigureOf, protocol: str, configuration: str, speed: float) -> Estimate | None:
        return estimate(figure(one.figures) for one in self.runs(protocol, configuration, speed))

    def difference(self, figure: FigureOf, one: str, other: str, configuration: str, speed: float) -> Estimate | None:
        """Of the first to the second, seed by seed."""
        ours = self._runs.get((one, configuration, speed), {})
        theirs = self._runs.get((other, configuration, speed), {})
        pairs = [
            (figure(ours[seed].figures), figure(theirs[seed].figures)) for seed in sorted(ours.keys() & theirs.keys())
        ]
        return estimate(a - b for a, b in pairs if a is not None and b is not None)
