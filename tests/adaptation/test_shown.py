"""The word of a coordinator to people: bounded, read back as it was said, and nonsense is none."""

from __future__ import annotations

from typing import Any

import pytest

from sterna.adaptation.shown import DECISIONS_SHOWN, WORKERS_SHOWN, from_word, to_word
from sterna.broker.control_notes import NOTE_BYTES_MAX
from sterna.runtime.adaptation.coordinator_shown import shown


def worker(name: str, state: str = "off") -> dict[str, Any]:
    return {
        "worker": name, "site": "s", "state": state, "fixed": False, "gateways": 1, "others": 2, "cpu": 0.5,
        "error": 0.1, "trouble": "",
    }  # fmt: skip


def told(*workers: dict[str, Any]) -> dict[str, Any]:
    made = {"seconds_ago": 1.0, "decision": "start w (pressure)", "not_ordered": ""}
    return {
        "coordinator": "chief", "region": "default", "leads": True, "leader": "chief", "term": 3, "acts": True,
        "dry_run": False, "frozen": False, "control_line": {}, "workers": list(workers), "lost": ["gone"],
        "gateways": 7, "unserved": 1, "orders": [{}], "decisions": [made] * 100, "refused": {},
    }  # fmt: skip


PRESSED: dict[str, Any] = {
    "model": "seed", "up": 2.0, "down": 1.0, "workers": {"idle": 2.5, "calm": 0.1}, "nodes": {"last": None},
}  # fmt: skip


def test_it_is_read_back_as_it_was_said_with_running_nodes_and_pressed_workers_first() -> None:
    said = shown(told(worker("calm"), worker("idle"), worker("last", "serving")), PRESSED)
    assert from_word(to_word(said)) == said
    assert [(one.worker, one.pressure, one.is_needed) for one in said.workers] == [
        ("last", None, True),
        ("idle", 2.5, False),
        ("calm", 0.1, False),
    ]
    assert (said.orders, len(said.decisions), said.lost) == (1, DECISIONS_SHOWN, ["gone"])


def test_however_many_workers_there_are_a_node_keeps_it() -> None:
    long = told(*(worker("w" * 60 + f"{number}") | {"trouble": "t" * 1000} for number in range(3 * WORKERS_SHOWN)))
    word = to_word(shown(long, PRESSED))
    assert from_word(word) is not None
    assert len(word) <= NOTE_BYTES_MAX


@pytest.mark.parametrize("word", [b"", b"{}", b"\xff", b'{"coordinator": 1}', b"[]", b"null"])
def test_nonsense_is_no_word(word: bytes) -> None:
    assert from_word(word) is None
