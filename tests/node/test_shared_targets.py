"""Two nodes send their clients to a third, which takes only so many at a time: the others follow."""

from __future__ import annotations

import pytest

from node.joined_nodes import Town
from sterna.migration import moves_put_off
from sterna.migration.move_manager import MoveManager
from sterna.migration.move_side import CLIENT_IS_BACK, TOO_MUCH_ARRIVES
from sterna.migration.planned_moves import PlannedMoves
from sterna.migration.settings import MigrationSettings

SETTINGS = MigrationSettings(at_once=2)


def moving(town: Town, name: str) -> MoveManager:
    return town[name].network.moving


def town_with_a_full_target(*clients: str) -> Town:
    """B takes one session at a time, and waits for one that does not come."""
    town = Town("AB", migration=MigrationSettings(at_once=1))
    town.connect("AB")
    for client in clients:
        town["A"].resume(client).subscribe("t", 1)
    moving(town, "B").expect(b"another", "A", 1)
    for client in clients:
        moving(town, "A").plans.move(client.encode(), "B")
        town.pass_time(0.01)
    return town


def make_room(town: Town) -> None:
    moving(town, "B").arrivals.pop(b"another")


def not_moved(town: Town, name: str = "A") -> list[tuple[bytes, str, str]]:
    return [one[:3] for one in moving(town, name).plans.not_moved]


def test_both_nodes_clients_arrive() -> None:
    town = Town("ABC", migration=SETTINGS)
    town.connect("AB", "CB")
    clients = [(name, f"{name}{number}") for name in "AC" for number in range(2)]
    for name, client in clients:
        town[name].resume(client).vanish()
    for name, client in clients:
        moving(town, name).plans.move(client.encode(), "B")
    town.pass_time(2)
    assert sorted(town["B"].broker.sessions) == sorted(client.encode() for _, client in clients)
    for name in "AC":
        assert not_moved(town, name) == []
        assert moving(town, name).counters.rolled_back == 0
        assert len(moving(town, name).plans._put_off) == 0


def test_a_client_that_has_to_wait_is_served_where_it_is_and_goes_when_there_is_room() -> None:
    town = town_with_a_full_target("c")
    town["A"].join("p").publish("t", b"", 1)
    assert len(town["A"].session("c").inflight) == 1
    town.pass_time(2)
    make_room(town)
    town.pass_time(2)
    assert not_moved(town) == []
    client = town["B"].resume("c")
    assert client.payloads() == [b""]
    town.pass_time(1)
    assert moving(town, "A").counters.departed == 1
    assert len(moving(town, "A").plans._put_off) == 0


def test_it_is_not_tried_for_ever() -> None:
    town = town_with_a_full_target("c")
    town.pass_time(town.migration.patience_s + 1)
    assert not_moved(town) == [(b"c", "B", TOO_MUCH_ARRIVES)]
    assert moving(town, "A").counters.rolled_back == 1
    assert len(moving(town, "A").plans._put_off) == 0
    make_room(town)
    town.pass_time(5)
    assert b"c" in town["A"].broker.sessions


def test_of_two_that_wait_both_go_though_one_at_a_time_may() -> None:
    town = town_with_a_full_target("c", "d")
    town.pass_time(1)
    make_room(town)
    town.pass_time(2)
    for client in "cd":
        assert town["B"].resume(client).connack.session_present
    town.pass_time(1)
    assert sorted(town["B"].broker.sessions) == [b"c", b"d"]


def test_a_client_that_connects_again_stays() -> None:
    town = town_with_a_full_target("c")
    client = town["A"].resume("c")
    make_room(town)
    town.pass_time(2)
    assert not client.wire.closed
    assert not_moved(town) == [(b"c", "B", CLIENT_IS_BACK)]


def test_a_client_that_has_gone_by_itself_is_not_moved_again() -> None:
    town = town_with_a_full_target("c")
    make_room(town)
    client = town["B"].resume("c")
    assert client.connack.session_present
    town.pass_time(2)
    assert not client.wire.closed
    assert not_moved(town) == []
    assert len(moving(town, "A").plans._put_off) == 0


def test_a_client_that_is_on_its_way_there_already_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was sent along with the offer, and would ask for its session itself."""
    monkeypatch.setattr(PlannedMoves, "may_be_called", lambda *_: True)
    town = town_with_a_full_target("c")
    assert b"c" in moving(town, "B").arrivals
    assert town["B"].resume("c").connack.session_present
    assert not_moved(town) == []


def test_another_order_takes_the_place_of_one_that_waits() -> None:
    town = Town("ABC", migration=MigrationSettings(at_once=1))
    town.connect("AB", "AC")
    town["A"].resume("c").vanish()
    moving(town, "B").expect(b"another", "A", 1)
    moving(town, "A").plans.move(b"c", "B")
    town.pass_time(0.01)
    moving(town, "A").plans.move(b"c", "C")
    town.pass_time(1)
    make_room(town)
    town.pass_time(2)
    assert b"c" in town["C"].broker.sessions


def test_those_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_put_off, "WAITING_MAX", 2)
    town = town_with_a_full_target("c", "d", "e")
    assert not_moved(town) == [(b"e", "B", TOO_MUCH_ARRIVES)]
    assert len(moving(town, "A").plans._put_off) == 2
