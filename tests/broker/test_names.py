"""A set of names finds those a filter matches, forgets without a trace, and stops looking when told to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.names import Names
from sterna.mqtt.topics import levels_of, matches

LETTERS = [b"a", b"b", b""]
names = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=4).map(b"/".join).filter(bool)
filters = st.lists(st.sampled_from([*LETTERS, b"+"]), max_size=3).flatmap(
    lambda levels: st.sampled_from([[*levels, b"#"], [*levels, b"+"], [b"+", *levels]]).map(b"/".join)
)


@given(st.sets(names, max_size=12), filters)
def test_it_finds_exactly_the_names_that_match(held: set[bytes], topic_filter: bytes) -> None:
    kept = Names()
    for name in sorted(held):
        kept.add(name)
    found, _ = kept.match(topic_filter, 1000)
    assert found is not None
    assert sorted(found) == sorted(n for n in held if matches(levels_of(topic_filter), levels_of(n)))


@given(st.sets(names, max_size=12), st.randoms(use_true_random=False))
def test_names_that_left_in_any_order_leave_the_others_alone_and_nothing_behind(held: set[bytes], rng: Any) -> None:
    kept = Names()
    leaving = sorted(held)
    rng.shuffle(leaving)
    for name in leaving:
        kept.add(name)
        kept.add(name)
    rng.shuffle(leaving)
    while leaving:
        kept.remove(leaving.pop())
        found, _ = kept.match(b"#", 1000)
        assert sorted(found or []) == sorted(leaving)
    assert kept.match(b"#", 1000) == ([], 0)


def test_it_looks_at_no_more_than_it_was_told() -> None:
    kept = Names()
    for number in range(1000):
        kept.add(b"a/%d/x" % number)
    assert kept.match(b"a/+/x", 500) == (None, 1001)
    assert kept.match(b"a/7/+", 500) == ([b"a/7/x"], 3)
    assert kept.match(b"b/#", 500) == ([], 1)
