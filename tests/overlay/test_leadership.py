"""The choice of a parent among equals: older neighbours first, then those with fewer children."""

from __future__ import annotations

from sterna.overlay.leadership import Leader, LeaderOffer, LeaderPath, Leadership

BOSS = Leader("boss", 7, age=3)


def _chosen(*offers: LeaderOffer) -> str | None:
    node = Leadership("me", 1, stale_s=5.0, steady_s=2.0, first_heard=False)
    for offer in offers:
        node.heard(offer.path, offer.name, now=10.0)
    assert node.choose(list(offers), now=10.0)
    return node.parent


def _offer(name: str, *, since: float = 5.0, children: int = 0, hops: int = 1, round_: int = 4) -> LeaderOffer:
    return LeaderOffer(name, LeaderPath(BOSS, round_, hops, "boss"), since, children)


def test_of_two_ways_of_one_length_that_of_the_older_neighbour_is_taken() -> None:
    young, old = _offer("a", since=5.0), _offer("b", since=4.0, children=9)
    assert _chosen(young, old) == "b"
    assert _chosen(old, young) == "b"


def test_of_two_neighbours_of_one_age_that_with_fewer_children_is_taken() -> None:
    busy, idle = _offer("a", children=2), _offer("b", children=1)
    assert _chosen(busy, idle) == "b"
    assert _chosen(idle, busy) == "b"


def test_fewer_hops_come_before_age_and_children() -> None:
    assert _chosen(_offer("a", since=1.0), _offer("b", hops=0, children=9)) == "b"


def test_a_parent_is_kept_though_an_equal_one_is_older_and_has_fewer_children() -> None:
    node = Leadership("me", 1, stale_s=5.0, steady_s=2.0, first_heard=False)
    first, better = _offer("b", children=5), _offer("a", since=1.0)
    node.heard(first.path, "b", now=10.0)
    node.choose([first], now=10.0)
    for second in range(11, 20):
        for offer in (first, better):
            node.heard(LeaderPath(BOSS, second, 1, "boss"), offer.name, now=float(second))
        node.choose([_offer("b", children=5, round_=second), _offer("a", since=1.0, round_=second)], now=float(second))
        assert node.parent == "b"
