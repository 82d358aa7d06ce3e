"""Every node hears where a session has gone, and none is told what it knows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from node.joined_nodes import Town
from sterna.migration import messages
from sterna.migration.messages import Owners
from sterna.migration.move_manager import MoveManager


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Links, from and to, by which news of owners came."""
    links: list[str] = []
    original = MoveManager.news_came

    def news_came(moving: MoveManager, link: str, body: bytes) -> None:
        if isinstance(messages.decode_news(body), Owners):
            links.append(link + moving.node)
        original(moving, link, body)

    monkeypatch.setattr(MoveManager, "news_came", news_came)
    return links


def row(names: str) -> Town:
    town = Town(names)
    town.connect(*(one + other for one, other in pairwise(names)))
    return town


@pytest.mark.parametrize("target", ["A", "B", "D", "E"])
def test_all_hear_of_a_move_and_each_is_told_once(target: str, told: list[str]) -> None:
    town = row("ABCDE")
    town["C"].resume("c").vanish()
    town.pass_time(1)
    told.clear()
    town["C"].network.moving.plans.move(b"c", target)
    town.pass_time(1)
    assert {node.network.moving.directory.get(b"c")[0] for node in town.nodes.values()} == {target}
    towards = {link for link in told if link in ("CB", "CD")}
    assert towards == {"CD" if target in "AB" else "CB"}, "its old node tells those who are not on the way"
    assert len({link[1] for link in told}) >= 4


def test_those_behind_other_links_hear_of_moves_in_both_directions_in_one_turn(told: list[str]) -> None:
    town = row("ABC")
    for client in ("left", "right"):
        town["B"].resume(client).vanish()
    town.pass_time(1)
    told.clear()
    for client, target in (("left", "A"), ("right", "C")):
        town["B"].network.moving.plans.move(client.encode(), target)
    town.pass_time(1)
    for node in town.nodes.values():
        directory = node.network.moving.directory
        assert (directory.get(b"left")[0], directory.get(b"right")[0]) == ("A", "C")


def test_a_node_that_lost_what_the_new_owner_said_hears_it_when_they_meet_again() -> None:
    """The old one does not tell it: it took the new one at its word."""
    town = row("ABC")
    town["A"].resume("c").vanish()
    town.pass_time(1)
    original = MoveManager.news_came
    with pytest.MonkeyPatch.context() as lost:
        lost.setattr(MoveManager, "news_came", lambda moving, link, body: None)
        town["A"].network.moving.plans.move(b"c", "C")
        town.pass_time(1)
    assert MoveManager.news_came is original
    town.cut("B", "C")
    town.connect("BC")
    assert town["B"].network.moving.directory.get(b"c")[0] == "C"
