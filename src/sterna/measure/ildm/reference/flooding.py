"""Publication flooding (PF, section 3.1): each publication goes to every broker."""

from __future__ import annotations

from collections.abc import Iterable

from sterna.measure.ildm.reference.neighbourhood import Neighbour, Neighbourhood


class LiteralPublicationFlooding(Neighbourhood):
    def targets(self, message: bytes, source: str | None) -> Iterable[Neighbour]:
        return [neighbour for name, neighbour in self.neighbours.items() if name != source]
