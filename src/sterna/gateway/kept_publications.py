"""A client's publications at QoS 2 between PUBREC and PUBCOMP, which only the foreign broker and the gateway have.

The client was told that they arrived.  So they are kept here, and for a client whose session lasts in the journal too,
before PUBREC goes to it: broker and node may die together.  Those of an earlier connection are *older* ones: the client
may release them still, or have forgotten them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sterna.gateway.connecting import Wish
from sterna.gateway.subscriptions import Change


class RelayJournal(Protocol):
    """The journal of the node, for relayed clients whose sessions last."""

    made_way: int
    """Subscriptions and publications that it has let go of, because there were too many."""

    def begin(self, client_id: bytes) -> None:
        """The foreign broker has begun a session: all of its subscriptions will be said here."""

    def renew(self, client_id: bytes) -> None:
        """The foreign broker has lost its session, and has begun another one with the same subscriptions."""

    def end(self, client_id: bytes) -> None:
        """It has ended, or is about to begin anew."""

    def ask(self, client_id: bytes) -> None:
        """The foreign broker is about to be asked for its session, which may have begun anew and be bare."""

    def answered(self, client_id: bytes) -> None:
        """The foreign broker has it, with all that the client believes to be in it."""

    def is_unanswered(self, client_id: bytes) -> bool:
        """The node ended between these two."""

    def subscriptions(self, client_id: bytes) -> dict[bytes, tuple[int, int]] | None:
        """Filter -> options and identifier; None: nobody knows all of them."""

    def subscribed(self, client_id: bytes, changes: list[Change]) -> None: ...
    def keep(self, client_id: bytes, packet_id: int, packet: bytes) -> None: ...
    def drop(self, client_id: bytes, packet_id: int) -> None: ...
    def kept(self, client_id: bytes) -> dict[int, bytes]: ...
    def lost(self, client_id: bytes) -> set[int]:
        """Those kept before the session began that the foreign broker has now: it knows nothing of them."""

    def when_safe(self, act: Callable[[bool], None]) -> None:
        """Everything said before is in the journal (True), or could not be written."""


class KeptPublications:
    __slots__ = ("_bytes", "_bytes_max", "_client_id", "_is_lasting", "_keeper", "_unsafe", "held", "lost", "older")

    def __init__(self, keeper: RelayJournal, bytes_max: int) -> None:
        self._keeper = keeper
        self._bytes_max = bytes_max
        self._bytes = 0
        self._client_id = b""
        self._is_lasting = False
        #: Those that are not in the journal yet.
        self._unsafe = 0
        self.held: dict[int, bytes] = {}
        self.older: dict[int, bytes] = {}
        #: Of the older ones, those that the foreign broker had lost when the last connection ended.
        self.lost: set[int] = set()

    def begin(self, wish: Wish) -> None:
        """The client is let in."""
        self._client_id, self._is_lasting = wish.client_id, not wish.is_transient
        earlier = self._keeper.kept(wish.client_id)
        if wish.clean:
            for packet_id in earlier:
                self._keeper.drop(wish.client_id, packet_id)
        else:
            self.older = earlier
            self.lost = self._keeper.lost(wish.client_id)

    def keep(self, packet_id: int, packet: bytes) -> bool:
        """False if there is no room: if the foreign broker loses it, nobody else has it."""
        if packet_id in self.held:
            return True
        if self._bytes + len(packet) > self._bytes_max:
            return False
        self.held[packet_id] = packet
        self._bytes += len(packet)
        if self._is_lasting:
            self._keeper.keep(self._client_id, packet_id, packet)
        return True

    def when_safe(self, act: Callable[[bool], None]) -> bool:
        """False: what is kept is safe already, and nobody has to wait."""
        if not self._is_lasting:
            return False
        self._unsafe += 1

        def safe(is_safe: bool) -> None:
            self._unsafe -= 1
            act(is_safe)

        self._keeper.when_safe(safe)
        return True

    def taken_again(self, packet_id: int) -> None:
        """The foreign broker, which had lost it, has it in its session of now."""
        if self._is_lasting:
            self._keeper.drop(self._client_id, packet_id)
            self._keeper.keep(self._client_id, packet_id, self.held[packet_id])

    def released(self, packet_id: int) -> None:
        """The client releases an older one, which the foreign broker still has."""
        self._bytes += len(self.older[packet_id])
        self.held[packet_id] = self.older.pop(packet_id)

    def drop(self, packet_id: int) -> None:
        """HOT.  Nobody waits for it any more."""
        self.lost.discard(packet_id)
        packet = self.held.pop(packet_id, None)
        if packet is not None:
            self._bytes -= len(packet)
        elif self.older.pop(packet_id, None) is None:
            return
        if self._is_lasting:
            self._keeper.drop(self._client_id, packet_id)
