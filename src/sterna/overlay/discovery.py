"""How nodes that know nothing of each other meet: calls into the multicast group and to seed addresses, often at first
and seldom later, and introductions by those who are met.  Addresses heard of are called within bounds, never trusted.
"""

from __future__ import annotations

from sterna.overlay.neighbours import AddressBook, checked_address
from sterna.overlay.round_trips import OpenPings
from sterna.overlay.tree_settings import TreeSettings
from sterna.vocabulary.errors import ConfigurationError

FIRST_CALLS_S = (0.1, 0.2, 0.4, 0.8)
"""Pauses after the first calls; then `discover_s`."""

SEEDS_MAX = 256

CALLED_MAX = 512
"""Addresses heard of and called lately; with more, the earliest may be called again too soon, and that is all."""

CALL_AGAIN_S = 1.0
"""An address heard of is not called again before this."""

INTRODUCTIONS_MAX = 8
"""Datagrams of introductions in answer to one call."""


class Discovery:
    """When to call, and whom."""

    def __init__(self, settings: TreeSettings) -> None:
        self._settings = settings
        self._book = AddressBook(settings.seeds, SEEDS_MAX)
        self._calls = 0
        self._called: dict[str, float] = {}
        self.questions = OpenPings()
        """Nonces sent to nobody in particular: everybody may echo them."""
        self.call_at = 0.0

    @property
    def seeds(self) -> list[str]:
        return list(self._book.addresses)

    def add(self, addresses: tuple[str, ...], now: float) -> None:
        if self._book.add(addresses):
            self.call_at = now

    def remove(self, addresses: tuple[str, ...]) -> None:
        self._book.remove(addresses)

    def called(self, now: float) -> None:
        """A call went out: set the time of the next."""
        calls, self._calls = self._calls, self._calls + 1
        self.call_at = now + (FIRST_CALLS_S[calls] if calls < len(FIRST_CALLS_S) else self._settings.discover_s)

    def worth_calling(self, address: str, now: float) -> bool:
        """Has this address, heard of from somebody, not been called lately?  If so, it counts as called."""
        if now - self._called.pop(address, -CALL_AGAIN_S) < CALL_AGAIN_S:
            return False
        try:
            checked_address(address)
        except ConfigurationError:
            return False
        while len(self._called) >= CALLED_MAX:
            del self._called[next(iter(self._called))]
        self._called[address] = now
        return True
