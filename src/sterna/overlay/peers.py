"""The peers a node knows, and in which state: a table.  Only a peer that echoed a fresh nonce is believed, every
datagram counts once, and there are never more than a set number of peers.
"""

from __future__ import annotations

from enum import Enum

from sterna.overlay.coordinates import Coordinate
from sterna.overlay.datagrams import Advert
from sterna.overlay.round_trips import OpenPings, RoundTrips

REPLAY_WINDOW = 64
"""Datagrams may overtake each other by this many; what is older is dropped."""

LIVES_REMEMBERED = 4
"""Earlier boots of a peer whose datagrams are refused for good."""


CHANCE_S = 0.5
"""A candidate keeps its place for this long."""


class PeerState(Enum):
    CANDIDATE = "candidate"
    """Heard of; has not yet proved that it is there."""
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Perhaps gone: being probed.  It stays in use until that is certain."""
    DEAD = "dead"
    """Gone; asked now and then whether it is back."""
    FORGOTTEN = "forgotten"


class PeerEvent(Enum):
    PROVED = "it echoed a fresh nonce"
    HEARD = "a datagram with a new counter came"
    DOUBTED = "its link broke, it has been quiet, or others left it"
    SILENT = "nothing came for too long"
    LEFT = "it said goodbye"


TRANSITIONS: dict[tuple[PeerState, PeerEvent], PeerState] = {
    (PeerState.CANDIDATE, PeerEvent.PROVED): PeerState.ALIVE,
    (PeerState.CANDIDATE, PeerEvent.HEARD): PeerState.CANDIDATE,
    (PeerState.CANDIDATE, PeerEvent.DOUBTED): PeerState.CANDIDATE,
    (PeerState.CANDIDATE, PeerEvent.SILENT): PeerState.FORGOTTEN,
    (PeerState.CANDIDATE, PeerEvent.LEFT): PeerState.FORGOTTEN,
    (PeerState.ALIVE, PeerEvent.PROVED): PeerState.ALIVE,
    (PeerState.ALIVE, PeerEvent.HEARD): PeerState.ALIVE,
    (PeerState.ALIVE, PeerEvent.DOUBTED): PeerState.SUSPECT,
    (PeerState.ALIVE, PeerEvent.SILENT): PeerState.DEAD,
    (PeerState.ALIVE, PeerEvent.LEFT): PeerState.DEAD,
    (PeerState.SUSPECT, PeerEvent.PROVED): PeerState.ALIVE,
    # It may have been under way when the peer died.  Later datagrams are looked at when the probes run out.
    (PeerState.SUSPECT, PeerEvent.HEARD): PeerState.SUSPECT,
    (PeerState.SUSPECT, PeerEvent.DOUBTED): PeerState.SUSPECT,
    (PeerState.SUSPECT, PeerEvent.SILENT): PeerState.DEAD,
    (PeerState.SUSPECT, PeerEvent.LEFT): PeerState.DEAD,
    (PeerState.DEAD, PeerEvent.PROVED): PeerState.ALIVE,
    (PeerState.DEAD, PeerEvent.HEARD): PeerState.DEAD,
    (PeerState.DEAD, PeerEvent.DOUBTED): PeerState.DEAD,
    (PeerState.DEAD, PeerEvent.SILENT): PeerState.FORGOTTEN,
    (PeerState.DEAD, PeerEvent.LEFT): PeerState.DEAD,
}

USABLE = (PeerState.ALIVE, PeerState.SUSPECT)


class ReplayWindow:
    """Which counters of one boot have been seen."""

    def __init__(self) -> None:
        self.highest = -1
        self._seen = 0

    def take(self, counter: int) -> bool:
        """True once per counter, if it is not too old."""
        ahead = counter - self.highest
        if ahead > 0:
            self._seen = ((self._seen << min(ahead, REPLAY_WINDOW)) | 1) & ((1 << REPLAY_WINDOW) - 1)
            self.highest = counter
            return True
        bit = 1 << -ahead
        if -ahead >= REPLAY_WINDOW or self._seen & bit:
            return False
        self._seen |= bit
        return True


class Peer:
    """One other node, as far as it is known here."""

    def __init__(self, name: str, address: str, boot: int, now: float) -> None:
        self.name = name
        self.address = address
        self.boot = boot
        self.earlier_boots: list[int] = []
        self.state = PeerState.CANDIDATE
        self.since = now
        """When it came into this state."""
        self.heard_at = now
        self.proved_at = now
        self.gone_at = now
        """While suspect: when it is dead unless it answers."""
        self.ping_at = now
        self.asked_at = now
        """When it was last asked for a sign of life."""
        self.watched_since: float | None = None
        """Since when it is a neighbour, whose silence is noticed; None: it is none."""
        self.answer_at = now
        """Before this, nothing unproved is answered."""
        self.young_until = now
        """Until then it is pinged often: it is new, or its distance matters now."""
        self.passed_over_until = now
        self.questions = OpenPings()
        self.round_trips = RoundTrips()
        self.window = ReplayWindow()
        self.capability = 0.0
        self.advert: Advert | None = None
        self.coordinate: Coordinate | None = None
        self.edition = 0
        """Of its last beacon."""
        self.last_beat: int | None = None
        """The lowest 16 bits of the counter of its last heartbeat."""
        self.last_beat_at = now
        self.alarmed = False
        """While suspect: the others have been told."""

    @property
    def usable(self) -> bool:
        return self.state in USABLE

    def enter(self, event: PeerEvent, now: float) -> bool:
        """Take the step of the table; True if the state changed."""
        state = TRANSITIONS[self.state, event]
        if state is self.state:
            return False
        self.state, self.since, self.alarmed = state, now, False
        return True

    def begin_life(self, boot: int) -> None:
        """A new start of the same node: what was known of the earlier one no longer holds."""
        self.earlier_boots = [*self.earlier_boots[1 - LIVES_REMEMBERED :], self.boot]
        self.boot = boot
        self.window = ReplayWindow()
        self.round_trips = RoundTrips()
        self.questions = OpenPings()
        self.advert = None
        self.coordinate = None
        self.last_beat = None


class Peers:
    """All peers by name, bounded."""

    def __init__(self, peers_max: int) -> None:
        self._max = peers_max
        self.by_name: dict[str, Peer] = {}
        self.usable = 0
        """How many are in use; kept by `recount`."""

    def admit(self, name: str, address: str, boot: int, now: float) -> Peer | None:
        """A new candidate, at the cost of the longest dead or unproved one if need be; None if there is no room.  A
        peer that has just come has its chance: many that push each other out would never get to prove themselves."""
        if len(self.by_name) >= self._max:
            spare = [peer for peer in self.by_name.values() if not peer.usable and peer.since <= now - CHANCE_S]
            if not spare:
                return None
            del self.by_name[min(spare, key=lambda peer: (peer.since, peer.name)).name]
        peer = self.by_name[name] = Peer(name, address, boot, now)
        return peer

    def by_boot(self, low: int, mask: int) -> Peer | None:
        """The peer whose present start has these lowest bits."""
        return next((peer for peer in self.by_name.values() if peer.boot & mask == low), None)

    def recount(self) -> None:
        """Drop the forgotten, count the usable."""
        self.by_name = {name: peer for name, peer in self.by_name.items() if peer.state is not PeerState.FORGOTTEN}
        self.usable = sum(peer.usable for peer in self.by_name.values())

    def addresses(self, besides: str = "") -> list[str]:
        """Where the peers in use are, except one of them."""
        return [peer.address for peer in self.by_name.values() if peer.usable and peer.name != besides]
