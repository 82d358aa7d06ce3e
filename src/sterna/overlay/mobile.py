"""The overlay of nodes that move: each says hello to all within reach, and partitions are the normal case.

A node needs no list of members, no count and no address: it hears who is there.  Neighbours that hear each other agree
on one leader per partition (`leadership`), and each node dials the one neighbour on its way there.  A new parent is
linked before the old one is let go (make before break); rings that stand for that moment are harmless, as messages of
an origin are taken from one path.  A neighbour whose last three hellos are missing is gone, and its link with it.
"""

from __future__ import annotations

from functools import partial
from math import ceil
from random import Random

from sterna.overlay.datagrams import NAME_BYTES_MAX, Seal, checked_length
from sterna.overlay.hello_pace import SOON_S, HelloPace
from sterna.overlay.hellos import (
    HEARD_MAX,
    Hello,
    ShortHello,
    close_hello,
    close_short_hello,
    identity_of,
    names_of,
    open_hello,
    path_said,
    room_for_heard,
)
from sterna.overlay.leadership import NO_PATH, LeaderOffer, LeaderPath, Leadership
from sterna.overlay.mobile_settings import FIRST_HEARD, MobileSettings, MobileTuning
from sterna.overlay.near import LATE, NodeInReach, echoed
from sterna.overlay.neighbours import Member, Now, OverlayMaker, OverlayWorld, Schedule
from sterna.vocabulary.errors import ConfigurationError
from sterna.vocabulary.settings import values_of

