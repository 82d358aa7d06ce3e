"""Which node is the root and which neighbour leads to it: distance vectors with rounds, in which circles cannot form.

The root numbers its rounds.  A node may follow a neighbour only if the neighbour's advert is *feasible*: of a newer
round than anything this node has advertised itself, or of the same round and nearer to the root than this node ever
was in it (the condition of DSDV, DUAL and Babel).  Along every branch (round, cost) then gets strictly better towards
the root, so there are no circles, and nobody counts to infinity.  A root whose rounds stop rising is no longer
believed in, whoever still speaks of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.overlay.datagrams import NO_PATH, Advert, RootIdentity
from sterna.overlay.tree_settings import TreeSettings

REMEMBER_S = 60.0
"""Roots nobody has spoken of for this long are dropped from memory: no datagram lives that long."""

CONTENDER_PART = 0.5
"""The part of `steady_s` for which a path must have been shorter before its peer is measured: a ping that was late is
no reason."""

RETIRED = 1 << 64
"""A round that no root reaches."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A peer in use, and what it says of its way to the root."""

    name: str
    advert: Advert
    round_trip_us: int
    passed_over: bool = False


@dataclass(frozen=True, slots=True)
class RootPath:
    """The way to the root that is in use: through `parent`, which said `round` and `beyond_us` of itself."""

    parent: str
    root: RootIdentity
    round: int
    beyond_us: int


class _Knowledge:
    """Knowledge about one life of a root."""

    def __init__(self) -> None:
        self.round = -1
        self.risen_at = 0.0
        self.heard_at = 0.0
        self.least_round = 0
        """Rounds below this one prove nothing: the root was found dead in the round before."""
        self.feasible: tuple[int, int] | None = None
        """The best (round, cost) that this node has advertised."""


