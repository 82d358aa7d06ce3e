"""A publisher and its node: each numbered message is published once, whoever is killed in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from sterna.pipeline.errors import PublishFailed
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.options import WriteOptions
from sterna.pipeline.sink.publisher import NumberedPublisher
from sterna.pipeline.sink.rows import Outgoing

from .feeding import FeedingNode

StartFeeding = Callable[..., FeedingNode]
MANY = 3000


def messages(topic: str, count: int, qos: int = 1) -> Iterator[Outgoing]:
    return (Outgoing(row, topic, str(row).encode(), qos, False, (), None) for row in range(count))


def options(node: FeedingNode, **more: str) -> WriteOptions:
    return WriteOptions.parse({"broker": node.broker, **more})


def kept(node: FeedingNode, topic: str) -> list[int]:
    """In order of the journal."""
    with FeedClient(node.feed, "test") as feed:
        batches = feed.read(0, feed.status().next, [topic])
        return [int(payload) for batch in batches for payload in batch.column("payload").to_pylist()]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_that_begins_again_adds_only_what_is_missing(feeding: FeedingNode, topic: str, qos: int) -> None:
    # The first life ends in the middle, with messages under way.
    with NumberedPublisher(options(feeding), topic, 0) as first:
        first.publish(islice(messages(topic, 100, qos), 70))
    with NumberedPublisher(options(feeding), topic, 0) as second:
        second.publish(messages(topic, 100, qos))
        second.finish()
        assert second.published == 100
    assert kept(feeding, topic) == list(range(100))


@pytest.mark.parametrize("qos", [1, 2])
def test_a_node_killed_while_it_is_published_to_has_each_message_once(start_feeding: StartFeeding, qos: int) -> None:
    node = start_feeding()
    under_way = threading.Event()

    def told() -> Iterator[Outgoing]:
        for message in messages("t", MANY, qos):
            if message.row == MANY // 2:
                under_way.set()
            yield message

    def kill() -> None:
        under_way.wait(60)
        node.kill()
        node.restart()

    killer = threading.Thread(target=kill)
    killer.start()
    with NumberedPublisher(options(node), "numbered", 0) as publisher:
        publisher.publish(told())
        publisher.finish()
    killer.join()
    assert kept(node, "t") == list(range(MANY))


def test_a_later_batch_is_new_and_an_earlier_one_is_known(feeding: FeedingNode, topic: str) -> None:
    for batch in (0, 1, 0):
        with NumberedPublisher(options(feeding), topic, batch) as publisher:
            publisher.publish(messages(topic, 3))
            publisher.finish()
    assert kept(feeding, topic) == [0, 1, 2, 0, 1, 2]


def test_a_message_the_node_refuses_is_named(start_feeding: StartFeeding) -> None:
    rules = '[authorization]\ndefault = "allow"\n[[authorization.rule]]\nfilters = ["secret/#"]\neffect = "deny"\n'
    node = start_feeding("strict", rules)
    with NumberedPublisher(options(node), "p", 0) as publisher:
        publisher.publish(messages("secret/a", 1))
        with pytest.raises(PublishFailed, match=r'refused row 0 of the partition, to "secret/a": Not authorized'):
            publisher.finish()
