"""The wishes of the clients behind the proxy, by their subscriptions at the foreign broker.

A client counts from the moment at which the foreign broker has granted it something until its session ends there, over
its connections and over those of the node.  A session that is older than the node has subscriptions that nobody told
the node of: as long as there is one, everything is wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sterna.mqtt.topics import SHARE, covers, levels_of, overlap, split_share

#: With more filters than these everything is wanted: each of them costs every node of the network.
FILTERS_MAX: Final = 1000


class Interest:
    def __init__(self, bounds: Sequence[bytes]) -> None:
        """`bounds`: filters outside of which nothing is to go to the foreign broker."""
        self._bounds = [(one, levels_of(one)) for one in bounds]
        #: Client -> what it wants, as far as the bounds let it; None: its session is older than the node.
        self._clients: dict[bytes, dict[bytes, tuple[bytes, ...]] | None] = {}
        self._lives: dict[bytes, int] = {}
        self._number = 0
        self._wanted: Counter[bytes] = Counter()
        self._unknown = 0
        self._waiting: list[Callable[[], None]] = []
        #: The network does not know of all of it yet.
        self.is_being_told = False
        #: Told when `filters` are others.
        self.changed: Callable[[], None] = lambda: None

    def filters(self) -> list[bytes]:
        """The filters of messages that are to go to the foreign broker."""
        if self.is_everything:
            return [one for one, _ in self._bounds]
        return list(self._wanted)

    @property
    def is_everything(self) -> bool:
        return self._unknown > 0 or len(self._wanted) > FILTERS_MAX

    # -- clients --

    def begin(self, client_id: bytes, filters: Iterable[bytes] | None) -> int:
        """The foreign broker has let it in, with these subscriptions (None: with some that nobody knows); the number
        of this life of it, for `end`."""
        self._forget(client_id)
        self._number += 1
        self._lives[client_id] = self._number
        if filters is None:
            self._clients[client_id] = None
            self._unknown += 1
            self.changed()
        else:
            self._clients[client_id] = {}
            for one in filters:
                self.subscribed(client_id, one)
        return self._number

    def subscribed(self, client_id: bytes, topic_filter: bytes) -> None:
        held = self._clients.get(client_id)
        if held is None or topic_filter in held:
            return
        held[topic_filter] = found = self._bounded(topic_filter)
        self._wanted.update(found)
        if any(self._wanted[one] == 1 for one in found):
            self.changed()

    def unsubscribed(self, client_id: bytes, topic_filter: bytes) -> None:
        held = self._clients.get(client_id)
        if held is not None:
            self._release(held.pop(topic_filter, ()))

    def end(self, client_id: bytes, number: int) -> bool:
        """Its session is over; False if there is a later one."""
        if self._lives.get(client_id) != number:
            return False
        self._forget(client_id)
        return True

    def _forget(self, client_id: bytes) -> None:
        self._lives.pop(client_id, None)
        if client_id not in self._clients:
            return
        held = self._clients.pop(client_id)
        if held is None:
            self._unknown -= 1
            self.changed()
            return
        for found in held.values():
            self._release(found)

    def _release(self, found: tuple[bytes, ...]) -> None:
        for one in found:
            self._wanted[one] -= 1
            if not self._wanted[one]:
                del self._wanted[one]
                self.changed()

    def _bounded(self, topic_filter: bytes) -> tuple[bytes, ...]:
        if topic_filter.startswith(SHARE):
            share = split_share(topic_filter)
            if share is None:
                return ()
            topic_filter = share[1]
        if topic_filter.startswith(b"$"):
            return ()
        levels = levels_of(topic_filter)
        found = []
        for bound, bound_levels in self._bounds:
            if covers(bound_levels, levels):
                return (topic_filter,)
            if overlap(bound_levels, levels):
                found.append(bound)
        return tuple(found)

    # -- the network --

    def when_known(self, act: Callable[[], None]) -> None:
        """Do this when every node of the network knows what is wanted."""
        self._waiting.append(act)

    def known(self) -> None:
        """They know, or need not."""
        self.is_being_told = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()
