"""Spark Connect: a client without a JVM of its own has the source and the sink that its server has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .feeding import FeedingNode

SOON_S = 240.0


@pytest.mark.slow
@pytest.mark.timeout(2 * SOON_S)
def test_a_client_reads_streams_and_writes(start_feeding: Callable[..., FeedingNode], tmp_path: Path) -> None:
    node = start_feeding()
    node.publish("in", range(30))
    program = str(Path(__file__).with_name("connecting.py"))
    command = [sys.executable, program, node.feed, node.broker, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "client": "pyspark.sql.connect.session",
        "batch": 30,
        "view": 30,
        "stream": 30,
        "written": 30,
    }
