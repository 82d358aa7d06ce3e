"""Everything a node says in datagrams: beacons and heartbeats, counted, each under a number of its own."""

from __future__ import annotations

from collections.abc import Callable

from sterna.overlay.coordinates import ERROR_MAX
from sterna.overlay.datagrams import Advert, Beacon, RootIdentity, Seal
from sterna.overlay.heartbeats import HOLD_S_MAX, LOW_ECHO, LOW_EDITION, Heartbeat, close_heartbeat
from sterna.overlay.neighbours import OverlayWorld
from sterna.overlay.peers import Peer
from sterna.overlay.tree_settings import TreeSettings
from sterna.overlay.vivaldi import Vivaldi

SETTLED = 0.15
"""When the error of its coordinate has fallen to this, a node has something new to say."""


class DatagramSender:
    def __init__(
        self,
        settings: TreeSettings,
        world: OverlayWorld,
        seal: Seal,
        boot: int,
        advert: Callable[[], Advert],
        place: Vivaldi,
    ) -> None:
        self._settings = settings
        self._world = world
        self._seal = seal
        self._boot = boot
        self._advert = advert
        self._place = place
        self._counter = 0
        self._edition = 0
        self._said: tuple[RootIdentity, str] | None = None
        self._error_told = ERROR_MAX
        self.counters = {"sent": 0, "received": 0, "refused": 0, "repeated": 0}

    def beacon(
        self,
        *,
        ask: int | None = None,
        echo: int | None = None,
        discover: bool = False,
        leaving: bool = False,
        introduced: tuple[str, ...] = (),
        missing: str = "",
    ) -> Beacon:
        advert = self._next()
        return Beacon(
            name=self._settings.node,
            address=self._settings.address,
            boot=self._boot,
            counter=self._counter,
            capability=self._settings.capability,
            advert=advert,
            ask=ask,
            echo=echo,
            discover=discover,
            leaving=leaving,
            introduced=introduced,
            missing=missing,
            edition=self._edition,
            coordinate=self._place.coordinate,
        )

    def send(self, address: str, beacon: Beacon) -> None:
        self.counters["sent"] += 1
        self._world.send_datagram(address, self._seal.close(beacon))

    def send_discovery(self, beacon: Beacon) -> None:
        """To everybody in the multicast group."""
        self.counters["sent"] += 1
        self._world.send_discovery(self._seal.close(beacon))

    def heartbeat(self, peer: Peer, now: float, *, ask: bool) -> None:
        """To a peer that knows us.  Its answer, or the echo in its next heartbeat, gives the round trip."""
        advert = self._next()
        heard, hold_s = peer.last_beat, now - peer.last_beat_at
        beat = Heartbeat(
            self._counter,
            self._edition,
            advert.round,
            advert.cost_us,
            ask=ask,
            echo=heard if heard is not None and hold_s < HOLD_S_MAX else None,
            hold_s=hold_s,
        )
        peer.questions.note(self._counter & LOW_ECHO, now)
        self.counters["sent"] += 1
        self._world.send_datagram(peer.address, close_heartbeat(self._seal.key, beat, self._boot, peer.boot))

    def _next(self) -> Advert:
        """Count one more datagram, and begin a new edition if it has to say more than a heartbeat can."""
        self._counter += 1
        advert = self._advert()
        error = self._place.coordinate.error
        is_settled = error <= SETTLED < self._error_told
        if self._said != (advert.root, advert.parent) or is_settled:
            self._said, self._error_told = (advert.root, advert.parent), error
            self._edition = (self._edition + 1) & LOW_EDITION
        return advert
