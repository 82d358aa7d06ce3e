"""Places of clients, and how many copies of a message the tree needs for it."""

from __future__ import annotations

from random import Random

import pytest

from sterna.measure.papers.traffic.placement import BROKERS, ClientPlacement, copies, place


def test_at_full_locality_everybody_is_on_one_broker_and_nothing_has_to_cross_a_link() -> None:
    placement = place(100, 20, 5, Random(1))
    assert len({*placement.publishers, *placement.subscribers}) == 1
    assert copies(placement) == 0


@pytest.mark.parametrize("seed", range(20))
def test_without_locality_publishers_are_on_one_broker_and_subscribers_on_another(seed: int) -> None:
    placement = place(0, 20, 5, Random(seed))
    (home,), (away,) = set(placement.publishers), set(placement.subscribers)
    assert home != away
    assert (len(placement.publishers), len(placement.subscribers)) == (20, 5)


def test_at_half_locality_clients_are_spread_over_all_brokers_alike() -> None:
    placement = place(50, 5000, 5000, Random(1))
    for side in placement:
        assert all(900 < side.count(broker) < 1100 for broker in range(BROKERS))


@pytest.mark.parametrize(
    ("publishers", "subscribers", "needed"),
    [
        ((0,), (1,), 1),
        ((3,), (4,), 4),
        ((0, 0), (3,), 4),
        ((3,), (0, 1, 3), 2),
        ((0,), (0, 1, 2, 3, 4), 4),
        ((1,), (3, 4, 4), 4),
    ],
)
def test_a_message_crosses_each_link_to_a_subscriber_once(
    publishers: tuple[int, ...], subscribers: tuple[int, ...], needed: int
) -> None:
    assert copies(ClientPlacement(publishers, subscribers)) == needed
