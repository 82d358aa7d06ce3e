"""The overlay of nodes that move: each says hello to all within reach, and partitions are the normal case.

A node needs no list of members, no count and no address: it hears who is there.  Neighbours that hear each other agree
on one leader per partition (`leadership`), and each node dials the one neighbour on its way there.  A new parent is
linked before the old one is let go (make before break); rings that stand for that moment are harmless, as messages of
an origin are taken from one path.  A neighbour whose last three hellos are missing is gone, and its link with it.
"""

from __future__ import annotations

from functools import partial
from random import Random

from sterna.overlay.datagrams import NAME_BYTES_MAX, Seal, checked_length
from sterna.overlay.hellos import HEARD_MAX, LOW_COUNTER, Hello, close_hello, identity_of, open_hello
from sterna.overlay.leadership import NO_PATH, LeaderOffer, LeaderPath, Leadership
from sterna.overlay.mobile_settings import FIRST_HEARD, MobileSettings, MobileTuning
from sterna.overlay.neighbours import Member, Now, OverlayMaker, OverlayWorld, Schedule
from sterna.vocabulary.errors import ConfigurationError
from sterna.vocabulary.settings import values_of

MISSED_HELLOS = 3
"""So many missing hellos, and a neighbour is gone."""
LATE = 0.2
"""Part of the pause between two hellos by which one may be late."""
SOON_S = 0.02
"""A hello with news goes out within this time; dice choose when, so that neighbours do not all speak at once."""
SPEAK_S = 0.05
"""Two hellos are at least this far apart."""
ECHOES = 16
"""A neighbour that names one of our last so many hellos has heard us lately."""


class _Neighbour:
    """One start of one node within reach."""

    __slots__ = (
        "address",
        "address_at",
        "boot",
        "children",
        "counter",
        "heard_at",
        "identity",
        "name",
        "passed_over_until",
        "path",
        "pause_s",
        "proved_at",
        "since",
        "told_at",
    )

    def __init__(self, hello: Hello, address: str, now: float) -> None:
        self.name = hello.name
        self.boot = hello.boot
        self.identity = hello.identity
        self.counter = -1
        self.address = address
        self.address_at = now
        self.heard_at = now
        #: When a hello last showed that it hears us; None: none has.
        self.proved_at: float | None = None
        #: Since when both have heard each other without a break.
        self.since = now
        self.path: LeaderPath = hello.path
        self.children = 0
        self.pause_s = hello.pause_s
        self.passed_over_until = 0.0
        #: When our hellos last named it.
        self.told_at = -1.0

    @property
    def gone_after_s(self) -> float:
        return self.pause_s * (MISSED_HELLOS + LATE)


