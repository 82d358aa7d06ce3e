"""A client is moved while messages fly, and something goes wrong at each message of the protocol in turn.

Whatever it is and whenever: nothing acknowledged is lost, nothing comes twice at QoS 0 and 2, the order is kept, and in
the end one node has the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from faulty_moves import FAULTS, Fault, begun, checked, ordered
from town import Town

from sterna.migration import messages
from sterna.migration.move_manager import MoveManager

QUICK = ("MigSync", "MigSyncAck", "MigAbort")
"""Where the session changes its owner, or is known not to; the others are for `make test`."""
PLANNED = ("MigTo", "MigToAck", "MigSync", "MigSyncAck", "MigAck")
FIRST = "MigToAck, ahead of the client"
#: With a third node the session goes on until everybody has heard where it is wanted; two have nobody else to ask.
SIZES = (2, 3)


def kinds(*names: str) -> list[object]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def name_of(message: object) -> str:
    return FIRST if isinstance(message, messages.MigToAck) and message.is_first else type(message).__name__


@contextmanager
def at_message(kind: str, town: Town, fault: Fault, *, before: bool) -> Iterator[list[str]]:
    """Something goes wrong when the first message of this kind arrives: before it is heard, or after."""
    heard: list[str] = []
    original = MoveManager.directed_came

    def directed_came(moving: MoveManager, source: str, body: bytes) -> None:
        name = name_of(messages.decode(body))
        first = name == kind and kind not in heard
        heard.append(name)
        if first and before:
            town.scene.kernel.after(0.0, fault, town)
            return  # it is lost on the way
        original(moving, source, body)
        if first:
            town.scene.kernel.after(0.0, fault, town)

    MoveManager.directed_came = directed_came  # type: ignore[method-assign, assignment]
    try:
        yield heard
    finally:
        MoveManager.directed_came = original  # type: ignore[method-assign]


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", kinds(FIRST, *PLANNED))
@pytest.mark.parametrize("size", SIZES)
def test_a_planned_move_of_a_client_that_goes_where_it_is_sent(size: int, kind: str, fault: str, before: bool) -> None:
    town = begun(size, len(kind) + len(fault))
    town.subscribers["node1"].address = town.machine("node2").address
    with at_message(kind, town, FAULTS[fault], before=before) as heard:
        ordered(town)
        checked(town, heard, kind)


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", kinds("MigTo", FIRST, "MigAbort"))
@pytest.mark.parametrize("size", SIZES)
def test_a_planned_move_of_a_client_that_comes_back(size: int, kind: str, fault: str, before: bool) -> None:
    town = begun(size, len(kind) + 3 * len(fault))
    with at_message(kind, town, FAULTS[fault], before=before) as heard:
        ordered(town)
        checked(town, heard, kind)
    assert "MigSync" not in heard, "its session stayed"


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", kinds(FIRST, "MigToAck", "MigSync"))
@pytest.mark.parametrize("size", SIZES)
def test_a_planned_move_of_a_client_that_goes_there_and_back(size: int, kind: str, fault: str, before: bool) -> None:
    """It dials its new node until the fault, and its old one from then on."""
    town = begun(size, len(kind) + 5 * len(fault))
    client = town.subscribers["node1"]
    client.address = town.machine("node2").address

    def turn_back(town: Town) -> None:
        FAULTS[fault](town)
        client.address = town.machine("node1").address
        client.hang_up()

    with at_message(kind, town, turn_back, before=before) as heard:
        ordered(town)
        checked(town, heard, kind)


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", kinds("Pull", *PLANNED))
@pytest.mark.parametrize("size", SIZES)
def test_a_client_that_turns_up_elsewhere(size: int, kind: str, fault: str, before: bool) -> None:
    town = begun(size, len(kind) + 2 * len(fault))
    client = town.subscribers["node1"]
    with at_message(kind, town, FAULTS[fault], before=before) as heard:
        client.address = town.machine("node2").address
        client.hang_up()
        checked(town, heard, kind)
