"""One pass: a picture in, all decisions out, and why everything else stays as it is.

A dry run, `explain`, a replay and a test are this same call.  A frozen coordinator judges as always and orders nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sterna.adaptation.picture import Picture, PictureRoundTrips, Standing
from sterna.adaptation.placement import place
from sterna.adaptation.reasons import Decision, Judgement, Left, Move
from sterna.adaptation.scaling import scale
from sterna.adaptation.settings import AdaptationTuning


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """The result of a pass.  The standing belongs into the next picture."""

    judgements: tuple[Judgement, ...]
    standing: Standing

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(one for one in self.judgements if not isinstance(one, Left))

    def about(self, name: str) -> list[Judgement]:
        """Every judgement on a gateway or worker."""
        return [one for one in self.judgements if name in _subjects(one)]


def decide(picture: Picture, settings: AdaptationTuning) -> PassOutcome:
    distances = PictureRoundTrips(picture)
    placement = place(distances, settings)
    scaling = scale(distances, settings)
    standing = replace(scaling.standing, wishes=placement.wishes)
    return PassOutcome((*placement.judgements, *scaling.judgements), standing)


def _subjects(judgement: Judgement) -> tuple[str, ...]:
    if isinstance(judgement, Move):
        return (judgement.gateway, judgement.source, judgement.target)
    return (judgement.subject,) if isinstance(judgement, Left) else (judgement.worker,)
