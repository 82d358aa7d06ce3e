"""Virtual time: the order of events, dice that belong to one concern, and a trace that is the same in any process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sterna.simulation.kernel import Kernel, Trace

SAME_SEED = """
from sterna.simulation.chaos import Chaos, StormPlan
print(Chaos(StormPlan(7, nodes=2, seconds=6, strategy={strategy!r})).run().digest)
"""


def test_events_happen_in_the_order_of_their_instants_and_then_of_asking() -> None:
    kernel = Kernel(1)
    seen: list[str] = []
    kernel.at(2.0, seen.append, "later")
    kernel.at(1.0, seen.append, "first")
    kernel.at(1.0, seen.append, "second")
    kernel.run_until(3.0)
    assert seen == ["first", "second", "later"]
    assert kernel.now == 3.0


def test_nothing_due_later_happens_yet() -> None:
    kernel = Kernel(1)
    seen: list[float] = []
    kernel.after(1.0, lambda: seen.append(kernel.now))
    kernel.run_until(0.5)
    assert seen == []
    kernel.run_until(1.0)
    assert seen == [1.0]


def test_what_is_asked_for_in_the_past_happens_now() -> None:
    kernel = Kernel(1)
    kernel.run_until(5.0)
    seen: list[float] = []
    kernel.at(1.0, lambda: seen.append(kernel.now))
    kernel.run_until(5.0)
    assert seen == [5.0]


def test_each_concern_has_dice_of_its_own() -> None:
    throws = [Kernel(1).dice("a").random(), Kernel(1).dice("b").random(), Kernel(2).dice("a").random()]
    assert len(set(throws)) == 3
    assert Kernel(1).dice("a").random() == throws[0]


def test_the_digest_tells_traces_apart_and_the_sink_reads_them() -> None:
    lines: list[str] = []
    one, other = Kernel(1, Trace(lines.append)), Kernel(1)
    one.tell("x")
    other.tell("x")
    assert one.trace.digest == other.trace.digest
    other.tell("y")
    assert one.trace.digest != other.trace.digest
    assert lines == ["0.000000 x"]


@pytest.mark.parametrize("strategy", ["", "subscription-flooding", "advertisement"])
def test_the_same_seed_gives_the_same_trace_in_any_process(strategy: str) -> None:
    digests = set()
    for hash_seed in ("1", "4711"):
        run = subprocess.run(
            [sys.executable, "-c", SAME_SEED.format(strategy=strategy)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 32
