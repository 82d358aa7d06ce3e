"""The demo's Spark query: how many messages were published to each topic, while they are.

The query runs in a process of its own and prints a line of JSON whenever it has counted on; the demo shows these.
Where there is no Spark or no Java the process says so and ends, and the demo goes on without it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sterna.measure.harness.processes import tie_to_parent
from sterna.vocabulary.errors import SternaError
from sterna.vocabulary.extras import how_to_add

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STOP_S = 20.0
POLL_S = 0.2

_SETTINGS = {
    # A JVM that need not be fast for long starts in half the time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
}


class SparkCounts:
    """The query as the demo sees it: what it has counted so far, each count shown as it comes."""

    def __init__(self, feeds: str, directory: Path, console: Console, patience_s: float) -> None:
        """`patience_s` is how long it may take until something that was published is counted."""
        self.patience_s = patience_s
        self.counts: dict[str, int] = {}
        self._is_hushed = False
        self._console = console
        self._log = directory / "spark.log"
        command = [sys.executable, "-m", __name__, feeds, str(directory / "spark-checkpoint")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=tie_to_parent,
                start_new_session=True,  # Ctrl-C is for the demo, which ends it
            )
        self._thread = threading.Thread(target=self._follow, name="Spark's counts", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for counts in map(json.loads, lines):
                news = sorted(counts.items() - self.counts.items())
                if news and not self._is_hushed:
                    shown = ", ".join(f"{topic} {count:,}" for topic, count in news)
                    self._console.print(f"   [cyan]Spark counts[/]  {shown}")
                self.counts = counts

    def hush(self) -> None:
        """Count on, and say no more: what is on the screen now stays there."""
        self._is_hushed = True

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        """Why it ended."""
        self._process.wait()
        return (self._log.read_text().strip() or "it ended without a word").splitlines()[-1]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(STOP_S)


def _show(counted: DataFrame, _batch: int) -> None:
    print(json.dumps({row["topic"]: row["count"] for row in counted.collect()}), flush=True)


def _count(feeds: str, checkpoint: str, leave: threading.Event) -> None:
    from pyspark.errors import PySparkException

    from sterna.pipeline.retry import with_more_tries
    from sterna.pipeline.spark_session import one_line, open_session

    spark = open_session("demo", "local[2]", _SETTINGS)
    source = {"nodes": feeds, "startingOffsets": "earliest", "reader": "topic-counts"}
    messages = spark.readStream.format("sterna").options(**source).load()
    counting = messages.groupBy("topic").count().writeStream.outputMode("complete").foreachBatch(_show)

    def run() -> None:
        query = counting.option("checkpointLocation", checkpoint).trigger(processingTime="1 second").start()
        # A call to Spark that a signal breaks off leaves its answer in the pipe for the next call: so none waits long.
        while query.isActive and not leave.wait(POLL_S):
            pass
        failure = query.exception()
        query.stop()
        if failure is not None:
            raise failure

    try:
        with_more_tries(run, lambda line: print(line, file=sys.stderr))
    except PySparkException as error:
        raise SternaError(one_line(error)) from None
    finally:
        spark.stop()


def main() -> None:
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: leave.set())
    try:
        _count(sys.argv[1], sys.argv[2], leave)
    except ImportError as error:
        sys.exit(f"Spark is not installed ({error}); {how_to_add('pipeline')}")
    except SternaError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
