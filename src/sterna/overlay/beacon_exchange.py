"""The exchange of beacons with other nodes: it discovers them, believes them after a proof, measures them by pings,
and notices when they fall silent.

Every datagram in or out passes here; the `BeaconListener` decides what it means for the tree.  A datagram without the
network's key costs one MAC; a recording of an authentic one costs at most an answer.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from sterna.overlay.datagrams import VERSION, Advert, Beacon, Seal, introductions
from sterna.overlay.discovery import INTRODUCTIONS_MAX, Discovery
from sterna.overlay.neighbours import Now, OverlayWorld
from sterna.overlay.peers import Peer, PeerEvent, Peers, PeerState
from sterna.overlay.tree_settings import TreeSettings

CANDIDATE_S = 2.0
"""A candidate that has not answered for this long is forgotten."""

PROBES = 6
"""Questions to a suspect before it is given up."""

ANSWERS_PER_S = 20.0
"""Answers to one peer that has not proved itself: what is replayed to us is not echoed without bound."""

ON_THE_WAY_S = 0.05
"""What comes this long after a round trip is over was not under way when it began."""


class BeaconListener(Protocol):
    """Who draws the conclusions."""

    @property
    def advert(self) -> Advert:
        """What this node says of its way to the root."""

    def learned(self, peer: Peer, before: Advert | None) -> None:
        """A peer in use has a new advert."""

    def changed(self, peer: Peer) -> None:
        """A peer came into another state."""

    def restarted(self, peer: Peer, earlier_boot: int) -> None:
        """A peer has restarted."""

    def attend_by(self, at: float) -> None:
        """`attend` has something to do at this time."""


class BeaconExchange:
    """The peers, and the datagrams exchanged with them."""

    def __init__(
        self, settings: TreeSettings, world: OverlayWorld, listener: BeaconListener, boot: int, *, now: Now, rng: Random
    ) -> None:
        self._settings = settings
        self._world = world
        self._listener = listener
        self._boot = boot
        self._now = now
        self._rng = rng
        self._seal = Seal(settings.network, settings.key)
        self._counter = 0
        self._reported: dict[str, None] = {}
        self.peers = Peers(settings.peers_max)
        self.discovery = Discovery(settings)
        self.counters = {"sent": 0, "received": 0, "refused": 0, "repeated": 0}

    def dead_after_s(self) -> float:
        """With so many peers that pings are far apart, silence says less."""
        return max(self._settings.dead_after_s, 3 * self._ping_s())

    def _ping_s(self) -> float:
        return max(self._settings.ping_s, self.peers.usable / self._settings.pings_per_s)

    # Datagrams in.

    def datagram(self, sender: str, data: bytes) -> None:
        self.counters["received"] += 1
        beacon = self._seal.open(data)
        if beacon is None:
            self._refused()
        elif beacon.name == self._settings.node:
            self._namesake(sender, beacon)
        else:
            peer = self.peers.by_name.get(beacon.name) or self._admitted(sender, beacon)
            if peer and beacon.boot not in peer.earlier_boots:
                self._take(peer, sender, beacon)

    def _refused(self) -> None:
        self.counters["refused"] += 1
        if self._seal.other_version is not None:
            self._report_once("overlay-version-differs", theirs=self._seal.other_version, ours=VERSION)

    def _namesake(self, sender: str, beacon: Beacon) -> None:
        """Our own call comes back from the multicast group; or another node has our name."""
        if beacon.boot == self._boot:
            return
        if beacon.echo is not None and self.discovery.questions.elapsed(beacon.echo, self._now()) is not None:
            self._report_once("name-taken", address=beacon.address or sender)
        elif beacon.ask is not None and beacon.discover:
            self._send(beacon.address or sender, self._beacon(echo=beacon.ask))

    def _admitted(self, sender: str, beacon: Beacon) -> Peer | None:
        peer = self.peers.admit(beacon.name, beacon.address or sender, beacon.boot, self._now())
        if peer is None:
            self._report_once("peers-full", peer=beacon.name, peers_max=self._settings.peers_max)
        return peer

    def _take(self, peer: Peer, sender: str, beacon: Beacon) -> None:
        """An authentic beacon: is it new, does it prove anything, what does it say?"""
        now = self._now()
        same_life = beacon.boot == peer.boot and peer.state is not PeerState.CANDIDATE
        if same_life and not peer.window.take(beacon.counter):
            self.counters["repeated"] += 1
            return
        elapsed = self._elapsed(peer, beacon, now)
        if elapsed is None and (not same_life or peer.state is PeerState.DEAD):
            self._challenge(peer, sender, beacon, now)
            return
        if not same_life:
            self._begin_life(peer, beacon, now)
        peer.heard_at = now
        if elapsed is not None:
            peer.proved_at = now
            peer.round_trips.sample(elapsed)
        if beacon.counter == peer.window.highest:
            self._learn(peer, sender, beacon, now)
        self._happened(
            peer, PeerEvent.LEFT if beacon.leaving else PeerEvent.HEARD if elapsed is None else PeerEvent.PROVED
        )
        self._answer(peer, beacon)

    def _elapsed(self, peer: Peer, beacon: Beacon, now: float) -> float | None:
        """The round trip, if this beacon echoes a nonce of ours."""
        if beacon.echo is None:
            return None
        elapsed = peer.questions.elapsed(beacon.echo, now)
        peer.questions.close(beacon.echo)
        return self.discovery.questions.elapsed(beacon.echo, now) if elapsed is None else elapsed

    def _challenge(self, peer: Peer, sender: str, beacon: Beacon, now: float) -> None:
        """It may be a recording: believe nothing, ask for a proof."""
        if peer.state is PeerState.CANDIDATE:
            peer.boot, peer.address = beacon.boot, beacon.address or sender
        if now >= peer.answer_at:
            peer.answer_at = now + 1 / ANSWERS_PER_S
            self._send(beacon.address or sender, self._beacon(ask=peer.questions.ask(now, self._rng), echo=beacon.ask))
            self._listener.attend_by(peer.ping_at)

    def _begin_life(self, peer: Peer, beacon: Beacon, now: float) -> None:
        """The peer has proved itself for the first time since it started."""
        if beacon.boot != peer.boot:
            earlier = peer.boot
            peer.begin_life(beacon.boot)
            self._listener.restarted(peer, earlier)
        peer.ping_at, peer.young_until = now, now + self._settings.young_s
        peer.window.take(beacon.counter)

    def _learn(self, peer: Peer, sender: str, beacon: Beacon, now: float) -> None:
        """The newest word of this peer."""
        before, peer.advert = peer.advert, beacon.advert
        peer.capability = beacon.capability
        peer.address = beacon.address or sender
        self._listener.learned(peer, before)
        for address in beacon.introduced:
            self._introduced(address, now)

    def _introduced(self, address: str, now: float) -> None:
        known = any(peer.address == address and peer.usable for peer in self.peers.by_name.values())
        if not known and address != self._settings.address and self.discovery.worth_calling(address, now):
            self._send(address, self._beacon(ask=self.discovery.questions.ask(now, self._rng)))

    def _answer(self, peer: Peer, beacon: Beacon) -> None:
        if beacon.ask is None or not peer.usable:
            return
        self._send(peer.address, self._beacon(echo=beacon.ask))
        if beacon.discover:
            self._introduce_to(peer)

    def _introduce_to(self, peer: Peer) -> None:
        """Tell a peer of all the others."""
        portions = introductions(self._beacon(), self.peers.addresses(besides=peer.name))
        for portion in portions[:INTRODUCTIONS_MAX]:
            self._send(peer.address, self._beacon(introduced=portion))

    # Who is alive.

    def doubt(self, name: str, patience_s: float) -> None:
        """Ask a peer whether it is still there; without an answer for so long (and two round trips) it is dead."""
        peer = self.peers.by_name.get(name)
        if peer and peer.state is PeerState.ALIVE:
            peer.gone_at = self._now() + patience_s + 2 * (peer.round_trips.smoothed_s or 0.0)
            self._happened(peer, PeerEvent.DOUBTED)
            self._ping(peer, self._now())
            self._listener.attend_by(peer.ping_at)

    def _happened(self, peer: Peer, event: PeerEvent) -> None:
        """One step of the peer's state, and what follows from it."""
        now, before = self._now(), peer.state
        if not peer.enter(event, now):
            return
        self.peers.recount()
        if before in (PeerState.CANDIDATE, PeerState.DEAD) and peer.state is PeerState.ALIVE:
            peer.ping_at, peer.young_until = now, now + self._settings.young_s
            self._world.report("peer-found", peer=peer.name, address=peer.address)
            self._introduce_to(peer)
        elif peer.state is PeerState.DEAD:
            self._world.report("peer-lost", peer=peer.name, reason=event.value)
        self._listener.changed(peer)

    # What is due.

    def attend(self, now: float) -> float:
        """Do everything that is due; returns when the next thing is."""
        if now >= self.discovery.call_at:
            self._call(now)
        dead_after = self.dead_after_s()
        due = [self._attend_to(peer, now, dead_after) for peer in list(self.peers.by_name.values())]
        return min([self.discovery.call_at, *due])

    def _call(self, now: float) -> None:
        """Is there anybody?"""
        call = self._beacon(ask=self.discovery.questions.ask(now, self._rng), discover=True)
        self._send(None, call)
        for address in self.discovery.seeds:
            self._send(address, call)
        self.discovery.called(now)

    def _attend_to(self, peer: Peer, now: float, dead_after: float) -> float:
        if peer.state is PeerState.ALIVE:
            self._watch(peer, now, dead_after)
        elif peer.state is PeerState.SUSPECT:
            self._probe(peer, now)
        elif now - peer.since >= (CANDIDATE_S if peer.state is PeerState.CANDIDATE else self._settings.forget_s):
            self._happened(peer, PeerEvent.SILENT)
        if now >= peer.ping_at and peer.state is not PeerState.FORGOTTEN:
            self._ping(peer, now)
        return min(peer.ping_at, peer.gone_at) if peer.state is PeerState.SUSPECT else peer.ping_at

    def _watch(self, peer: Peer, now: float, dead_after: float) -> None:
        """Has a living peer been quiet, or does it speak without hearing us?"""
        if now - peer.proved_at >= 2 * dead_after:
            self._happened(peer, PeerEvent.SILENT)
        elif now - peer.heard_at >= dead_after / 2:
            self.doubt(peer.name, peer.heard_at + dead_after - now)

    def _probe(self, peer: Peer, now: float) -> None:
        """The doubts are over when the time is up, one way or the other."""
        if now >= peer.gone_at:
            on_the_way_until = peer.since + (peer.round_trips.smoothed_s or 0.0) + ON_THE_WAY_S
            self._happened(peer, PeerEvent.PROVED if peer.heard_at > on_the_way_until else PeerEvent.SILENT)

    def _ping(self, peer: Peer, now: float) -> None:
        peer.ping_at = now + self._pause(peer, now) * self._rng.uniform(0.9, 1.1)
        self._send(peer.address, self._beacon(ask=peer.questions.ask(now, self._rng)))

    def _pause(self, peer: Peer, now: float) -> float:
        """How long until the next ping."""
        if peer.state is PeerState.SUSPECT:
            return self._settings.probe_s / PROBES
        if peer.state is PeerState.DEAD:
            return self._settings.dead_ping_s
        if peer.state is PeerState.CANDIDATE or now < peer.young_until:
            return self._settings.young_ping_s
        return self._ping_s()

    # Datagrams out.

    def tell_all(self, *, leaving: bool = False) -> None:
        """Everybody in use hears our advert now, not with the next ping."""
        beacon = self._beacon(leaving=leaving)
        for peer in self.peers.by_name.values():
            if peer.usable:
                self._send(peer.address, beacon)

    def _beacon(
        self,
        *,
        ask: int | None = None,
        echo: int | None = None,
        discover: bool = False,
        leaving: bool = False,
        introduced: tuple[str, ...] = (),
    ) -> Beacon:
        self._counter += 1
        return Beacon(
            name=self._settings.node,
            address=self._settings.address,
            boot=self._boot,
            counter=self._counter,
            capability=self._settings.capability,
            advert=self._listener.advert,
            ask=ask,
            echo=echo,
            discover=discover,
            leaving=leaving,
            introduced=introduced,
        )

    def _send(self, address: str | None, beacon: Beacon) -> None:
        """To one address, or (None) to everybody."""
        self.counters["sent"] += 1
        data = self._seal.close(beacon)
        if address is None:
            self._world.send_discovery(data)
        else:
            self._world.send_datagram(address, data)

    def _report_once(self, event: str, **fields: object) -> None:
        """What a stranger could repeat is reported once."""
        if event not in self._reported:
            self._reported[event] = None
            self._world.report(event, **fields)
