"""Nodes that readers expect: those that were reachable, across restarts, until they are forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from sterna.runtime.feed import known_nodes as feed_nodes
from sterna.runtime.feed.known_nodes import KnownNodes

NOW = 1_700_000_000.0
WEEK = 7 * 24 * 3600.0


def test_a_node_that_was_reachable_is_away_until_it_is_forgotten(tmp_path: Path) -> None:
    known = KnownNodes(tmp_path / "feeds.json", WEEK)
    assert known.look({"a": "a:1", "b": "b:1"}, NOW)
    assert known.away(["a", "b"]) == {}
    assert known.away(["a"]) == {"b": "b:1"}
    known.look({"a": "a:1"}, NOW + WEEK)
    assert known.away(["a"]) == {"b": "b:1"}
    known.look({"a": "a:1"}, NOW + WEEK + 1)
    assert known.away(["a"]) == {}


def test_a_restart_forgets_nobody_and_the_file_is_written_seldom(tmp_path: Path) -> None:
    known = KnownNodes(tmp_path / "feeds.json", WEEK)
    assert known.look({"a": "a:1"}, NOW)
    known.write()
    assert not known.look({"a": "a:1"}, NOW + 60)
    assert known.look({"a": "a:2"}, NOW + 61)
    known.write()
    assert known.look({"a": "a:2"}, NOW + 2 * feed_nodes.REFRESH_S)
    assert KnownNodes(tmp_path / "feeds.json", WEEK).away([]) == {"a": "a:2"}


def test_a_node_with_no_memory_keeps_no_file() -> None:
    known = KnownNodes(None, WEEK)
    assert not known.look({"a": "a:1"}, NOW)
    assert known.away([]) == {"a": "a:1"}


@pytest.mark.parametrize("found", [b"", b"[]", b'{"nodes": 5}', b'{"nodes": {"a": 5}}'])
def test_a_file_that_makes_no_sense_is_no_reason_to_stay_down(tmp_path: Path, found: bytes) -> None:
    (tmp_path / "feeds.json").write_bytes(found)
    assert KnownNodes(tmp_path / "feeds.json", WEEK).away([]) == {}


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_nodes, "KNOWN_MAX", 3)
    known = KnownNodes(None, WEEK)
    for number in range(9):
        known.look({f"n{number}": "x:1"}, NOW + number)
    assert sorted(known.away([])) == ["n6", "n7", "n8"]
