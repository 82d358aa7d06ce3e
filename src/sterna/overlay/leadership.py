"""The leader of a partition, and the neighbour that is the way to it: one leader per partition, a tree without circles.

A leader numbers its rounds.  A node may follow a neighbour only if what that says is *feasible*: of a newer round than
anything this node has said itself, or of the same round and nearer to the leader than this node ever was in it, as in
`root_paths`.  Of two leaders the one that has led others for longer goes on, by powers of two of its rounds; of equals
the one whose name comes first.  A node that nobody follows has led for no time: it joins those it meets, and they stay
as they are.  A leader whose rounds stop rising is no longer believed in, whoever still speaks of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

NO_PATH = 255
"""The hops of a node that has lost its way to the leader."""
REMEMBER_S = 60.0
"""Leaders nobody has spoken of for this long are dropped from memory."""
STALE_ROUNDS = 8
"""A leader whose rounds have not risen for the time of so many is gone."""
PACE_WEIGHT = 0.25
"""Of the last round, in the time between rounds."""
LEADERS_MAX = 4096
"""Leaders remembered; with more, those heard of earliest are dropped."""


@dataclass(frozen=True, slots=True)
class Leader:
    """One life of a node that leads, or could."""

    name: str
    boot: int
    age: int = field(default=0, compare=False)
    """For how long it has led others: the bits of the number of its rounds with followers."""

    def outranks(self, other: Leader) -> bool:
        return (-self.age, self.name) < (-other.age, other.name)


@dataclass(frozen=True, slots=True)
class LeaderPath:
    """A node's way to its leader, as it tells others."""

    leader: Leader
    round: int
    hops: int
    parent: str
    """The next node on the way; empty if there is none."""

    def leads_like(self, other: LeaderPath) -> bool:
        """Do they differ in the round alone?"""
        mine, its = (self.leader, self.hops, self.parent), (other.leader, other.hops, other.parent)
        return mine == its and self.leader.age == other.leader.age


@dataclass(frozen=True, slots=True)
class LeaderOffer:
    """A neighbour that hears us, and its way to the leader."""

    name: str
    path: LeaderPath
    since: float
    """Since when it has been a neighbour."""
    children: int = 0
    passed_over: bool = False
    is_suspect: bool = False
    """It may stay the parent, and not become it."""
    is_lossy: bool = False
    """Half of what it says is lost."""


class _Rounds:
    """Knowledge about one life of a leader."""

    def __init__(self) -> None:
        self.round = -1
        self.first = ""
        """The neighbour that brought this round first."""
        self.risen_at = 0.0
        self.pace_s = 0.0
        """The time between two rounds, or longer."""
        self.heard_at = 0.0
        self.least_round = 0
        """Rounds below this one prove nothing: the leader was found dead in the round before."""
        self.feasible: tuple[int, int] | None = None
        """The best (round, hops) that this node has told others."""


