"""The cluster of the tests: JVMs that are fast soon and not for long, and workers that say what they read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

import psutil

from sterna.measure.harness import spark_cluster

QUICK_JVM = os.environ["SPARK_SUBMIT_OPTS"]
ENVIRONMENT = spark_cluster.cluster_environment(QUICK_JVM)


class Worker(spark_cluster.SparkWorker):
    def reads(self, ports: Iterable[int]) -> bool:
        """Does one of its executors read from feeds at these ports?  Tasks leave their connections open."""
        wanted = set(ports)
        for pid in self.executors():
            with suppress(psutil.NoSuchProcess):
                if any(one.raddr and one.raddr.port in wanted for one in psutil.Process(pid).net_connections("tcp")):
                    return True
        return False


class SparkCluster(spark_cluster.SparkCluster):
    def __init__(self, directory: Path, workers: int = 2, cores: int = 1) -> None:
        super().__init__(directory, workers, ENVIRONMENT, cores)

    def worker(self, process: subprocess.Popen[bytes]) -> Worker:
        return Worker(process)

    @property
    def readers(self) -> list[Worker]:
        return cast(list[Worker], self.workers)
