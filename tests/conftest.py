"""How property tests run: the same examples every time, and few enough that the whole suite stays quick.

`HYPOTHESIS_PROFILE=search` looks for new counterexamples instead: random, and many more of them.

JVMs that tests start need not be fast for long, only soon; `make test` leaves a file with Spark's classes for them.

Tests on the compiled node share nodes and Sparks, so of several processes one takes all of a file (`--dist loadfile`).
Those with Spark go in two lanes: more Sparks at a time than cores keep each other waiting until something gives up.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

_SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{_SOON} -XX:SharedArchiveFile={sys.prefix}/spark.jsa")

# A shell that starts the tests in the background has them ignore SIGINT, and so would every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
COMPILED = frozenset({"conformance", "live", "pipeline"})
LANES = 2


def folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0]


def pytest_itemcollected(item: pytest.Item) -> None:
    if folder(item) in COMPILED:
        item.add_marker(pytest.mark.compiled)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Elsewhere than on the compiled node a file's tests have nothing in common, and any process takes any of them."""
    from xdist.scheduler import LoadFileScheduling

    lanes: dict[str, int] = {}

    class Files(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = Path(super()._split_scope(nodeid))
            if file.parent.name == "pipeline":
                return f"pipeline {lanes.setdefault(file.name, len(lanes) % LANES)}"
            return str(file) if file.parent.name in COMPILED else nodeid

    return Files(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: folder(item) != "pipeline")  # the longest first: nobody waits for them in the end


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Which brokers of other makes took no part, if tests with them ran."""
    outcomes = [one for kind in ("passed", "failed", "skipped") for one in terminalreporter.stats.get(kind, [])]
    if any("live/test_interworking" in one.nodeid for one in outcomes):
        from live.foreign_brokers import KINDS, present, why_missing

        terminalreporter.section("brokers of other makes")
        terminalreporter.write_line(f"there were {', '.join(present())}")
        for kind in KINDS:
            if why := why_missing(kind):
                terminalreporter.write_line(why)


def pytest_collection_finish() -> None:
    """The thousands of tests stay to the end: to look through them for garbage all the time takes a seventh of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
