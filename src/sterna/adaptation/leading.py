"""Which of several coordinators leads a region.  The others stand by, and know as much.

A coordinator that hears no leader of its region for `lead_after_s` leads with a term above all that it has heard of.
Of two leaders the one with the higher term goes on, of one term the one whose name comes last; the other stands by.
Two sides of a cut may each be led for its length: when it heals the lower term ends, and workers refuse its orders.

A new leader decides nothing until it has listened for `settle_s`: its picture is rebuilt from reports.  One that stood
by has listened all along: it waits for one report of everybody, `takeover_s`, which shows what the last leader ordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Annotated

from sterna.adaptation.orders import Authority
from sterna.adaptation.words import Leading
from sterna.vocabulary.settings import Allowed

RIVALS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingTuning:
    say_s: Annotated[float, Allowed(0.05, 60)] = 1.0
    """How often a leader says that it leads."""
    lead_after_s: Annotated[float, Allowed(0.1, 600)] = 4.0
    """A coordinator that has heard no leader of its region for so long leads it, ..."""
    settle_s: Annotated[float, Allowed(0, 600)] = 5.0
    """... and decides something when it has listened for so long, two periods of reports or more, ..."""
    takeover_s: Annotated[float, Allowed(0, 600)] = 2.0
    """... and led for so long: a period of reports."""


class CoordinatorLeadership:
    def __init__(self, name: str, settings: LeadingTuning, rng: Random, now: float) -> None:
        self.name = name
        self._settings = settings
        self._rng = rng
        self.term = 0
        """Its own while it leads, else the highest it has heard of."""
        self.leader = ""
        """Empty while there is none."""
        self.since = self._listens_since = now
        self.frozen = False
        """An operator wants nothing to change.  All coordinators of the region remember it."""
        self.changes = 0
        self._patience = self._drawn()
        self._heard_at = now
        self._said_at = -1e9
        #: Coordinators of this region -> when they were last heard.
        self._rivals: dict[str, float] = {}

    @property
    def is_leading(self) -> bool:
        return self.leader == self.name

    def may_act(self, now: float) -> bool:
        settings = self._settings
        has_listened = now - self._listens_since >= settings.settle_s
        return self.is_leading and not self.frozen and has_listened and now - self.since >= settings.takeover_s

    def heard(self, sender: str, word: Leading, now: float) -> None:
        """Another coordinator says that it leads."""
        if sender == self.name:
            return
        if sender in self._rivals or len(self._rivals) < RIVALS_MAX:
            self._rivals[sender] = now
        if Authority(word.term, sender) < Authority(self.term, self.leader):
            return
        if self.leader != sender:
            self.leader, self.since = sender, now
            self.changes += 1
            self._patience = self._drawn()
        self.term, self.frozen, self._heard_at = word.term, word.frozen, now

    def learned(self, term: int) -> None:
        """A worker has taken orders of this term."""
        if term <= self.term:
            return
        self.term = term + 1 if self.is_leading else term

    def freeze(self, frozen: bool) -> Leading | None:
        """The operator's word; said at once by a leader.  A coordinator that stands by cannot freeze a region."""
        self.frozen = frozen
        return self._word() if self.is_leading else None

    def tick(self, now: float) -> Leading | None:
        """The word to say now, if there is one."""
        if not self.is_leading and now - self._heard_at > self._patience:
            self.term, self.leader, self.since = self.term + 1, self.name, now
            self.changes += 1
            self._said_at = -1e9
        if not self.is_leading or now - self._said_at < self._settings.say_s:
            return None
        self._said_at = now
        return self._word()

    def _word(self) -> Leading:
        return Leading(self.term, self.frozen)

    def _drawn(self) -> float:
        """Two that stand by do not begin at the same moment."""
        return self._settings.lead_after_s * self._rng.uniform(1.0, 1.5)
