"""How nodes that know nothing of each other meet: calls into the multicast group and to seed addresses, often at first
and seldom later, and introductions by those who are met.  Addresses heard of are called within bounds, never trusted.

Where many are one tree, one voice is enough: the root calls for all.  Of the seed addresses at which somebody in use
has answered, all are called at first, for introductions get lost, and later one now and then.
"""

from __future__ import annotations

from sterna.overlay.neighbours import AddressBook, checked_address
from sterna.overlay.round_trips import OpenPings
from sterna.overlay.tree_settings import TreeSettings
from sterna.vocabulary.errors import ConfigurationError

FIRST_CALLS_S = (0.1, 0.2, 0.4, 0.8)
"""Pauses after the first calls; then `discover_s`."""

CALLS_TO_ALL = 8
"""The first calls go to all seed addresses."""

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
        self._asked_seeds: dict[int, str] = {}
        self._answered: dict[str, str] = {}
        self._group_at = 0.0
        self._seed_at = 0.0
        self._turn = 0
        self.questions = OpenPings(2 * SEEDS_MAX)
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
        for address in addresses:
            self._answered.pop(address, None)

    def called(self, now: float) -> None:
        """Calls went out: set the time of the next."""
        calls, self._calls = self._calls, self._calls + 1
        self.call_at = now + (FIRST_CALLS_S[calls] if calls < len(FIRST_CALLS_S) else self._settings.discover_s)

    def is_group_due(self, now: float, is_root: bool) -> bool:
        """Is it this node's turn to call into the group?  If so, it counts as called."""
        if self._calls > len(FIRST_CALLS_S) and not is_root and now < self._group_at:
            return False
        self._group_at = now + self._settings.call_s
        return True

    def seeds_to_call(self, now: float, usable: set[str]) -> list[str]:
        """Those at which none of the peers in use has answered, nor this node itself; and those whose turn it is."""
        seeds = [seed for seed in self._book.addresses if seed != self._settings.address]
        silent = [seed for seed in seeds if self._answered.get(seed) not in usable]
        if self._calls < CALLS_TO_ALL:
            return seeds
        if len(silent) < len(seeds) and now >= self._seed_at:
            self._seed_at = now + self._settings.call_s
            self._turn += 1
            answered = [seed for seed in seeds if seed not in silent]
            silent.append(answered[self._turn % len(answered)])
        return silent

    def asked_seed(self, seed: str, nonce: int) -> None:
        while len(self._asked_seeds) >= SEEDS_MAX:
            del self._asked_seeds[next(iter(self._asked_seeds))]
        self._asked_seeds[nonce] = seed

    def answered(self, nonce: int, name: str) -> None:
        """A node echoed this nonce: if it was sent to a seed address, the node is there."""
        seed = self._asked_seeds.pop(nonce, None)
        if seed is not None and seed in self._book.addresses:
            self._answered[seed] = name

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
