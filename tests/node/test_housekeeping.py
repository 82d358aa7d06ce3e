"""A node's work once a second, and how often it does more."""

from __future__ import annotations

from broker.lone_node import LoneNode
from sterna.node.housekeeping import TIDY_EVERY, Housekeeping


def test_statistics_are_published_at_once_and_then_at_their_interval() -> None:
    lone = LoneNode()
    watcher = lone.join("watcher")
    watcher.subscribe("$SYS/broker/uptime")
    watcher.received()
    house = Housekeeping(lone.node, 3.0, 100.0)
    published = []
    for second in range(7):
        assert house.round(100.0 + second, 0.0) == (second % 3 == 0)
        lone.settle()
        published.append(len(watcher.messages()))
    assert published == [1, 0, 0, 1, 0, 0, 1]


def test_statistics_may_be_off() -> None:
    lone = LoneNode()
    house = Housekeeping(lone.node, 0.0, 100.0)
    assert not any(house.round(100.0 + second, 0.0) for second in range(5))


def test_the_journal_is_tidied_in_the_first_round_and_then_now_and_then() -> None:
    lone = LoneNode()
    house = Housekeeping(lone.node, 0.0, 100.0)
    tidied = []
    for second in range(2 * TIDY_EVERY + 1):
        house.round(100.0 + second, 0.0)
        if house.is_tidying_due:
            tidied.append(second)
    assert tidied == [0, TIDY_EVERY, 2 * TIDY_EVERY]


def test_a_round_reads_both_clocks() -> None:
    lone = LoneNode()
    Housekeeping(lone.node, 0.0, 100.0).round(250.0, 5000.0)
    assert (lone.broker.now, lone.broker.wall) == (250.0, 5000.0)
