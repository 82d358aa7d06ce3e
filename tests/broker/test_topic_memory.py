"""Topics as deep as they may be take memory in proportion to their bytes, wherever they are kept."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from broker.lone_node import LoneNode
from conformance.packets import Publish, Subscribe
from sterna.broker.delivery.retained import RETAINED_BYTES
from sterna.broker.limits import Limits
from sterna.broker.session.subscriptions import SUBSCRIPTION_BYTES
from sterna.journal.filter_set import FilterSet as TopicInterest
from sterna.routing.routing_frames import RoutingKind, decode, encode
from sterna.routing.subscription_flooding import SubscriptionFlooding

COUNT = 500
LEVELS = Limits().topic_levels


def apart(number: int) -> bytes:
    """Names that part at the first level: nothing is shared."""
    return b"%05d/" % number + b"/".join([b"a"] * (LEVELS - 1))


def late(number: int) -> bytes:
    """Pairs of names that part at the last level, so that each pair has a place of its own where they do."""
    return b"%05d/" % (number // 2) + b"/".join([b"a"] * (LEVELS - 2)) + b"/%d" % (number % 2)


def wild(number: int) -> bytes:
    return b"%05d/" % number + b"/".join([b"+", b"a"] * (LEVELS // 2 - 1)) + b"/#"


class Nobody:
    """Where a strategy says what is to be told."""

    def send(self, link: str, body: bytes) -> None: ...
    def refetch(self, origin: str) -> None: ...
    def changed(self, topic_filter: bytes | None) -> None: ...
    def no_longer_wanted(self, link: str, filters: list[bytes]) -> None: ...


def grown(work: Callable[[], None]) -> int:
    """Bytes that are held after some work and were not before."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


names = pytest.mark.parametrize("name", [apart, late], ids=["apart", "late"])


@names
def test_retained_messages(name: Callable[[int], bytes]) -> None:
    node = LoneNode()
    writer = node.join("writer")
    writer.publish("a", b"x", retain=True)  # whatever is loaded then is not what is measured
    writer.publish("a", b"", retain=True)
    topics = [name(number).decode() for number in range(COUNT)]

    def publish() -> None:
        for topic in topics:
            writer.connection.feed(Publish(topic, b"x", 0, True).encode(5))
        node.settle()

    size = grown(publish)
    assert len(node.broker.retained) == COUNT
    assert size < 10 * sum(map(len, topics))
    # And what they are charged for is what they take, or more.
    assert size < node.broker.retained._memory < COUNT * (RETAINED_BYTES + 3 * max(map(len, topics)))


@pytest.mark.parametrize("name", [apart, late, wild], ids=["apart", "late", "wild"])
def test_subscriptions(name: Callable[[int], bytes]) -> None:
    node = LoneNode()
    reader = node.join("reader")
    filters = [name(number).decode() for number in range(COUNT)]

    def subscribe() -> None:
        for number, topic_filter in enumerate(filters, 1):
            reader.connection.feed(Subscribe(number, [(topic_filter, 0)]).encode(5))
        node.settle()
        reader.wire.written.clear()

    size = grown(subscribe)
    assert node.broker.routes.size == COUNT
    assert size < 10 * sum(map(len, filters))
    charged = node.broker.routes.subscription_bytes
    assert size < charged == COUNT * SUBSCRIPTION_BYTES + 2 * sum(map(len, filters))


@names
@pytest.mark.parametrize("qos", [0, 1])
def test_topics_that_somebody_publishes_to(name: Callable[[int], bytes], qos: int) -> None:
    node = LoneNode()
    writer = node.join("writer")
    topics = [name(number) for number in range(COUNT)]
    routes = node.broker.routes

    def remember() -> None:
        for topic in topics:
            routes._remember(topic, routes.route(topic))

    size = grown(remember)
    assert len(routes.remembered) == COUNT
    assert size < 10 * sum(map(len, topics))
    assert size < 2 * routes._bytes
    writer.publish(topics[0].decode(), b"x", qos)


@names
def test_filters_of_other_nodes(name: Callable[[int], bytes]) -> None:
    strategy = SubscriptionFlooding(Nobody())
    strategy.link_started("one")
    filters = [name(number) for number in range(COUNT)]

    def tell() -> None:
        for body in list(encode(RoutingKind.ADD, dict.fromkeys(filters))):
            strategy.receive("one", bytes(body))

    assert grown(tell) < 10 * sum(map(len, filters))
    assert strategy.links_for(filters[-1]) == ["one"]
    assert decode(next(iter(encode(RoutingKind.ADD, {b"a": None})))).filters == [b"a"]


def test_long_topics_are_matched_each_time_and_not_remembered() -> None:
    interest = TopicInterest([b"a/#"])
    long = b"a/" + b"x" * 4000
    assert grown(lambda: [long + b"%d" % number in interest for number in range(1000)].clear()) < 100_000
    assert long in interest
    assert b"b" + long not in interest
