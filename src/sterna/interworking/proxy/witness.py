"""The witness: which publications of clients behind the proxy has the foreign broker really passed on?

The node is subscribed at the foreign broker.  A publication that the broker accepts comes in there, goes into the
journal, and is settled; then its client may hear that it arrived.  A publication that the broker refuses without saying
so (3.1.1 has no words for it) does not come in.  A fence tells: it is sent after the broker has acknowledged the
publication, and the broker passes it on after everything that it acknowledged before.  When the fence is back, and
everything that came before it is in the journal, a publication that was not seen is settled as refused.

Publications are matched by topic and payload.  Equal ones are interchangeable, those of clients that do not come
through the proxy included, so the count stays right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from sterna.interworking.proxy.counters import ProxyCounters

_Key = tuple[bytes, int]


class WaitingPublisher(Protocol):
    """The client that waits for the last word about a publication."""

    def settled(self) -> None: ...
    def has_room(self) -> None: ...


class Sight:
    """One publication of a client."""

    __slots__ = ("_witness", "counts", "is_settled", "is_sighted", "key", "publisher", "qos", "retain", "serial")

    def __init__(self, witness: Witness, key: _Key, qos: int, retain: bool, publisher: WaitingPublisher) -> None:
        self._witness = witness
        self.key = key
        self.qos = qos
        self.retain = retain
        self.publisher = publisher
        self.is_settled = False
        #: It came in from the foreign broker.
        self.is_sighted = False
        #: When the foreign broker said its last word, among all of them; 0: not yet.
        self.serial = 0
        #: The foreign broker may be passing it on now.
        self.counts = False

    @property
    def was_seen(self) -> bool:
        return self.is_settled and self.is_sighted

    def released(self) -> None:
        self._witness.under_way(self)

    def answered(self) -> None:
        self._witness.answered(self)

    def interrupted(self) -> None:
        self._witness.interrupted(self)

    def withdraw(self) -> None:
        self._witness.withdraw(self)


class Witness:
    def __init__(self, wanted: Callable[[bytes], bool], counters: ProxyCounters, window: int) -> None:
        """`wanted`: are messages on this topic heard from the foreign broker?  `window`: publications that it may be
        passing on to us at once; more than it queues for one client would be lost."""
        self._wanted = wanted
        self._counters = counters
        self._window = window
        #: Those that did not come in yet, in the order in which they were published.
        self._waiting: dict[_Key, deque[Sight]] = {}
        #: Packet identifiers of messages that came in and are not in the journal yet.
        self._coming: dict[int, Sight | None] = {}
        #: Those that the foreign broker has answered and that did not come in, in that order.
        self._unseen: dict[Sight, None] = {}
        self._serial = 0
        #: Fences under way -> the last answer before each.
        self._fences: dict[bytes, int] = {}
        #: Publications that did not come before a fence, and what did: settled when that is in the journal.
        self._overdue: list[tuple[set[int], list[Sight]]] = []
        self._under_way = 0
        self._paused: dict[WaitingPublisher, None] = {}
        self.want_fence: Callable[[], None] = lambda: None

    # -- clients --

    @property
    def is_full(self) -> bool:
        """HOT."""
        return self._under_way >= self._window

    def published(
        self, topic: bytes, payload: bytes, qos: int, retain: bool, publisher: WaitingPublisher
    ) -> Sight | None:
        """HOT.  A client publishes; None if nobody will hear of it."""
        if not self._wanted(topic):
            return None
        sight = Sight(self, (topic, hash(payload)), qos, retain, publisher)
        self._waiting.setdefault(sight.key, deque()).append(sight)
        if qos == 1:
            self.under_way(sight)
        return sight

    def under_way(self, sight: Sight) -> None:
        if not sight.counts and not sight.is_settled:
            sight.counts = True
            self._under_way += 1

    def answered(self, sight: Sight) -> None:
        """HOT.  The foreign broker has said its last word about it."""
        self._serial += 1
        sight.serial = self._serial
        if not sight.is_sighted and not sight.is_settled:
            self._unseen[sight] = None
            self.want_fence()

    def interrupted(self, sight: Sight) -> None:
        """The foreign broker is gone, and will say it again."""
        sight.serial = 0
        self._unseen.pop(sight, None)

    def withdraw(self, sight: Sight) -> None:
        """Nobody waits for it."""
        if not sight.is_settled:
            self._remove(sight)
            sight.is_settled = True

    def wait_for_room(self, publisher: WaitingPublisher) -> None:
        self._paused[publisher] = None

    # -- the attachment --

    def seen(self, topic: bytes, payload: bytes, qos: int, packet_id: int) -> Sight | None:
        """HOT.  A message came in: the publication that it is, if a client behind the proxy waits for one."""
        waiting = self._waiting.get((topic, hash(payload)))
        sight = None
        if waiting is not None:
            sight = waiting.popleft()
            if not waiting:
                del self._waiting[sight.key]
            sight.is_sighted = True
            self._unseen.pop(sight, None)
        if qos:
            self._coming[packet_id] = sight
        elif sight is not None:
            self._settle(sight)
        return sight

    def safe(self, packet_id: int) -> None:
        """HOT.  The journal has the message that came under this identifier."""
        sight = self._coming.pop(packet_id, None)
        if sight is not None and not sight.is_settled:
            self._settle(sight)
        if self._overdue:
            for awaited, _ in self._overdue:
                awaited.discard(packet_id)
            self._settle_overdue()

    def fence_sent(self, fence: bytes) -> None:
        self._fences[fence] = self._serial

    def fence_back(self, fence: bytes) -> None:
        serial = self._fences.pop(fence, None)
        if serial is None:
            return
        missing = [sight for sight in self._unseen if sight.serial <= serial]
        for sight in missing:
            del self._unseen[sight]
        if missing:
            self._overdue.append((set(self._coming), missing))
            self._settle_overdue()
        if self._unseen:
            self.want_fence()

    @property
    def needs_fence(self) -> bool:
        return bool(self._unseen)

    def lost(self) -> None:
        """The connection to the foreign broker has ended: what was not in the journal comes again."""
        self._fences.clear()
        for _, missing in self._overdue:
            for sight in missing:
                if not sight.is_settled:
                    self._unseen[sight] = None
        self._overdue.clear()
        for coming in reversed(list(self._coming.values())):
            if coming is not None and not coming.is_settled:
                coming.is_sighted = False
                self._waiting.setdefault(coming.key, deque()).appendleft(coming)
                if coming.serial:
                    self._unseen[coming] = None
        self._coming.clear()
        self._unseen = dict.fromkeys(sorted(self._unseen, key=lambda sight: sight.serial))

    def let_all_go(self) -> None:
        """Nobody watches any more: the foreign broker's word is enough."""
        waiting = [sight for held in self._waiting.values() for sight in held]
        for sight in waiting:
            self._remove(sight)
            sight.is_settled = True
        for sight in waiting:
            sight.publisher.settled()

    # -- the end of a publication --

    def _settle_overdue(self) -> None:
        while self._overdue and not self._overdue[0][0]:
            for sight in self._overdue.pop(0)[1]:
                # It may have been interrupted, and said again.
                if not sight.is_settled and not sight.is_sighted and sight.serial:
                    self._counters.not_witnessed += 1
                    self._remove(sight)
                    sight.is_settled = True
                    sight.publisher.settled()

    def _settle(self, sight: Sight) -> None:
        self._counters.witnessed += 1
        self._remove(sight)
        sight.is_settled = True
        sight.publisher.settled()

    def _remove(self, sight: Sight) -> None:
        self._unseen.pop(sight, None)
        if not sight.is_sighted:
            waiting = self._waiting.get(sight.key)
            if waiting is not None and sight in waiting:
                waiting.remove(sight)
                if not waiting:
                    del self._waiting[sight.key]
        if sight.counts:
            sight.counts = False
            self._under_way -= 1
            if self._paused and not self.is_full:
                paused, self._paused = self._paused, {}
                for publisher in paused:
                    publisher.has_room()

    def __len__(self) -> int:
        """Publications that clients wait for."""
        return sum(len(waiting) for waiting in self._waiting.values()) + sum(
            sight is not None for sight in self._coming.values()
        )
