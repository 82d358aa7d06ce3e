"""Work is dealt out to the cores that a cluster has, and not to those that were there when the session opened."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sterna.pipeline.cluster_size import FIRST_S, QUIET_S, Registered, cores_asked_for, settled
from sterna.pipeline.errors import PipelineError

from .cluster import ENVIRONMENT, SparkCluster
from .driving import Driver
from .feeding import FeedingNode

SOON_S = 240.0
SLOW_JVM = "-Xint"
"""An executor comes long after the session was opened."""
CORES = 6
"""More than Spark counts while no executor has come, and more than this machine need have."""


class ComingExecutors:
    """Executors of two cores, each at its instant."""

    def __init__(self, *at_s: float) -> None:
        self._at_s: Sequence[float] = at_s
        self.now_s = 0.0
        self.said: list[str] = []

    def look(self) -> Registered:
        come = sum(at_s <= self.now_s for at_s in self._at_s)
        return Registered(come, max(2, 2 * come))

    def pause(self, pause_s: float) -> None:
        self.now_s += pause_s

    def cores(self, asked: int | None = None) -> int:
        return settled(self.look, asked, "spark://a:7077", self.said.append, clock=lambda: self.now_s, pause=self.pause)


def test_executors_that_come_one_after_another_all_count() -> None:
    coming = ComingExecutors(10.0, 10.0 + 0.9 * QUIET_S, 10.0 + 1.8 * QUIET_S)
    assert coming.cores() == 6
    assert coming.said == ["waiting for executors of spark://a:7077"]


def test_nobody_waits_when_all_that_were_asked_for_are_there() -> None:
    coming = ComingExecutors(1.0, 20.0)
    assert coming.cores(asked=4) == 4
    assert coming.now_s < 20.0 + QUIET_S


def test_a_cluster_that_gives_less_than_was_asked_for_is_told() -> None:
    coming = ComingExecutors(1.0)
    assert coming.cores(asked=100) == 2
    assert coming.said[-1] == "spark://a:7077 gave 2 cores of the 100 that were asked for; going on with these"


def test_a_cluster_that_gives_nothing_is_an_error() -> None:
    with pytest.raises(PipelineError, match=f"no executor of spark://a:7077 has come within {FIRST_S:g} s"):
        ComingExecutors().cores()


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({}, None),
        ({"spark.cores.max": "7"}, 7),
        ({"spark.executor.instances": "3"}, 3),
        ({"spark.executor.instances": "3", "spark.executor.cores": "4"}, 12),
    ],
)
def test_settings_say_how_many_cores_will_come(settings: dict[str, str], cores: int | None) -> None:
    assert cores_asked_for(settings.get) == cores


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_on_a_cluster_has_a_lane_for_each_of_its_cores(
    start_feeding: Callable[..., FeedingNode], tmp_path: Path
) -> None:
    node, job = start_feeding(), tmp_path / "job"
    words = [sys.executable, "-m", "sterna", "pipeline", "operators", str(job), "--nodes", node.feed]
    slow = ["--conf", f"spark.executor.extraJavaOptions={SLOW_JVM}"]
    (tmp_path / "cluster").mkdir()
    with SparkCluster(tmp_path / "cluster", workers=1, cores=CORES) as cluster:
        log = tmp_path / "said"
        with Driver([*words, "--master", cluster.master, *slow], log, ENVIRONMENT) as driver:
            driver.wait_until((job / "lanes/count").exists, "the lanes are made", SOON_S)
            assert f"waiting for executors of {cluster.master}" in log.read_text()
    assert (job / "lanes/count").read_text() == str(CORES)
