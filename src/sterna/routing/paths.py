"""Where the other nodes are: for every origin, the link its messages come in by.

An origin announces itself with a growing number; an announcement floods the tree, and the link it came in by becomes
the path to its origin.  Every hop folds the link session it came through into a digest: as long as the digest stays
the same, so do the path and all sessions on it, and nothing can have been lost on the way.  Any other event on
links (a session ends, another starts, the tree takes a new shape) reaches the others as a new announcement with
another digest, ahead of any message that takes the new path.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple, Protocol

from msgspec import structs

from sterna.routing.carried import CarriedOffer
from sterna.routing.link_frames import Announce, Frame, Lost, encode
from sterna.vocabulary import versions
from sterna.vocabulary.bounds import NODES_MAX
from sterna.vocabulary.identity import Stamp, VersionVector

#: Nodes a network may have, dead ones included; what exceeds it is not believed.
ORIGINS_MAX = NODES_MAX
#: Of the address of a feed.
FEED_CHARACTERS_MAX = 300


class OriginPath(NamedTuple):
    link: str
    number: tuple[int, int]
    digest: int
    feed: str
    clients: str
    closed: bool
    speaks: int
    """The newest version of links that it understands."""


class PathUser(Protocol):
    """The rest of a router, told and asked."""

    def links(self) -> list[str]: ...
    def session_of(self, link: str) -> int: ...
    def send(self, link: str, kind: int, body: bytes) -> None: ...
    def path_changed(self, origin: str, link: str) -> None:
        """Messages of this origin may have been missed, and come by this link from now on."""

    def path_left(self, origin: str, link: str) -> None:
        """Messages of this origin come by another link than this one from now on."""

    def path_lost(self, origin: str) -> None: ...
    def shares_announced(self, origin: str, shares: list[tuple[bytes, int]]) -> None: ...
    def ring_found(self, one: str, other: str) -> None:
        """One announcement came by two links."""

    def namesake_found(self, link: str) -> None:
        """Somewhere behind this link another node has our name."""

    def asked(self) -> None:
        """Somebody wants to hear who is here."""


class PathTable(Protocol):
    """Where the other nodes are, as the rest of a node asks."""

    #: We take no clients.
    closed: bool
    #: Do changes of ways, and of what nodes want, go ahead of all that is said after them?
    goes_ahead: bool

    def link_to(self, origin: str) -> str | None: ...
    def leads_by(self, link: str, origin: str, epoch: int) -> bool: ...
    @property
    def origins(self) -> list[str]: ...
    @property
    def known(self) -> dict[str, OriginPath]: ...
    @property
    def feeds(self) -> dict[str, str]: ...
    @property
    def open_origins(self) -> list[str]: ...
    @property
    def untold(self) -> dict[str, None]:
        """Origins whose way has changed, and not all neighbours know: see `tell_ahead`."""

    def clients_are_at(self, address: str) -> bool: ...
    def clients_of(self, origin: str) -> str: ...
    def version_of(self, origin: str) -> int:
        """The newest version of links that it understands."""

    def announce(self, shares: list[tuple[bytes, int]], *, ask: bool) -> None: ...
    def announced(self, link: str, announce: Announce) -> None: ...
    def behind(self, link: str) -> list[str]: ...
    def link_ended(self, link: str) -> None: ...
    def lost(self, link: str, lost: Lost) -> None: ...
    def passed(self, origin: str, stamp: Stamp) -> None:
        """Messages of this origin have come so far."""

    def astray(self, origin: str, stamp: Stamp) -> None:
        """A message of this origin came by another link than the one that leads to it, and has not come by that."""

    def tell_ahead(self, link: str, origin: str) -> None:
        """A message of this origin is about to be sent: a change of its way goes ahead."""

    def handed_on(self, link: str, origin: str, stamp: Stamp) -> None:
        """Messages of this origin have been sent to this link, the last of them with that stamp."""

    def introduce(self, link: str, reader: str) -> None:
        """A question of this reader is about to be sent: that it is here, and what it wants, goes ahead."""

    def answers(self, link: str, reader: str) -> bool:
        """Will messages reach this reader by the link that its question came from?"""

    def offers(self) -> list[CarriedOffer]:
        """Messages that others carry for us, of origins that cannot be reached."""

    def entered(self, topic: bytes) -> None:
        """A message entered the network here."""

    def absence(self) -> dict[str, dict[str, float]]:
        """Nodes that cannot be reached, for people."""

    def frontiers(self) -> VersionVector:
        """How far the messages of each origin have come, as far as anybody has heard."""

    def counted(self) -> dict[str, int]:
        """The doings of the table, for people."""

    def turn_ended(self) -> None: ...


class Paths:
    goes_ahead = True

    def __init__(self, node: str, epoch: int, user: PathUser, feed: str, clients: str) -> None:
        self._node = node
        self._epoch = epoch
        self._feed = feed[:FEED_CHARACTERS_MAX]
        self._clients = clients[:FEED_CHARACTERS_MAX]
        #: We take no clients.
        self.closed = False
        self._user = user
        self._number = 0
        self._paths: dict[str, OriginPath] = {}
        #: The newest announcement of every origin ever heard of: an older one says nothing new.
        self._heard: dict[str, tuple[int, int]] = {}
        #: Everybody is told at once.
        self.untold: dict[str, None] = {}

    def link_to(self, origin: str) -> str | None:
        path = self._paths.get(origin)
        return None if path is None else path.link

    def leads_by(self, link: str, origin: str, epoch: int) -> bool:
        """HOT.  Do messages of this origin come by this link?  An epoch that it has not announced is none of its."""
        path = self._paths.get(origin)
        return path is not None and path.link == link and epoch <= path.number[0]

    @property
    def origins(self) -> list[str]:
        """Those that can be reached."""
        return list(self._paths)

    @property
    def known(self) -> dict[str, OriginPath]:
        return dict(self._paths)

    @property
    def feeds(self) -> dict[str, str]:
        """Where the journals of those that can be reached are to be read."""
        return {origin: path.feed for origin, path in self._paths.items() if path.feed}

    def clients_are_at(self, address: str) -> bool:
        """False if another address has been given."""
        if self._clients:
            return False
        self._clients = address[:FEED_CHARACTERS_MAX]
        return True

    def clients_of(self, origin: str) -> str:
        """Where clients reach that node; empty: nobody knows."""
        path = self._paths.get(origin)
        return "" if path is None else path.clients

    def version_of(self, origin: str) -> int:
        path = self._paths.get(origin)
        return versions.LINK_UNTOLD if path is None else path.speaks

    @property
    def open_origins(self) -> list[str]:
        """Those that can be reached and take clients."""
        return [origin for origin, path in self._paths.items() if not path.closed]

    def announce(self, shares: list[tuple[bytes, int]], *, ask: bool) -> None:
        self._number += 1
        where = self._feed, self._clients, self.closed, versions.LINK.newest
        body = encode(Announce(self._node, self._epoch, self._number, 0, ask, shares, *where))
        for link in self._user.links():
            self._user.send(link, Frame.ANNOUNCE, body)

    def announced(self, link: str, announce: Announce) -> None:
        origin, number = announce.origin, (announce.epoch, announce.number)
        heard = self._heard.get(origin, (0, 0))
        if origin == self._node and number > (self._epoch, self._number):
            self._user.namesake_found(link)  # we have never said that; the other one will not know
        if origin == self._node or number <= heard:
            path = self._paths.get(origin)
            if path is not None and number == path.number and link != path.link:
                self._user.ring_found(path.link, link)
            return
        if origin not in self._heard and len(self._heard) >= ORIGINS_MAX:
            return
        self._heard[origin] = number
        digest = fold(announce.digest, self._user.session_of(link))
        before = self._paths.get(origin)
        feed, clients = announce.feed[:FEED_CHARACTERS_MAX], announce.clients[:FEED_CHARACTERS_MAX]
        self._paths[origin] = OriginPath(link, number, digest, feed, clients, announce.closed, announce.speaks)
        onward = encode(structs.replace(announce, digest=digest))
        for other in self._user.links():
            if other != link:
                self._user.send(other, Frame.ANNOUNCE, onward)
        self._user.shares_announced(origin, announce.shares)
        if before is not None and before.link != link:
            self._user.path_left(origin, before.link)
        if before is None or before.link != link or before.digest != digest:
            self._user.path_changed(origin, link)
        if announce.ask:
            self._user.asked()

    def passed(self, origin: str, stamp: Stamp) -> None:
        """Readers fetch whenever the way has changed."""

    def astray(self, origin: str, stamp: Stamp) -> None:
        """Its path is about to change."""

    def tell_ahead(self, link: str, origin: str) -> None:
        """Everybody has been told."""

    def handed_on(self, link: str, origin: str, stamp: Stamp) -> None:
        """Readers fetch whenever the way has changed."""

    def introduce(self, link: str, reader: str) -> None:
        """It has announced itself."""

    def answers(self, link: str, reader: str) -> bool:
        """Its links have said what they want, before."""
        return True

    def offers(self) -> list[CarriedOffer]:
        """Nobody carries anything."""
        return []

    def entered(self, topic: bytes) -> None:
        """Nobody is remembered who is away."""

    def absence(self) -> dict[str, dict[str, float]]:
        """Nobody is remembered who is away."""
        return {}

    def frontiers(self) -> VersionVector:
        """Nobody tells."""
        return {}

    def counted(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def turn_ended(self) -> None:
        """Nothing waits."""

    def behind(self, link: str) -> list[str]:
        """Those that are reached by this link, the neighbour itself first."""
        found = [origin for origin, path in self._paths.items() if path.link == link]
        return sorted(found, key=lambda origin: origin != link)

    def link_ended(self, link: str) -> None:
        self._forget(link, self.behind(link))

    def lost(self, link: str, lost: Lost) -> None:
        """A neighbour lost its way to some origins; those we reach through it are gone for us too."""
        named = dict.fromkeys(lost.origins)
        self._forget(link, [origin for origin in named if (path := self._paths.get(origin)) and path.link == link])

    def _forget(self, link: str, gone: list[str]) -> None:
        if not gone:
            return
        for origin in gone:
            del self._paths[origin]
        body = encode(Lost(gone))
        for other in self._user.links():
            if other != link:
                self._user.send(other, Frame.LOST, body)
        for origin in gone:
            self._user.path_lost(origin)


def fold(digest: int, session_id: int) -> int:
    data = digest.to_bytes(8, "big") + session_id.to_bytes(8, "big")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
