"""How a node carries messages for nodes that are away: it wants what they want, keeps it, and offers it to them.

`carry = "all"`: this node reads everything of every origin it meets.  `"parked"`: it reads on for nodes that were last
reached through it.  When an origin is away its extent stands in this node's record, and readers ask here.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.mqtt.message import Message
from sterna.mqtt.topics import levels_of, matches
from sterna.routing.carried import ALL, NONE, PARKED, CarriedMessages, CarriedOffer, CarriedPage
from sterna.routing.link_frames import Fetch
from sterna.routing.mobile import MobileRouting
from sterna.routing.router import Router
from sterna.routing.strategy import RoutingSettings
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

EVERYTHING = b"#"


class Carrying:
    def __init__(
        self, settings: RoutingSettings, router: Router, now: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._router = router
        self._now = now
        self._wall = wall
        self._paths = router.paths if isinstance(router.paths, MobileRouting) else None
        self.mode = settings.carry if self._paths is not None else NONE
        self.messages = CarriedMessages(settings.carry_bytes, settings.carry_age_s)
        #: Node -> the filters we want for it while it is parked here.
        self._wanted_for: dict[str, list[bytes]] = {}
        #: Nodes that have been parked here: for them alone the extents are complete.
        self._readers: dict[str, None] = {}
        if self._paths is not None and self.mode != NONE:
            self._paths.sends_to_away = True
        if self.mode == ALL:
            router.want(EVERYTHING)

    @property
    def is_on(self) -> bool:
        return self.mode != NONE

    def wants(self, topic: bytes) -> bool:
        if self.mode == ALL:
            return True
        levels = levels_of(topic)
        return any(matches(levels_of(one), levels) for filters in self._wanted_for.values() for one in filters)

    def filters(self, own: list[bytes]) -> list[bytes] | None:
        """Those for a FETCH."""
        if self.mode == ALL:
            return None
        return [*own, *(one for filters in self._wanted_for.values() for one in filters)]

    def take(self, message: Message) -> None:
        """A sequenced message from elsewhere; what follows may change it."""
        assert message.identity is not None
        if self.wants(message.topic):
            is_new = self._router.streams.is_new(message.identity.origin)
            self.messages.keep(_copied(message), self._now(), is_new=is_new)

    def first_seen(self, origin: str, stamp: Stamp) -> None:
        if self.mode == ALL:
            self.messages.begun(origin, stamp, is_whole=True)

    def lost(self, origin: str) -> None:
        """Something is missing between what we have and what will come."""
        self.messages.forget(origin)

    # -- who is there --

    def origin_lost(self, origin: str) -> None:
        if self.mode == PARKED and self._paths is not None and origin in self._paths.parked_here():
            filters = self._paths.filters_of(origin)
            if filters and origin not in self._wanted_for:
                self._wanted_for[origin] = filters
                self._readers[origin] = None
                for other in self._paths.origins:
                    self.messages.begun(other, self._router.streams.vector.get(other, BEFORE_ALL), is_whole=False)
                for topic_filter in filters:
                    self._router.want(topic_filter)
        self._tell()

    def origin_found(self, origin: str) -> None:
        for topic_filter in self._wanted_for.pop(origin, ()):
            self._router.unwant(topic_filter)
        if self.mode == PARKED and self._paths is not None and not self._wanted_for:
            for other in self._paths.origins:  # they are to be read from themselves
                self.messages.forget(other)
        self._tell()

    def _tell(self) -> None:
        """Our extents of origins that are away go into our record."""
        if self._paths is None or not self.is_on:
            return
        offers = []
        for origin in self._paths.away():
            extent, last = self.messages.extent(origin), self._router.streams.vector.get(origin)
            if extent is not None and last is not None and (last > extent[0] or extent[1]):
                offers.append(CarriedOffer("", origin, extent[0], last, extent[1]))
        self._paths.offer(offers, [] if self.mode == ALL else list(self._readers))

    def page(self, fetch: Fetch) -> CarriedPage | None:
        """The answer to a reader, from what we carry."""
        self.messages.make_room(self._now())
        last = self._router.streams.vector.get(fetch.origin)
        if last is None or (self.mode != ALL and fetch.hops[0] not in self._readers):
            return None
        if any(topic_filter.startswith(b"$") for topic_filter in fetch.filters or ()):
            return None  # `#` does not match those: they would be missing
        after = None if fetch.after is None else Stamp(*fetch.after)
        return self.messages.page(fetch.origin, after, last, fetch.filters, self._wall() - fetch.age_s, self._wall())

    def view(self) -> dict[str, object]:
        """For people."""
        messages = self.messages
        return {
            "carry": self.mode,
            "messages": messages.messages,
            "bytes": messages.bytes,
            "oldest_s": messages.oldest_s(self._now()),
            "handed_on": messages.handed_on,
            "evicted": messages.evicted,
            "for": sorted(self._wanted_for),
        }


def _copied(message: Message) -> Message:
    """The same message apart.  Compiled classes cannot be copied by the standard library."""
    copy = Message(
        message.topic, message.payload, message.qos, message.retain, message.properties, message.expires_at,
        message.publisher, message.received_at, message.offset,
    )  # fmt: skip
    copy.identity, copy.made_of, copy.shares = message.identity, message.made_of, message.shares
    return copy
