"""The overlay that builds itself: nodes find each other by datagrams, measure how far apart they are, agree on the most
capable as root, and each dials the one neighbour on its shortest way there.

Nothing waits for the tree: every node always has its present place, links that still serve stay up, and a change is one
`hold_links` in which the old link is dropped before the new one is dialled.  `beacon_exchange` knows which nodes
are alive, `root_paths` which of them leads where; this module runs both and turns the outcome into links.
"""

from __future__ import annotations

from functools import partial
from random import Random

from sterna.overlay.beacon_exchange import BeaconExchange
from sterna.overlay.datagrams import NAME_BYTES_MAX, NO_PATH, Advert, RootIdentity, checked_length
from sterna.overlay.neighbours import Member, Now, OverlayMaker, OverlayWorld, Schedule, checked_address
from sterna.overlay.peers import Peer, PeerState
from sterna.overlay.root_paths import Offer, RootPaths
from sterna.overlay.tree_settings import TreeSettings, TreeTuning
from sterna.vocabulary.settings import values_of

SOON_S = 0.01
"""How soon a change is looked at, and told to others: what changes within it is one change."""

BEAT_S = 0.05
"""Other turns are at least this far apart: pings that fall due together leave together."""


class SpanningTreeOverlay:
    """A node's place in the tree, and its part in building it."""

    name = "spanning-tree"
    may_form_rings = False

    def __init__(
        self, settings: TreeSettings, world: OverlayWorld, *, now: Now, schedule: Schedule, rng: Random
    ) -> None:
        checked_length("the node's name", settings.node, NAME_BYTES_MAX)
        if settings.address:
            checked_address(settings.address)
        boot = rng.getrandbits(64)
        self._settings = settings
        self._world = world
        self._now = now
        self._schedule = schedule
        self._paths = RootPaths(RootIdentity(settings.capability, settings.node, boot), settings)
        self._company = BeaconExchange(settings, world, self, boot, now=now, rng=rng)
        self._peers = self._company.peers
        self._links: dict[str, None] = {}
        self._held: dict[str, str] = {}
        self._parent_since = 0.0
        self._listen_until = 0.0
        self._forming_until = 0.0
        self._round_at = 0.0
        self._turn_at: float | None = None
        self._running = False

    # Called by the node.

    @property
    def upward(self) -> tuple[str, ...]:
        return (self._paths.parent,) if self._paths.parent else ()

    @property
    def addresses(self) -> list[str]:
        return self._company.discovery.seeds

    def start(self) -> None:
        now = self._now()
        self._running = True
        self._listen_until = now + self._settings.listen_s
        self._forming_until = now + self._settings.young_s
        self._round_at = now
        self._company.start(now)
        self._turn()

    def stop(self) -> None:
        """Say goodbye, so that the others need not find out."""
        if self._running:
            self._company.tell_all(leaving=True)
            self._held = {}
            self._world.hold_links({})
        self._running = False

    def datagram(self, sender: str, data: bytes) -> None:
        if self._running:
            self._company.datagram(sender, data)

    def accepts(self, peer: str) -> str | None:
        """Any node that has the key may link: a child's link often comes before the datagram that says it is one."""
        if peer == self._settings.node:
            return f"this node is itself called {peer!r}; every node of a network needs a name of its own"
        return None

    def link_started(self, peer: str) -> None:
        self._links[peer] = None

    def link_interrupted(self, peer: str) -> None:
        """Its process may have died: ask it at once."""
        if self._running:
            self._company.doubt(peer, self._settings.probe_s)

    def link_ended(self, peer: str) -> None:
        """The strongest hint there is that a peer died: ask it at once."""
        self._links.pop(peer, None)
        if peer == self._paths.parent:
            self._parent_since = self._now()
        if self._running:
            self._company.doubt(peer, self._settings.probe_s)

    def add(self, *addresses: str) -> None:
        """Call these addresses too, from now on."""
        self._company.discovery.add(addresses, self._now())
        self._turn_by(self._now())

    def remove(self, *addresses: str) -> None:
        self._company.discovery.remove(addresses)

    def view(self) -> dict[str, object]:
        paths = self._paths
        return {
            "overlay": self.name,
            "node": self._settings.node,
            "state": self._place(),
            "forming": self._is_forming(self._now()),
            "root": paths.root.name,
            "parent": paths.parent,
            "children": [peer.name for peer in self._peers.by_name.values() if self._is_child(peer)],
            "cost_ms": None if paths.cost_us == NO_PATH else paths.cost_us / 1000,
            "round": paths.advert.round,
            "capability": self._settings.capability,
            "links": sorted(self._links),
            "seeds": self._company.discovery.seeds,
            "datagrams": dict(self._company.counters),
            "peers": {
                peer.name: _peer_view(peer, self._company.estimate_s(peer)) for peer in self._peers.by_name.values()
            },
        }

    def _is_forming(self, now: float) -> bool:
        """The root is new: shorter paths to it are taken at once, and whoever takes one changes its link."""
        return now < self._forming_until

    def _place(self) -> str:
        if not self._running:
            return "stopped"
        if self._now() < self._listen_until:
            return "listening"
        if self._paths.cost_us == NO_PATH:
            return "waiting for the next round"
        return "attached" if self._paths.parent else "root"

    # Events of the beacon exchange.

    @property
    def advert(self) -> Advert:
        return self._paths.advert

    def neighbours(self) -> set[str]:
        """The parent, the children, and whoever else is linked."""
        children = {peer.name for peer in self._peers.by_name.values() if self._is_child(peer)}
        return children | self._links.keys() | {self._paths.parent or ""}

    def learned(self, peer: Peer, before: Advert | None) -> None:
        assert peer.advert is not None
        self._paths.heard(peer.advert, self._now())
        if before is None or not before.leads_like(peer.advert):
            self._turn_by(self._now() + SOON_S)
        root = self._paths.root
        if before and before.root == root != peer.advert.root and not peer.advert.root.outranks(root):
            # It has left our root for a lesser one: is the root still there?
            self._company.doubt(root.name, self._settings.probe_s)

    def changed(self, peer: Peer) -> None:
        if peer.state is PeerState.DEAD:
            self._paths.died(peer.name, peer.boot)
            if peer.name in self._links and peer.name not in self._held:
                # It dialled, so nobody else lets go of it before the link's own time is up.
                self._world.drop_link(peer.name, f"node {peer.name} does not answer")
        self._turn_by(self._now() + SOON_S)

    def restarted(self, peer: Peer, earlier_boot: int) -> None:
        self._paths.retired(peer.name, earlier_boot, self._now())
        self._world.report("peer-restarted", peer=peer.name)
        self._turn_by(self._now() + SOON_S)

    def attend_by(self, at: float) -> None:
        self._turn_by(max(at, self._now() + BEAT_S))

    # Turns: whatever is due, then the next.

    def _turn_by(self, at: float) -> None:
        """Take a turn at `at` at the latest."""
        if self._running and (self._turn_at is None or at < self._turn_at):
            self._turn_at = at
            self._schedule(at, lambda: self._turn_came(at))

    def _turn_came(self, at: float) -> None:
        # Of several turns asked for, only the earliest is taken: it sees to whatever is due and asks for the next.
        if at == self._turn_at and self._running:
            self._turn()

    def _turn(self) -> None:
        now = self._now()
        self._turn_at = None
        if now >= self._round_at:
            self._paths.next_round()
            self._paths.forget(now)
            self._round_at = now + self._settings.round_s
        due = self._company.attend(now)
        self._choose(now)
        due = min(due, self._round_at, self._listen_until if now < self._listen_until else due)
        self._turn_by(max(due, now + BEAT_S))

    # The tree.

    def _choose(self, now: float) -> None:
        """Look for root and parent again, tell the others, and have the right links held."""
        root, parent = self._paths.root, self._paths.parent
        self._pass_over(now)
        stale_s = 2 * self._company.dead_after_s()
        steady_s = 0.0 if self._is_forming(now) else self._settings.steady_s
        had_path = self._paths.cost_us != NO_PATH
        if self._paths.choose(self._offers(now), now, stale_s=stale_s, steady_s=steady_s):
            self._company.tell_all()
        if self._paths.root != root or (had_path and self._paths.cost_us == NO_PATH):
            self._company.stir(now)
        if self._paths.contender is not None:
            self._company.measure(self._paths.contender, now)
        if self._paths.root != root:
            self._forming_until = now + self._settings.young_s
            self._world.report("root-changed", root=self._paths.root.name)
        if self._paths.parent != parent:
            self._parent_since = now
            self._world.report("parent-changed", parent=self._paths.parent, cost_us=self._paths.cost_us)
        self._hold(now)

    def _offers(self, now: float) -> list[Offer]:
        """Peers that could be the parent.  A suspect may stay the parent until all is certain, but not become it."""
        return [
            Offer(peer.name, peer.advert, peer.round_trips.microseconds, now < peer.passed_over_until)
            for peer in self._peers.by_name.values()
            if (peer.state is PeerState.ALIVE or (peer.usable and peer.name == self._paths.parent))
            and peer.advert
            and peer.round_trips.samples
        ]

    def _pass_over(self, now: float) -> None:
        """A parent that answers but gives no link is no use."""
        parent = self._peers.by_name.get(self._paths.parent or "")
        if parent is None or parent.name in self._links or parent.name not in self._held:
            return
        waited = now - max(self._parent_since, self._listen_until)
        if waited >= self._settings.link_patience_s and now >= parent.passed_over_until:
            parent.passed_over_until = now + self._settings.pass_over_s
            self._parent_since = now
            self._world.report("parent-passed-over", parent=parent.name, address=parent.address)

    def _hold(self, now: float) -> None:
        """The parent's link; besides, a link we dialled stays when it has become one to a child, and everything stays
        while the way to the root is lost for a moment."""
        if now < self._listen_until:
            return
        parent = self._peers.by_name.get(self._paths.parent or "")
        wanted = {parent.name: parent.address} if parent else {}
        waiting = self._paths.cost_us == NO_PATH
        for name in self._held:
            peer = self._peers.by_name.get(name)
            if peer and peer is not parent and (self._is_child(peer) or (waiting and peer.usable)):
                wanted[name] = peer.address
        if wanted != self._held:
            self._held = wanted
            self._world.hold_links(dict(wanted))

    def _is_child(self, peer: Peer) -> bool:
        return peer.usable and peer.advert is not None and peer.advert.parent == self._settings.node


def _peer_view(peer: Peer, estimate_s: float | None) -> dict[str, object]:
    smoothed = peer.round_trips.smoothed_s
    return {
        "address": peer.address,
        "state": peer.state.value,
        "round_trip_ms": None if smoothed is None else round(smoothed * 1000, 3),
        "estimate_ms": None if estimate_s is None else round(estimate_s * 1000, 3),
        "capability": peer.capability,
        "root": peer.advert.root.name if peer.advert else None,
        "parent": (peer.advert.parent or None) if peer.advert else None,
    }


def spanning_tree(member: Member, tuning: TreeTuning) -> OverlayMaker:
    settings = TreeSettings(
        network=member.network,
        node=member.node,
        address=member.address,
        key=member.key,
        cpu=member.cpu,
        memory=member.memory,
        seeds=member.neighbours,
        **values_of(TreeTuning, tuning),
    )
    return partial(SpanningTreeOverlay, settings)
