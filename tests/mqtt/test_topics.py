"""Topic names, filters and trees: the trees find exactly what the definition of matching says, and leak nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.mqtt.topics import (
    FilterTree,
    TopicTree,
    covers,
    is_reserved,
    is_topic_filter,
    is_topic_name,
    levels_of,
    matches,
    split_share,
)

LETTERS = [b"a", b"b", b"", b"$s"]
names = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=4).map(b"/".join)
filters = st.builds(
    lambda levels, tail: b"/".join([*levels, *tail]),
    st.lists(st.sampled_from([*LETTERS, b"+"]), max_size=4),
    st.sampled_from([[b"#"], [b"+"], [b"a"], [b""]]),
)


def by_definition(topic_filter: bytes, topic: bytes) -> bool:
    """Section 4.7 in as many words: the filter spelled out into every name of this length it stands for."""
    wanted, levels = topic_filter.split(b"/"), topic.split(b"/")
    if levels[0].startswith(b"$") and wanted[0] in (b"+", b"#"):
        return False
    if wanted[-1] == b"#":
        fixed = wanted[:-1]
        return len(levels) >= len(fixed) and all(w in (b"+", name) for w, name in zip(fixed, levels, strict=False))
    return len(levels) == len(wanted) and all(w in (b"+", name) for w, name in zip(wanted, levels, strict=True))


@given(filters, names)
def test_matches_agrees_with_the_definition(topic_filter: bytes, topic: bytes) -> None:
    assert matches(levels_of(topic_filter), levels_of(topic)) == by_definition(topic_filter, topic)


@given(st.lists(st.tuples(filters, st.integers(0, 3)), max_size=12), names)
def test_the_filter_tree_finds_exactly_the_filters_that_match(held: list[tuple[bytes, int]], topic: bytes) -> None:
    tree: FilterTree[int, tuple[bytes, int]] = FilterTree()
    for topic_filter, key in held:
        tree.add(topic_filter, key, (topic_filter, key))
    assert tree.size == len(set(held))
    assert sorted(tree.match(topic)) == sorted({pair for pair in held if by_definition(pair[0], topic)})


@given(st.lists(names, max_size=12), filters)
def test_the_topic_tree_finds_exactly_the_names_that_match(held: list[bytes], topic_filter: bytes) -> None:
    tree: TopicTree[bytes] = TopicTree()
    for topic in held:
        tree.put(topic, topic)
    assert tree.size == len(set(held))
    assert sorted(tree.match(topic_filter)) == sorted({topic for topic in held if by_definition(topic_filter, topic)})
    assert sorted(tree) == sorted(set(held))
    assert all(tree.get(topic) == topic for topic in held)


def branches(tree: Any) -> int:
    def count(branch: Any) -> int:
        return sum(1 + count(below) for below in branch.branches())

    return count(getattr(tree, "_tree", tree).root)


@given(st.lists(st.tuples(filters, st.integers(0, 2)), max_size=12), st.randoms(use_true_random=False))
def test_a_filter_tree_emptied_in_any_order_keeps_no_branch(held: list[tuple[bytes, int]], rng: Any) -> None:
    tree: FilterTree[int, int] = FilterTree()
    for topic_filter, key in held:
        tree.add(topic_filter, key, key)
    leaving = sorted(set(held))
    rng.shuffle(leaving)
    for gone, (topic_filter, key) in enumerate(leaving, 1):
        tree.remove(topic_filter, key)
        tree.remove(topic_filter, key)  # a second time changes nothing
        tree.remove(topic_filter + b"/never", key)
        assert tree.size == len(leaving) - gone
    assert branches(tree) == 0


@given(st.lists(names, max_size=12), st.randoms(use_true_random=False))
def test_a_topic_tree_emptied_in_any_order_keeps_no_branch(held: list[bytes], rng: Any) -> None:
    tree: TopicTree[bytes] = TopicTree()
    for topic in held:
        tree.put(topic, topic)
    leaving = sorted(set(held))
    rng.shuffle(leaving)
    for topic in leaving:
        assert tree.get(topic) == topic
        for _ in range(2):  # to forget what is not there changes nothing
            tree.remove(topic)
            assert tree.get(topic) is None
    assert (tree.size, branches(tree), list(tree)) == (0, 0, [])


@given(
    st.lists(names, min_size=1, max_size=12, unique=True),
    filters,
    st.integers(0, 12),
    st.lists(st.tuples(st.booleans(), names), max_size=8),
)
def test_a_walk_that_is_interrupted_finds_all_that_stayed_and_nothing_that_left(
    held: list[bytes], topic_filter: bytes, steps: int, changes: list[tuple[bool, bytes]]
) -> None:
    tree: TopicTree[bytes] = TopicTree()
    for topic in held:
        tree.put(topic, topic)
    walk = tree.walk(topic_filter)
    early = [value for _, value in zip(range(steps), walk, strict=False) if value is not None]
    for stays, topic in changes:
        if stays:
            tree.put(topic, topic)
        else:
            tree.remove(topic)
    late = [value for value in walk if value is not None]
    untouched = set(held) - {topic for _, topic in changes}
    assert {topic for topic in untouched if by_definition(topic_filter, topic)} <= {*early, *late}
    assert len({*early, *late}) == len(early) + len(late)
    assert all(tree.get(topic) == topic and by_definition(topic_filter, topic) for topic in late)


def test_a_walk_takes_a_step_for_every_branch_it_looks_at() -> None:
    tree: TopicTree[bytes] = TopicTree()
    for number in range(100):
        tree.put(b"a/%d/x" % number, b"")
    assert len(list(tree.walk(b"a/+/y"))) == 102
    assert len(list(tree.walk(b"b/#"))) == 2


def test_results_come_in_the_order_of_subscribing() -> None:
    tree: FilterTree[int, int] = FilterTree()
    for key in (3, 1, 2):
        tree.add(b"a/b", key, key)
    assert tree.match(b"a/b") == [3, 1, 2]


def test_a_tree_as_deep_as_the_limit_is_walked() -> None:
    deep = b"/".join([b"x"] * 128)
    tree: TopicTree[bytes] = TopicTree()
    tree.put(deep, deep)
    assert list(tree.match(b"#")) == list(tree.match(b"/".join([b"+"] * 128))) == [deep]


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        (b"#", b"$SYS/x", False),
        (b"+/x", b"$SYS/x", False),
        (b"$SYS/#", b"$SYS/x", True),
        (b"$SYS/+", b"$SYS/x", True),
        (b"$SYS/#", b"$SYS", True),
        (b"a/#", b"a/$b", True),
        (b"a/+", b"a/$b", True),
        (b"+", b"/a", False),
        (b"/+", b"/a", True),
        (b"+/+", b"/a", True),
        (b"a/+", b"a", False),
        (b"a/#", b"a", True),
        (b"#", b"", True),
    ],
)
def test_the_examples_of_section_4_7_hold_everywhere(topic_filter: bytes, topic: bytes, expected: bool) -> None:
    by_filter: FilterTree[int, int] = FilterTree()
    by_filter.add(topic_filter, 0, 0)
    by_name: TopicTree[bytes] = TopicTree()
    by_name.put(topic, topic)
    found = (bool(by_filter.match(topic)), bool(list(by_name.match(topic_filter))))
    assert (*found, matches(levels_of(topic_filter), levels_of(topic))) == (expected,) * 3


#: A letter no filter names and a level more than the longest filter tell any two filters apart.
SMALL_NAMES = [levels for n in range(1, 5) for levels in product([b"a", b"", b"$s", b"z"], repeat=n)]
SMALL_FILTERS = [levels for n in (1, 2) for levels in product([b"a", b"", b"$s", b"+"], repeat=n)]
SMALL_FILTERS += [(b"#",), *((*levels, b"#") for levels in SMALL_FILTERS)]


def test_a_filter_covers_another_exactly_if_it_matches_every_name_the_other_does() -> None:
    matched = {f: {n for n in SMALL_NAMES if by_definition(b"/".join(f), b"/".join(n))} for f in SMALL_FILTERS}
    wrong = [(w, n) for w in SMALL_FILTERS for n in SMALL_FILTERS if covers(w, n) != (matched[w] >= matched[n])]
    assert wrong == []


@pytest.mark.parametrize(
    ("topic", "valid"),
    [
        (b"a", True), (b"/", True), (b"a//b", True), (b" ", True), (b"$SYS/x", True),
        (b"", False), (b"a/+", False), (b"#", False), (b"a\0", False), (b"1/2/3/4", False), (b"123456789", False),
    ],
)  # fmt: skip
def test_topic_names(topic: bytes, valid: bool) -> None:
    assert is_topic_name(topic, levels_max=3, bytes_max=8) == valid


@pytest.mark.parametrize(
    ("topic_filter", "valid"),
    [
        (b"a", True), (b"#", True), (b"+", True), (b"a/#", True), (b"+/a/#", True), (b"/", True), (b"+/+", True),
        (b"", False), (b"a#", False), (b"#/a", False), (b"a/#/b", False), (b"a+", False), (b"+a/b", False),
        (b"##", False), (b"a/b/c/d", False), (b"123456789", False),
    ],
)  # fmt: skip
def test_topic_filters(topic_filter: bytes, valid: bool) -> None:
    assert is_topic_filter(topic_filter, levels_max=3, bytes_max=8) == valid


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        (b"$share/g/a/b", (b"g", b"a/b")),
        (b"$share/g/#", (b"g", b"#")),
        (b"$share/g//", (b"g", b"/")),
        (b"$share/g/", None),
        (b"$share/g", None),
        (b"$share//a", None),
        (b"$share/g+/a", None),
        (b"$share/#/a", None),
        (b"$COUNT/g/a", None),
    ],
)
def test_shared_filters_are_taken_apart_or_refused(topic_filter: bytes, expected: tuple[bytes, bytes] | None) -> None:
    assert split_share(topic_filter) == expected


@pytest.mark.parametrize(
    ("topic", "reserved"),
    [(b"$SYS", True), (b"$SYS/a", True), (b"$share/a", True), (b"$AVG/a", True), (b"$aws/x", False), (b"a", False)],
)
def test_the_brokers_own_topics_are_reserved_and_no_others(topic: bytes, reserved: bool) -> None:
    assert is_reserved(topic) == reserved
