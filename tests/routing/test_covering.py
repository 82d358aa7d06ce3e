"""The tree of filters answers as a search through all topics would; and quickly where there are many filters."""

from __future__ import annotations

from itertools import product
from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from sterna.mqtt.topics import levels_of, matches
from sterna.routing.covering import FilterTable, canonical

#: The empty name among them: it is no topic, but `/#` and `/+/#` differ in nothing else, and nobody gains by knowing.
TOPICS = [b"/".join(levels) for depth in (1, 2, 3, 4) for levels in product((b"a", b"b", b"$s", b""), repeat=depth)]
FILTERS = [
    b"/".join((*levels, *end))
    for depth in (0, 1, 2)
    for levels in product((b"a", b"$s", b"+", b""), repeat=depth)
    for end in ((), (b"#",), (b"a",))
    if levels or end
]
FILTERS = [topic_filter for topic_filter in dict.fromkeys(map(canonical, FILTERS)) if topic_filter]
MATCHED = {
    topic_filter: frozenset(topic for topic in TOPICS if matches(levels_of(topic_filter), levels_of(topic)))
    for topic_filter in FILTERS
}


def full() -> FilterTable[int]:
    table: FilterTable[int] = FilterTable()
    for number, topic_filter in enumerate(FILTERS):
        table.put(topic_filter, number)
    return table


def once(found: list[bytes]) -> set[bytes]:
    assert len(found) == len(set(found)), "found twice"
    return set(found)


def test_no_two_canonical_filters_mean_the_same() -> None:
    assert len(set(MATCHED.values())) == len(FILTERS) > 50


def test_coverers_match_all_that_the_filter_matches() -> None:
    table = full()
    for one in FILTERS:
        assert once(list(table.coverers(one))) == {other for other in FILTERS if MATCHED[other] > MATCHED[one]}


def test_covered_filters_match_nothing_that_the_filter_does_not() -> None:
    table = full()
    for one in FILTERS:
        assert once(list(table.covered(one))) == {other for other in FILTERS if MATCHED[other] < MATCHED[one]}


def test_overlapping_filters_have_a_topic_in_common() -> None:
    table = full()
    for one in FILTERS:
        assert once(list(table.overlapping(one))) == {other for other in FILTERS if MATCHED[other] & MATCHED[one]}


def test_matching_filters_are_found_for_every_topic() -> None:
    table = full()
    for topic in TOPICS:
        assert once(list(table.matching(topic))) == {other for other in FILTERS if topic in MATCHED[other]}


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(FILTERS))))
def test_what_was_removed_leaves_nothing_behind(steps: list[tuple[bool, bytes]]) -> None:
    table: FilterTable[int] = FilterTable()
    held: dict[bytes, int] = {}
    for number, (adding, topic_filter) in enumerate(steps):
        if adding:
            table.put(topic_filter, number)
            held[topic_filter] = number
        elif topic_filter in held:
            table.remove(topic_filter)
            del held[topic_filter]
    assert {topic_filter: table[topic_filter] for topic_filter in table} == held
    assert once(list(table.overlapping(b"#"))) == {f for f in held if MATCHED[f] & MATCHED[b"#"]}
    for topic_filter in held:
        table.remove(topic_filter)
    assert len(table) == 0
    assert list(table.overlapping(b"+/+")) == []


def test_a_question_does_not_walk_the_whole_table() -> None:
    table: FilterTable[None] = FilterTable()
    for number in range(20_000):
        table.put(b"room%d/+/temperature" % number, None)
    table.put(b"+/sensor/#", None)
    begun = process_time()
    for number in range(1000):
        name = b"room%d/sensor/temperature" % number
        assert len(list(table.coverers(name))) == 2
        assert len(list(table.overlapping(name))) == 2
        assert list(table.covered(b"room%d/#" % number)) == [b"room%d/+/temperature" % number]
    assert process_time() - begun < 2.0  # walking it whole 3,000 times would take minutes
