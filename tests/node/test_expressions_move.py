"""Expressions go on where their client goes: what comes after a move is what would have come without it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.lone_node import Client
from conformance.packets import Connect, Puback, Publish
from node.conftest import STRATEGIES
from node.faulty_nodes import FaultyTown
from sterna.migration import session_pages
from sterna.migration.tables import DepartureState

SLIDING = "$TMPSUM;0:10:00/t/+"


def row(strategy: str, names: str = "ABC", **changes: float) -> FaultyTown:
    town = FaultyTown(names, strategy)
    for name in names:
        computations = town[name].broker.routes.computations
        computations._settings = computations.parts._settings = replace(computations._settings, **changes)  # type: ignore[arg-type]
    town.connect(*(one + other for one, other in pairwise(names)))
    return town


def answers(client: Client) -> list[bytes]:
    """Also acknowledged."""
    found = client.messages()
    for message in found:
        if message.qos:
            client.send(Puback(message.packet_id))
    return [message.payload for message in found]


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages() if not message.dup]


def move(town: FaultyTown, client: Client, whereto: str, how: str) -> Client:
    """By plan, or because the client turns up elsewhere."""
    if how == "planned":
        town["A"].network.moving.plans.move(b"c", whereto)
        town.pass_time(1)
    else:
        client.vanish()
    return town[whereto].resume("c")


@pytest.mark.parametrize("how", ["planned", "pulled"])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (SLIDING, [b"1.0", b"3.0", b"7.0", b"15.0"]),
        ("$SUM/t/+", [b"1.0", b"3.0", b"6.0", b"13.0"]),
        ("$SUM$DELTA/t/+", [b"3.0", b"9.0"]),
        ("$GT;1/t/+", [b"2", b"4", b"8"]),
        ("$COUNT$TMPMAX;0:10:00/t/+", [b"1.0"] * 4),
    ],
)
def test_what_an_expression_remembers_goes_along(
    strategy: str, how: str, expression: str, expected: list[bytes]
) -> None:
    town = row(strategy, pace_ms=0)
    client = town["A"].resume("c")
    client.subscribe(expression, 1)
    publisher = town["B"].join("p")
    publisher.publish("t/1", b"1", 1)
    publisher.publish("t/2", b"2", 1)
    town.pass_time(1)
    found = answers(client)
    client = move(town, client, "C", how)
    assert len(town["A"].broker.routes.computations) == 0
    publisher.publish("t/1", b"4", 1)
    publisher.publish("t/2", b"8", 1)
    town.pass_time(1)
    found += answers(client)
    if expression == "$SUM/t/+":
        assert found[-1] == b"12.0"
    else:
        assert found == expected


@pytest.mark.parametrize("how", ["planned", "pulled"])
@pytest.mark.parametrize("anchor", ["subscription", "wall"])
def test_a_window_goes_on_across_a_move(strategy: str, how: str, anchor: str) -> None:
    town = row(strategy, quarter_hourly_s=10.0, grace_s=2.0, anchor=anchor)  # type: ignore[arg-type]
    town.pass_time(10 - town["A"].wall % 10)
    client = town["A"].resume("c")
    client.subscribe("$QUARTERHOURLYSUM/t/+", 1)
    for name in "ABC":
        town[name].join(f"at-{name}").publish(f"t/{name}", b"1", 1)
    town.pass_time(4)
    client = move(town, client, "C", how)
    for name in "ABC":
        town[name].join(f"at-{name}").publish(f"t/{name}", b"2", 1)
    town.pass_time(7)
    assert answers(client) == [b"[3.0, 3.0, 3.0]"]
    town["A"].join("at-A").publish("t/A", b"5", 1)
    town.pass_time(11)
    assert answers(client) == [b"[5.0]"]


def test_who_subscribes_after_a_move_has_windows_of_his_own() -> None:
    town = row("subscription-flooding", quarter_hourly_s=10.0, grace_s=2.0)
    client = town["A"].resume("c")
    client.subscribe("$QUARTERHOURLYSUM/t", 1)
    town.pass_time(5)
    client = move(town, client, "C", "pulled")
    other = town["C"].join("other")
    other.subscribe("$MAX$QUARTERHOURLYSUM/t", 1)
    town["B"].join("p").publish("t", b"1", 1)
    town.pass_time(5.5)
    assert (answers(client), answers(other)) == ([b"1.0"], [])
    town.pass_time(5)
    assert (answers(client), answers(other)) == ([], [b"1.0"])


def test_what_came_along_survives_a_crash_of_the_new_node(strategy: str) -> None:
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe(SLIDING, 1)
    publisher = town["B"].join("p")
    publisher.publish("t/1", b"1", 1)
    town.pass_time(1)
    assert answers(client) == [b"1.0"]
    client = move(town, client, "C", "pulled")
    publisher.publish("t/1", b"2", 1)
    town.pass_time(1)
    assert answers(client) == [b"3.0"]
    town.settle()
    town.kill("C")
    town.start("C")
    town.connect("BC")
    client = town["C"].resume("c")
    publisher.publish("t/1", b"4", 1)
    town.pass_time(1)
    assert answers(client) == [b"7.0"]


def test_it_moves_on_and_back() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe(SLIDING, 1)
    publisher = town["B"].join("p")
    found = []
    for number, whereto in enumerate("CBACB"):
        publisher.publish("t/1", b"%d" % 2**number, 1)
        town.pass_time(0.5)
        found += answers(client)
        client.vanish()
        client = town[whereto].resume("c")
    assert found == [b"1.0", b"3.0", b"7.0", b"15.0", b"31.0"]


def test_where_others_want_it_already_it_is_theirs_that_goes_on(strategy: str) -> None:
    town = row(strategy)
    client, other = town["A"].resume("c"), town["C"].join("other")
    client.subscribe(SLIDING, 1)
    publisher = town["B"].join("p")
    publisher.publish("t/1", b"1", 1)
    other.subscribe(SLIDING, 1)
    publisher.publish("t/1", b"2", 1)
    assert (answers(client), answers(other)) == ([b"1.0", b"3.0"], [b"2.0"])
    client.vanish()
    client = town["C"].resume("c")
    publisher.publish("t/1", b"4", 1)
    assert answers(client) == answers(other) == [b"6.0"]


@pytest.mark.parametrize("how", ["planned", "pulled"])
@pytest.mark.parametrize("ahead_s", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("partials", [False, True])
def test_each_window_comes_once_though_both_nodes_tell_it_by_clocks_of_their_own(
    how: str, ahead_s: float, partials: bool
) -> None:
    for moved_at in (1.0, 6.5, 8.0, 9.5, 10.5, 12.0, 13.5):
        town = row("subscription-flooding", quarter_hourly_s=10.0, grace_s=4.0, anchor="wall", partials=partials)  # type: ignore[arg-type]
        town["C"].clock_ahead = ahead_s
        town["C"].broker.tell_time(town.now, town["C"].wall)
        town.pass_time(10 - town["A"].wall % 10)
        client, other = town["A"].resume("c"), town["C"].join("other")
        for one in (client, other):
            one.subscribe("$QUARTERHOURLYMAX/t", 2)
        publisher = town["B"].join("p")
        found: list[Publish] = []
        for tick in range(58):
            if tick == int(moved_at * 2) + 20:
                found += client.messages()
                client = move(town, client, "C", how)
            publisher.publish("t", b"%d" % tick, 1)
            town.pass_time(0.5)
        found += client.messages()
        newest = [float(message.payload) for message in found if not message.dup]
        assert all(10 < later - earlier < 30 for earlier, later in pairwise(newest)), (moved_at, newest)
        assert newest[0] < 30
        assert found[-1].payload == other.messages()[-1].payload


@pytest.mark.parametrize("how", ["planned", "pulled"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_of_answers_in_parts_the_newest_comes_once(how: str, qos: int) -> None:
    town = row("subscription-flooding", pace_ms=2000)
    client, other = town["A"].resume("c"), town["C"].join("other")
    for one in (client, other):
        one.subscribe("$SUM/t/+", qos)
    publisher = town["C"].join("p")
    publisher.publish("t/1", b"1", 1)
    town.pass_time(5)
    assert (payloads(client), payloads(other)) == ([b"1.0"], [b"1.0"])
    publisher.publish("t/2", b"7", 1)
    publisher.publish("t/2", b"2", 1)  # which is told to others later
    town.settle()
    assert (payloads(client), payloads(other)) == ([b"8.0"], [b"8.0", b"3.0"])
    client = move(town, client, "C", how)
    town.pass_time(5)
    assert (payloads(client), payloads(other)) == ([b"3.0"], [])
    publisher.publish("t/2", b"5", 1)
    town.pass_time(1)
    assert (payloads(client), payloads(other)) == ([b"6.0"], [b"6.0"])


def test_a_state_of_many_pages_arrives_whole() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("$SUM$DELTA/t/#", 0)
    publisher = town["A"].join("p")
    for number in range(3000):
        publisher.send(Publish(f"t/{number}/{'x' * 60}", b"1", 0))
    town.settle()
    state = town["A"].broker.routes.computations.get(b"$SUM$DELTA/t/#")
    assert state is not None
    assert len(state.snapshot()) > session_pages.PAGE_BYTES
    client.vanish()
    client = town["B"].resume("c")
    for number in (0, 2999):
        publisher.publish(f"t/{number}/{'x' * 60}", b"3", 0)
    assert answers(client) == [b"2.0", b"4.0"]


def test_nonsense_in_place_of_a_state_costs_what_was_remembered_and_not_the_move(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pages, "states_of", lambda *_: [(SLIDING.encode(), b"nonsense")])
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe(SLIDING, 1)
    client.vanish()
    client = town["C"].resume("c")
    town["B"].join("p").publish("t/1", b"4", 1)
    assert answers(client) == [b"4.0"]
    assert "an expression starts empty" in [event for event, _ in town["C"].reports]


def test_a_session_with_an_expression_that_the_new_node_does_not_know_stays_where_it_is(strategy: str) -> None:
    """As one of a later release would be."""
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe("t/+", 1)
    session = town["A"].broker.sessions[b"c"]
    session.subscriptions[b"$NOSUCH$AVG/t/+"] = replace(session.subscriptions[b"t/+"], topic_filter=b"$NOSUCH$AVG/t/+")
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    assert b"c" not in town["C"].broker.sessions
    town["C"].join("p").publish("t/1", b"1", 1)
    town.pass_time(1)
    assert answers(client) == [b"1"]


ROUND = st.tuples(st.just("round"), st.integers(1, 6))
PUBLISH = st.tuples(st.just("publish"), st.sampled_from(["t/1", "t/2"]))
MOVE = st.tuples(st.just("move"), st.sampled_from("ABC"))
DISK = st.tuples(st.sampled_from(["stall", "go on"]), st.sampled_from("ABC"))


def test_a_result_that_is_being_written_when_its_client_leaves_goes_along() -> None:
    town = row("publication-flooding")
    client = town["A"].resume("c")
    client.subscribe(SLIDING, 1)
    publisher = town["A"].join("p")
    town["A"].disk_stalls = True
    publisher.send(Publish("t/1", b"1", 1, packet_id=1))
    town.settle()
    town["A"].network.moving.plans.move(b"c", "C")
    town.settle()
    assert town["A"].network.moving.departures[b"c"].state is DepartureState.CATCHING_UP
    publisher.send(Publish("t/1", b"2", 1, packet_id=2))
    town["A"].disk_stalls = False
    town.pass_time(2)
    found = answers(client)
    client = town["C"].resume("c")
    assert found + answers(client) == [b"1.0", b"3.0"]


#: A result of the other node's that is made when the session is whole and not yet safe.
NOT_YET_SAFE: list[tuple[str, int | str]] = [
    ("move", "C"), ("move", "B"), ("round", 6), ("stall", "C"), ("publish", "t/2"), ("publish", "t/2"), ("round", 6),
]  # fmt: skip


@pytest.mark.parametrize("expression", [SLIDING, "$SUM$DELTA/t/+", "$GT;0/t/+", "$RATE/t/1"])
@pytest.mark.parametrize("others", ["", "ABC"])
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(STRATEGIES),
    st.lists(st.one_of(ROUND, PUBLISH, PUBLISH, MOVE, DISK), min_size=4, max_size=30),
    st.sampled_from(["", "", "A", "B"]),
)
@example("subscription-flooding", NOT_YET_SAFE, "")
def test_however_a_move_and_publications_fall_together_the_answers_are_those_of_a_client_that_stays(
    expression: str, others: str, strategy: str, story: list[tuple[str, int | str]], killed: str
) -> None:
    """Both subscribe at QoS 2, and messages enter at one node: each result comes, once and in order.  So it does where
    others have subscribed to the same, and it is theirs that goes on."""
    town = row(strategy, "ABCD")
    stays, client = town["D"].resume("stays"), town["B"].resume("c")
    for one in (stays, client, *(town[name].resume(f"at-{name}") for name in others)):
        one.subscribe(expression, 2)
    publisher = town["C"].join("p")
    where, number, packets = "B", 0, 0
    came: list[Publish] = []
    for what, which in story:
        if what == "round":
            assert isinstance(which, int)
            for _ in range(which):
                for node in town.nodes.values():
                    node.work()
                for pipe in town.pipes:
                    pipe.move()
        elif what == "publish":
            number += 1
            packets += 1
            publisher.send(Publish(str(which), b"%d" % 2**number, 1, packet_id=packets))
        elif what != "move":
            town[str(which)].disk_stalls = what == "stall"
        else:
            came += client.messages()
            client.vanish()
            where = str(which)
            client = town[where].dial()
            client.send(Connect("c", False, 0, None, None, None, {"session_expiry": 100}))
    for node in town.faulty.values():
        node.disk_stalls = False
    if killed:
        town.kill(killed)
        came += client.messages()
        client.vanish()
        town.start(killed)
        town.connect(*(pair for pair in ("AB", "BC") if killed in pair))
        client = town[where].dial()
        client.send(Connect("c", False, 0, None, None, None, {"session_expiry": 100}))
    town.pass_time(5)
    came += client.messages()
    expected = [message.payload for message in stays.messages()]
    seen: dict[int, bytes] = {}
    for message in came:
        assert message.dup or message.packet_id not in seen
        seen.setdefault(message.packet_id, message.payload)
    assert list(seen.values()) == expected


@pytest.mark.parametrize("how", ["planned", "pulled"])
def test_a_node_that_is_met_after_a_move_counts_since_the_subscription(how: str, strategy: str) -> None:
    town = FaultyTown("ABC", strategy)
    town.connect("AB")
    client = town["A"].resume("c")
    client.subscribe("$COUNT/t/#", 1)
    town.pass_time(1)
    town["C"].join("p").publish("t/1", b"1", 1)
    town.pass_time(5)
    client = move(town, client, "B", how)
    town.connect("BC")
    town.pass_time(3)
    assert answers(client)[-1:] == [b"1.0"]
