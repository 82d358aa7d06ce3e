"""A standalone Spark cluster on loopback, from what the PyPI package ships: a master and two workers of one core each.

Every part is a process of its own, started and ended by its pid.  The package has no start scripts for a cluster, but
`spark-class` starts its parts.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from live.nodes import wait_until
from sterna.measure.harness.ports import free_port

SPARK_CLASS = Path(pyspark.__file__).parent / "bin/spark-class"
QUICK_JVM = os.environ["SPARK_SUBMIT_OPTS"]
ENVIRONMENT = os.environ | {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # a port of its own that nobody needs
}
START_S = 120.0
STOP_S = 60.0


class SparkCluster:
    """`with SparkCluster(tmp_path) as cluster:` is a cluster whose workers are ready."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port, self._page_port = free_port(), free_port()
        self._parts = ExitStack()
        self.workers: list[Worker] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        with ExitStack() as parts:
            self._parts = parts
            self._launch("master.Master", "master", "--port", str(self._port), "--webui-port", str(self._page_port))
            # A worker that finds no master tries again only after some seconds.
            wait_until(lambda: self._state() is not None, "the master answers", START_S)
            self.workers = [Worker(self._launch_worker(f"worker-{number}")) for number in (1, 2)]
            wait_until(lambda: self._state() == 2, "both workers are known to the master", START_S)
            self._parts = parts.pop_all()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._parts.close()
        for log in sorted(self._directory.glob("*.log")) if error is not None else ():
            print(f"--- {log.name} ---\n{log.read_text()[-4_000:]}")

    def _launch_worker(self, name: str) -> psutil.Process:
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / name)]
        return self._launch("worker.Worker", name, "--webui-port", "0", *size, self.master)

    def _launch(self, part: str, name: str, *words: str) -> psutil.Process:
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{part}", "--host", "127.0.0.1", *words]
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)
        self._parts.callback(_end, process)
        return psutil.Process(process.pid)

    def _state(self) -> int | None:
        """How many workers the master has; None while it does not answer."""
        page = f"http://127.0.0.1:{self._page_port}/json/"
        with suppress(OSError, ValueError), urllib.request.urlopen(page, timeout=5) as answer:
            # For a moment after its start the master has no such page yet, and answers with another.
            state: dict[str, Any] = json.load(answer)
            return int(state["aliveworkers"])
        return None


class Worker:
    """A worker, and the executors it has started for whoever uses the cluster just now."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    def reads(self, ports: Iterable[int]) -> bool:
        """Does one of its executors read from feeds at these ports?  Tasks leave their connections open."""
        wanted = set(ports)
        for process in self._process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any(one.raddr and one.raddr.port in wanted for one in process.net_connections("tcp")):
                    return True
        return False

    def kill_executor(self) -> None:
        """Its JVM and the Python processes of its tasks, kill -9."""
        executors = self._process.children(recursive=True)
        assert executors, "the worker has no executor"
        for process in executors:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, left = psutil.wait_procs(executors, STOP_S)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                assert process.status() == psutil.STATUS_ZOMBIE, "it has outlived kill -9"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asked to end, a worker ends its executors too."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)
