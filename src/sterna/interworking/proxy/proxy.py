"""Proxy mode as the attachment sees it: when clients may go to the foreign broker, and who witnesses for them.

Clients are let through while the attachment stands: only then is the node subscribed at the foreign broker, and sees
what it passes on.  A node that stands by for another one of its network lets clients through as well: the other node
sees what the broker passes on, and the broker's word must do.  A foreign broker that has lost the node's session passed
on to nobody in between: clients connect anew then, and everything that was not settled is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from sterna.interworking.proxy.counters import ProxyCounters
from sterna.interworking.proxy.interest import Interest
from sterna.interworking.proxy.witness import Sight, WaitingPublisher, Witness


class Door(Protocol):
    """The way of clients to the foreign broker."""

    def open(self) -> None:
        """They may go there."""

    def connect_anew(self, reason: str) -> None:
        """They let go of it and come back, without noticing."""

    @property
    def let_in(self) -> int:
        """Those that are connected to the node, and were let in."""

    @property
    def away(self) -> int:
        """Those of them whom the foreign broker has not, or not with all their subscriptions."""

    def view(self) -> dict[str, Any]:
        """For the admin port."""


class Proxy:
    def __init__(self, window: int, interest: Interest, *, repeats_doubts: bool) -> None:
        """`window`: publications that the foreign broker may be passing on to us at once."""
        self.interest = interest
        self.counters = ProxyCounters()
        self.repeats_doubts = repeats_doubts
        self.is_open = False
        self.door: Door | None = None
        self._is_wanted: Callable[[bytes], bool] = lambda _topic: True
        self._client_id = b""
        self._is_standing_by = False
        self.witness = Witness(self._is_heard, self.counters, window)

    def begin(self, wanted: Callable[[bytes], bool], want_fence: Callable[[], None], client_id: bytes) -> None:
        """`client_id`: under which, with endings, the node is known to the foreign broker."""
        self._is_wanted = wanted
        self._client_id = client_id
        self.witness.want_fence = want_fence

    def _is_heard(self, topic: bytes) -> bool:
        return not self._is_standing_by and self._is_wanted(topic)

    # -- the attachment --

    def attached(self) -> None:
        self._is_standing_by = False
        self._open()

    def standing_by(self) -> None:
        """Another node of the network hears everything that the foreign broker passes on."""
        self._is_standing_by = True
        self.witness.let_all_go()
        self._open()

    def _open(self) -> None:
        self.is_open = True
        if self.door is not None:
            self.door.open()

    def lost(self) -> None:
        self.is_open = self._is_standing_by = False
        self.witness.lost()

    def session_lost(self) -> None:
        if self.door is not None:
            self.door.connect_anew("the foreign broker has lost the node's session")

    @property
    def has_clients(self) -> bool:
        return self.door is not None and self.door.let_in > 0

    @property
    def are_clients_back(self) -> bool:
        return self.door is None or not self.door.away

    def view(self) -> dict[str, Any]:
        counters = self.counters
        return {
            "proxy": {
                "witnessed": counters.witnessed,
                "not_witnessed": counters.not_witnessed,
                "waiting": len(self.witness),
                "in_doubt": dict(sorted(counters.in_doubt.items())),
                **(self.door.view() if self.door is not None else {}),
            }
        }

    # -- the clients --

    @property
    def is_full(self) -> bool:
        """HOT."""
        return self.witness.is_full

    def published(self, topic: bytes, payload: bytes, qos: int, retain: bool, client: WaitingPublisher) -> Sight | None:
        """HOT."""
        return self.witness.published(topic, payload, qos, retain, client)

    def wait_for_room(self, client: WaitingPublisher) -> None:
        self.witness.wait_for_room(client)

    def doubt(self, outcome: str) -> None:
        self.counters.in_doubt[outcome] += 1

    def begins(self, client_id: bytes, filters: Iterable[bytes] | None) -> int:
        return self.interest.begin(client_id, filters)

    def subscribed(self, client_id: bytes, topic_filter: bytes) -> None:
        self.interest.subscribed(client_id, topic_filter)

    def unsubscribed(self, client_id: bytes, topic_filter: bytes) -> None:
        self.interest.unsubscribed(client_id, topic_filter)

    def ends(self, client_id: bytes, number: int) -> bool:
        return self.interest.end(client_id, number)

    def when_known(self, act: Callable[[], None]) -> bool:
        if self._is_standing_by or not self.interest.is_being_told:
            return False
        self.interest.when_known(act)
        return True

    def is_taken(self, client_id: bytes) -> bool:
        return client_id == self._client_id or client_id.startswith(self._client_id + b"-")
