"""The workloads are what they say."""

from __future__ import annotations

from itertools import islice

import pytest

from sterna.broker.limits import Limits
from sterna.measure.load.packets import publish_bytes
from sterna.measure.load.saturation import blocks, stock
from sterna.measure.load.shapes import InTurn, Lane, Paced, Saturation
from sterna.measure.workloads.brokers import BY_NAME, WORKLOADS


def matches(name: str, topic: str) -> bool:
    pairs = zip(name.split("/"), topic.split("/"), strict=True)
    return all(level in ("+", given) for level, given in pairs)


def lanes(name: str) -> tuple[Lane, ...]:
    load = BY_NAME[name].load
    assert isinstance(load, Saturation | Paced)
    return load.lanes


def test_fan_out_is_five_topics_of_ten_publishers_and_ten_subscribers() -> None:
    for name in ("fan-out", "fan-out-10k"):
        assert [(len(lane.publishers), len(lane.subscribers), lane.fan) for lane in lanes(name)] == [(10, 10, 10)] * 5
        assert len({lane.publishers[0][0] for lane in lanes(name)}) == 5


def test_fan_in_is_a_hundred_publishers_and_one_subscriber() -> None:
    (lane,) = lanes("fan-in")
    (filters,) = lane.subscribers
    topics = [topic for topics in lane.publishers for topic in topics]
    assert len(set(topics)) == 100
    assert all(matches(filters[0], topic) for topic in topics)


def test_each_wildcard_topic_reaches_exactly_the_subscriber_its_number_says() -> None:
    (lane,) = lanes("wildcards")
    filters = [name for names in lane.subscribers for name in names]
    assert len(set(filters)) == 10_000
    assert all("+" in name for name in filters)
    # Filters name their topic's number, so a topic can match only the one that carries the same number.
    owner = {name.split("/")[1]: subscriber for subscriber, names in enumerate(lane.subscribers) for name in names}
    by_number = {name.split("/")[1]: name for name in filters}
    for topics in lane.publishers:
        for sequence, topic in enumerate(topics):
            number = topic.split("/")[1]
            assert matches(by_number[number], topic)
            assert owner[number] == sequence % lane.step


def sent(lane: Lane, publisher: int, blocks_max: int) -> list[str]:
    """The topics of a publisher's first blocks, as they stand in its packets."""
    size = publish_bytes(lane.publishers[0][0])
    cut = stock(
        publisher, lane.publishers[publisher], 100 * (len(lane.publishers[publisher]) // 100), 100, lane.numbers
    )
    taken = [bytes(block) for block in islice(cut, blocks_max)]
    return [block[at + 4 : at + 20].decode() for block in taken for at in range(0, len(block), size)]


def test_of_new_topics_none_comes_twice_and_each_reaches_the_subscriber_its_number_says() -> None:
    (lane,) = lanes("new-topics")
    (same,) = lanes("wildcards")
    assert lane.subscribers == same.subscribers
    by_number = {name.split("/")[1]: name for names in lane.subscribers for name in names}
    for publisher in (0, len(lane.publishers) - 1):
        topics = sent(lane, publisher, 100)
        assert len(set(topics)) == len(topics) == 10_000
        assert all(matches(by_number[topic.split("/")[1]], topic) for topic in topics)
        assert not any("*" in topic for topic in topics)


def test_topics_in_turn_are_as_many_as_it_says() -> None:
    load = BY_NAME["topics-in-turn"].load
    assert isinstance(load, InTurn)
    for each, wanted in zip(load.loads, (1_000, 100_000, 1_000_000), strict=True):
        (lane,) = each.lanes
        topics = sent(lane, 0, 2 * lane.numbers)
        assert len(set(topics)) * len(lane.publishers) == wanted
        assert sorted(topics) == sorted([*set(topics)] * 2)


@pytest.mark.parametrize("workload", [w for w in WORKLOADS if isinstance(w.load, Saturation)], ids=lambda w: w.name)
def test_no_saturated_subscriber_can_be_owed_more_than_a_broker_may_keep(workload: object) -> None:
    load = getattr(workload, "load", None)
    assert isinstance(load, Saturation)
    for lane in load.lanes:
        size = publish_bytes(lane.publishers[0][0])
        assert {publish_bytes(topic) for topics in lane.publishers for topic in topics} == {size}
        assert load.window * size < Limits().output_bytes
        assert load.window >= load.block


def test_blocks_cut_a_cycle_of_numbered_messages_without_remainder() -> None:
    cut = blocks(3, ("a", "b"), messages=8, block=4)
    size = publish_bytes("a")
    assert [len(block) for block in cut] == [4 * size, 4 * size]
    whole = b"".join(cut)
    assert [whole[start + 4 : start + 9] for start in range(0, len(whole), size)] == [
        b"ab"[n % 2 : n % 2 + 1] + bytes((0, 3, 0, n)) for n in range(8)
    ]
