"""How a node carries messages for nodes that are away: it wants what they want, keeps it, and offers it to them.

`carry = "all"`: this node reads everything of every origin it meets.  `"parked"`: it reads on for nodes that were last
reached through it.  When an origin is away its extent stands in this node's record, and readers ask here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sterna.mqtt.message import Message
from sterna.mqtt.topics import levels_of, matches
from sterna.routing.carried import ALL, NONE, PARKED, UNDERWAY_S, CarriedMessages, CarriedOffer, CarriedPage
from sterna.routing.kept_filters import KeptFilters
from sterna.routing.link_frames import Fetch
from sterna.routing.mobile import MobileRouting
from sterna.routing.router import Router
from sterna.routing.strategy import RoutingSettings
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

EVERYTHING = b"#"
#: How long a node that is back is still kept for: until then it and we have noticed who else is gone.
CATCH_UP_S = 30.0


class Carrying:
    def __init__(
        self,
        settings: RoutingSettings,
        router: Router,
        now: Callable[[], float],
        wall: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        age: Callable[[], float],
    ) -> None:
        self._router = router
        self._now = now
        self._wall = wall
        self._schedule = schedule
        self._age = age
        self._paths = router.paths if isinstance(router.paths, MobileRouting) else None
        self.mode = settings.carry if self._paths is not None else NONE
        self.messages = CarriedMessages(settings.carry_bytes, settings.carry_age_s, self._dropped)
        #: Node -> messages that were dropped here while it was away and wanted them.
        self._dropped_for: dict[str, int] = {}
        #: Node -> the filters we want for it while it is parked here, and some time longer.
        self._wanted_for: dict[str, list[bytes]] = {}
        self._back_since: dict[str, float] = {}
        self._kept = KeptFilters()
        #: Nodes for which something may be here.
        self._readers: dict[str, None] = {}
        if self._paths is not None and self.mode != NONE:
            self._paths.sends_to_away = True
        if self.mode == ALL:
            self._kept.begin([EVERYTHING], {})
            router.want(EVERYTHING)

    @property
    def is_on(self) -> bool:
        return self.mode != NONE

    def wants(self, topic: bytes) -> bool:
        if self.mode == ALL:
            return True
        levels = levels_of(topic)
        return any(matches(levels_of(one), levels) for filters in self._wanted_for.values() for one in filters)

    def filters(self, own: list[bytes], carrier: str) -> list[bytes] | None:
        """Those for a FETCH; None: everything.  Of a carrier (if one is named) only what it can be asked for: it knows
        nothing of those that are parked here."""
        if self.mode == ALL:
            return [EVERYTHING, *(one for one in own if one.startswith(b"$"))] if carrier else None
        return own if carrier else [*own, *(one for filters in self._wanted_for.values() for one in filters)]

    def take(self, message: Message) -> None:
        """A sequenced message from elsewhere; what follows may change it."""
        assert message.identity is not None
        if self.wants(message.topic) or (message.retain and self._wanted_for):  # all nodes get those
            is_new = self._router.streams.is_new(message.identity.origin)
            self.messages.keep(_copied(message), self._now(), is_new=is_new)

    def first_seen(self, origin: str, stamp: Stamp) -> None:
        if self.mode == ALL:
            self.messages.begun(origin, stamp, is_whole=True)

    def lost(self, origin: str) -> None:
        """Something is missing between what we have and what will come."""
        self.messages.forget(origin)

    def read_from_carrier(self, origin: str, reached: Stamp) -> None:
        """It left out what those want who are parked here: for them we begin again after that."""
        if self.mode == PARKED:
            self.messages.forget(origin)
            if self._wanted_for:
                self.messages.begun(origin, reached, is_whole=False)

    def _dropped(self, message: Message) -> None:
        assert self._paths is not None
        for reader in self._paths.away_wanting(message.topic):
            self._dropped_for[reader] = self._dropped_for.get(reader, 0) + 1

    # -- who is there --

    def origin_lost(self, origin: str) -> None:
        if self.mode == PARKED and self._paths is not None and origin in self._paths.parked_here():
            self._back_since.pop(origin, None)
            filters = self._paths.filters_of(origin)
            if filters:
                self._want_for(origin, filters)
        self._tell()

    def _want_for(self, reader: str, filters: list[bytes]) -> None:
        assert self._paths is not None
        streams = self._router.streams
        before = self._wanted_for.get(reader, [])
        self._wanted_for[reader] = filters
        self._readers[reader] = None
        for other in self._paths.origins:
            self.messages.begun(other, streams.vector.get(other, BEFORE_ALL), is_whole=False)
        for topic_filter in filters:
            self._router.want(topic_filter)
        is_wider = self._kept.begin(filters, streams.vector)
        self._unwant(before)
        if is_wider:
            streams.widened()

    def _unwant(self, filters: list[bytes]) -> None:
        """For one reader no longer."""
        still = {one for wanted in self._wanted_for.values() for one in wanted}
        for topic_filter in filters:
            self._router.unwant(topic_filter)
            if topic_filter not in still:
                self._kept.end(topic_filter, self._router.streams.vector)

    def origin_found(self, origin: str) -> None:
        if origin in self._wanted_for and origin not in self._back_since:
            self._back_since[origin] = self._now()
            self._schedule(self._now() + CATCH_UP_S, partial(self._is_back, origin))
        self._tell()

    def _is_back(self, reader: str) -> None:
        """It has had the time to read what waited."""
        since = self._back_since.get(reader)
        if since is None or reader not in self._wanted_for or self._now() - since < CATCH_UP_S:
            return
        del self._back_since[reader]
        self._unwant(self._wanted_for.pop(reader))
        if not self._wanted_for and self._paths is not None:
            for other in self._paths.origins:  # they are to be read from themselves
                self.messages.forget(other)
            if not self.messages.messages:
                self._readers.clear()
                self._kept.clear()
        self._tell()

    def _tell(self) -> None:
        """Our extents of origins that are away go into our record."""
        if self._paths is None or not self.is_on:
            return
        for reader in [reader for reader in self._wanted_for if not self._paths.is_known(reader)]:
            self._unwant(self._wanted_for.pop(reader))  # it has been forgotten
        offers = []
        for origin in self._paths.away():
            extent, last = self.messages.extent(origin), self._router.streams.vector.get(origin)
            if extent is not None and last is not None and (last > extent[0] or extent[1]):
                offers.append(CarriedOffer("", origin, extent[0], last, extent[1]))
        self._paths.offer(offers, [] if self.mode == ALL else list(self._readers))

    def page(self, fetch: Fetch) -> CarriedPage | None:
        """The answer to a reader, from what we carry; None: something that it lacks is not here."""
        self.messages.make_room(self._now())
        last = self._router.streams.vector.get(fetch.origin)
        if last is None or fetch.filters is None:
            return None
        after = None if fetch.after is None else Stamp(*fetch.after)
        if after is None and fetch.age_s > self._age() + UNDERWAY_S / 2:
            return None  # it is owed messages from before we belonged to the network
        reached = self._kept.reached(fetch.origin, after, last, fetch.filters)
        if reached is None or (after is not None and reached <= after):
            return None
        since = self._now() - fetch.age_s
        return self.messages.page(fetch.origin, after, reached, fetch.filters, since, self._wall())

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
            "dropped_for": dict(sorted(self._dropped_for.items())),
        }


def _copied(message: Message) -> Message:
    """The same message apart.  Compiled classes cannot be copied by the standard library."""
    copy = Message(
        message.topic, message.payload, message.qos, message.retain, message.properties, message.expires_at,
        message.publisher, message.received_at, message.offset,
    )  # fmt: skip
    copy.identity, copy.made_of, copy.shares = message.identity, message.made_of, message.shares
    return copy
