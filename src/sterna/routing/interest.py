"""Interest in topics: the local subscriptions, those behind each neighbour, and the news for each neighbour.

A neighbour is told the filters that others than itself want (this node, or other neighbours), and of these only the
ones no other of them covers.  Its knowledge is exact after every `flush`, whatever came in between: nothing is said
twice, what covered another is gone only after the other has been said, so interest never has a gap on its way.

A change marks filters as doubtful, link by link; `flush` settles them.  Why looking at doubtful ones is enough: a
filter that must now be said though it is not doubtful was hidden by one that was said and no longer counts; and a
filter that must be taken back though it is not doubtful is covered by one that newly counts.  Both are doubtful.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from sterna.routing.covering import FilterTable, canonical
from sterna.routing.routing_frames import RoutingKind, encode
from sterna.routing.strategy import RoutingOutput, RoutingSettings
from sterna.vocabulary.errors import LinkProtocolError

#: The source of what this node's own clients want; no link has this name.
LOCAL = ""

#: With more filters changed at once, everything remembered about topics is dropped: cheaper than one by one.
CHANGES_TOLD_MAX = 32


class _Neighbour:
    __slots__ = ("doubtful", "told", "wants", "wants_bytes")

    def __init__(self) -> None:
        #: Filters it told us, and how many bytes they are.
        self.wants: dict[bytes, None] = {}
        self.wants_bytes = 0
        #: Filters it knows from us.
        self.told: dict[bytes, None] = {}
        #: Filters that may have to be told or taken back.
        self.doubtful: dict[bytes, None] = {}


class InterestTable:
    """`relevant(link, filter)` may keep a filter from a link; one that covers a relevant one must be relevant too."""

    def __init__(
        self,
        output: RoutingOutput,
        relevant: Callable[[str, bytes], bool] | None = None,
        settings: RoutingSettings | None = None,
    ) -> None:
        self._output = output
        self._settings = settings or RoutingSettings()
        self._relevant = relevant
        #: Of each filter anybody wants, who does: LOCAL, or links.
        self._wanted: FilterTable[dict[str, None]] = FilterTable()
        self._local: dict[bytes, int] = {}
        self._neighbours: dict[str, _Neighbour] = {}
        #: Some neighbour has doubtful ones; nearly every turn none has.
        self._doubts = False

    # Interest

    def want(self, topic_filter: bytes) -> None:
        topic_filter = canonical(topic_filter)
        count = self._local.get(topic_filter, 0)
        self._local[topic_filter] = count + 1
        if not count:
            self._add_source(topic_filter, LOCAL)

    def unwant(self, topic_filter: bytes) -> None:
        topic_filter = canonical(topic_filter)
        assert self._local.get(topic_filter), "a filter nobody wanted is not wanted any more"
        self._local[topic_filter] -= 1
        if not self._local[topic_filter]:
            del self._local[topic_filter]
            self._remove_source(topic_filter, LOCAL)

    def receive(self, link: str, kind: RoutingKind, filters: list[bytes]) -> None:
        neighbour = self._neighbours[link]
        wants = neighbour.wants
        check_news(wants, kind is RoutingKind.ADD, filters)
        size = sum(map(len, filters))
        if kind is RoutingKind.ADD:
            self._settings.check_amount(len(wants) + len(filters), neighbour.wants_bytes + size)
        neighbour.wants_bytes += size if kind is RoutingKind.ADD else -size
        for topic_filter in filters:
            if kind is RoutingKind.ADD:
                wants[topic_filter] = None
                self._add_source(topic_filter, link)
            else:
                del wants[topic_filter]
                self._remove_source(topic_filter, link)
        if kind is not RoutingKind.ADD:
            self._output.no_longer_wanted(link, filters)
        self._tell_changed(filters)

    def link_started(self, link: str) -> None:
        assert link != LOCAL, "a link has a name"
        if link in self._neighbours:
            self.link_ended(link)
        neighbour = self._neighbours[link] = _Neighbour()
        neighbour.doubtful = dict.fromkeys(self._wanted)
        self._doubts = True

    def link_ended(self, link: str) -> None:
        neighbour = self._neighbours.pop(link, None)
        if neighbour is None:
            return
        for topic_filter in neighbour.wants:
            self._remove_source(topic_filter, link)
        self._output.no_longer_wanted(link, list(neighbour.wants))
        self._tell_changed(neighbour.wants)

    def _add_source(self, topic_filter: bytes, source: str) -> None:
        sources = self._wanted.get(topic_filter)
        if sources is None:
            sources = {}
            self._wanted.put(topic_filter, sources)
        self._doubt_between(topic_filter, sources, source)
        sources[source] = None

    def _remove_source(self, topic_filter: bytes, source: str) -> None:
        sources = self._wanted[topic_filter]
        del sources[source]
        self._doubt_between(topic_filter, sources, source)
        if not sources:
            self._wanted.remove(topic_filter)

    def _doubt_between(self, topic_filter: bytes, others: dict[str, None], source: str) -> None:
        """`source` comes to the others or goes from them: for whom does that decide whether anybody else wants it?"""
        self._doubts = True
        if not others:
            for link, neighbour in self._neighbours.items():
                if link != source:
                    neighbour.doubtful[topic_filter] = None
        elif len(others) == 1:
            (only,) = others
            if only != LOCAL:
                self._neighbours[only].doubtful[topic_filter] = None

    def _tell_changed(self, filters: Iterable[bytes]) -> None:
        filters = list(filters)
        if len(filters) > CHANGES_TOLD_MAX:
            self._output.changed(None)
        else:
            for topic_filter in filters:
                self._output.changed(topic_filter)

    # Consequences

    def links_for(self, topic: bytes) -> list[str]:
        links: dict[str, None] = {}
        for topic_filter in self._wanted.matching(topic):
            links.update(self._wanted[topic_filter])
        links.pop(LOCAL, None)
        return sorted(links)

    def doubt(self, link: str, topic_filter: bytes | None) -> None:
        """Filters that overlap this one (None: all) may have become relevant to this link, or no longer be."""
        neighbour = self._neighbours.get(link)
        if neighbour is not None:
            found = self._wanted if topic_filter is None else self._wanted.overlapping(topic_filter)
            neighbour.doubtful.update(dict.fromkeys(found))
            self._doubts = True

    def local_overlapping(self, topic_filter: bytes | None) -> Iterator[bytes]:
        if topic_filter is None:
            return iter(self._local)
        return (found for found in self._wanted.overlapping(topic_filter) if found in self._local)

    def local_coverers(self, topic_filter: bytes) -> Iterator[bytes]:
        return (found for found in self._wanted.coverers(topic_filter) if found in self._local)

    def flush(self) -> None:
        if not self._doubts:
            return
        self._doubts = False
        for link, neighbour in list(self._neighbours.items()):
            if neighbour.doubtful:
                self._settle(link, neighbour)

    def _settle(self, link: str, neighbour: _Neighbour) -> None:
        doubtful, neighbour.doubtful = neighbour.doubtful, {}
        told = neighbour.told
        add: dict[bytes, None] = {}
        remove: dict[bytes, None] = {}
        for topic_filter in doubtful:
            candidate = self._others_want(topic_filter, link)
            if candidate and self._is_relevant(topic_filter, link):
                if topic_filter not in told and not self._hidden(topic_filter, link):
                    add[topic_filter] = None
                    if told:
                        remove.update((found, None) for found in self._wanted.covered(topic_filter) if found in told)
            elif topic_filter in told:
                remove[topic_filter] = None
                if not candidate:  # if it is only irrelevant, so is everything it covers
                    add.update((found, None) for found in self._uncovered(topic_filter, link) if found not in told)
        self._tell(link, told, add, remove)

    def _uncovered(self, topic_filter: bytes, link: str) -> Iterator[bytes]:
        """Filters that this one covered and no other does."""
        for found in self._wanted.covered(topic_filter):
            if self._others_want(found, link) and not self._hidden(found, link) and self._is_relevant(found, link):
                yield found

    def _tell(self, link: str, told: dict[bytes, None], add: dict[bytes, None], remove: dict[bytes, None]) -> None:
        told.update(add)
        for topic_filter in remove:
            del told[topic_filter]
        for kind, filters in ((RoutingKind.ADD, add), (RoutingKind.REMOVE, remove)):
            if filters:
                for body in encode(kind, filters):
                    self._output.send(link, body)

    def _others_want(self, topic_filter: bytes, link: str) -> bool:
        sources = self._wanted.get(topic_filter)
        return sources is not None and (len(sources) > 1 or link not in sources)

    def _hidden(self, topic_filter: bytes, link: str) -> bool:
        return any(self._others_want(wide, link) for wide in self._wanted.coverers(topic_filter))

    def _is_relevant(self, topic_filter: bytes, link: str) -> bool:
        return self._relevant is None or self._relevant(link, topic_filter)

    def table(self) -> dict[str, object]:
        links = {
            link: {"wants": text_of(neighbour.wants), "told": text_of(neighbour.told)}
            for link, neighbour in sorted(self._neighbours.items())
        }
        return {"local": text_of(self._local), "links": links, "filters": len(self._wanted)}


def check_news(known: Container[bytes], adding: bool, filters: list[bytes]) -> None:
    """In a session that loses nothing, what is added is new, what is removed was there, and nothing is said twice."""
    if len(set(filters)) != len(filters) or any((topic_filter in known) == adding for topic_filter in filters):
        raise LinkProtocolError("a filter added twice, or removed without having been added")


def text_of(filters: Iterable[bytes]) -> list[str]:
    return sorted(topic_filter.decode() for topic_filter in filters)
