"""Opens a Spark session with settings that make small batches quick, and puts Spark's errors into one line.

Each setting was measured; a user's own settings win.  Spark runs on this machine unless it is given the address of a
cluster.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from sterna.pipeline.errors import PipelineError

_LOCAL = re.compile(r"local\[(\*|\d+)\]")

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

SETTINGS: Mapping[str, str] = {
    # Workers speak to Spark through Unix sockets: saves 40 ms per task, the wait for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default manager starts a process for every file of a checkpoint: 45 to 75 ms per batch.
    "spark.sql.streaming.checkpointFileManagerClass": _FILES,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # The default is a form of timestamps that has no least and greatest: no file could be passed over by time.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Else conditions of a query are looked at after all rows have come.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.speculation": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


#: On one machine, where a batch is small and shuffles into as many parts as there are cores.  On a cluster both are
#: Spark's own, or what its administrator chose: only that cluster knows its size.
ON_ONE_MACHINE: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.sql.adaptive.enabled": "false",
}


def open_session(name: str, master: str = "local[*]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, made if there is none yet."""
    _check_java()
    # Without this, workers run the first python3 in the path, which may not have Sterna.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_one_machine(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(with_retries(master))
    for key, value in settings_for(master, settings or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def settings_for(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """`settings`: a user's own."""
    return {**(ON_ONE_MACHINE if is_one_machine(master) else {}), **SETTINGS, **settings}


def is_one_machine(master: str) -> bool:
    return re.match(r"local(\[|$)", master) is not None


def with_retries(master: str) -> str:
    """Plain local mode gives a task one try; a node that is started again deserves a few."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found[1]},4]" if found else master


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin/java").exists()) and shutil.which("java") is None:
        raise PipelineError("Spark needs Java 17, and there is none; as root: apt-get install openjdk-17-jre-headless")


#: "sterna.pipeline.errors.DataLoss: node a has dropped ..." as it stands in the trace of a worker.
_OURS = re.compile(r"^(?:\S*: )*sterna\.[\w.]+\.(?P<kind>\w+): (?P<text>.+)$", re.MULTILINE)
#: "Caused by: java.io.IOException: Mkdirs failed ...", the last of which began it.
_CAUSES = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_SPARKS = re.compile(r"^\[(?P<kind>[A-Z_.]+)\] (?P<text>.+)$", re.MULTILINE)


def one_line(error: BaseException) -> str:
    """An error that came through Spark, in one line: Sterna's own text if there is one, else Spark's first line."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()
    causes = _CAUSES.findall(text)
    if causes:
        return f"Spark: {causes[-1].strip()}"
    sparks = _SPARKS.search(text)
    if sparks:
        return f"Spark: {sparks['text']}"
    return f"Spark: {text.strip().splitlines()[0] if text.strip() else type(error).__name__}"
