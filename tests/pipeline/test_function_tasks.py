"""Functions called from a worker of Spark: whatever they do, every payload has an answer, in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.function_tasks import FunctionCaller, check, from_text, to_text
from sterna.runtime.functions.settings import FunctionTable, OwnFunction

MODULE = """
import os, time

def length(payload):
    return len(payload)

def moody(payload):
    if payload == b"raise":
        raise ValueError("no")
    if payload == b"die":
        os._exit(1)
    if payload == b"hang":
        time.sleep(60)
    return float(payload)
"""


@pytest.fixture
def table(tmp_path: Path) -> FunctionTable:
    (tmp_path / "crew.py").write_text(MODULE)
    own = tuple(OwnFunction(name.upper(), f"crew:{name}", name) for name in ("length", "moody"))
    return FunctionTable(own=own, directory=tmp_path, workers=2, time_out_s=4.0)


@pytest.fixture
def caller(table: FunctionTable) -> Iterator[FunctionCaller]:
    caller = FunctionCaller(table)
    yield caller
    caller.close()


def test_answers_stand_where_their_payloads_do(caller: FunctionCaller) -> None:
    assert caller.numbers("LENGTH", [b"x" * size for size in range(50)]) == [(float(size), "") for size in range(50)]
    assert caller.numbers("LENGTH", []) == []
    assert caller.numbers("NOBODYS", [b"", b""]) == [(None, "no-function")] * 2


def test_what_gives_no_number_hurts_nobody_else(caller: FunctionCaller) -> None:
    payloads = [b"1", b"raise", b"2", b"die", b"3", b"hang", b"-0.0", b"nan", b"1e39", b"text"]
    answers = caller.numbers("MOODY", payloads)
    assert [reason for _, reason in answers] == [
        "", "function-failed", "", "function-died", "", "function-timed-out", "", "not-a-number", "not-a-number",
        "function-failed",
    ]  # fmt: skip
    assert [repr(value) for value, _ in answers if value is not None] == ["1.0", "2.0", "3.0", "0.0"]


def test_a_table_travels_to_tasks_with_its_directory_in_full(
    table: FunctionTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = FunctionTable(own=table.own, directory=Path("."), workers=2, time_out_s=4.0)
    assert from_text(to_text(there)) == from_text(to_text(table)) == table
    assert from_text(to_text(FunctionTable())) == FunctionTable()
    assert hash(from_text(to_text(there))) == hash(table)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("import nothing_there", "ModuleNotFoundError"),
        ("", "no attribute 'length'"),
        ("import os\nos._exit(1)", "ended"),
    ],
)
def test_what_cannot_be_loaded_is_named(table: FunctionTable, tmp_path: Path, module: str, why: str) -> None:
    check(table)
    check(FunctionTable())
    (tmp_path / "crew.py").write_text(module)
    with pytest.raises(PipelineError, match=rf"\$LENGTH: .*{why}"):
        check(table)
