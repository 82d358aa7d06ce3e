"""The exchange of datagrams with other nodes: it discovers them, believes them after a proof, measures them by pings,
and notices when they fall silent.

Every datagram in passes here; the `BeaconListener` decides what it means for the tree.  A datagram without the
network's key costs one MAC; a recording of an authentic one costs at most an answer.

Neighbours in the tree exchange heartbeats all the time.  The others are measured when they are new, when the listener
says that their distance matters, and now and then one of them, in turn the one not heard for longest and the one that
the coordinates promise the shortest way through.  When a neighbour does not answer, all are told, and ask
it themselves.  So the upkeep of a steady tree grows with its links, not with pairs of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random
from typing import Protocol

from sterna.overlay.datagram_sender import DatagramSender
from sterna.overlay.datagrams import VERSION, Advert, Beacon, Seal, introductions
from sterna.overlay.discovery import INTRODUCTIONS_MAX, Discovery
from sterna.overlay.heartbeats import LOW_BOOT, LOW_ECHO, Acquaintance, Heartbeat, open_heartbeat, sender_of
from sterna.overlay.neighbours import Now, OverlayWorld
from sterna.overlay.peers import Peer, PeerEvent, Peers, PeerState
from sterna.overlay.tree_settings import TreeSettings
from sterna.overlay.vivaldi import Vivaldi
from sterna.overlay.vivaldi_settings import IN_THE_TREE

CANDIDATE_S = 2.0
"""A candidate that has not answered for this long is forgotten."""

PROBES = 6
"""Questions to a suspect before it is given up."""

ANSWERS_PER_S = 20.0
"""Answers to one peer that has not proved itself: what is replayed to us is not echoed without bound."""

ON_THE_WAY_S = 0.05
"""A datagram that comes this long after a round trip is over was not under way when it began."""

DOUBT_PART = 0.72
"""The part of the time until death after which a silent neighbour is doubted."""

PINGS_UNTIL_DEAD = 1.875
"""With pings so far apart that this many of them take longer, death takes as long."""

ANSWER_PINGS = (1.2, 1.6)
"""A peer that was answered is not asked before so many pauses: its own next question comes first.  Between two that
asked at the same moment, chance decides who asks from then on."""

AGAIN_S = 0.1
"""A question without an answer for so long (and two round trips) is asked once more: datagrams get lost, ..."""

ANSWER_S = 0.4
"""... and after so long raises doubts."""

JITTER = (0.9, 1.1)
"""Pauses differ by so much, so that questions do not march in step."""


class BeaconListener(Protocol):
    """The part that draws the conclusions."""

    @property
    def advert(self) -> Advert:
        """The path to the root that this node advertises."""

    def neighbours(self) -> set[str]:
        """Those whose silence must be noticed."""

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
        self._place = Vivaldi(rng, IN_THE_TREE)
        self._out = DatagramSender(settings, world, self._seal, boot, lambda: listener.advert, self._place)
        self._reported: dict[str, None] = {}
        self._sample_at = 0.0
        self._samples = 0
        self._dead_at = 0.0
        self.peers = Peers(settings.peers_max)
        self.discovery = Discovery(settings)
        self.counters = self._out.counters

    def dead_after_s(self) -> float:
        """With so many neighbours that pings are far apart, silence says less."""
        return max(self._settings.dead_after_s, PINGS_UNTIL_DEAD * self._ping_s())

    def _ping_s(self) -> float:
        return max(self._settings.ping_s, self.peers.usable / self._settings.pings_per_s)

    def start(self, now: float) -> None:
        self.discovery.call_at = self._dead_at = now
        self._sample_at = now + self._settings.sample_s

    # Datagrams in.

    def datagram(self, sender: str, data: bytes) -> None:
        self.counters["received"] += 1
        boot = sender_of(data)
        if boot is not None:
            self._heartbeat(sender, data, boot)
            return
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
            if beacon.ask is not None:
                self.discovery.answered(beacon.ask, self._settings.node)
            return
        if beacon.echo is not None and self.discovery.questions.elapsed(beacon.echo, self._now()) is not None:
            self._report_once("name-taken", address=beacon.address or sender)
        elif beacon.ask is not None and beacon.discover:
            self._out.send(beacon.address or sender, self._out.beacon(echo=beacon.ask))

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
        elapsed = self._elapsed(peer, beacon.echo, now)
        if elapsed is None and (not same_life or peer.state is PeerState.DEAD):
            if peer.state is PeerState.CANDIDATE:
                peer.boot, peer.address = beacon.boot, beacon.address or sender
            self._challenge(peer, beacon.address or sender, beacon.ask, now)
            return
        if not same_life:
            self._begin_life(peer, beacon, now)
        self._heard(peer, elapsed, now)
        if beacon.echo is not None:
            self.discovery.answered(beacon.echo, peer.name)
        if beacon.counter == peer.window.highest:
            self._learn(peer, sender, beacon, now)
        self._happened(
            peer, PeerEvent.LEFT if beacon.leaving else PeerEvent.HEARD if elapsed is None else PeerEvent.PROVED
        )
        self._answer(peer, beacon)

    def _elapsed(self, peer: Peer, echo: int | None, now: float) -> float | None:
        """The round trip, if this is the echo of a nonce of ours."""
        if echo is None:
            return None
        elapsed = peer.questions.elapsed(echo, now)
        peer.questions.close(echo)
        return self.discovery.questions.elapsed(echo, now) if elapsed is None else elapsed

    def _heard(self, peer: Peer, elapsed: float | None, now: float) -> None:
        peer.heard_at = now
        if elapsed is not None:
            peer.proved_at = now
            peer.round_trips.sample(elapsed)
            if peer.coordinate is not None:
                self._place.measured(peer.coordinate, elapsed)

    def _challenge(self, peer: Peer, address: str, echo: int | None, now: float) -> None:
        """It may be a recording, or its last beacon did not come: ask for a proof, and for all there is to say."""
        if now >= peer.answer_at:
            peer.answer_at = now + 1 / ANSWERS_PER_S
            self._out.send(address, self._out.beacon(ask=peer.questions.ask(now, self._rng), echo=echo))
            self._listener.attend_by(peer.ping_at)

    def _heartbeat(self, sender: str, data: bytes, boot: int) -> None:
        peer = self.peers.by_boot(boot, LOW_BOOT)
        if peer is None or peer.advert is None:
            self._refused()
            return
        known = Acquaintance(peer.boot, self._boot, peer.window.highest, peer.advert.round)
        beat = open_heartbeat(self._seal.key, data, known)
        if beat is None:
            self._refused()
        elif peer.window.take(beat.counter):
            self._take_heartbeat(peer, beat, self._now())
        else:
            self.counters["repeated"] += 1

    def _take_heartbeat(self, peer: Peer, beat: Heartbeat, now: float) -> None:
        elapsed = self._elapsed(peer, beat.echo, now)
        if elapsed is not None:
            elapsed = max(0.0, elapsed - beat.hold_s)
        if elapsed is None and peer.state is PeerState.DEAD:
            self._challenge(peer, peer.address, None, now)
            return
        self._heard(peer, elapsed, now)
        peer.last_beat, peer.last_beat_at = beat.counter & LOW_ECHO, now
        before = peer.advert
        assert before is not None
        if beat.edition != peer.edition:
            self._challenge(peer, peer.address, None, now)
        elif beat.counter == peer.window.highest:
            peer.advert = replace(before, round=beat.round, cost_us=beat.cost_us)
            self._listener.learned(peer, before)
        self._happened(peer, PeerEvent.HEARD if elapsed is None else PeerEvent.PROVED)
        if beat.ask and peer.usable:
            self._out.heartbeat(peer, now, ask=False)
            self._ask_after(peer, now, self._rng.uniform(*ANSWER_PINGS))
        elif peer.state is PeerState.ALIVE:
            self._ask_after(peer, now, self._rng.uniform(*JITTER))

    def _ask_after(self, peer: Peer, now: float, pauses: float) -> None:
        """All is well with this peer: the next question comes after so many pauses."""
        peer.ping_at = now + pauses * self._pause(peer, now)

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
        before, peer.advert, peer.edition = peer.advert, beacon.advert, beacon.edition
        peer.capability = beacon.capability
        peer.coordinate = beacon.coordinate or peer.coordinate
        peer.address = beacon.address or sender
        self._listener.learned(peer, before)
        for address in beacon.introduced:
            self._introduced(address, now)
        if beacon.missing:
            self.doubt(beacon.missing, self._settings.probe_s / 2)

    def _introduced(self, address: str, now: float) -> None:
        known = any(peer.address == address and peer.usable for peer in self.peers.by_name.values())
        if not known and address != self._settings.address and self.discovery.worth_calling(address, now):
            self._out.send(address, self._out.beacon(ask=self.discovery.questions.ask(now, self._rng)))

    def _answer(self, peer: Peer, beacon: Beacon) -> None:
        if beacon.ask is None or not peer.usable or beacon.group:
            return
        self._out.send(peer.address, self._out.beacon(echo=beacon.ask))
        if beacon.discover:
            self._introduce_to(peer)

    def _introduce_to(self, peer: Peer) -> None:
        """Tell a peer of all the others."""
        portions = introductions(self._out.beacon(), self.peers.addresses(besides=peer.name))
        for portion in portions[:INTRODUCTIONS_MAX]:
            self._out.send(peer.address, self._out.beacon(introduced=portion))

    # -- peers that are alive --

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

    # Timers.

    def stir(self, now: float) -> None:
        """Every distance matters now: measure all peers in use for a while."""
        for peer in self.peers.by_name.values():
            if peer.usable:
                self._measure(peer, now)
        self._listener.attend_by(now)

    def measure(self, name: str, now: float) -> None:
        """This peer's distance and its way to the root matter now, unless they just did."""
        peer = self.peers.by_name.get(name)
        if peer and peer.state is PeerState.ALIVE and now >= peer.young_until + 2 * self._settings.young_s:
            self._measure(peer, now)

    def _measure(self, peer: Peer, now: float) -> None:
        peer.young_until = now + self._settings.young_s
        peer.ping_at = min(peer.ping_at, now + self._rng.uniform(0.0, self._settings.young_ping_s / 2))

    def attend(self, now: float) -> float:
        """Do everything that is due; returns when the next thing is."""
        self._watch_neighbours(now)
        if now >= self.discovery.call_at:
            self._call(now)
        if now >= self._sample_at:
            self._sample_at = now + self._settings.sample_s * self._rng.uniform(*JITTER)
            self._sample(now)
        if now >= self._dead_at:
            self._dead_at = now + self._settings.dead_ping_s * self._rng.uniform(*JITTER)
            dead = [peer for peer in self.peers.by_name.values() if peer.state is PeerState.DEAD]
            self._ask_first(now, dead, lambda peer: peer.asked_at)
        due = [self._attend_to(peer, now) for peer in list(self.peers.by_name.values())]
        return min([self.discovery.call_at, self._sample_at, self._dead_at, *due])

    def _sample(self, now: float) -> None:
        """Ask one of those whom nobody watches: in turn the one that should be on the shortest way, and the one not
        heard for longest."""
        self._samples += 1
        self._ask_first(now, self._others(), self._promise if self._samples % 2 else lambda peer: peer.heard_at)

    def _call(self, now: float) -> None:
        """Is there anybody?"""
        if self.discovery.is_group_due(now, not self._listener.advert.parent):
            call = self._out.beacon(ask=self.discovery.questions.ask(now, self._rng), discover=True)
            self._out.send_discovery(replace(call, group=True, coordinate=None))
        usable = {peer.name for peer in self.peers.by_name.values() if peer.usable}
        for address in self.discovery.seeds_to_call(now, usable | {self._settings.node}):
            nonce = self.discovery.questions.ask(now, self._rng)
            self.discovery.asked_seed(address, nonce)
            self._out.send(address, self._out.beacon(ask=nonce, discover=True))
        self.discovery.called(now)

    def _watch_neighbours(self, now: float) -> None:
        """From the moment a peer is a neighbour its silence counts."""
        neighbours = self._listener.neighbours()
        for peer in self.peers.by_name.values():
            if peer.name not in neighbours:
                peer.watched_since = None
            elif peer.watched_since is None and peer.usable:
                peer.watched_since = now
                peer.ping_at = min(peer.ping_at, now + self._ping_s())

    def _others(self) -> list[Peer]:
        """Peers in use that nobody watches."""
        return [
            peer for peer in self.peers.by_name.values() if peer.state is PeerState.ALIVE and peer.watched_since is None
        ]

    def _ask_first(self, now: float, peers: list[Peer], order: Callable[[Peer], float]) -> None:
        """Ask the peer for which this is least."""
        if peers:
            self._ping(min(peers, key=lambda peer: (order(peer), peer.name)), now)

    def _promise(self, peer: Peer) -> float:
        """How long the way to the root over this peer should be, by the coordinates: worth measuring if it is short."""
        distance_s = self.estimate_s(peer)
        return inf if distance_s is None or peer.advert is None else peer.advert.cost_us / 1e6 + distance_s

    def estimate_s(self, peer: Peer) -> float | None:
        """The round trip to a peer by the coordinates; None if it has none."""
        return None if peer.coordinate is None else self._place.coordinate.distance_s(peer.coordinate)

    def _attend_to(self, peer: Peer, now: float) -> float:
        due = inf
        if peer.state is PeerState.ALIVE:
            due = self._watch(peer, now)
        if peer.state is PeerState.SUSPECT:
            due = self._probe(peer, now)
        elif not peer.usable and now - peer.since >= self._patience_s(peer):
            self._happened(peer, PeerEvent.SILENT)
        if now >= peer.ping_at and peer.state not in (PeerState.DEAD, PeerState.FORGOTTEN):
            self._ping(peer, now)
        return min(due, peer.ping_at if peer.state is not PeerState.DEAD else inf)

    def _patience_s(self, peer: Peer) -> float:
        return CANDIDATE_S if peer.state is PeerState.CANDIDATE else self._settings.forget_s

    def _watch(self, peer: Peer, now: float) -> float:
        """Has a living peer been quiet, or does it speak without hearing us?  Returns when to look again."""
        if peer.asked_at > peer.heard_at:
            answer_by = peer.asked_at + ANSWER_S + 2 * (peer.round_trips.smoothed_s or 0.0)
        else:
            answer_by = inf
        dead_after = self.dead_after_s()
        quiet_at = inf
        if peer.watched_since is not None:
            if now - max(peer.proved_at, peer.watched_since) >= 2 * dead_after:
                self._happened(peer, PeerEvent.SILENT)
                return inf
            quiet_at = max(peer.heard_at, peer.watched_since) + DOUBT_PART * dead_after
        if now >= min(answer_by, quiet_at):
            self.doubt(peer.name, max(self._settings.probe_s, (1 - DOUBT_PART) * dead_after))
        return min(answer_by, quiet_at)

    def _probe(self, peer: Peer, now: float) -> float:
        """The doubts are over when the time is up, one way or the other.  If a neighbour has not answered half of the
        questions, the others are told."""
        if now >= peer.gone_at:
            on_the_way_until = peer.since + (peer.round_trips.smoothed_s or 0.0) + ON_THE_WAY_S
            self._happened(peer, PeerEvent.PROVED if peer.heard_at > on_the_way_until else PeerEvent.SILENT)
            return inf
        if not peer.alarmed and peer.watched_since is not None and now >= (peer.since + peer.gone_at) / 2:
            peer.alarmed = True
            if peer.heard_at < peer.since:
                self.tell_all(missing=peer.name)
        return peer.gone_at if peer.alarmed else (peer.since + peer.gone_at) / 2

    def _ping(self, peer: Peer, now: float) -> None:
        """Ask for a sign of life, by a beacon if the peer may not know us."""
        peer.ping_at = now + self._pause(peer, now) * self._rng.uniform(*JITTER)
        if peer.state is PeerState.ALIVE:
            if peer.asked_at <= peer.heard_at:
                peer.asked_at = now
                again_s = AGAIN_S + 2 * (peer.round_trips.smoothed_s or 0.0)
                peer.ping_at = min(peer.ping_at, now + again_s)
        else:
            peer.asked_at = now
        if peer.state is PeerState.ALIVE:
            self._out.heartbeat(peer, now, ask=True)
        else:
            self._out.send(peer.address, self._out.beacon(ask=peer.questions.ask(now, self._rng)))

    def _pause(self, peer: Peer, now: float) -> float:
        """How long until the next ping; for ever if nobody needs to know."""
        if peer.state is PeerState.SUSPECT:
            return self._settings.probe_s / PROBES
        if peer.state is PeerState.CANDIDATE or now < peer.young_until:
            return max(self._settings.young_ping_s, self.peers.usable / self._settings.pings_per_s)
        return self._ping_s() if peer.watched_since is not None else inf

    # Datagrams out.

    def tell_all(self, *, leaving: bool = False, missing: str = "") -> None:
        """Everybody in use hears our advert now, not with the next ping."""
        beacon = self._out.beacon(leaving=leaving, missing=missing)
        for peer in self.peers.by_name.values():
            if peer.usable:
                self._out.send(peer.address, beacon)

    def _report_once(self, event: str, **fields: object) -> None:
        """Reports an event once, because a stranger could repeat it."""
        if event not in self._reported:
            self._reported[event] = None
            self._world.report(event, **fields)
