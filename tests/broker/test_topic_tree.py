"""The topic tree: counts by level, the last values, bounds, and nothing at all while nobody asks."""

from __future__ import annotations

from typing import Any

import pytest

from broker.lone_node import LoneNode
from conformance.packets import Will
from sterna.broker.topic_counts import HISTORY_KEPT, HISTORY_PAYLOAD_KEPT, SAMPLED_MAX, PublishedTopics
from sterna.broker.topic_tree import (
    HISTORIES_MAX,
    LEASE_S,
    RETAINED_AT_ONCE,
    SOON_S,
    WATCHES_MAX,
    TopicPage,
    WatchRequest,
    merged_levels,
)


def levels(node: LoneNode, prefix: str | None = None, most: int = 100, **more: str) -> dict[str, dict[str, Any]]:
    rows, _ = node.broker.topic_trees.children(TopicPage(prefix, **more), "n", most)
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_published_is_counted_at_every_level_and_the_last_is_shown(qos: int) -> None:
    node = LoneNode()
    client = node.join("meter")
    assert levels(node) == {}
    for number in range(3):
        client.publish("plant/oven/temp", b"%d" % number, qos)
    client.publish("plant/oven", b"on", qos)
    client.publish("office", b"dark", qos)
    first = levels(node)
    assert {name: (row["messages"], row["topics"]) for name, row in first.items()} == {
        "office": (1, 1),
        "plant": (4, 2),
    }
    assert (first["office"]["last"], first["plant"]["last"]) == ("dark", None)
    oven = levels(node, "plant")["oven"]
    assert (oven["last"], oven["has_children"], oven["messages"]) == ("on", True, 4)
    assert levels(node, "plant/oven")["temp"]["last"] == "2"
    assert levels(node, "nowhere") == {}
    assert list(levels(node, after="office")) == ["plant"]


def test_counting_ends_when_nobody_asks_any_more() -> None:
    node = LoneNode()
    assert node.broker.counters.observer is None
    levels(node)
    assert node.broker.counters.observer is not None
    node.pass_time(LEASE_S + 2)
    assert node.broker.counters.observer is None


def test_retained_messages_are_in_the_tree_from_the_start() -> None:
    node = LoneNode()
    node.join("meter").publish("kept/here", b"7", 1, retain=True)
    (row,) = levels(node, "kept").values()
    assert (row["retained"], row["retained_bytes"], row["last"], row["messages"]) == ("7", 1, "7", 0)


def test_a_message_that_is_not_retained_does_not_hide_the_retained_value() -> None:
    node = LoneNode()
    client = node.join("meter")
    client.publish("lamp", b"on", 1, retain=True)
    levels(node)
    client.publish("lamp", b"flicker", 1)
    (row,) = levels(node).values()
    assert (row["last"], row["retained"]) == ("flicker", "on")
    client.publish("lamp", b"", 1, retain=True)
    assert levels(node)["lamp"]["retained"] is None


def test_the_last_messages_of_a_topic_are_kept_while_somebody_looks_at_it() -> None:
    node = LoneNode()
    client = node.join("meter")
    trees = node.broker.topic_trees

    def recent(topic: str = "plant/oven") -> list[tuple[str, int]]:
        (row,) = trees.topic(topic.encode(), "n")
        return [(one["payload"], one["bytes"]) for one in row["recent"]]

    levels(node)
    client.publish("plant/oven", b"before")
    assert recent() == [("before", 6)]
    client.publish("plant/oven/temp", b"another topic")
    for number in range(HISTORY_KEPT):
        client.publish("plant/oven", b"%d" % number + b"x" * HISTORY_PAYLOAD_KEPT, number % 2)
    payloads = [payload for payload, _ in recent()]
    assert [payload[0] for payload in payloads] == [str(number) for number in range(HISTORY_KEPT)]
    assert {len(payload) for payload in payloads} == {HISTORY_PAYLOAD_KEPT}
    assert {size for _, size in recent()} == {HISTORY_PAYLOAD_KEPT + 1}
    assert trees.topic(b"nowhere", "n") == []
    client.publish("nowhere", b"now")
    assert recent("nowhere") == [("now", 3)]


def test_topics_that_nobody_looks_at_any_more_are_not_kept() -> None:
    node = LoneNode()
    trees = node.broker.topic_trees
    for number in range(HISTORIES_MAX + 1):
        node.pass_time(0.01)
        trees.topic(b"%d" % number, "n")
    tree = node.broker.counters.observer
    assert isinstance(tree, PublishedTopics)
    assert len(tree.histories) == HISTORIES_MAX
    assert b"0" not in tree.histories
    node.pass_time(LEASE_S / 2)
    trees.topic(b"7", "n")
    node.pass_time(LEASE_S / 2 + 2)
    assert list(tree.histories) == [b"7"]


def test_many_retained_messages_are_added_some_each_turn_so_that_nobody_waits_for_them() -> None:
    node = LoneNode()
    client = node.join("meter")
    for number in range(2 * RETAINED_AT_ONCE + 1):
        client.publish(f"kept/{number}", b"old", retain=True)
    node.pass_time(1)
    first = levels(node)["kept"]
    assert 0 < first["topics"] <= RETAINED_AT_ONCE
    assert first["is_counting"]
    client.publish(f"kept/{2 * RETAINED_AT_ONCE}", b"newer, and not retained")
    for _ in range(3):
        node.pass_time(2 * SOON_S)
    last = levels(node)["kept"]
    assert (last["topics"], last["is_counting"]) == (2 * RETAINED_AT_ONCE + 1, False)
    assert levels(node, "kept", 10_000)[f"{2 * RETAINED_AT_ONCE}"]["last"] == "newer, and not retained"


