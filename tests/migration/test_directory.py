"""Who owns a session: the highest number counts, whoever hears it in whatever order; two nodes that compare agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sterna.migration.directory import ENDED_MAX, Directory
from sterna.migration.messages import BUCKETS, OwnerEntry

entries = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", "ü/#+\u0001".encode(), b"x" * 300]),
        st.sampled_from(["", "one", "two"]),
        st.integers(1, 6),
        st.none(),
        st.just(0),
        st.just(False),
    )
)


def directory() -> Directory:
    return Directory("here", {}, {}, lambda entry: None)


def table(of: Directory) -> set[OwnerEntry]:
    return {entry for bucket in range(BUCKETS) for entry in of.entries(bucket)}


@given(entries, st.randoms())
def test_the_order_of_news_does_not_matter(news: list[OwnerEntry], dice: object) -> None:
    one, other = directory(), directory()
    for entry in news:
        one.learn(*entry)
    for entry in sorted(news, key=repr):
        other.learn(*entry)
    assert table(one) == table(other)
    assert one.digests() == other.digests()
    assert not any(one.learn(*entry) for entry in news), "nothing is news twice"


@given(entries, entries)
def test_two_that_tell_each_other_what_differs_agree(ours: list[OwnerEntry], theirs: list[OwnerEntry]) -> None:
    one, other = directory(), directory()
    for entry in ours:
        one.learn(*entry)
    for entry in theirs:
        other.learn(*entry)
    to_other = [entry for page in one.differing(other.digests()) for entry in page]
    to_one = [entry for page in other.differing(one.digests()) for entry in page]
    for entry in to_one:
        one.learn(*entry)
    for entry in to_other:
        other.learn(*entry)
    owned = {entry for entry in table(one) if entry[1]}
    assert owned == {entry for entry in table(other) if entry[1]}


def test_what_a_restart_finds_is_the_same() -> None:
    one = directory()
    owners = {b"a": ("one", 3), b"b": ("", 4)}
    for client, (node, number) in owners.items():
        one.learn(client, node, number)
    again = Directory("here", dict(owners), {}, lambda entry: None)
    assert again.digests() == one.digests()
    assert len(again) == 1


def test_sessions_that_ended_are_kept_in_mind_within_bounds() -> None:
    one = directory()
    for number in range(ENDED_MAX + 10):
        one.learn(b"%d" % number, "", 1)
    assert len(table(one)) == ENDED_MAX
    assert one.digests() == []


def test_a_number_is_higher_than_any_known_and_not_behind_the_clock() -> None:
    one = directory()
    assert one.next_number(b"a", 1000.5) == 1_000_500
    one.learn(b"a", "one", 2_000_000)
    assert one.next_number(b"a", 1000.5) == 2_000_001