class Leadership:
    """This node's place in its partition."""

    def __init__(self, name: str, boot: int, *, stale_s: float, steady_s: float, first_heard: bool) -> None:
        self._name = name
        self._boot = boot
        self._stale_s = stale_s
        self._steady_s = steady_s
        self._first_heard = first_heard
        self._known: dict[tuple[str, int], _Rounds] = {}
        self._own_round = 0
        self._followed = 0
        self._challenged_at: float | None = None
        self.path = LeaderPath(self._me(), 0, 0, "")

    @property
    def leader(self) -> Leader:
        return self.path.leader

    @property
    def parent(self) -> str | None:
        return self.path.parent or None

    @property
    def leads(self) -> bool:
        return self.path.leader.name == self._name

    def _me(self) -> Leader:
        return Leader(self._name, self._boot, self._followed.bit_length())

    def next_round(self, *, has_children: bool) -> None:
        """Called with every hello; rounds of a node that does not lead are seen by nobody."""
        self._own_round += 1
        if not self.leads:
            self._followed = 0
        elif has_children:
            self._followed += 1
        if self.leads:
            self.path = LeaderPath(self._me(), self._own_round, 0, "")

    def heard(self, path: LeaderPath, by: str, now: float) -> None:
        """Take note of how far the rounds of this leader have come."""
        known = self._knowledge(path.leader.name, path.leader.boot)
        known.heard_at = now
        if path.round > known.round:
            if known.round >= 0:
                pace = min(self._stale_s, (now - known.risen_at) / (path.round - known.round))
                known.pace_s = max(pace, known.pace_s * (1 - PACE_WEIGHT) + pace * PACE_WEIGHT)
            known.round, known.risen_at, known.first = path.round, now, by

    def died(self, name: str, boot: int) -> None:
        """A neighbour is gone: as a leader it is believed in again only if its rounds rise further."""
        known = self._knowledge(name, boot)
        known.least_round = max(known.least_round, known.round + 1)

    def forget(self, now: float) -> None:
        """Drop leaders nobody has spoken of for long."""
        self._known = {key: known for key, known in self._known.items() if now - known.heard_at <= REMEMBER_S}

    def _knowledge(self, name: str, boot: int) -> _Rounds:
        known = self._known.get((name, boot))
        if known is None:
            if len(self._known) >= LEADERS_MAX:
                del self._known[min(self._known, key=lambda key: self._known[key].heard_at)]
            known = self._known[name, boot] = _Rounds()
        return known

    def choose(self, offers: list[LeaderOffer], now: float) -> bool:
        """Look at everything again; True if leader, parent or hops changed."""
        before = self.path
        believed = [offer for offer in offers if self._believes(offer.path, now)]
        leader = self._me() if self.leads else Leader(self._name, self._boot)
        for offer in believed:
            if offer.path.leader.outranks(leader):
                leader = offer.path.leader
        if leader.name == self._name:
            self._challenged_at = None
            self.path = LeaderPath(leader, self._own_round, 0, "")
        else:
            self._follow(leader, [offer for offer in believed if offer.path.leader == leader], now)
        return not self.path.leads_like(before)

    def _believes(self, path: LeaderPath, now: float) -> bool:
        """Could this lead anywhere but back here, and is its leader still there?"""
        if path.leader.name == self._name or path.parent == self._name or path.hops >= NO_PATH - 1:
            return False
        known = self._known.get((path.leader.name, path.leader.boot))
        if known is None:
            return False  # nobody has spoken of it for long, not even who once offered the way to it
        stale_s = max(self._stale_s, STALE_ROUNDS * known.pace_s)
        return path.round >= known.least_round and now - known.risen_at <= stale_s

    def _follow(self, leader: Leader, offers: list[LeaderOffer], now: float) -> None:
        """Pick the parent among those that know a way to the leader."""
        offers = [offer for offer in offers if not offer.passed_over] or offers
        known = self._known[leader.name, leader.boot]
        feasible = [offer for offer in offers if _is_feasible(offer.path, known.feasible)]
        staying = next((offer for offer in offers if offer.name == self.parent), None)
        if staying is not None and staying not in feasible and self.leader != leader:
            staying = None  # it leads there by a way that may be ours
        best = self._best([offer for offer in feasible if not offer.is_suspect], known)
        if staying is None or (best is not None and self._is_due(best, staying, now)):
            self._challenged_at = None
            staying = best
        if staying is None:
            self.path = LeaderPath(leader, known.round, NO_PATH, "")
            return
        if staying in feasible:
            self.path = LeaderPath(leader, staying.path.round, staying.path.hops + 1, staying.name)
        else:  # it got worse within the round: the way it told of before still leads there, and the next round tells
            self.path = LeaderPath(leader, self.path.round, self.path.hops, staying.name)
        told = (self.path.round, self.path.hops)
        if known.feasible is None or _is_better(told, known.feasible):
            known.feasible = told

    def _best(self, feasible: list[LeaderOffer], known: _Rounds) -> LeaderOffer | None:
        by_preference: Callable[[LeaderOffer], object] = lambda offer: (  # noqa: E731
            self._first_heard and offer.name != known.first,
            offer.is_lossy,
            offer.path.hops,
            offer.since,
            offer.children,
            offer.name,
        )
        return min(feasible, key=by_preference, default=None)  # type: ignore[arg-type]

    def _is_due(self, best: LeaderOffer, staying: LeaderOffer, now: float) -> bool:
        """Has there been a shorter way, or one that loses less, for long enough?"""
        if best.name == staying.name:
            self._challenged_at = None
            return False
        if self._first_heard:
            return True
        if (best.is_lossy, best.path.hops) >= (staying.is_lossy, staying.path.hops):
            self._challenged_at = None
            return False
        if self._challenged_at is None:
            self._challenged_at = now
        patience_s = self._steady_s / 4 if staying.is_lossy and not best.is_lossy else self._steady_s
        return now - self._challenged_at >= patience_s


def _is_feasible(path: LeaderPath, feasible: tuple[int, int] | None) -> bool:
    return feasible is None or _is_better((path.round, path.hops), feasible)


def _is_better(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Of a newer round, or nearer in the same."""
    return (-one[0], one[1]) < (-other[0], other[1])
