"""What the demo shows of its Spark query; a script stands for Spark."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from sterna.cli.demo_spark import SparkCounts

PATIENCE_S = 60.0
FIRST, SECOND = {"room/1": 1}, {"room/1": 2}
SCRIPT = """#!/bin/sh
echo '{"room/1": 1}'
until [ -e "$(dirname "$0")/more" ]; do sleep 0.05; done
echo '{"room/1": 2}'
exec sleep 600
"""


def test_counts_are_shown_as_they_come_until_they_are_hushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "spark"
    program.write_text(SCRIPT)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    shown = io.StringIO()
    spark = SparkCounts("127.0.0.1:1", tmp_path, Console(file=shown), PATIENCE_S)
    try:
        wait_for(spark, FIRST)
        spark.hush()
        (tmp_path / "more").touch()
        wait_for(spark, SECOND)
    finally:
        spark.stop()
    assert shown.getvalue() == "   Spark counts  room/1 1\n"


def wait_for(spark: SparkCounts, counts: dict[str, int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while spark.counts != counts:
        assert time.monotonic() < deadline, spark.counts
        time.sleep(0.02)
