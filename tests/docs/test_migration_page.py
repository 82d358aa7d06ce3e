"""docs/migration.md shows the tables the code goes by, and its commands do what it says."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from live.networks import hears
from live.nodes import LiveNode, wait_until
from live.test_moves import sterna
from sterna.measure.harness.ports import free_port
from sterna.migration import arrival, departure
from sterna.migration.tables import ARRIVING, LEAVING, ArrivalState, DepartureState, Do, Table, drawing

NODES = (Path(__file__).parents[2] / "docs/network.md").read_text()
PORTS = ("1883", "1884", "7883", "7884", "9883", "9884")
PAGE = (Path(__file__).parents[2] / "docs/migration.md").read_text()


def test_the_page_shows_the_tables() -> None:
    assert drawing(LEAVING) in PAGE
    assert drawing(ARRIVING) in PAGE


def test_every_state_can_be_reached_and_every_action_is_known() -> None:
    for table, states, first, last in (
        (LEAVING, set(DepartureState), DepartureState.OFFERED, {DepartureState.GONE, DepartureState.STAYING}),
        (ARRIVING, set(ArrivalState), ArrivalState.AWAITING, {ArrivalState.DONE, ArrivalState.DROPPED}),
    ):
        assert reached(table, first) == states
        assert {state for state, _ in table} == states - last, "only an end has no way on"
    assert actions(LEAVING) == set(departure._DOES)
    assert actions(ARRIVING) == set(arrival._DOES)


def reached(table: Table, first: object) -> set[object]:
    found = {first}
    while new := {row.then for (state, _), row in table.items() if state in found} - found:
        found |= new
    return found


def actions(table: Table) -> set[Do]:
    return {action for row in table.values() for action in row.does}


@pytest.mark.slow
def test_the_commands_do_what_the_page_shows(tmp_path: Path) -> None:
    """On the two nodes of docs/network.md."""
    ports = {port: str(free_port()) for port in PORTS}

    def here(text: str) -> str:
        return re.sub("|".join(PORTS), lambda found: ports[found[0]], text)

    tables = re.findall(r"^```toml\n(.*?)^```$", NODES, re.MULTILINE | re.DOTALL)[:2]
    (session,) = re.findall(r"^```sh-session\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    steps = re.findall(r"^\$ (.*)\n((?:[^$\n].*\n)*)", here(session), re.MULTILINE)
    assert len(steps) == session.count("$ sterna")
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(LiveNode(tmp_path / str(number), here(toml))) for number, toml in enumerate(tables)
        )
        wait_until(lambda: hears(first, ["second"]) and hears(second, ["first"]), "the nodes hear each other")
        for command, shown in steps:
            words = shlex.split(command)[1:]
            if words[0] == "clients":  # the session is on its way
                wait_until(partial(says, words, shown), "the client is where the page says")
            else:
                assert sterna(*words) == shown


def says(words: list[str], shown: str) -> bool:
    return sterna(*words) == shown
