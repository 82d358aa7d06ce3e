"""The demo: what it shows is true, it leaves nothing behind, and it does without what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sterna.measure.harness.sites import may_be_at_a_distance

SOON_S = 1200
"""It takes half a minute; Spark starts slowly on a busy machine."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SOON_S + 20)]


def demo(**environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME" or "PATH" not in environment}
    words = [sys.executable, "-m", "sterna", "demo", "--spark-patience", str(SOON_S / 2)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SOON_S, env=kept | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_messages_appear_in_spark_while_nodes_are_killed_and_none_is_lost(tmp_path: Path) -> None:
    shown = demo(TMPDIR=str(tmp_path))
    before, _, after = shown.partition("starting both again")
    assert re.search("Spark counts .*plant/oven/temperature 1", before)
    assert "room/1/temp 24   (at north)   gives   $AVG/room/$A/temp 27.0" in before
    assert len(set(re.findall(r"Spark counts  ledger/1 [\d,]+, ledger/2 [\d,]+", shown))) > 1, "it counted only once"
    assert re.search(r"QoS 1: 2,000 of 2,000 arrived, 0 lost, \d+ repeated; Spark counted 2,000\n", after)
    assert "QoS 2: 2,000 of 2,000 arrived, 0 lost, 0 repeated; Spark counted 2,000\n" in after
    assert "south -> north -> south" in after
    for qos in (1, 2):
        assert f"QoS {qos}: 1,000 sent, 1,000 received, 0 lost, 0 duplicated" in after
    if may_be_at_a_distance():
        assert re.search(r"sent ([\d,]+), received \1, lost 0, QoS 2 duplicated 0, clients disconnected 0\n", after)
    assert "after the restart: 1,000 of 1,000 arrived there, 0 repeated" in after
    assert re.search(r"east has counted   taken 1, injected \d+, connections 2, sessions_lost 0, storms 0", after)
    assert list(tmp_path.glob("sterna-demo-*")) == []


def test_without_java_the_demo_goes_on_without_spark(tmp_path: Path) -> None:
    shown = demo(PATH=str(tmp_path))
    assert "going on without Spark: Spark needs Java 17, and there is none" in shown
    assert "QoS 2: 2,000 of 2,000 arrived, 0 lost, 0 repeated\n" in shown