LONGS = 3
"""So many hellos with names are said one after the other when the names have changed."""
LONG_EVERY = 8
"""A hello with names is said at least so often, for those who have missed the last."""


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
        self._neighbours: dict[bytes, NodeInReach] = {}
        self._links: dict[str, None] = {}
        self._held: dict[str, str] = {}
        #: The parent before this one, kept until this one is linked.
        self._former = ""
        #: Linked neighbours that were the parent when they were linked, or came to be.
        self._parents: dict[str, None] = {}
        self._parent_since = 0.0
        self._pace = HelloPace(settings)
        #: `names_of` the last long hello, how many are to follow it, and how many short ones have.
        self._names = b""
        self._longs_due = 0
        self._shorts = 0
        self._hello_at = 0.0
        self._said_at = -1.0
        #: When a hello with news is due before the next.
        self._news_at: float | None = None
        self._turn_at: float | None = None
        self._running = False
        self.counters = dict.fromkeys(("sent", "received", "refused", "repeated", "unknown", "one_way", "crowded"), 0)
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
        self._hello_at = self._now() + self._rng.uniform(0.0, self._pace.jitter_s)
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
        for near in self._neighbours.values():
            near.is_interrupted &= near.name != peer
        if peer == self._leadership.parent:
            self._parents[peer] = None
            self._former = ""
            self._turn_by(self._now())

    def link_interrupted(self, peer: str) -> None:
        """It is there if its next hello comes; and perhaps another parent would be better."""
        for near in self._neighbours.values():
            if near.name == peer:
                near.link_interrupted()
                self._turn_by(near.heard_at + near.gone_after_s + 0.001)

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
            "peers": {near.name: _view_of(near, now, near.is_mutual(now)) for near in self._heard(now)},
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
        hello, now = open_hello(self._seal, data), self._now()
        if isinstance(hello, ShortHello):
            self._take_short(hello, sender, now)
        elif hello is None:
            self.counters["refused"] += 1
        elif hello.name != self._settings.node:
            self._take_long(hello, sender, now)
        elif hello.boot != self._boot:
            self.counters["refused"] += 1

    def _take_long(self, hello: Hello, sender: str, now: float) -> None:
        near = self._neighbour(hello, sender, now)
        if near is None:
            self.counters["crowded"] += 1
        elif self._is_fresh(near, hello, sender, now) and self._is_believed(near, hello, now):
            self._learn(near, hello.path, hello.children, now)
            if hello.leaving:
                self._lose(near, "said goodbye")

    def _take_short(self, hello: ShortHello, sender: str, now: float) -> None:
        near = self._neighbours.get(hello.identity)
        if near is None:
            self.counters["unknown"] += hello.identity != self._identity
        elif self._is_fresh(near, hello, sender, now):
            near.says_short, near.turns = True, hello.turns
            if self._is_believed(near, hello, now):
                self._learn(near, path_said(near.path, hello) or near.path, hello.children, now)

    def _is_fresh(self, near: NodeInReach, hello: Hello | ShortHello, sender: str, now: float) -> bool:
        if sender == near.address:
            near.address_at = now
        if hello.counter <= near.counter:
            self.counters["repeated"] += 1  # by another interface, or recorded by somebody
            return False
        self.counters["received"] += 1
        if now - near.address_at > near.gone_after_s:
            near.address, near.address_at = sender, now  # the interface it was heard by is silent
        near.counted(hello.counter)
        near.heard_at, near.pause_s = now, hello.pause_s
        return True

    def _is_believed(self, near: NodeInReach, hello: Hello | ShortHello, now: float) -> bool:
        """Does the sender hear us, and did it lately?  Where it hears many we are not named every time."""
        named = echoed(hello, self._identity, self._counter)
        if named is None and near.is_mutual(now):
            if len(hello.heard) == HEARD_MAX:
                near.proved_at = now
            if near.turns > 1 or (near.says_short and isinstance(hello, Hello)) or len(hello.heard) == HEARD_MAX:
                return True
        if not named:
            if now - near.since > near.gone_after_s:
                self.counters["one_way"] += 1
            return False
        if not near.is_mutual(now):
            near.since = now
            self._only_life(near, now)
        near.proved_at = now
        return True

    def _learn(self, near: NodeInReach, path: LeaderPath, children: int, now: float) -> None:
        before, near.path, near.children = near.path, path, children
        self._leadership.heard(path, near.name, now)
        if near.name == self._leadership.parent and path.round > before.round:
            # Each node passes a round on right behind its parent: told by chance, rounds would come in bursts.
            soon = max(self._soon(now), self._said_at + self._pace.pause_s * (1 - 1.5 * LATE))
            self._hello_at = min(self._hello_at, soon)
            self._turn_by(self._hello_at)
        if near.since == now:
            self._pace.changed()
        if not path.leads_like(before) or near.since == now:
            self._turn_by(now + SOON_S)

    def _neighbour(self, hello: Hello, sender: str, now: float) -> NodeInReach | None:
        near = self._neighbours.get(hello.identity)
        if near is None and len(self._neighbours) < self._settings.neighbours_max:
            near = self._neighbours[hello.identity] = NodeInReach(hello, sender, now)
            self._pace.changed()
            if hello.path.leader != self._leadership.leader or self._leadership.path.hops == NO_PATH:
                self._speak_soon(now)  # it should know that we hear it
        return near

    def _only_life(self, near: NodeInReach, now: float) -> None:
        """A node that has started again is not there as it was before."""
        for other in list(self._neighbours.values()):
            if other.name == near.name and other is not near:
                del self._neighbours[other.identity]
                self._leadership.died(other.name, other.boot)

    def _heard(self, now: float) -> list[NodeInReach]:
        return [near for near in self._neighbours.values() if near.is_heard(now)]

    def _say_hello(self, now: float, *, leaving: bool = False) -> None:
        if now + 1e-9 >= self._hello_at:
            self._leadership.next_round(has_children=bool(self._children(now)))
            self._leadership.forget(now)
            # Those who follow a leader speak behind it, and by themselves only if it is late.
            early = 0.0 if self._leadership.leads else LATE / 2
            self._hello_at = now + self._pace.pause_s * (early + self._rng.uniform(1 - LATE / 2, 1.0))
        self._counter += 1
        self._said_at = now
        self.counters["sent"] += 1
        found = self._heard(now)
        names = names_of(self._leadership.path)
        data = self._long(now, found, leaving) if leaving or self._is_long(names, found) else self._short(now, found)
        self._names = names
        self._pace.said(len(data), len(found))
        self._world.send_discovery(data)

    def _is_long(self, names: bytes, found: list[NodeInReach]) -> bool:
        """Names are said when they have changed, and now and then; more often where somebody is new, or of a
        version that knows no short hellos."""
        if names != self._names:
            self._longs_due = LONGS
        shorts_max = LONG_EVERY - 1 if all(near.says_short for near in found) else 1
        if self._longs_due or self._shorts >= shorts_max:
            self._longs_due, self._shorts = max(0, self._longs_due - 1), 0
            return True
        self._shorts += 1
        return False

    def _long(self, now: float, found: list[NodeInReach], leaving: bool) -> bytes:
        path, name = self._leadership.path, self._settings.node
        named, _ = self._named(now, found, room_for_heard(self._settings.hello_bytes, False, path, name))
        children = len(self._children(now))
        hello = Hello(name, self._boot, self._counter, self._pace.pause_s, path, children, named, leaving)
        return close_hello(self._seal, hello)

    def _short(self, now: float, found: list[NodeInReach]) -> bytes:
        path, children = self._leadership.path, len(self._children(now))
        room = room_for_heard(self._settings.hello_bytes, True, path, self._settings.node)
        named, turns = self._named(now, found, room)
        hello = ShortHello(
            self._identity,
            self._counter,
            self._pace.pause_s,
            self._names,
            path.leader.age,
            path.round,
            path.hops,
            children,
            turns,
            named,
        )
        return close_short_hello(self._seal, hello)

    def _named(self, now: float, found: list[NodeInReach], room: int) -> tuple[tuple[tuple[bytes, int], ...], int]:
        """Whom we have heard: all, or the neighbours in the tree, the new ones, and the others in turn; and in how
        many hellos all are named."""
        turns = 1
        if len(found) > room:
            first = [near for near in found if near.name in self._links or not near.is_mutual(now)]
            rest = [near for near in found if near not in first]
            first.sort(key=lambda near: near.told_at)
            rest.sort(key=lambda near: near.told_at)
            kept = min(len(first), max(1, room - 1))
            turns = max(ceil(len(first) / kept) if kept else 1, ceil(len(rest) / max(1, room - kept)))
            found = (first[:kept] + rest)[:room]
        for near in found:
            near.told_at = now
        return tuple((near.identity, near.counter) for near in found), turns

    def _speak_soon(self, now: float) -> None:
        at = self._soon(now)
        if at < self._hello_at:
            self._news_at = at if self._news_at is None else min(at, self._news_at)
            self._turn_by(at)

    def _soon(self, now: float) -> float:
        return max(now + self._rng.uniform(0.0, self._pace.jitter_s), self._said_at + self._pace.apart_s)

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
            if not near.is_heard(now) and not near.link_brought(self._world.silent_s(near.name), now):
                self._lose(near, "has not been heard")
        self._choose(now)
        if now + 1e-9 >= self._hello_at or (self._news_at is not None and now + 1e-9 >= self._news_at):
            self._news_at = None
            self._say_hello(now)
        due = min([self._hello_at, *([self._news_at] if self._news_at is not None else [])])
        self._turn_by(max(due, now + 0.001))

    def _lose(self, near: NodeInReach, why: str) -> None:
        del self._neighbours[near.identity]
        self._pace.changed()
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
            self._pace.changed()
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
                near.is_suspect(now),
                near.is_lossy,
            )
            for near in self._neighbours.values()
            if near.is_mutual(now)
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

    def _by_name(self, name: str, now: float) -> NodeInReach | None:
        """That neighbour, if both hear each other."""
        found = (near for near in self._neighbours.values() if near.name == name and near.is_mutual(now))
        return next(found, None)

    def _children(self, now: float) -> list[str]:
        own = self._settings.node
        return [near.name for near in self._heard(now) if near.is_mutual(now) and near.path.parent == own]

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


def _view_of(near: NodeInReach, now: float, mutual: bool) -> dict[str, object]:
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
