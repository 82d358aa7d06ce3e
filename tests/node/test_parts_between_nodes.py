"""Expressions over publishers at many nodes: parts travel, messages stay, and the answer is one broker's."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from broker.lone_node import Client
from node.faulty_nodes import FaultyTown
from sterna.node.membership import UNDERWAY_S

STRATEGIES = ("subscription-flooding", "advertisement", "publication-flooding")


@pytest.fixture(params=STRATEGIES)
def town(request: pytest.FixtureRequest) -> FaultyTown:
    """Three nodes in a row."""
    town = FaultyTown("abc", request.param)
    town.connect("ab", "bc")
    return town


def row(names: str = "abc") -> FaultyTown:
    town = FaultyTown(names)
    town.connect(*map("".join, itertools.pairwise(names)))
    return town


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def last(client: Client) -> bytes:
    return payloads(client)[-1]


def test_messages_stay_where_they_are(town: FaultyTown) -> None:
    if town.strategy == "publication-flooding":
        pytest.skip("sends everything everywhere")
    watcher = town["a"].join("watcher")
    watcher.subscribe("$AVG/room/+")
    publisher = town["c"].join("publisher")
    for number in range(200):
        publisher.publish(f"room/{number % 10}", b"%d" % number, 1)
    town.pass_time(1)
    assert last(watcher) == b"194.5"
    assert town["a"].network.router.counters.taken == 0
    assert town["b"].network.router.counters.forwarded == 0


def test_a_part_is_told_at_its_pace_and_a_local_message_at_once(town: FaultyTown) -> None:
    watcher = town["a"].join("watcher")
    watcher.subscribe("$SUM/room/+")
    here, there = town["a"].join("here"), town["c"].join("there")
    for _ in range(10):
        there.publish("room/c", b"1")
    there.publish("room/c", b"2")
    here.publish("room/a", b"10")
    # The first of them came at once, and what was published here goes on from it.
    assert payloads(watcher) == [b"1.0", b"11.0"]
    town.pass_time(0.2)
    assert payloads(watcher) == [b"12.0"]


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("$COUNT/room/+", b"3.0"),
        ("$MIN/room/+", b"1.0"),
        ("$MAX/room/+", b"6.0"),
        ("$STDDEV/room/+", b"2.160246899469287"),
        ("$LAST/room/+", b"6.0"),
        ("$SUM$GT;1/room/+", b"8.0"),
        ("$GT;2$SUM/room/+", b"9.0"),
        ("$AVG$SUM/room/+", b"9.0"),
        ("$TMPSUM;0:10:00$SUM/room/+", b"13.0"),
        ("$SUM$DELTA/room/+", None),
        ("$GT;5/room/+", b"6"),
    ],
)
def test_every_operator_gives_what_one_broker_gives(expression: str, answer: bytes | None) -> None:
    town = row()
    watcher = town["a"].join("watcher")
    assert watcher.subscribe(expression) == 0
    for name, number in zip("abc", (b"1", b"2", b"6"), strict=True):
        town[name].join(f"at-{name}").publish(f"room/{name}", number, 1)
        town.pass_time(0.2)
    found = payloads(watcher)
    assert (found[-1] if found else None) == answer


def test_a_topic_of_two_nodes_counts_once(town: FaultyTown) -> None:
    watcher = town["a"].join("watcher")
    watcher.subscribe("$SUM/room/+")
    clients = {name: town[name].join(f"at-{name}") for name in "abc"}
    clients["b"].publish("room/1", b"1", 1)
    town.pass_time(0.2)
    clients["c"].publish("room/1", b"10", 1)
    clients["c"].publish("room/2", b"100", 1)
    town.pass_time(0.2)
    assert last(watcher) == b"110.0"
    clients["a"].publish("room/1", b"20", 1)
    town.pass_time(0.2)
    assert last(watcher) == b"120.0"
    clients["b"].publish("room/1", b"30", 1)
    clients["b"].publish("room/3", b"1000", 1)
    town.pass_time(0.2)
    found = payloads(watcher)
    assert found[-1] == b"1130.0"
    assert set(found) <= {b"130.0", b"1130.0"}, "nothing is counted twice in between"


def test_two_readers_in_different_places_agree(town: FaultyTown) -> None:
    watchers = [town["a"].join("one"), town["c"].join("two")]
    for watcher in watchers:
        watcher.subscribe("$SUM/room/+", 1)
    for number, name in enumerate("abcab", 1):
        town[name].join(f"at-{name}").publish(f"room/{number % 3}", b"%d" % number, 1)
        town.pass_time(0.2)
    assert [last(watcher) for watcher in watchers] == [b"12.0"] * 2


def test_a_killed_node_comes_back_with_its_part() -> None:
    town = row()
    watcher = town["a"].join("watcher")
    watcher.subscribe("$SUM/room/+")
    publisher = town["c"].join("publisher")
    publisher.publish("room/1", b"1", 1)
    town.pass_time(0.2)
    town["c"].checkpoint()
    publisher.publish("room/2", b"2", 1)
    town["c"].join("other").publish("room/3", b"4", 2)
    town.kill("c")
    town.start("c")
    town.connect("bc")
    town.pass_time(1)
    assert last(watcher) == b"7.0"
    town["c"].join("publisher").publish("room/1", b"8", 1)
    town.pass_time(1)
    assert payloads(watcher) == [b"14.0"]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_reader_that_was_killed_has_the_answer_again(is_checkpointed: bool) -> None:
    town = row()
    watcher = town["a"].resume("watcher")
    watcher.subscribe("$SUM/room/+", 1)
    town["a"].join("here").publish("room/a", b"1", 1)
    publisher = town["c"].join("publisher")
    publisher.publish("room/1", b"2", 1)
    town.pass_time(0.2)
    watcher.vanish()
    if is_checkpointed:
        town["a"].checkpoint()
    town.kill("a")
    publisher.publish("room/1", b"4", 1)
    town.start("a")
    town.connect("ab")
    town.pass_time(3)
    publisher.publish("room/2", b"8", 1)
    town.pass_time(1)
    watcher = town["a"].resume("watcher")
    town.settle()
    found = list(watcher.messages())
    assert [message.payload for message in found] == [b"1.0", b"3.0", b"5.0", b"13.0"]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_what_a_node_said_that_stays_away_counts_after_a_restart_of_the_reader(is_checkpointed: bool) -> None:
    town = row()
    watcher = town["a"].resume("watcher")
    watcher.subscribe("$SUM/room/+", 1)
    publisher = town["c"].join("publisher")
    publisher.publish("room/1", b"2", 1)
    town["b"].join("other").publish("room/2", b"4", 1)
    town.pass_time(0.2)
    publisher.publish("room/2", b"8", 1)  # of two nodes
    town.pass_time(1)
    assert last(watcher) == b"10.0"
    town.kill("c")
    for _ in range(2):
        if is_checkpointed:
            town["a"].checkpoint()
        town.kill("a")
        town.start("a")
        town.connect("ab")
        town.pass_time(3)
    town["a"].join("here").publish("room/a", b"1", 1)
    town.pass_time(1)
    assert last(town["a"].resume("watcher")) == b"11.0"
    town.start("c")
    town.connect("bc")
    town.pass_time(1)
    assert away_at(town, "a") == []
    town["c"].join("publisher").publish("room/1", b"3", 1)
    town.pass_time(1)
    assert last(town["a"].resume("watcher")) == b"12.0"
    town["a"].checkpoint()
    town.kill("a")
    town.start("a")
    assert away_at(town, "a") == [], "it was there when the node was killed"


def away_at(town: FaultyTown, name: str) -> list[str]:
    (part,) = town[name].broker.routes.computations.parts
    return [away[0] for away in part.away]


@pytest.mark.parametrize("how", ["planned", "pulled"])
def test_what_a_node_said_that_stays_away_goes_along_with_the_client(how: str) -> None:
    town = row()
    watcher = town["a"].resume("watcher")
    watcher.subscribe("$SUM/room/+", 1)
    town["c"].join("publisher").publish("room/1", b"2", 1)
    town["a"].join("here").publish("room/a", b"1", 1)
    town.pass_time(1)
    assert last(watcher) == b"3.0"
    town.kill("c")
    if how == "planned":
        town["a"].network.moving.plans.move(b"watcher", "b")
    else:
        watcher.vanish()
    town.pass_time(1)
    watcher = town["b"].resume("watcher")
    town["b"].join("there").publish("room/b", b"4", 1)
    town.pass_time(3)
    assert last(watcher) == b"7.0"


def test_what_a_node_said_that_stays_away_expires_after_a_restart_too() -> None:
    town = short_lived(expiry_s=20.0)
    watcher = town["a"].resume("watcher")
    watcher.subscribe("$SUM/room/+", 1)
    town["c"].join("publisher").publish("room/c", b"1", 1)
    town.pass_time(0.5)
    town.kill("c")
    town.kill("a")
    town.start("a")
    town.connect("ab")
    town.pass_time(2.5)
    here = town["a"].join("here")
    here.publish("room/a", b"10", 1)
    assert last(town["a"].resume("watcher")) == b"11.0"
    town.pass_time(20)
    here.publish("room/a", b"20", 1)
    assert last(town["a"].resume("watcher")) == b"20.0"
    assert away_at(town, "a") == []


def test_a_publisher_that_goes_to_another_node_when_its_own_dies() -> None:
    town = row()
    watcher = town["a"].join("watcher")
    watcher.subscribe("$SUM/room/+")
    publisher = town["c"].join("publisher")
    publisher.publish("room/1", b"1", 1)
    publisher.publish("room/2", b"2", 1)
    town.pass_time(0.2)
    town.kill("c")
    town["a"].join("here").publish("room/a", b"100", 1)
    assert last(watcher) == b"103.0", "what a node said counts though it is away"
    elsewhere = town["b"].join("publisher")
    elsewhere.publish("room/1", b"10", 1)
    elsewhere.publish("room/2", b"20", 1)
    town.pass_time(3)
    assert last(watcher) == b"130.0"
    assert ("a node is left out of an answer", "c") in [
        (event, fields.get("node")) for event, fields in town["a"].reports
    ]
    town.start("c")
    town.connect("bc")
    town.pass_time(1)
    town["c"].join("publisher").publish("room/2", b"7", 1)
    town.pass_time(1)
    assert last(watcher) == b"117.0"


def short_lived(names: str = "abc", expiry_s: float = 5.0) -> FaultyTown:
    """Values count for a few seconds."""
    town = row("")
    for name in names:
        town.add(name)
        computations = town[name].broker.routes.computations
        computations._settings = computations.parts._settings = replace(computations._settings, expiry_s=expiry_s)
        town[name].network._partials._asked._expiry_s = expiry_s
    town.connect(*map("".join, itertools.pairwise(names)))
    return town


def test_values_expire_at_the_node_that_has_them() -> None:
    town = short_lived()
    watcher = town["a"].join("watcher")
    watcher.subscribe("$SUM/room/+")
    town["c"].join("publisher").publish("room/c", b"1", 1)
    town.pass_time(10)
    assert payloads(watcher) == [b"1.0"], "that a value is too old is noticed when something arrives"
    town["a"].join("here").publish("room/a", b"10", 1)
    assert payloads(watcher) == [b"10.0"]


def test_values_of_a_node_that_does_not_come_back_expire() -> None:
    town = short_lived()
    watcher, here = town["a"].join("watcher"), town["a"].join("here")
    watcher.subscribe("$SUM/room/+")
    town["c"].join("publisher").publish("room/c", b"1", 1)
    town.pass_time(0.5)
    town.kill("c")
    here.publish("room/a", b"10", 1)
    town.pass_time(6)
    here.publish("room/a", b"20", 1)
    assert payloads(watcher) == [b"1.0", b"11.0", b"20.0"]
    (part,) = town["a"].broker.routes.computations.parts
    assert part.merge is not None
    assert list(part.merge.remotes) == ["b"]


def test_nothing_is_kept_for_an_expression_nobody_wants_any_more(town: FaultyTown) -> None:
    watcher = town["a"].join("watcher")
    watcher.subscribe("$COUNT/room/+", 1)
    watcher.subscribe("$GT;5$COUNT/room/+", 1)
    town["c"].join("publisher").publish("room/1", b"x", 1)
    town.pass_time(0.2)
    parts = town["c"].broker.routes.computations.parts
    assert [(part.expression.text, list(part.holders)) for part in parts] == [(b"$COUNT/room/+", ["a"])]
    assert payloads(watcher) == [b"1.0"]
    watcher.unsubscribe("$COUNT/room/+")
    town.pass_time(0.2)
    assert len(parts) == 1
    watcher.unsubscribe("$GT;5$COUNT/room/+")
    town.pass_time(0.2)
    assert [len(town[name].broker.routes.computations.parts) for name in "abc"] == [0, 0, 0]
    assert not town["c"].broker.routes.route(b"room/1").counted


def test_a_reader_that_does_not_come_back_is_forgotten_even_by_a_node_that_was_down() -> None:
    town = row()
    watcher = town["a"].join("watcher")  # its session ends with its node
    watcher.subscribe("$COUNT/room/+", 1)
    town["b"].checkpoint()
    town.kill("a")
    town.kill("c")
    town.start("c")
    town.connect("bc")
    held = [town[name].broker.routes.computations.parts for name in "bc"]
    assert [len(parts) for parts in held] == [1, 1]
    town.start("a")
    town.connect("ab")
    town.pass_time(12)
    assert [len(parts) for parts in held] == [0, 0], "it is back, and does not want it"


def test_a_reader_that_stays_away_is_forgotten() -> None:
    town = row()
    town["a"].join("watcher").subscribe("$COUNT/room/+", 1)
    town.kill("a")
    town.kill("c")
    town.start("c")
    for _ in range(2):
        for name in "bc":
            town.now += 3600
            town[name].now = town.now
            town[name].broker.handle_deadlines(town.now)
    town.pass_time(0.1)
    assert [len(town[name].broker.routes.computations.parts) for name in "bc"] == [0, 0]


def test_a_part_that_outgrows_its_bounds_stops_the_answer() -> None:
    town = row()
    for name in "abc":
        parts = town[name].broker.routes.computations.parts
        parts._settings = type(parts._settings)(topics=2)
    watcher = town["a"].join("watcher")
    watcher.subscribe("$COUNT/room/+")
    publisher = town["c"].join("publisher")
    for number in range(4):
        publisher.publish(f"room/{number}", b"x", 1)
        town.pass_time(0.2)
    assert payloads(watcher) == [b"1.0", b"2.0"]
    stopped = [fields for event, fields in town["a"].reports if event == "an expression has stopped"]
    assert stopped == [{"expression": "$COUNT/room/+", "reason": "node c: more than 2 topics"}]


def test_a_link_that_breaks_loses_nothing() -> None:
    town = row()
    watcher = town["a"].join("watcher")
    watcher.subscribe("$SUM/room/+")
    publisher = town["c"].join("publisher")
    for number in range(6):
        publisher.publish(f"room/{number}", b"1", 1)
        town.cut("b", "c")
        publisher.publish(f"other/{number}", b"1", 1)
        publisher.publish(f"room/{number}", b"2", 1)
        town.connect("bc")
    town.pass_time(1)
    assert last(watcher) == b"12.0"


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_entered_at_a_node_that_had_not_heard_yet_counts(is_killed: bool) -> None:
    town = row()
    publisher = town["c"].join("publisher")
    publisher.publish("room/0", b"1", 1)
    town.pass_time(UNDERWAY_S)
    town.cut("b", "c")
    watcher = town["a"].resume("watcher")
    watcher.subscribe("$SUM/room/+")
    publisher.publish("room/1", b"10", 1)
    publisher.publish("room/1", b"20", 2)
    publisher.publish("other", b"7", 1)
    if is_killed:
        town.kill("a")
        town.start("a")
        town.connect("ab")
        watcher = town["a"].resume("watcher")
    town.pass_time(1)
    town.connect("bc")
    town.pass_time(1)
    assert payloads(watcher)[-1:] == [b"20.0"]
    town.kill("c")
    town.start("c")
    town.connect("bc")
    town["c"].join("publisher").publish("room/2", b"100", 1)
    town.pass_time(1)
    assert last(watcher) == b"120.0"
