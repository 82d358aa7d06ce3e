"""docs/interworking.md shows the states the code goes by."""

from __future__ import annotations

from pathlib import Path

from sterna.interworking.states import MEANING, TABLE, Event, State, drawing

PAGE = (Path(__file__).parents[2] / "docs/interworking.md").read_text()


def test_the_page_shows_the_states() -> None:
    assert drawing() in PAGE


def test_every_state_is_reached_and_left_and_every_event_happens_somewhere() -> None:
    assert set(MEANING) == set(TABLE) == set(State)
    reached = {state for row in TABLE.values() for state in row.values()}
    assert reached == set(State)
    assert {event for row in TABLE.values() for event in row} == set(Event)
    assert all(row for state, row in TABLE.items() if state is not State.STOPPED)