class RootPaths:
    """This node's place in the tree."""

    def __init__(self, me: RootIdentity, settings: TreeSettings) -> None:
        self._me = me
        self._settings = settings
        self._known: dict[tuple[str, int], _Knowledge] = {}
        self._own_round = 0
        self._path: RootPath | None = None
        self._challenged_at: float | None = None
        self.root = me
        self.cost_us = 0
        self.contender: str | None = None
        """The peer through which the way has seemed much shorter for a while; the news of it may be old."""

    @property
    def parent(self) -> str | None:
        return self._path.parent if self._path else None

    @property
    def advert(self) -> Advert:
        """The path to the root that this node advertises.  Rounds are counted by the root alone: a node that has lost
        its path says nothing of them."""
        if self._path:
            return Advert(self.root, self._path.round, self.cost_us, self._path.parent)
        return Advert(self.root, self._own_round if self.root == self._me else 0, self.cost_us, "")

    def next_round(self) -> None:
        """Called now and then; rounds of a node that is not the root are seen by nobody."""
        self._own_round += 1

    def heard(self, advert: Advert, now: float) -> None:
        """Take note of how far the rounds of this root have come."""
        known = self._known.setdefault((advert.root.name, advert.root.boot), _Knowledge())
        known.heard_at = now
        if advert.round > known.round and advert.cost_us != NO_PATH:
            known.round, known.risen_at = advert.round, now

    def died(self, name: str, boot: int) -> None:
        """A peer was found dead: as a root it is believed in again only if its rounds rise further."""
        known = self._known.setdefault((name, boot), _Knowledge())
        known.least_round = max(known.least_round, known.round + 1)

    def retired(self, name: str, boot: int, now: float) -> None:
        """A peer has restarted: as it was before, it will not come back."""
        known = self._known.setdefault((name, boot), _Knowledge())
        known.least_round, known.heard_at = RETIRED, now

    def forget(self, now: float) -> None:
        """Drop what nobody has spoken of for long."""
        self._known = {key: known for key, known in self._known.items() if now - known.heard_at <= REMEMBER_S}

    def choose(self, offers: list[Offer], now: float, *, stale_s: float, steady_s: float) -> bool:
        """Look at everything again; True if root or parent changed, or the way was lost or found."""
        before = (self.root, self.parent, self.cost_us == NO_PATH)
        believed = [offer for offer in offers if self._believes(offer, now, stale_s)]
        self.root = self._best_root(believed)
        self.contender = None
        if self.root == self._me:
            self._path, self.cost_us = None, 0
        else:
            self._follow([offer for offer in believed if offer.advert.root == self.root], now, steady_s)
        return (self.root, self.parent, self.cost_us == NO_PATH) != before

    def _believes(self, offer: Offer, now: float, stale_s: float) -> bool:
        """Could this offer lead anywhere but back here, and is its root still there?"""
        advert = offer.advert
        if advert.root.name == self._me.name or advert.parent == self._me.name or advert.cost_us == NO_PATH:
            return False
        known = self._known[advert.root.name, advert.root.boot]
        return advert.round >= known.least_round and now - known.risen_at <= stale_s

    def _best_root(self, believed: list[Offer]) -> RootIdentity:
        best = self._me
        for offer in believed:
            if offer.advert.root.outranks(best):
                best = offer.advert.root
        return best

    def _follow(self, offers: list[Offer], now: float, steady_s: float) -> None:
        """Pick the parent among those that know a way to the root."""
        # Those passed over come into question only where nobody else even speaks of this root.
        offers = [offer for offer in offers if not offer.passed_over] or offers
        known = self._known[self.root.name, self.root.boot]
        feasible = [offer for offer in offers if _feasible(offer.advert, known.feasible)]
        best = min(feasible, key=lambda offer: (self._cost(offer), offer.name), default=None)
        staying = self._staying(offers)
        if staying:
            self._renew(staying, staying in feasible)
            nearest = min(offers, key=lambda offer: (self._cost(offer), offer.name))
            due = self._challenged(self._cost(nearest), now, steady_s)
            if best and due and self._much_nearer(self._cost(best)):
                self._take(best)
            elif self._challenged_at is not None and now - self._challenged_at >= steady_s * CONTENDER_PART:
                self.contender = nearest.name
        elif best:
            self._take(best)
        else:
            self._path, self.cost_us = None, NO_PATH
            return
        self._advertised(known)

    def _staying(self, offers: list[Offer]) -> Offer | None:
        """The present parent, if it still leads to the same root."""
        if self._path is None or self._path.root != self.root:
            return None
        return next((offer for offer in offers if offer.name == self.parent), None)

    def _renew(self, staying: Offer, feasible: bool) -> None:
        """Follow what the parent says now, unless it got worse within the round: what it said before still leads to the
        root, and the next round will tell."""
        assert self._path is not None
        if feasible:
            self._take(staying)
        else:
            self.cost_us = self._total(self._path.beyond_us, staying.round_trip_us)

    def _much_nearer(self, cost_us: int) -> bool:
        """Is this shorter than the present path by more than the threshold?"""
        margin = max(self._settings.change_s * 1e6, self._settings.change_ratio * self.cost_us)
        return cost_us + margin < self.cost_us

    def _challenged(self, nearest_us: int, now: float, steady_s: float) -> bool:
        """Has there been a much shorter path for long enough?  It need not have been feasible all the time: a peer that
        hears of each round a little later than we do would never be."""
        if not self._much_nearer(nearest_us):
            self._challenged_at = None
            return False
        if self._challenged_at is None:
            self._challenged_at = now
        return now - self._challenged_at >= steady_s

    def _take(self, offer: Offer) -> None:
        if offer.name != self.parent:
            self._challenged_at = None
        self._path = RootPath(offer.name, self.root, offer.advert.round, offer.advert.cost_us)
        self.cost_us = self._cost(offer)

    def _advertised(self, known: _Knowledge) -> None:
        """From now on only better adverts are feasible."""
        assert self._path is not None
        round_ = self._path.round
        if known.feasible is None or (-round_, self.cost_us) < (-known.feasible[0], known.feasible[1]):
            known.feasible = (round_, self.cost_us)

    def _cost(self, offer: Offer) -> int:
        return self._total(offer.advert.cost_us, offer.round_trip_us)

    def _total(self, beyond_us: int, round_trip_us: int) -> int:
        return min(beyond_us + round_trip_us + round(self._settings.hop_s * 1e6), NO_PATH - 1)


def _feasible(advert: Advert, feasible: tuple[int, int] | None) -> bool:
    return feasible is None or (-advert.round, advert.cost_us) < (-feasible[0], feasible[1])
