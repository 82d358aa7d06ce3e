"""Periods over publishers at many nodes: each reports its part of a window, and the window is closed once."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from broker.lone_node import Client
from conformance.packets import Publish
from node.faulty_nodes import FaultyTown
from sterna.broker.expressions.parts import ExpressionPart

EXPRESSION = "$QUARTERHOURLYSUM/room/+"


def shorten(town: FaultyTown, name: str) -> None:
    """Quarters of an hour take five seconds, and nobody is waited for longer than two."""
    computations = town[name].broker.routes.computations
    settings = replace(computations._settings, quarter_hourly_s=5.0, grace_s=2.0)
    computations._settings = computations.parts._settings = settings


@pytest.fixture(params=["subscription-flooding", "advertisement", "publication-flooding"])
def town(request: pytest.FixtureRequest) -> FaultyTown:
    return row(request.param)


def row(strategy: str = "subscription-flooding", clocks: dict[str, float] | None = None) -> FaultyTown:
    town = FaultyTown("abc", strategy, clocks)
    for name in "abc":
        shorten(town, name)
    town.connect("ab", "bc")
    return town


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def publish(town: FaultyTown, name: str, topic: str, payload: bytes, qos: int = 1) -> None:
    client = town[name].join(f"at-{name}")
    client.publish(topic, payload, qos)
    client.vanish()


def test_a_window_is_one_result_of_all_nodes(town: FaultyTown) -> None:
    watcher = town["a"].join("watcher")
    watcher.subscribe(EXPRESSION, 1)
    for number, name in enumerate("abc", 1):
        publish(town, name, f"room/{name}", b"%d" % number, qos=number % 3)
        publish(town, name, "room/x", b"%d" % (10**number))
    assert payloads(watcher) == []
    town.pass_time(5.5)
    assert payloads(watcher) == [b"[1.0, 2.0, 3.0, 1110.0]"]
    town.pass_time(10)
    assert payloads(watcher) == [], "a window in which nothing came gives nothing"
    publish(town, "c", "room/c", b"7")
    town.pass_time(5.5)
    assert payloads(watcher) == [b"[7.0]"]
    if town.strategy != "publication-flooding":
        assert town["a"].network.router.counters.taken == 0


def test_what_stands_outside_sees_the_whole_window(town: FaultyTown) -> None:
    watcher = town["b"].join("watcher")
    watcher.subscribe("$GT;5$SUM$QUARTERHOURLYMAX/room/+")
    for name in "abc":
        publish(town, name, f"room/{name}", b"1")
        publish(town, name, f"room/{name}", b"2")
    town.pass_time(5.5)
    assert payloads(watcher) == [b"6.0"]
    publish(town, "c", "room/c", b"4")
    town.pass_time(5.5)
    assert payloads(watcher) == []


def test_windows_follow_the_readers_subscription_and_readers_differ(town: FaultyTown) -> None:
    one = town["a"].join("one")
    one.subscribe(EXPRESSION)
    town.pass_time(2)
    two = town["c"].join("two")
    two.subscribe(EXPRESSION)
    publish(town, "b", "room/1", b"1")
    town.pass_time(3.2)
    publish(town, "b", "room/1", b"2")
    town.pass_time(2)
    assert (payloads(one), payloads(two)) == ([b"[1.0]"], [b"[3.0]"])
    town.pass_time(5)
    assert (payloads(one), payloads(two)) == ([b"[2.0]"], [])


def test_a_node_killed_within_the_window_has_its_part_again() -> None:
    town = row()
    watcher = town["a"].join("watcher")
    watcher.subscribe(EXPRESSION)
    publish(town, "c", "room/c", b"1")
    town["c"].checkpoint()
    publish(town, "c", "room/c", b"2")
    town.kill("c")
    town.start("c")
    town.connect("bc")
    publish(town, "c", "room/c", b"4")
    town.pass_time(3)
    assert payloads(watcher) == [b"[7.0]"]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_reader_killed_across_the_end_of_a_window_closes_it_when_it_is_back(is_checkpointed: bool) -> None:
    town = row()
    watcher = town["a"].resume("watcher")
    watcher.subscribe(EXPRESSION, 1)
    publish(town, "a", "room/a", b"1")
    publish(town, "c", "room/c", b"2")
    town.pass_time(5.5)
    publish(town, "a", "room/a", b"10")
    publish(town, "c", "room/c", b"20")
    if is_checkpointed:
        town["a"].checkpoint()
    watcher.vanish()
    town.kill("a")
    town.pass_time(4)
    publish(town, "c", "room/c", b"200")
    town.start("a")
    shorten(town, "a")
    town.connect("ab")
    town.pass_time(6)
    watcher = town["a"].resume("watcher")
    town.settle()
    assert payloads(watcher) == [b"[1.0, 2.0]", b"[10.0, 20.0]", b"[200.0]"]


def test_a_node_that_cannot_be_reached_is_not_waited_for_long_and_comes_too_late() -> None:
    town = row()
    watcher = town["a"].join("watcher")
    watcher.subscribe(EXPRESSION)
    publish(town, "a", "room/a", b"1")
    publish(town, "c", "room/c", b"2")
    town.cut("b", "c")
    town.pass_time(3)
    assert payloads(watcher) == []
    town.pass_time(2)
    assert payloads(watcher) == [b"[1.0]"]
    town.connect("bc")
    publish(town, "a", "room/a", b"3")
    publish(town, "c", "room/c", b"4")
    town.pass_time(6)
    assert payloads(watcher) == [b"[3.0, 4.0]"]
    assert town["a"].broker.routes.computations.troubles()["late-part"] == 1


def test_clocks_that_differ_less_than_the_grace_lose_nothing() -> None:
    town = row(clocks={"c": -1.5, "b": 0.7})
    watcher = town["a"].join("watcher")
    watcher.subscribe("$COUNT$QUARTERHOURLYSUM/#")
    for step in range(40):
        for name in "abc":
            publish(town, name, f"room/{name}/{step}", b"1")
        town.pass_time(0.25)
    town.pass_time(8)
    found = [float(payload) for payload in payloads(watcher)]
    assert sum(found) == 120.0


def test_reports_are_forgotten_once_everybody_has_them() -> None:
    town = row()
    town["a"].join("watcher").subscribe(EXPRESSION, 1)
    for _ in range(3):
        publish(town, "a", "room/a", b"1")
        publish(town, "c", "room/c", b"1")
        town.pass_time(5.1)
    for name in "abc":
        (part,) = town[name].broker.routes.computations.parts
        assert part.windows is not None
        assert part.windows.reports == {}


def test_many_topics_are_told_in_pages() -> None:
    town = row()
    watcher = town["a"].join("watcher")
    watcher.subscribe("$COUNT$QUARTERHOURLYSUM/#")
    publisher = town["c"].join("publisher")
    for number in range(300):
        publisher.publish(f"{'long' * 150}/{number}", b"1")
    town.pass_time(5.5)
    assert payloads(watcher) == [b"300.0"]


@pytest.mark.parametrize("at", ["told", "asked"])
def test_what_was_safe_only_after_its_window_had_ended_counts_in_the_next_one_after_a_crash_too(
    town: FaultyTown, at: str
) -> None:
    """The node that is killed is the publisher's, whose part is told to another node, or which has the subscriber."""
    watcher = town["a" if at == "told" else "c"].resume("watcher")
    watcher.subscribe(EXPRESSION, 1)
    publish(town, "c", "room/c", b"1")
    town.pass_time(4.5)
    late = town["c"].join("late")
    town["c"].disk_stalls = True
    late.send(Publish("room/c", b"20", 1, packet_id=1))
    town.pass_time(1)
    town["c"].disk_stalls = False
    town.pass_time(0.1)
    publish(town, "c", "room/c", b"300")
    town.pass_time(0.1)
    first = payloads(watcher)
    town.kill("c")
    town.start("c")
    shorten(town, "c")
    town.connect("bc")
    if at == "asked":
        watcher = town["c"].resume("watcher")
    town.pass_time(8)
    found = first + [message.payload for message in watcher.messages() if not message.dup]
    assert found == [b"[1.0]", b"[320.0]"]


def test_no_node_keeps_the_part_of_a_window_that_nobody_waits_for(town: FaultyTown) -> None:
    watcher = town["a"].join("watcher")

    def parts() -> int:
        gc.collect()
        return sum(type(thing) is ExpressionPart for thing in gc.get_objects())

    before = parts()
    for number in range(30):
        expression = f"$DAILYSUM/room/{number}/+"
        watcher.subscribe(expression)
        publish(town, "c", f"room/{number}/x", b"1")
        watcher.unsubscribe(expression)
        town.pass_time(1)
    town.pass_time(120)  # nodes ask each other again for a while
    assert parts() == before
