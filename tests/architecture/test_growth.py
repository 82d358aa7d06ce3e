"""The code stays small and says what it promises: a ratchet, after TigerBeetle's tidy.zig.

A function that outgrows its bound is split, or named among the exceptions with a reason.  Files have no
bound: a limit on their lines cut single objects over two files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from sterna.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FUNCTION_LINES_MAX = 70

#: Functions longer than the bound, and why: hot paths only.
LONG_FUNCTIONS: dict[str, str] = {}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_function_outgrows_its_bound() -> None:
    grown = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= FUNCTION_LINES_MAX and node.name not in LONG_FUNCTIONS:
                    grown.append(f"{name(path)}: {node.name}")
    assert grown == []


def first_string(path: Path) -> str:
    """The docstring of a file, without the rest of it being parsed."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in (tokenize.ENCODING, tokenize.COMMENT, tokenize.NL):
                return str(ast.literal_eval(token.string)) if token.type == tokenize.STRING else ""
    return ""


def test_every_file_opens_with_its_promise() -> None:
    assert [name(path) for path in SOURCES + TESTS if len(first_string(path)) <= 20] == []


def test_a_file_without_a_promise_is_found(tmp_path: Path) -> None:
    for text in ("", "# A comment.\n", "import ast\n", 'name = "no docstring, though long enough"\n'):
        (tmp_path / "one.py").write_text(text)
        assert first_string(tmp_path / "one.py") == ""
    (tmp_path / "one.py").write_text('#!/bin/true\n\n"""Twice\nas long."""\nimport ast\n')
    assert first_string(tmp_path / "one.py") == "Twice\nas long."


def test_there_is_no_place_for_what_has_no_place() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [name(path) for path in SOURCES + TESTS if path.stem in vague or vague & set(path.parts)] == []


def test_nothing_is_left_to_do() -> None:
    marks = ["TO" + "DO", "FIX" + "ME", "X" + "XX"]
    assert [name(path) for path in SOURCES + TESTS if any(mark in path.read_text() for mark in marks)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists_and_explains_itself(command: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "sterna", command, "--help"], capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    assert len(run.stdout) > 100


def test_a_node_loads_only_what_its_configuration_asks_for() -> None:
    costly = {
        "pandas",
        "jwt",
        "scramp",
        "argon2",
        "cryptography",
        "sqlglot",
        "pyspark",
        "matplotlib",
        "pyarrow",
        "pydantic",
        "numpy",
    }
    program = f"import sys, sterna.cli.node, sterna.runtime.server; print(sorted({costly!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert run.stdout == "[]\n", run.stderr
