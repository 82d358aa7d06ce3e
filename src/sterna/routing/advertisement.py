"""Routing by advertisement: subscriptions travel only towards origins that publish what they ask for.

Three tables.  The overlay table is the list of links.  The subscription table says where subscriptions go: what each
origin advertises, as heard from the link its messages come by.  The publication table says where messages go: what the
neighbours want.  A subscription that nothing advertised matches simply waits in the table until something does.

Advertisements follow the routes to their origins: a node passes on what it hears from its route to an origin, in the
order it hears it, to all other links.  So they cannot go in circles, and an origin that is gone takes them with it.
The order matters.  When an origin withdraws a topic, nodes on the way may pull subscriptions back, and messages may
pass unseen once it is advertised again; a node that sees "withdrawn, advertised" knows that, and asks for a refetch.
Two words that cancel each other out are therefore never left out, and what is heard is passed on at once, ahead of the
messages that follow it: whoever took a later message would no longer ask for the ones that passed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

from sterna.routing.advertised_topics import AdvertisedTopics, OwnTopics
from sterna.routing.interest import CHANGES_TOLD_MAX, InterestTable, check_news, text_of
from sterna.routing.routing_frames import EVERYTHING, RoutingFrame, RoutingKind, decode, encode
from sterna.routing.strategy import MobilePathUser, RoutingOutput, RoutingSettings
from sterna.vocabulary.errors import LinkProtocolError

NOTHING = AdvertisedTopics()


class _News(NamedTuple):
    """Something to be said about an origin.  No filters, withdrawn: all."""

    kind: RoutingKind
    origin: str
    filters: list[bytes]


class Advertisement:
    name: ClassVar[str] = "advertisement"

    def __init__(
        self,
        node: str,
        output: RoutingOutput,
        *,
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        settings: RoutingSettings,
    ) -> None:
        self._node = node
        self._output = output
        self._now = now
        self._schedule = schedule
        self._settings = settings
        self._own = OwnTopics(settings.advertised_topics_max)
        self._sweeping = False
        #: By link and origin, what was heard: also from links that are not the route to that origin, or not yet.
        self._heard: dict[str, dict[str, AdvertisedTopics]] = {}
        #: By link, how many filters that is, and how many bytes.
        self._amounts: dict[str, tuple[int, int]] = {}
        self._routes: dict[str, str] = {}
        #: By link, what is to be said at the next flush.
        self._news: dict[str, list[_News]] = {}
        #: Origins that our own clients' interest has come to reach since the last flush.
        self._reached: dict[str, None] = {}
        self._interest = InterestTable(output, self._relevant, settings)

    # Local clients

    def want(self, topic_filter: bytes) -> None:
        self._interest.want(topic_filter)

    def unwant(self, topic_filter: bytes) -> None:
        self._interest.unwant(topic_filter)

    def paths(self, epoch: int, feed: str, clients: str, user: MobilePathUser) -> None:
        """Origins announce themselves."""

    def publishing(self, topic: bytes) -> bool:
        change = self._own.use(topic)
        if not change.new:
            return False
        for link in self._news:
            self._say_change(link, self._node, change.new, change.gone)
        self._sweep_later()
        return True

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._schedule(self._now() + self._settings.advertisement_idle_s, self._sweep)

    def _sweep(self) -> None:
        """Withdraw what nobody has published on, and have everybody else say `publishing` again."""
        self._sweeping = False
        used, idle = self._own.sweep()
        for link in self._news if idle else ():
            self._say_change(link, self._node, (), idle)
        if len(used) > CHANGES_TOLD_MAX or EVERYTHING in used:
            self._output.changed(None)
        else:
            for topic_filter in used:
                self._output.changed(topic_filter)
        if len(self._own):
            self._sweep_later()

    # Neighbours

    def link_started(self, link: str) -> None:
        if link in self._heard:
            self.link_ended(link)
        self._interest.link_started(link)
        self._heard[link] = {}
        self._news[link] = []
        self._say_change(link, self._node, self._own, ())
        for origin, via in self._routes.items():
            self._say_change(link, origin, self._visible(origin, via, link), ())

    def link_ended(self, link: str) -> None:
        self._interest.link_ended(link)
        self._news.pop(link, None)
        self._amounts.pop(link, None)
        for origin in self._heard.pop(link, {}):
            if self._routes.get(origin) == link:
                self._pass_on(link, _News(RoutingKind.WITHDRAW, origin, []))

    def origin_routed(self, origin: str, link: str | None) -> None:
        old = self._routes.get(origin)
        if old == link or origin == self._node:
            return
        if link is None:
            del self._routes[origin]
        else:
            self._routes[origin] = link
        for other in self._news:
            was, now = self._visible(origin, old, other), self._visible(origin, link, other)
            if len(now):
                gone = [topic_filter for topic_filter in was if topic_filter not in now]
                self._say_change(other, origin, [new for new in now if new not in was], gone)
            elif len(was):
                self._say(other, _News(RoutingKind.WITHDRAW, origin, []))
        for via in (old, link):
            if via is not None:
                for topic_filter in self._heard.get(via, {}).get(origin, NOTHING):
                    self._interest.doubt(via, topic_filter or None)

    def receive(self, link: str, body: bytes) -> None:
        frame = decode(body)
        if frame.kind in (RoutingKind.ADD, RoutingKind.REMOVE):
            self._interest.receive(link, frame.kind, frame.filters)
        else:
            self._hear(link, frame)

    def _hear(self, link: str, frame: RoutingFrame) -> None:
        kind, filters, origin = frame
        known = self._heard[link].get(origin, NOTHING)
        routed = self._routes.get(origin) == link
        check_news(known, kind is RoutingKind.ADVERTISE, filters)
        if kind is RoutingKind.ADVERTISE:
            count, size = self._amounts.get(link, (0, 0))
            self._amounts[link] = (count + len(filters), size + sum(map(len, filters)))
            self._settings.check_amount(*self._amounts[link])
            known = self._heard[link].setdefault(origin, AdvertisedTopics())
            for topic_filter in filters:
                if routed and self._widens(known, topic_filter):
                    self._reached[origin] = None
                known.add(topic_filter)
        elif not len(known):
            raise LinkProtocolError("an origin that advertised nothing withdraws everything")
        else:
            filters = filters or list(known)
            count, size = self._amounts[link]
            self._amounts[link] = (count - len(filters), size - sum(map(len, filters)))
            for topic_filter in filters:
                known.remove(topic_filter)
            if not len(known):
                del self._heard[link][origin]
        if routed:
            for topic_filter in filters:
                self._interest.doubt(link, topic_filter or None)
            self._pass_on(link, _News(kind, origin, frame.filters))
            self._hurry(origin)

    def _hurry(self, origin: str) -> None:
        """Live messages of the origin may follow in the same turn: they must not overtake its advertisement."""
        if origin in self._reached:
            self.flush()
        else:
            self._send_news()

    def _widens(self, known: AdvertisedTopics, topic_filter: bytes) -> bool:
        """Does a client here ask for this, and did nothing it asked for lead to this origin yet?"""
        for wanted in self._interest.local_overlapping(topic_filter or None):
            if not known.overlaps(wanted) and not any(map(known.overlaps, self._interest.local_coverers(wanted))):
                return True
        return False

    def _relevant(self, link: str, topic_filter: bytes) -> bool:
        return any(
            self._routes.get(origin) == link and advertised.overlaps(topic_filter)
            for origin, advertised in self._heard.get(link, {}).items()
        )

    # Telling

    def _visible(self, origin: str, via: str | None, to: str) -> AdvertisedTopics:
        """Topics that one link is told of an origin routed via another."""
        if via is None or via == to:
            return NOTHING
        return self._heard.get(via, {}).get(origin, NOTHING)

    def _pass_on(self, source: str, news: _News) -> None:
        for link in self._news:
            if link != source:
                self._say(link, news)

    def _say_change(self, link: str, origin: str, new: Iterable[bytes], gone: Sequence[bytes]) -> None:
        new = list(new)
        if new:
            self._say(link, _News(RoutingKind.ADVERTISE, origin, new))
        if gone:
            self._say(link, _News(RoutingKind.WITHDRAW, origin, list(gone)))

    def _say(self, link: str, news: _News) -> None:
        said = self._news[link]
        if said and said[-1][:2] == news[:2] and said[-1].filters and news.filters:
            said[-1] = _News(news.kind, news.origin, said[-1].filters + news.filters)
        else:
            said.append(news)

    def flush(self) -> None:
        self._send_news()
        self._interest.flush()
        reached, self._reached = self._reached, {}
        for origin in reached:
            if origin in self._routes:
                self._output.refetch(origin)

    def _send_news(self) -> None:
        for link, news in list(self._news.items()):
            if news:
                self._news[link] = []
                for kind, origin, filters in news:
                    for body in encode(kind, filters, origin):
                        self._output.send(link, body)

    # Knowledge

    def links_for(self, topic: bytes) -> list[str]:
        return self._interest.links_for(topic)

    def everything(self) -> bool:
        return False

    def table(self) -> dict[str, object]:
        heard = {
            link: {origin: text_of(advertised) for origin, advertised in sorted(origins.items())}
            for link, origins in sorted(self._heard.items())
        }
        return {
            "strategy": self.name,
            **self._interest.table(),
            "advertised": text_of(self._own),
            "heard": heard,
            "routes": dict(sorted(self._routes.items())),
        }
