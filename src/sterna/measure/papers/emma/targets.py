"""Figures that an experiment is to reach, beside those of the thesis."""

from __future__ import annotations

import msgspec

from sterna.measure.report import Verdict, verdict


class EmmaTarget(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    figure: float
    bound: str
    thesis: str
    verdict: Verdict


def target(what: str, figure: float, bound: str, thesis: str, reached: bool | None) -> EmmaTarget:
    return EmmaTarget(what=what, figure=figure, bound=bound, thesis=thesis, verdict=verdict(reached))
