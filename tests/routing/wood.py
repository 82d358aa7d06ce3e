"""A wood: strategies joined to trees by links that keep order, driven step by step, with all that surrounds them.

Around each strategy stands the least of a node that shows whether its tables do what they are for: paths learnt from
announcements, live messages that are taken from the path only, catching up from the origin's journal, and probes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sterna.mqtt.topics import levels_of, matches
from sterna.routing.covering import canonical
from sterna.routing.routing_frames import RoutingKind, decode
from sterna.routing.strategies import make_strategy
from sterna.routing.strategy import RoutingSettings

IDLE_S = 60.0
Item = tuple[Any, ...]


def fits(topic_filter: bytes, topic: bytes) -> bool:
    return matches(levels_of(topic_filter), levels_of(topic))


class Stem:
    """One node."""

    def __init__(self, wood: Wood, name: str, strategy: str, settings: RoutingSettings) -> None:
        self.wood = wood
        self.name = name
        self.strategy = make_strategy(
            strategy, name, self, now=lambda: wood.now, schedule=wood.schedule, settings=settings
        )
        self.links: dict[str, int] = {}  # neighbour -> session
        self.wants: dict[bytes, int] = {}  # filter -> which subscription
        self.settled: dict[bytes, int] = {}  # those whose probe is back -> shape of the wood when it left
        self.known: dict[bytes, int] = {}  # topics published on, everybody having heard -> the same
        self.paths: dict[str, tuple[str, int, tuple[int, ...]]] = {}
        self.heard: dict[str, int] = {}
        self.lost: dict[str, None] = {}
        self.announced = 0
        self.journal: list[bytes] = []
        self.own_topics: dict[bytes, None] = {}
        self.gathered: list[tuple[str, Item]] = []
        self.handed_on: dict[str, int] = {}
        self.vector: dict[str, int] = {}
        self.fetching: dict[str, int] = {}  # origin -> number of the fetch under way
        self.again: dict[str, None] = {}
        self.fetches = 0
        self.refetches = 0
        self.received: dict[tuple[str, int], None] = {}
        self.probes: dict[tuple[str, int], tuple[str | None, dict[str, None], Callable[[], None]]] = {}
        self.probed = 0

    # What the strategy asks for

    def send(self, link: str, body: bytes) -> None:
        self.wood.sent.append((self.name, link, body))
        self.put(link, ("routing", body))

    def no_longer_wanted(self, link: str, filters: list[bytes]) -> None:
        """Nothing is counted here."""

    def refetch(self, origin: str) -> None:
        self.refetches += 1
        if origin in self.fetching:
            self.again[origin] = None
        else:
            self.fetch(origin)

    def changed(self, topic_filter: bytes | None) -> None:
        for topic in list(self.own_topics):
            if topic_filter is None or fits(topic_filter, topic):
                del self.own_topics[topic]

    # What a node does

    def put(self, link: str, item: Item) -> None:
        if link in self.links:
            self.wood.queues[self.name, link].append(item)

    def control(self, link: str, item: Item) -> None:
        self.flush()
        self.put(link, item)

    def flush(self) -> None:
        self.strategy.flush()
        gathered, self.gathered = self.gathered, []
        for link, item in gathered:
            self.put(link, item)

    def want(self, topic_filter: bytes) -> None:
        if topic_filter not in self.wants:
            self.wood.subscriptions += 1
            self.wants[topic_filter] = subscription = self.wood.subscriptions
            self.strategy.want(topic_filter)
            shape = self.wood.shape
            self.probe(lambda: self.settle(topic_filter, subscription, shape))

    def settle(self, topic_filter: bytes, subscription: int, shape: int) -> None:
        if self.wants.get(topic_filter) == subscription:
            self.settled[topic_filter] = shape

    def unwant(self, topic_filter: bytes) -> None:
        if topic_filter in self.wants:
            del self.wants[topic_filter]
            self.settled.pop(topic_filter, None)
            self.strategy.unwant(topic_filter)

    def publish(self, topic: bytes) -> int:
        self.journal.append(topic)
        if topic not in self.own_topics:
            self.own_topics[topic] = None
            self.strategy.publishing(topic)
        for link in self.strategy.links_for(topic):
            self.gathered.append((link, ("message", self.name, len(self.journal), topic)))
        return len(self.journal)

    def make_known(self, topic: bytes) -> None:
        shape, age = self.wood.shape, self.wood.now
        self.probe(lambda: self.known.update({topic: shape} if age == self.wood.now else {}))

    def probe(self, action: Callable[[], None]) -> None:
        self.flush()
        self.probed += 1
        key = (self.name, self.probed)
        self.probes[key] = (None, dict.fromkeys(self.links), action)
        for link in self.links:
            self.control(link, ("probe", key))
        self.answer(key)

    def answer(self, key: tuple[str, int]) -> None:
        source, out, action = self.probes[key]
        if not out:
            del self.probes[key]
            if source is not None:
                self.control(source, ("echo", key))
            action()

    # Links

    def link_started(self, link: str, session: int) -> None:
        self.links[link] = session
        self.strategy.link_started(link)
        self.announce(ask=True)

    def link_ended(self, link: str) -> None:
        del self.links[link]
        self.gathered = [(to, item) for to, item in self.gathered if to != link]
        self.strategy.link_ended(link)
        self.forget(link, [origin for origin, path in self.paths.items() if path[0] == link])
        for key, (source, out, _) in list(self.probes.items()):
            out.pop(link, None)
            if source == link:
                del self.probes[key]
            else:
                self.answer(key)

    def announce(self, ask: bool) -> None:
        self.flush()
        self.announced += 1
        for link in self.links:
            self.put(link, ("announce", self.name, self.announced, (), ask))

    def receive(self, link: str, item: Item) -> None:
        kind, *rest = item
        getattr(self, f"on_{kind}")(link, *rest)

    def on_routing(self, link: str, body: bytes) -> None:
        self.strategy.receive(link, body)

    def on_announce(self, link: str, origin: str, number: int, digest: tuple[int, ...], ask: bool) -> None:
        if origin == self.name or number <= self.heard.get(origin, 0):
            return
        self.heard[origin] = number
        digest = (*digest, self.links[link])
        before = self.paths.get(origin)
        self.paths[origin] = (link, number, digest)
        for other in self.links:
            if other != link:
                self.put(other, ("announce", origin, number, digest, ask))
        if before is None or (before[0], before[2]) != (link, digest):
            self.strategy.origin_routed(origin, link)
            self.fetch(origin)
        if ask:
            self.announce(ask=False)

    def on_lost(self, link: str, origins: list[str]) -> None:
        self.forget(link, [origin for origin in origins if origin in self.paths and self.paths[origin][0] == link])

    def forget(self, link: str, origins: list[str]) -> None:
        for origin in origins:
            del self.paths[origin]
        for other in self.links:
            if other != link and origins:
                self.put(other, ("lost", origins))
        for origin in origins:
            self.strategy.origin_routed(origin, None)
            self.fetching.pop(origin, None)
            self.lost[origin] = None

    def look_for_the_lost(self) -> None:
        """Another way may have stood all the time."""
        if any(origin not in self.paths for origin in self.lost):
            self.announce(ask=True)
        self.lost.clear()

    # Messages

    def on_message(self, link: str, origin: str, sequence: int, topic: bytes) -> None:
        if origin not in self.paths or self.paths[origin][0] != link:
            return
        if sequence <= self.handed_on.get(origin, 0):
            assert self.wood.rings, "twice by the same path"
            return
        self.handed_on[origin] = sequence
        for other in self.strategy.links_for(topic):
            if other != link:
                self.put(other, ("message", origin, sequence, topic))
        if origin not in self.fetching and sequence > self.vector.get(origin, 0):
            self.vector[origin] = sequence
            self.take(origin, sequence, topic)

    def take(self, origin: str, sequence: int, topic: bytes) -> None:
        if any(fits(topic_filter, topic) for topic_filter in self.wants):
            self.received[origin, sequence] = None

    def fetch(self, origin: str) -> None:
        self.fetches += 1
        self.fetching[origin] = self.fetches
        self.again.pop(origin, None)
        self.control(self.paths[origin][0], ("fetch", origin, self.fetches, self.vector.get(origin, 0), [self.name]))

    def on_fetch(self, link: str, origin: str, number: int, after: int, hops: list[str]) -> None:
        if origin == self.name:
            messages = list(enumerate(self.journal[after:], after + 1))
            self.control(hops[-1], ("page", origin, number, hops, messages, len(self.journal)))
        elif origin in self.paths:
            self.control(self.paths[origin][0], ("fetch", origin, number, after, [*hops, self.name]))

    def on_page(self, link: str, origin: str, number: int, hops: list[str], messages: Any, reached: int) -> None:
        if len(hops) > 1:
            self.control(hops[-2], ("page", origin, number, hops[:-1], messages, reached))
        elif self.fetching.get(origin) == number:
            for sequence, topic in messages:
                self.take(origin, sequence, topic)
            self.vector[origin] = reached
            del self.fetching[origin]
            if origin in self.again:
                self.fetch(origin)

    def on_probe(self, link: str, key: tuple[str, int]) -> None:
        if key in self.probes:  # came round a ring
            self.control(link, ("echo", key))
            return
        others = dict.fromkeys(other for other in self.links if other != link)
        self.probes[key] = (link, others, lambda: None)
        for other in list(others):
            self.control(other, ("probe", key))
        self.answer(key)

    def on_echo(self, link: str, key: tuple[str, int]) -> None:
        if key in self.probes:
            self.probes[key][1].pop(link, None)
            self.answer(key)


class Wood:
    """Nodes named a, b, c, ...; `join` and `cut` grow and fell the trees."""

    def __init__(self, size: int, strategy: str, settings: RoutingSettings | None = None) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.queues: dict[tuple[str, str], deque[Item]] = {}
        self.sent: list[tuple[str, str, bytes]] = []
        self.sessions = 0
        self.subscriptions = 0
        #: Counts the shapes the wood has had.
        self.shape = 0
        #: Counts the rings there have been: a tree that re-forms makes its new links before it leaves the old ones.
        self.rings = 0
        settings = settings or RoutingSettings(advertisement_idle_s=IDLE_S, advertised_topics_max=4)
        self.stems = {name: Stem(self, name, strategy, settings) for name in "abcdefg"[:size]}

    def __getitem__(self, name: str) -> Stem:
        return self.stems[name]

    def schedule(self, at: float, action: Callable[[], None]) -> None:
        self.timers.append((at, len(self.timers), action))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for stem in self.stems.values():
            stem.known.clear()  # what is not used any more may be withdrawn
        due = sorted(timer[:2] for timer in self.timers if timer[0] <= self.now)
        actions = {timer[:2]: timer[2] for timer in self.timers}
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for timer in due:
            actions[timer]()
        for stem in self.stems.values():
            stem.flush()

    def join(self, one: str, other: str) -> None:
        assert other not in self.component(one), "a wood has no cycles"
        self._link(one, other)

    def close_ring(self, one: str, other: str) -> None:
        """Until one of its edges is cut."""
        assert other in self.component(one)
        self.rings += 1
        self._link(one, other)

    def _link(self, one: str, other: str) -> None:
        self.shape += 1
        self.sessions += 1
        self.queues[one, other], self.queues[other, one] = deque(), deque()
        for near, far in ((one, other), (other, one)):
            self[near].link_started(far, self.sessions)
            self[near].flush()

    def cut(self, one: str, other: str) -> None:
        self.shape += 1
        for near, far in ((one, other), (other, one)):
            del self.queues[near, far]
            self[near].link_ended(far)
            self[near].flush()

    def component(self, name: str, without: str = "") -> list[str]:
        """Nodes that can be reached, not going by one neighbour."""
        found = [name]
        for near in found:
            found += [far for far in self[near].links if far not in found and (near != name or far != without)]
        return found

    def way(self, near: str, far: str) -> list[str]:
        """From one node to another, both included."""
        if near == far:
            return [far]
        onward = next(link for link in self[near].links if far in self.component(link, without=near))
        return [near, *self.way(onward, far)]

    def edges(self) -> list[tuple[str, str]]:
        return [(near, far) for near, far in self.queues if near < far]

    def waiting(self) -> list[tuple[str, str]]:
        return [ends for ends, queue in self.queues.items() if queue]

    def deliver(self, near: str, far: str, count: int = 1) -> None:
        """One turn of a node: some of what waits on one of its links."""
        queue = self.queues[near, far]
        for _ in range(min(count, len(queue))):
            self[far].receive(near, queue.popleft())
        self[far].flush()

    def rest(self) -> None:
        for stem in self.stems.values():
            stem.flush()
        for _ in range(100_000):
            waiting = self.waiting()
            if waiting:
                self.deliver(*waiting[0])
                continue
            for stem in self.stems.values():
                stem.look_for_the_lost()
            if not self.waiting():
                return
        raise AssertionError("it never comes to rest")

    def said(self, kind: RoutingKind) -> list[tuple[str, str, bytes]]:
        """(from, to, filter) of everything of one kind said since `sent` was emptied."""
        frames = [(near, far, decode(body)) for near, far, body in self.sent]
        return [(near, far, entry) for near, far, frame in frames if frame.kind is kind for entry in frame.filters]

    def told(self, near: str, far: str) -> list[bytes]:
        links: Any = self[near].strategy.table()["links"]
        return [entry.encode() for entry in links[far]["told"]]

    def wanted_at(self, names: list[str]) -> list[bytes]:
        return list(dict.fromkeys(canonical(f) for name in names for f in self[name].wants))
