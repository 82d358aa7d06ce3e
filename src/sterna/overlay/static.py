"""The overlay whose neighbours are named by people: every address given is kept dialled, at start or added later.

Several addresses may be added or removed at once; the world is told the outcome once, so there is no moment in which
half of a change is in force.  Links dialled by authenticated peers stand: naming a neighbour on one side is enough.
"""

from __future__ import annotations

from random import Random

from sterna.overlay.neighbours import AddressBook, Member, Now, OverlayMaker, OverlayWorld, Schedule

NEIGHBOURS_MAX = 1024


class StaticOverlay:
    """Dials what it is told to dial."""

    name = "static"
    may_form_rings = True
    upward = None

    def __init__(self, node: str, neighbours: tuple[str, ...], world: OverlayWorld) -> None:
        self._node = node
        self._world = world
        self._book = AddressBook(neighbours, NEIGHBOURS_MAX)
        self._links: dict[str, None] = {}
        self._running = False

    @property
    def addresses(self) -> list[str]:
        return list(self._book.addresses)

    def start(self) -> None:
        self._running = True
        self._hold()

    def stop(self) -> None:
        """Nothing is dialled any more; the links themselves are the node's to close."""
        if self._running:
            self._world.hold_links({})
        self._running = False

    def datagram(self, sender: str, data: bytes) -> None:
        """Static neighbours need no datagrams: whatever arrives is dropped."""

    def accepts(self, peer: str) -> str | None:
        if peer == self._node:
            return f"this node is itself called {peer!r}; every node of a network needs a name of its own"
        return None

    def link_started(self, peer: str) -> None:
        self._links[peer] = None

    def link_interrupted(self, peer: str) -> None:
        """It is dialled again anyway."""

    def link_ended(self, peer: str) -> None:
        self._links.pop(peer, None)

    def add(self, *addresses: str) -> None:
        if self._book.add(addresses):
            self._hold()

    def remove(self, *addresses: str) -> None:
        self._book.remove(addresses)
        if addresses:
            self._hold()

    def view(self) -> dict[str, object]:
        return {"overlay": self.name, "neighbours": list(self._book.addresses), "links": sorted(self._links)}

    def _hold(self) -> None:
        if self._running:
            self._world.hold_links({address: address for address in self._book.addresses})


def static(member: Member, _tuning: object = None) -> OverlayMaker:
    def make(world: OverlayWorld, *, now: Now, schedule: Schedule, rng: Random) -> StaticOverlay:
        return StaticOverlay(member.node, member.neighbours, world)

    return make
