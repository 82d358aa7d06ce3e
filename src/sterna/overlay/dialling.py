"""When an address is dialled, and when it is left alone: one policy, without a socket and without a clock.

An address is dialled until it is not wanted any more.  After the loss of a link that had worked it is dialled at once.
While it fails, the pause before the next attempt doubles; dice shorten each pause, so that nodes that lost the same
neighbour do not come back all at the same moment.  The address is not dialled while its node is linked to us over a
connection that node made, or is reached another way (a link that would close a ring stands by).
"""

from __future__ import annotations

from random import Random
from typing import Final, Protocol

from sterna.overlay.channel import Channel
from sterna.overlay.link_table import Links

DIAL_S: Final = 0.1
"""The first pause."""
DIAL_MAX_S: Final = 1.0
"""The longest pause."""
LOOK_AGAIN_S: Final = 0.1
"""How often to look whether a node that is linked another way still is."""
WORKED_S: Final = 1.0
"""A link that stood for so long had worked."""


class Reachability(Protocol):
    """Knowledge about the other nodes."""

    links: Links

    def stands_by(self, peer: str) -> str | None:
        """Why a link to this peer is of no use now; None if it is."""


class Dialling:
    """One address.  After each attempt the world asks for the pause before the next."""

    __slots__ = ("_connected_at", "_first_s", "_most_s", "_network", "_pause_s", "_rng", "peer", "trouble")

    def __init__(self, network: Reachability, rng: Random, first_s: float = DIAL_S, most_s: float = DIAL_MAX_S) -> None:
        self._network = network
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = 0.0
        self._connected_at = 0.0
        #: The node behind the address, once it has proved its name.
        self.peer = ""
        #: Why there is no link, for people; empty if nothing is known against it.
        self.trouble = ""

    @property
    def is_linked(self) -> bool:
        """Is its node linked to us, over a connection of either side?"""
        link = self._network.links.links.get(self.peer)
        return link is not None and link.connected

    def failed(self, reason: str) -> bool:
        """An attempt came to nothing.  True if the reason is a new one: the others are not worth reporting again."""
        is_new, self.trouble = reason != self.trouble, reason
        return is_new

    def connected(self, now: float) -> None:
        """A connection is made; what becomes of it, its channel will know."""
        self._connected_at = now

    def lost(self, channel: Channel, now: float) -> None:
        """The connection is gone."""
        if channel.link is not None or channel.redundant:
            self.peer = channel.peer or ""
            self.trouble = ""
        if channel.link is not None and now - self._connected_at > WORKED_S:
            self._pause_s = 0.0
        if channel.refusal is not None and not channel.redundant:
            self.trouble = channel.refusal  # the links have reported it

    def pause_s(self) -> float | None:
        """For how long to wait before the next attempt; None if there is no need for one: ask again after
        LOOK_AGAIN_S."""
        if self.is_linked or self._stands_by():
            self._pause_s = 0.0
            return None
        pause_s = self._pause_s * self._rng.uniform(0.5, 1.0)
        self._pause_s = min(max(2 * self._pause_s, self._first_s), self._most_s)
        return pause_s

    def _stands_by(self) -> bool:
        spare = self._network.stands_by(self.peer) if self.peer else None
        if spare is not None:
            self.trouble = spare
        return spare is not None