def test_much_traffic_is_sampled_and_counts_stay_right_on_the_whole() -> None:
    node = LoneNode()
    levels(node)
    tree = node.broker.counters.observer
    assert isinstance(tree, PublishedTopics)
    for _ in range(2):
        for number in range(10 * SAMPLED_MAX):
            tree.saw_one(b"t/%d" % (number % 7), b"payload")
        tree.turn_over()
    assert tree.stride == 10
    assert levels(node)["t"]["messages"] == pytest.approx(20 * SAMPLED_MAX, rel=0.01)


def test_publishers_that_take_turns_are_each_sampled_as_often_as_the_others() -> None:
    node = LoneNode()
    tree = PublishedTopics(node.broker.clock)
    for _ in range(4):
        for number in range(20 * SAMPLED_MAX):
            tree.saw_one(b"%d" % (number % 20), b"")
        tree.turn_over()
    assert tree.stride == 20
    counts = [one.messages / (4 * SAMPLED_MAX) for one in tree.root.children.values()]
    assert len(counts) == 20
    assert all(0.5 < one < 1.5 for one in counts), counts


def test_a_second_with_much_more_than_the_one_before_does_not_cost_much_more() -> None:
    tree = PublishedTopics(LoneNode().broker.clock)
    for _ in range(64 * SAMPLED_MAX):
        tree.saw_one(b"t", b"")
    assert tree.stride == 64
    assert tree.root.messages == pytest.approx(64 * SAMPLED_MAX, rel=0.01)


def test_after_a_busy_time_the_next_message_is_looked_at_and_none_is_forgotten() -> None:
    tree = PublishedTopics(LoneNode().broker.clock)
    for _ in range(64 * SAMPLED_MAX):
        tree.saw_one(b"t", b"")
    for _ in range(2):
        tree.turn_over()
    tree.saw_one(b"rare", b"now")
    assert tree.root.children[b"rare"].last == b"now"
    assert tree.root.messages == 64 * SAMPLED_MAX + 1


def test_a_will_is_in_the_tree() -> None:
    node = LoneNode()
    levels(node)
    node.join("mortal", will=Will("gone", b"so long")).vanish()
    assert levels(node)["gone"]["last"] == "so long"


def test_strangers_cannot_fill_memory_with_topics() -> None:
    tree = PublishedTopics(LoneNode().broker.clock, room=100_000)
    for number in range(1000):
        tree.saw_one(b"t/%d/" % number + b"x/" * 20, b"")
    assert tree.root.topics < 100
    assert tree.left_out > 900
    before = tree.left_out
    for number in range(10 * SAMPLED_MAX):
        tree.saw_one(b"u/%d" % number, b"")
    assert tree.left_out - before == pytest.approx(10 * SAMPLED_MAX, rel=0.01)  # also those that were passed over


def test_a_watch_gives_each_message_of_its_filter_once() -> None:
    node = LoneNode()
    client = node.join("meter")

    def seen(after: int = 0) -> dict[str, int]:
        rows, _ = node.broker.topic_trees.watch(WatchRequest("watch-1234", "plant/#", {"n": after}), "n", 100)
        return {row["payload"]: row["number"] for row in rows}

    assert seen() == {}
    client.publish("plant/1", b"a")
    client.publish("office", b"b")
    client.publish("plant/2", b"c")
    first = seen()
    assert list(first) == ["a", "c"]
    assert seen(first["a"]) == {"c": first["c"]}
    assert seen(first["c"]) == {}
    # A tab that was hidden asks again after its watch was forgotten, for messages after the last one it had.
    node.pass_time(LEASE_S + 2)
    assert node.broker.counters.observer is None
    assert seen(first["c"]) == {}
    client.publish("plant/1", b"d")
    assert list(seen(first["c"])) == ["d"]


def test_there_are_so_many_watches_at_once() -> None:
    node = LoneNode()
    trees = node.broker.topic_trees
    for number in range(WATCHES_MAX):
        trees.watch(WatchRequest(f"watch-{number:04}", "#"), "n", 1)
    with pytest.raises(ValueError, match="watches are on already"):
        trees.watch(WatchRequest("one-too-many", "#"), "n", 1)


def test_levels_of_several_nodes_are_one() -> None:
    def row(node: str, messages: int, age_s: float | None, last: str | None) -> dict[str, Any]:
        return {
            "node": node, "name": "t", "topics": messages, "has_children": False, "messages": messages, "bytes": 1,
            "last": last, "last_bytes": 1, "age_s": age_s,
            "retained": None if last is None else f"kept {last}", "retained_bytes": 9,
            "retained_age_s": None if age_s is None else 10 - age_s,
        }  # fmt: skip

    (one,) = merged_levels([row("a", 2, 5.0, "old"), row("b", 3, 1.0, "new"), row("c", 1, None, None)])
    assert (one["messages"], one["bytes"], one["last"], one["topics"]) == (6, 3, "new", 3)
    assert (one["retained"], one["retained_age_s"]) == ("kept old", 5.0)
