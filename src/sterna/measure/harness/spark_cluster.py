"""A standalone Spark cluster on loopback, from what the PyPI package ships: a master, and workers of one core each,
or of more, which the machine need not have.

Every part is a process of its own, started and ended by its pid.  The package has no start scripts for a cluster, but
`spark-class` starts its parts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from sterna.measure.harness import meter
from sterna.measure.harness.ports import free_port
from sterna.measure.harness.processes import wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin/spark-class"
START_S = 120.0
STOP_S = 60.0


def cluster_environment(java: str = "") -> dict[str, str]:
    """For parts and drivers; `java`: options of every JVM of the cluster."""
    return os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # a port of its own that nobody needs
    }


class SparkWorker:
    """A worker, and the executors it has started for whoever uses the cluster just now."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def executors(self) -> list[int]:
        """Their JVMs and the Python processes of their tasks."""
        return meter.family(self._process.pid)[1:] if self.is_running else []

    def kill_executor(self) -> None:
        """With SIGKILL."""
        executors = self.executors()
        assert executors, "the worker has no executor"
        _kill(executors)

    def kill(self) -> None:
        """With its executors, as if the machine had died."""
        _kill([self._process.pid, *self.executors()])
        self._process.wait(STOP_S)


class SparkCluster:
    """`with SparkCluster(directory) as cluster:` is a cluster whose workers are ready."""

    def __init__(
        self, directory: Path, workers: int = 2, environment: Mapping[str, str] | None = None, cores: int = 1
    ) -> None:
        """`cores`: of each worker."""
        self._directory = directory
        self._wanted, self._cores = workers, cores
        self._environment = dict(environment or cluster_environment())
        self._port, self._page_port = free_port(), free_port()
        self._parts = ExitStack()
        self._launched = 0
        self.workers: list[SparkWorker] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        with ExitStack() as parts:
            self._parts = parts
            self._launch("master.Master", "master", "--port", str(self._port), "--webui-port", str(self._page_port))
            # A worker that finds no master tries again only after some seconds.
            wait_until(lambda: self._state() is not None, "the master answers", START_S)
            self.mend()
            self._parts = parts.pop_all()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._parts.close()
        for log in sorted(self._directory.glob("*.log")) if error is not None else ():
            print(f"--- {log.name} ---\n{log.read_text()[-4_000:]}")

    def mend(self) -> None:
        """Starts workers until there are as many as there should be."""
        self.workers = [worker for worker in self.workers if worker.is_running]
        while len(self.workers) < self._wanted:
            self._launched += 1
            self.workers.append(self.worker(self._launch_worker(f"worker-{self._launched}")))
        # A dead one is missed only after a minute.
        wait_until(lambda: (self._state() or 0) >= self._wanted, "all workers are known to the master", START_S)

    def worker(self, process: subprocess.Popen[bytes]) -> SparkWorker:
        return SparkWorker(process)

    def _launch_worker(self, name: str) -> subprocess.Popen[bytes]:
        size = ["--cores", str(self._cores), "--memory", "1g", "--work-dir", str(self._directory / name)]
        return self._launch("worker.Worker", name, "--webui-port", "0", *size, self.master)

    def _launch(self, part: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{part}", "--host", "127.0.0.1", *words]
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        self._parts.callback(_end, process)
        return process

    def _state(self) -> int | None:
        """How many workers the master has; None while it does not answer."""
        page = f"http://127.0.0.1:{self._page_port}/json/"
        with suppress(OSError, ValueError), urllib.request.urlopen(page, timeout=5) as answer:
            # For a moment after its start the master has no such page yet, and answers with another.
            state: dict[str, Any] = json.load(answer)
            return int(state["aliveworkers"])
        return None


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(_is_alive, pids)), "they have not outlived kill -9", STOP_S)


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asked to end, a worker ends its executors too."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)
