"""Which gateways a leader asks to measure which workers, because their next cycle may be minutes away.

Nobody is moved to a worker that has not answered, and no node starts that nobody has measured: a leader asks the
gateways whose answer is all that such a decision waits for.  Where there are no more than `FEW` workers, it asks every
gateway about each of them once: so few distances fix no coordinate, however small its error, and measuring all of them
costs no more than a cycle.

A gateway that does not answer is asked again after `AGAIN_S`, and no pass asks more than `ASKED_MAX` of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import nsmallest

from sterna.adaptation.picture import KnownWorker, Picture
from sterna.adaptation.reasons import Judgement, Left, Rule
from sterna.adaptation.words import FOUND_MAX

AGAIN_S = 5.0
FEW = 10
ASKED_MAX = 256


class Proofs:
    def __init__(self, witnesses: int) -> None:
        """`witnesses`: so many gateways are asked about a worker whose node may start."""
        self._witnesses = witnesses
        #: (gateway, worker) -> when it was asked.
        self._asked: dict[tuple[str, str], float] = {}

    def due(self, picture: Picture, judgements: Iterable[Judgement]) -> dict[str, list[KnownWorker]]:
        """Gateway -> the workers it is to measure now."""
        now = picture.now
        self._asked = {pair: at for pair, at in self._asked.items() if now - at < AGAIN_S}
        found: dict[str, list[KnownWorker]] = defaultdict(list)
        for gateway, worker in self._wanted(picture, judgements):
            is_known = gateway in found
            if (gateway, worker.name) in self._asked or (not is_known and len(found) >= ASKED_MAX):
                continue
            if len(found[gateway]) < FOUND_MAX:
                self._asked[gateway, worker.name] = now
                found[gateway].append(worker)
        return found

    def _wanted(self, picture: Picture, judgements: Iterable[Judgement]) -> Iterator[tuple[str, KnownWorker]]:
        if len(picture.workers) <= FEW:
            for gateway in picture.gateways.values():
                unmeasured = (one for one in picture.workers.values() if picture.measured_s(gateway, one.name) is None)
                yield from ((gateway.name, worker) for worker in unmeasured)
        for one in judgements:
            if not isinstance(one, Left) or one.reason.rule is not Rule.UNPROVED:
                continue
            if one.subject in picture.gateways:
                target = picture.workers.get(str(dict(one.reason.numbers).get("target", "")))
                if target is not None:
                    yield one.subject, target
            elif (worker := picture.workers.get(one.subject)) is not None:
                yield from ((gateway, worker) for gateway in self._nearest(picture, worker))

    def _nearest(self, picture: Picture, worker: KnownWorker) -> list[str]:
        """Gateways that have no fresh round trip to the worker, those that seem to be near it first."""
        there = worker.coordinate
        unmeasured = [
            (there.distance_s(gateway.coordinate), gateway.name)
            for gateway in picture.gateways.values()
            if picture.measured_s(gateway, worker.name) is None
        ]
        return [name for _, name in nsmallest(self._witnesses, unmeasured)]