class MobileOverlay:
    """A node's place among those within reach, and its part in leading them."""

    name = "mobile"
    may_form_rings = False

    def __init__(
        self, settings: MobileSettings, world: OverlayWorld, *, now: Now, schedule: Schedule, rng: Random
    ) -> None:
        checked_length("the node's name", settings.node, NAME_BYTES_MAX)
        self._settings = settings
        self._world = world
        self._now = now
        self._schedule = schedule
        self._rng = rng
        self._seal = Seal(settings.network, settings.key)
        self._boot = rng.getrandbits(64)
        self._identity = identity_of(settings.node, self._boot)
        self._counter = 0
        self._leadership = Leadership(
            settings.node,
            self._boot,
            stale_s=settings.stale_s,
            steady_s=settings.steady_s,
            first_heard=settings.parent == FIRST_HEARD,
        )
        self._neighbours: dict[bytes, _Neighbour] = {}
        self._links: dict[str, None] = {}
        self._held: dict[str, str] = {}
        #: The parent before this one, kept until this one is linked.
        self._former = ""
        #: Linked neighbours that were the parent when they were linked, or came to be.
        self._parents: dict[str, None] = {}
        self._parent_since = 0.0
        self._hello_at = 0.0
        self._said_at = -1.0
        #: When a hello with news is due before the next.
        self._news_at: float | None = None
        self._turn_at: float | None = None
        self._running = False
        self.counters = dict.fromkeys(("sent", "received", "refused", "repeated", "one_way", "crowded"), 0)
        self.changes = {"leader": 0, "parent": 0}

    # Called by the node.

    @property
    def upward(self) -> tuple[str, ...]:
        """The parent, and those before it that are still linked."""
        return tuple(dict.fromkeys([*([self._leadership.parent] if self._leadership.parent else []), *self._parents]))

    @property
    def addresses(self) -> list[str]:
        return []

    def start(self) -> None:
        self._running = True
        self._hello_at = self._now() + self._rng.uniform(0.0, SOON_S)
        self._turn_by(self._hello_at)

    def stop(self) -> None:
        """Say goodbye, so that the others need not find out."""
        if self._running:
            self._say_hello(self._now(), leaving=True)
            self._held = {}
            self._world.hold_links({})
        self._running = False

    def accepts(self, peer: str) -> str | None:
        """Any node that has the key may link: a child's link may come before the hello that says it is one."""
        if peer == self._settings.node:
            return f"this node is itself called {peer!r}; every node of a network needs a name of its own"
        return None

    def link_started(self, peer: str) -> None:
        self._links[peer] = None
        if peer == self._leadership.parent:
            self._parents[peer] = None
            self._former = ""
            self._turn_by(self._now())

    def link_interrupted(self, peer: str) -> None:
        """Hellos tell whether it is still there."""

    def link_ended(self, peer: str) -> None:
        self._links.pop(peer, None)
        self._parents.pop(peer, None)
        if peer == self._leadership.parent:
            self._parent_since = self._now()

    def add(self, *addresses: str) -> None:
        if addresses:
            raise ConfigurationError("nodes of a mobile overlay find each other by hellos; no address is needed")

    def remove(self, *addresses: str) -> None:
        if addresses:
            raise ConfigurationError(f"not known here: {', '.join(addresses)}; a mobile overlay knows no addresses")

    def view(self) -> dict[str, object]:
        now, path = self._now(), self._leadership.path
        return {
            "overlay": self.name,
            "node": self._settings.node,
            "state": self._state(),
            "root": path.leader.name,
            "parent": path.parent or None,
            "children": self._children(now),
            "hops": None if path.hops == NO_PATH else path.hops,
            "round": path.round,
            "links": sorted(self._links),
            "datagrams": dict(self.counters),
            "changes": dict(self.changes),
            "peers": {near.name: _view_of(near, now, self._is_mutual(near, now)) for near in self._heard(now)},
        }

    def _state(self) -> str:
        if not self._running:
            return "stopped"
        if self._leadership.path.hops == NO_PATH:
            return "waiting for the next round"
        return "attached" if self._leadership.parent else "leader"

    # Hellos.

    def datagram(self, sender: str, data: bytes) -> None:
        if not self._running:
            return
        hello = open_hello(self._seal, data)
        if hello is None:
            self.counters["refused"] += 1
        elif hello.name == self._settings.node:
            if hello.boot != self._boot:
                self.counters["refused"] += 1
        else:
            self._take(hello, sender, self._now())

    def _take(self, hello: Hello, sender: str, now: float) -> None:
        near = self._neighbour(hello, sender, now)
        if near is None:
            self.counters["crowded"] += 1
            return
        if sender == near.address:
            near.address_at = now
        if hello.counter <= near.counter:
            self.counters["repeated"] += 1  # by another interface, or recorded by somebody
            return
        self.counters["received"] += 1
        if now - near.address_at > near.gone_after_s:
            near.address, near.address_at = sender, now  # the interface it was heard by is silent
        near.counter, near.heard_at, near.pause_s = hello.counter, now, hello.pause_s
        if not self._echoes(hello):
            if now - near.since > near.gone_after_s:
                self.counters["one_way"] += 1
            return
        if not self._is_mutual(near, now):
            near.since = now
            self._only_life(near, now)
        near.proved_at = now
        before, near.path, near.children = near.path, hello.path, hello.children
        if hello.leaving:
            self._lose(near, "said goodbye")
            return
        self._leadership.heard(hello.path, near.name, now)
        if near.name == self._leadership.parent and hello.path.round > before.round:
            # Each node passes a round on right behind its parent: told by chance, rounds would come in bursts.
            self._hello_at = min(self._hello_at, self._soon(now))
            self._turn_by(self._hello_at)
        if not hello.path.leads_like(before) or near.since == now:
            self._turn_by(now + SPEAK_S / 2)

    def _neighbour(self, hello: Hello, sender: str, now: float) -> _Neighbour | None:
        near = self._neighbours.get(hello.identity)
        if near is None and len(self._neighbours) < self._settings.neighbours_max:
            near = self._neighbours[hello.identity] = _Neighbour(hello, sender, now)
            self._speak_soon(now)  # it is new: it should know that we hear it
        return near

    def _echoes(self, hello: Hello) -> bool:
        """Does the sender hear us, and did it lately?"""
        for identity, low in hello.heard:
            if identity == self._identity:
                return ((self._counter & LOW_COUNTER) - low) & LOW_COUNTER < ECHOES
        # In a crowd we are not named every time.
        near = self._neighbours[hello.identity]
        return len(hello.heard) == HEARD_MAX and self._is_mutual(near, self._now())

    def _only_life(self, near: _Neighbour, now: float) -> None:
        """A node that has started again is not there as it was before."""
        for other in list(self._neighbours.values()):
            if other.name == near.name and other is not near:
                del self._neighbours[other.identity]
                self._leadership.died(other.name, other.boot)

    def _is_mutual(self, near: _Neighbour, now: float) -> bool:
        return near.proved_at is not None and now - near.proved_at <= near.gone_after_s

    def _heard(self, now: float) -> list[_Neighbour]:
        return [near for near in self._neighbours.values() if now - near.heard_at <= near.gone_after_s]

    def _say_hello(self, now: float, *, leaving: bool = False) -> None:
        if now + 1e-9 >= self._hello_at:
            self._leadership.next_round(has_children=bool(self._children(now)))
            self._leadership.forget(now)
            # Those who follow a leader speak behind it, and by themselves only if it is late.
            early = 0.0 if self._leadership.leads else LATE / 2
            self._hello_at = now + self._settings.hello_s * (early + self._rng.uniform(1 - LATE / 2, 1.0))
        self._counter += 1
        self._said_at = now
        self.counters["sent"] += 1
        hello = Hello(
            self._settings.node,
            self._boot,
            self._counter,
            self._settings.hello_s,
            self._leadership.path,
            len(self._children(now)),
            self._named(now),
            leaving,
        )
        self._world.send_discovery(close_hello(self._seal, hello))

    def _named(self, now: float) -> tuple[tuple[bytes, int], ...]:
        """Whom we have heard: all, or the neighbours in the tree and the others in turn."""
        found = self._heard(now)
        if len(found) > HEARD_MAX:
            found.sort(key=lambda near: (near.name not in self._links, near.told_at))
            found = found[:HEARD_MAX]
        for near in found:
            near.told_at = now
        return tuple((near.identity, near.counter) for near in found)

    def _speak_soon(self, now: float) -> None:
        at = self._soon(now)
        if at < self._hello_at:
            self._news_at = at if self._news_at is None else min(at, self._news_at)
            self._turn_by(at)

    def _soon(self, now: float) -> float:
        return max(now + self._rng.uniform(0.0, SOON_S), self._said_at + SPEAK_S)

    # Turns: whatever is due, then the next.

    def _turn_by(self, at: float) -> None:
        if self._running and (self._turn_at is None or at < self._turn_at):
            self._turn_at = at
            self._schedule(at, lambda: self._turn_came(at))

    def _turn_came(self, at: float) -> None:
        # Of several turns asked for, only the earliest is taken: it sees to whatever is due and asks for the next.
        if at == self._turn_at and self._running:
            self._turn_at = None
            self._turn()

    def _turn(self) -> None:
        now = self._now()
        for near in list(self._neighbours.values()):
            if now - near.heard_at > near.gone_after_s:
                self._lose(near, "has not been heard")
        self._choose(now)
        if now + 1e-9 >= self._hello_at or (self._news_at is not None and now + 1e-9 >= self._news_at):
            self._news_at = None
            self._say_hello(now)
        due = min([self._hello_at, *([self._news_at] if self._news_at is not None else [])])
        self._turn_by(max(due, now + 0.001))

    def _lose(self, near: _Neighbour, why: str) -> None:
        del self._neighbours[near.identity]
        self._leadership.died(near.name, near.boot)
        if any(other.name == near.name for other in self._neighbours.values()):
            return  # it has started again
        if near.name in self._links:
            self._world.drop_link(near.name, f"node {near.name} {why}")
        self._turn_by(self._now() + 0.001)

    def _choose(self, now: float) -> None:
        """Look for leader and parent again, tell the others, and have the right links held."""
        leader, parent = self._leadership.leader, self._leadership.parent
        self._pass_over(now)
        if self._leadership.choose(self._offers(now), now):
            self._speak_soon(now)
        if self._leadership.leader != leader:
            self.changes["leader"] += 1
            self._world.report("leader-changed", leader=self._leadership.leader.name)
        if self._leadership.parent != parent:
            self.changes["parent"] += 1
            self._parent_since = now
            self._former = parent or ""
            if self._leadership.parent in self._links:
                self._parents[self._leadership.parent or ""] = None
            path = self._leadership.path
            self._world.report("parent-changed", parent=path.parent or None, hops=path.hops)
        self._hold(now)

    def _offers(self, now: float) -> list[LeaderOffer]:
        return [
            LeaderOffer(
                near.name,
                near.path,
                near.since,
                near.children,
                now < near.passed_over_until,
                now - near.heard_at > near.pause_s * (1 + LATE),
            )
            for near in self._neighbours.values()
            if self._is_mutual(near, now)
        ]

    def _pass_over(self, now: float) -> None:
        """A parent that is heard but gives no link is no use."""
        parent = self._by_name(self._leadership.parent or "", now)
        if parent is None or parent.name in self._links or parent.name not in self._held:
            return
        if now - self._parent_since >= self._settings.link_patience_s and now >= parent.passed_over_until:
            parent.passed_over_until = now + self._settings.pass_over_s
            self._parent_since = now
            self._world.report("parent-passed-over", parent=parent.name, address=parent.address)

    def _by_name(self, name: str, now: float) -> _Neighbour | None:
        """That neighbour, if both hear each other."""
        found = (near for near in self._neighbours.values() if near.name == name and self._is_mutual(near, now))
        return next(found, None)

    def _children(self, now: float) -> list[str]:
        own = self._settings.node
        return [near.name for near in self._heard(now) if self._is_mutual(near, now) and near.path.parent == own]

    def _hold(self, now: float) -> None:
        """The parent's link; besides, a link we dialled stays when it has become one to a child, the former parent's
        until the parent is linked, and everything while the way to the leader is lost for a moment."""
        parent = self._leadership.parent
        waiting = self._leadership.path.hops == NO_PATH
        children = self._children(now)
        for name in [name for name in self._parents if name != parent and name in children]:
            del self._parents[name]
        if self._former and (parent is None or parent in self._links):
            self._former = "" if not waiting else self._former
        wanted: dict[str, str] = {}
        for name in dict.fromkeys([parent or "", *self._held]):
            near = self._by_name(name, now) if name else None
            if near is not None and (name in (parent, self._former) or name in children or waiting):
                wanted[name] = self._held.get(name, near.address)
                if name not in self._links:
                    wanted[name] = near.address
        if wanted != self._held:
            self._held = wanted
            self._world.hold_links(dict(wanted))


def _view_of(near: _Neighbour, now: float, mutual: bool) -> dict[str, object]:
    return {
        "address": near.address,
        "state": "alive" if mutual else "heard, and does not hear us",
        "heard_s_ago": round(now - near.heard_at, 3),
        "since_s": round(now - near.since, 3),
        "root": near.path.leader.name,
        "parent": near.path.parent or None,
        "hops": None if near.path.hops == NO_PATH else near.path.hops,
    }


def mobile(member: Member, tuning: MobileTuning) -> OverlayMaker:
    settings = MobileSettings(
        network=member.network, node=member.node, key=member.key, **values_of(MobileTuning, tuning)
    )
    return partial(MobileOverlay, settings)
