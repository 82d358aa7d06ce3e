"""From what a node noted of a client to the intervals of its subscriptions, through crashes and new sessions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sterna.node.feed_records import RECORD_TABLES
from sterna.pipeline.audit.subscription_intervals import intervals


def instant(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def told(*happenings: tuple[int, str, str | None], session: int = 1, **more: Any) -> list[dict[str, Any]]:
    """(epoch, what, filter), one a second."""
    rows = []
    for what in happenings:
        epoch, word, topic_filter = what
        row = {"node": "n", "node_epoch": epoch, "what": word, "client": "c", "session": session}
        vector = [("n", {"epoch": epoch, "sequence": 7})] if word in ("subscribed", "unsubscribed", "ended") else None
        rows.append({**row, "filter": topic_filter, "qos": 1, "no_local": False, "vector": vector, **more})
    return rows


def found(rows: list[dict[str, Any]], lives: dict[int, float]) -> list[tuple[Any, ...]]:
    for place, row in enumerate(rows):
        row.update(place=place, at=instant(place))
    table = intervals(pa.Table.from_pylist(rows, RECORD_TABLES["sessions"]), {"n": lives})
    names = ("filter", "since", "until", "over")
    return [
        tuple(value.timestamp() if isinstance(value, datetime) else value for value in (row[name] for name in names))
        for row in table.to_pylist()
    ]


def test_a_subscription_stands_until_it_is_given_up_or_its_session_ends() -> None:
    rows = told((1, "subscribed", "a"), (1, "subscribed", "b"), (1, "unsubscribed", "a"))
    assert found(rows, {1: 9.0}) == [("a", 0, 2, None), ("b", 1, None, None)]
    rows += told((1, "ended", None))
    assert found(rows, {1: 9.0}) == [("a", 0, 2, "ended"), ("b", 1, 3, "ended")]


def test_asking_for_the_same_again_changes_nothing_and_for_another_qos_begins_anew() -> None:
    rows = told((1, "subscribed", "a"), (1, "carried", "a"), (1, "subscribed", "a"))
    assert found(rows, {1: 9.0}) == [("a", 0, None, None)]
    rows += told((1, "carried", "a"), qos=2)
    assert found(rows, {1: 9.0}) == [("a", 0, 3, None), ("a", 3, None, None)]


def test_what_a_node_carries_into_its_next_life_goes_on() -> None:
    rows = told((1, "subscribed", "a"), (3, "carried", "a"), (3, "opened", None))
    assert found(rows, {1: 5.0, 3: 9.0}) == [("a", 0, None, None)]


def test_what_it_does_not_carry_died_with_its_last_record() -> None:
    rows = told((1, "subscribed", "a"))
    assert found(rows, {1: 5.0, 2: 9.0}) == [("a", 0, 5, "died")]
    rows += told((2, "opened", None), (2, "subscribed", "a"), session=2)
    assert found(rows, {1: 5.0, 2: 9.0}) == [("a", 0, 5, "died"), ("a", 2, None, None)]


def test_a_node_that_has_ceased_to_note_anything_is_as_good_as_dead() -> None:
    assert found(told((1, "subscribed", "a")), {1: 5.0, 2: 0.0}) == [("a", 0, 5, "died")]


def test_a_subscription_is_confirmed_when_every_node_knows_of_it() -> None:
    rows = told((1, "subscribed", "a"), (1, "stands", "a"), (1, "stands", "a"), (1, "subscribed", "b"))
    for place, row in enumerate(rows):
        row.update(place=place, at=instant(place))
    table = intervals(pa.Table.from_pylist(rows, RECORD_TABLES["sessions"]), {"n": {1: 9.0}}).to_pylist()
    assert [row["stands"] for row in table] == [instant(1), None]
    assert [dict(row["after"]) for row in table] == [{"n": {"epoch": 1, "sequence": 7}}] * 2
