"""The common part of reports about two systems beside each other."""

from __future__ import annotations

from typing import Any

import msgspec

from sterna.measure.harness.comparison import RoundPlan
from sterna.measure.report import Machine, machine_in_words


class PairDocument(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str
    subject: str
    peer: str
    versions: dict[str, str]
    machine: Machine
    rounds: int
    warm_up_s: float
    measure_s: float

    def method(self, cores: str) -> str:
        """Where and how long, in words."""
        return (
            f"{'; '.join(dict.fromkeys(self.versions.values()))}.  {machine_in_words(self.machine)}; {cores}.  "
            f"Median of {self.rounds} round(s) of {self.measure_s:g} s or more after {self.warm_up_s:g} s of warm-up"
        )


def pair_fields(
    benchmark: str, pair: tuple[str, str], versions: dict[str, str], where: Machine, plan: RoundPlan
) -> dict[str, Any]:
    """The fields of a `PairDocument`."""
    return {
        "benchmark": benchmark,
        "subject": pair[0],
        "peer": pair[1],
        "versions": versions,
        "machine": where,
        "rounds": plan.rounds,
        "warm_up_s": plan.warm_up_s,
        "measure_s": plan.measure_s,
    }
