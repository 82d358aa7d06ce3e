"""Nodes that move: one leader per partition, a steady tree, and no change that nothing asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from math import inf
from random import Random

import pytest
from radio_field import SETTINGS, RadioField

from sterna.overlay.mobile_settings import FIRST_HEARD, MobileSettings
from sterna.vocabulary.errors import ConfigurationError

SETTLE_S = 8.0
NAMES = [f"n{number:02}" for number in range(20)]


def _line(field: RadioField, names: list[str]) -> None:
    field.meet(*pairwise(names))


def _components(field: RadioField) -> list[set[str]]:
    left, found = {name for name, host in field.hosts.items() if host.up}, []
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = {b for a in edge for b in left if (a, b) in field.reach and (b, a) in field.reach} - group
        found.append(group)
        left -= group
    return found


def _is_right(field: RadioField) -> list[str]:
    """Why the partitions are not one tree each, linked along its edges."""
    leaders, parents = field.leaders(), field.parents()
    wrong = []
    for group in _components(field):
        if len({leaders[name] for name in group}) != 1 or next(iter({leaders[n] for n in group})) not in group:
            wrong.append(f"{sorted(group)} follow {[leaders[name] for name in sorted(group)]}")
        for name in group:
            way = [name]
            while (parent := parents[way[-1]]) and parent not in way:
                way.append(str(parent))
            if way[-1] != leaders[name]:
                wrong.append(f"{name} ends in {way}")
    if field.links != field.tree_links():
        wrong.append(f"links {sorted(field.links)}, tree {sorted(field.tree_links())}")
    return wrong


def test_a_node_alone_leads_itself_and_needs_no_address() -> None:
    field = RadioField()
    field.boot("a")
    field.run(3)
    assert field.leaders() == {"a": "a"}
    assert field.hosts["a"].overlay.addresses == []
    with pytest.raises(ConfigurationError, match="no address is needed"):
        field.hosts["a"].overlay.add("b:7883")


def test_a_line_of_nodes_agrees_on_one_leader_and_links_along_the_line() -> None:
    field = RadioField()
    field.boot(*NAMES[:6])
    _line(field, NAMES[:6])
    field.run(SETTLE_S)
    assert _is_right(field) == []
    assert len(field.links) == 5


def test_nothing_changes_while_nobody_moves() -> None:
    field = RadioField(loss=0.02)
    field.boot(*NAMES)
    field.meet(*(pair for pair in combinations(NAMES, 2) if Random(str(pair)).random() < 0.3), *pairwise(NAMES))
    field.run(15)
    assert _is_right(field) == []
    before = field.parent_changes()
    field.run(60)
    assert field.parent_changes() == before


def test_a_lone_newcomer_whose_name_comes_first_changes_nothing_for_the_others() -> None:
    field = RadioField()
    field.boot(*NAMES)
    _line(field, NAMES)
    field.run(20)
    before, leader = field.parent_changes(), field.leaders()["n05"]
    field.boot("a-newcomer")
    field.run(30)  # it has led itself, and nobody else, for half a minute
    field.meet(("a-newcomer", "n10"))
    field.run(SETTLE_S)
    assert field.parent_changes() == before + 1
    assert set(field.leaders().values()) == {leader}


def test_of_two_partitions_the_one_that_was_led_for_longer_stays_as_it_is() -> None:
    field = RadioField()
    old, young = ["x1", "x2", "x3"], ["a1", "a2", "a3"]
    field.boot(*old)
    _line(field, old)
    field.run(60)
    field.boot(*young)
    _line(field, young)
    field.run(5)
    before = [event for event in field.events if event[1] in old]
    field.meet(("x3", "a3"))
    field.run(SETTLE_S)
    assert _is_right(field) == []
    assert field.leaders()["a1"] in old
    assert [event for event in field.events if event[1] in old] == before


def test_a_merge_turns_the_chain_from_the_meeting_point_to_the_old_leader_and_nobody_else() -> None:
    field = RadioField()
    old, young = ["x1", "x2"], ["a1", "a2", "a3", "a4"]
    field.boot(*old)
    _line(field, old)
    field.run(60)
    field.boot(*young)
    field.meet(("a1", "a2"), ("a2", "a3"), ("a1", "a4"))
    field.run(5)
    assert field.leaders()["a4"] == "a1"
    before = field.parent_changes()
    field.meet(("x2", "a3"))
    field.run(SETTLE_S)
    assert _is_right(field) == []
    parents = {name: parent for name, parent in field.parents().items() if name in young}
    assert parents == {"a1": "a2", "a2": "a3", "a3": "x2", "a4": "a1"}
    assert field.parent_changes() == before + 3  # a3, a2, a1; a4 keeps its parent


def test_a_link_that_works_one_way_never_becomes_a_parent() -> None:
    field = RadioField()
    field.boot("a", "b", "c")
    field.meet(("b", "c"))
    field.reach.add(("a", "c"))  # c hears a, and a does not hear c
    field.run(SETTLE_S)
    assert field.leaders() == {"a": "a", "b": "b", "c": "b"}
    assert field.links == {("b", "c")}
    assert field.hosts["c"].overlay.counters["one_way"] > 0


def test_a_neighbour_is_gone_after_three_missed_hellos_and_its_link_with_it() -> None:
    field = RadioField()
    field.boot("a", "b", "c")
    _line(field, ["a", "b", "c"])
    field.run(SETTLE_S)
    field.part(("a", "b"))
    started = field.now
    while ("a", "b") in field.links:
        field.run(0.01)
    hello_s = SETTINGS.hello_s
    assert 2 * hello_s < field.now - started < 4 * hello_s
    field.run(SETTLE_S)
    assert field.leaders() == {"a": "a", "b": "b", "c": "b"}


def test_a_dead_leader_does_not_come_back_in_what_others_say() -> None:
    field = RadioField()
    field.boot(*NAMES[:8])
    field.meet(*combinations(NAMES[:8], 2))
    field.run(SETTLE_S)
    dead = str(field.leaders()["n07"])
    field.kill(dead)
    field.run(SETTLE_S)
    assert _is_right(field) == []
    field.events.clear()
    field.run(20)
    assert field.events == []


def test_a_restarted_node_is_taken_for_what_it_is_now() -> None:
    field = RadioField()
    field.boot("a", "b")
    field.meet(("a", "b"))
    field.run(SETTLE_S)
    field.kill("a")
    field.boot("a")
    field.run(SETTLE_S)
    assert _is_right(field) == []


def test_a_new_parent_is_linked_before_the_old_one_is_let_go() -> None:
    field = RadioField()
    field.boot("a", "b", "c", "d")
    field.meet(("a", "b"), ("b", "c"), ("c", "d"))
    field.run(SETTLE_S)
    assert field.parents()["d"] == "c"
    field.meet(("a", "d"))
    for _ in range(1000):
        field.run(0.005)
        assert any("d" in pair for pair in field.links)
    assert any({("a", "d"), ("c", "d")} <= links for links in field.stood)
    assert field.parents()["d"] == "a"
    assert _is_right(field) == []


def test_first_heard_follows_whoever_brought_the_round_first() -> None:
    flapping = replace(SETTINGS, parent=FIRST_HEARD)
    changes = {}
    for name, settings in (("steady", SETTINGS), ("first-heard", flapping)):
        field = RadioField(loss=0.05)
        field.boot(*NAMES[:12], settings=settings)
        field.meet(*combinations(NAMES[:12], 2))
        field.part(*((NAMES[0], other) for other in NAMES[3:12]))
        field.run(15)
        before = field.parent_changes()
        field.run(30)
        changes[name] = field.parent_changes() - before
    assert changes["steady"] == 0
    assert changes["first-heard"] > 10


@pytest.mark.parametrize("seed", range(6))
def test_once_nothing_moves_every_partition_has_one_leader_and_a_tree(seed: int) -> None:
    dice = Random(seed)
    field = RadioField(seed, loss=0.05)
    names = NAMES[: dice.randrange(4, 14)]
    field.boot(*names)
    for _ in range(25):
        change = dice.choice((field.meet, field.meet, field.part))
        change((dice.choice(names), dice.choice(names)))
        if dice.random() < 0.1:
            lost = dice.choice(names)
            field.kill(lost)
            field.boot(lost)
        field.run(dice.uniform(0.05, 1.5))
    field.reach = {(one, other) for one, other in field.reach if one != other and (other, one) in field.reach}
    field.loss = 0.0
    field.run(20)
    assert _is_right(field) == []


def test_hellos_cost_the_same_in_a_small_and_in_a_large_network() -> None:
    rates = []
    for size in (5, 33, 66):
        field = RadioField()
        names = [f"n{number:02}" for number in range(size)]
        field.boot(*names)
        field.meet(*pairwise(names), *zip(names, names[2:], strict=False))
        field.run(20)
        before = field.said_bytes
        field.run(20)
        rates.append((field.said_bytes - before) / 20 / size)
    assert max(rates) < 1.25 * min(rates)
    assert max(rates) < 400


# Forged, replayed and damaged hellos.


def test_no_bytes_make_a_node_raise_or_believe_a_stranger() -> None:
    field = RadioField()
    field.boot("a", "b")
    field.meet(("a", "b"))
    field.run(3)
    said: list[bytes] = []
    original = field.say
    field.say = lambda source, data: (said.append(data), original(source, data))  # type: ignore[method-assign,assignment,func-returns-value]
    field.run(2)
    dice, overlay = Random(1), field.hosts["a"].overlay
    for _ in range(2000):
        data = bytearray(dice.choice(said))
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        overlay.datagram("stranger:1", bytes(data[: dice.choice((len(data), dice.randrange(len(data))))]))
    other = replace(SETTINGS, key=b"another key")
    field.boot("stranger", settings=other)
    field.meet(("a", "stranger"))
    field.run(5)
    assert overlay.counters["refused"] >= 2000
    assert field.leaders() == {"a": "a", "b": "a", "stranger": "stranger"}


def test_recorded_hellos_bring_nobody_back() -> None:
    field = RadioField()
    field.boot("a", "b", "c")
    field.meet(("a", "b"), ("b", "c"), ("a", "c"))
    recorded: list[bytes] = []
    original = field.say

    def record(source: str, data: bytes) -> None:
        if source == "a":
            recorded.append(data)
        original(source, data)

    field.say = record  # type: ignore[method-assign]
    field.run(10)
    field.kill("a")
    field.run(SETTLE_S)
    assert field.leaders() == {"b": "b", "c": "b"}
    field.events.clear()
    for data in recorded * 2:
        field.hear("b", "a", data)
        field.run(0.05)
    assert field.events == []
    assert field.leaders() == {"b": "b", "c": "b"}


def test_a_crowd_is_bounded_and_counted() -> None:
    settings: MobileSettings = replace(SETTINGS, neighbours_max=8)
    field = RadioField()
    field.boot(*NAMES[:12], settings=settings)
    field.meet(*combinations(NAMES[:12], 2))
    field.run(5)
    assert all(len(host.overlay._neighbours) <= 8 for host in field.hosts.values())
    assert any(host.overlay.counters["crowded"] for host in field.hosts.values())


# Short and rare hellos.


def _said(field: RadioField, seconds: float) -> list[tuple[str, bytes]]:
    said: list[tuple[str, bytes]] = []
    original = field.say

    def record(source: str, data: bytes) -> None:
        said.append((source, data))
        original(source, data)

    field.say = record  # type: ignore[method-assign]
    field.run(seconds)
    field.say = original  # type: ignore[method-assign]
    return said


def test_most_hellos_name_nobody_by_name_and_are_short() -> None:
    field = RadioField()
    field.boot(*NAMES[:10])
    field.meet(*combinations(NAMES[:10], 2))
    field.run(SETTLE_S)
    said = _said(field, 20)
    short = [data for _, data in said if data.startswith(b"STm")]
    assert len(short) > 0.8 * len(said)
    assert max(map(len, short)) <= 35 + 4 * 9
    assert any(data.startswith(b"STM") for _, data in said)
    assert _is_right(field) == []


def test_while_nothing_changes_hellos_become_rare_and_a_change_brings_them_back() -> None:
    calm = replace(SETTINGS, calm_hello_s=4.0)
    field = RadioField()
    field.boot("a", "b", "c", settings=calm)
    _line(field, ["a", "b", "c"])
    field.run(60)
    assert len(_said(field, 40)) < 80  # 240 of those that nothing calms
    field.boot("d", settings=calm)
    field.meet(("c", "d"))
    assert len([source for source, _ in _said(field, 5) if source == "c"]) >= 4
    field.run(2 * calm.calm_hello_s)
    assert _is_right(field) == []


def test_where_many_hear_each_other_all_together_take_their_share_of_the_air() -> None:
    slow = replace(SETTINGS, hello_air_bytes_s=1500, hello_bytes=100)
    for size in (10, 20):
        field = RadioField()
        field.boot(*NAMES[:size], settings=slow)
        field.meet(*combinations(NAMES[:size], 2))
        field.run(60)
        assert _is_right(field) == []
        said = _said(field, 60)
        assert sum(len(data) for _, data in said) / 60 < 2 * slow.hello_air_bytes_s
        assert max(len(data) for _, data in said) <= slow.hello_bytes
        changes = field.parent_changes()
        field.run(60)
        assert field.parent_changes() == changes


def test_lost_hellos_are_no_reason_to_leave_a_parent() -> None:
    field = RadioField(seed=3, loss=0.2)
    field.boot(*NAMES[:6])
    _line(field, NAMES[:6])
    field.run(60)
    changes = field.parent_changes()
    field.run(300)
    assert field.parent_changes() == changes


def test_a_neighbour_whose_link_brings_something_is_there_without_hellos() -> None:
    field = RadioField()
    field.boot("a", "b")
    field.meet(("a", "b"))
    field.run(SETTLE_S)
    for host in field.hosts.values():
        host.silent = lambda peer: 0.1
    field.part(("a", "b"))
    field.run(6 * SETTINGS.hello_s)
    assert field.parents()["b"] == "a"
    for host in field.hosts.values():
        host.silent = lambda peer: inf
    field.run(SETTLE_S)
    assert field.parents()["b"] is None


def test_a_neighbour_whose_link_alone_speaks_for_minutes_does_no_harm() -> None:
    field = RadioField()
    field.boot("a", "b", "c")
    field.meet(("a", "b"), ("b", "c"))
    field.run(SETTLE_S)
    field.hosts["b"].silent = lambda peer: 0.1
    field.part(("a", "b"))
    field.run(150)
    assert field.leaders()["b"] == field.leaders()["c"] != "a"


def test_a_neighbour_that_knows_no_short_hellos_hears_enough_long_ones() -> None:
    field = RadioField()
    field.boot("old", "new")
    field.meet(("old", "new"))
    original = field.hear

    def hear(name: str, source: str, data: bytes) -> None:
        if name != "old" or not data.startswith(b"STm"):
            original(name, source, data)

    def say(source: str, data: bytes) -> None:
        if source != "old" or not data.startswith(b"STm"):
            said(source, data)

    said = field.say
    field.hear, field.say = hear, say  # type: ignore[method-assign]
    field.run(SETTLE_S)
    assert len(set(field.leaders().values())) == 1
    changes = len(field.events)
    field.run(60)
    assert len(field.events) == changes


def test_damaged_short_hellos_are_refused() -> None:
    field = RadioField()
    field.boot("a", "b")
    field.meet(("a", "b"))
    field.run(SETTLE_S)
    short = next(data for source, data in _said(field, 5) if source == "b" and data.startswith(b"STm"))
    overlay = field.hosts["a"].overlay
    before = overlay.counters["refused"]
    for position in range(len(short)):
        for data in (short[:position], short[:position] + bytes([short[position] ^ 1]) + short[position + 1 :]):
            overlay.datagram("stranger:1", data)
    assert overlay.counters["refused"] == before + 2 * len(short)
