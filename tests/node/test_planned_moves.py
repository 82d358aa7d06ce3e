"""Moves that somebody ordered: what cannot be is said, and a node that is being emptied is left alone by the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.packets import Connack, Connect
from node.test_clients_move import row
from sterna.vocabulary.errors import MigrationError


def test_the_log_says_who_went_where_and_who_was_not_let_in() -> None:
    town = row("subscription-flooding")
    town["A"].resume("c")
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    assert ("session moved", {"client": "c", "to": "C"}) in town["A"].reports
    town["B"].network.moving.plans.evacuate(1.0)
    town["B"].dial(4).send(Connect("old", False))
    town.settle()
    (fields,) = (fields for event, fields in town["B"].reports if event == "connection failed")
    assert (fields["client"], fields["reason"]) == ("old", "this node is being emptied")


def test_nobody_is_sent_to_a_node_that_is_being_emptied_too() -> None:
    town = row("subscription-flooding", "ABCD")
    for number in range(8):
        town["A"].resume(f"c{number}")
    for name in "ABC":
        town[name].network.moving.plans.evacuate(100.0)
        town.pass_time(0.1)
    town.pass_time(2)
    evacuation = town["A"].network.moving.plans.evacuation
    assert evacuation is not None
    assert (evacuation.moved, evacuation.failed) == (8, 0)
    assert len(town["D"].broker.sessions) == 8
    for name in "ABC":
        again = town[name].dial()
        again.send(Connect("other", False))
        town.settle()
        assert again.take(Connack).properties["server_reference"] == "D:1883"
    plans = town["D"].network.moving.plans
    with pytest.raises(MigrationError, match="node B is being emptied"):
        plans.move(b"c0", "B")
    with pytest.raises(MigrationError, match="no other node that can be reached and takes clients"):
        plans.evacuate(100.0)
    town["B"].network.moving.plans.stay()
    town.pass_time(0.1)
    assert plans.move(b"c0", "B") == "D"


def test_a_node_that_is_started_again_empty_still_says_so() -> None:
    town = row("subscription-flooding")
    town["B"].network.moving.plans.evacuate(100.0)
    town.pass_time(1)
    town.crash("B")
    town.connect("AB", "BC")
    assert town["A"].network.router.paths.open_origins == ["C"]


def test_a_node_that_has_no_room_says_so() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    broker = town["C"].broker
    broker.limits = replace(broker.limits, sessions=0)
    plans = town["A"].network.moving.plans
    plans.move(b"c", "C")
    town.pass_time(1)
    assert [(one.client, one.target, one.reason) for one in plans.not_moved] == [
        (b"c", "C", "it has as many sessions as it may")
    ]
    assert not client.wire.closed
