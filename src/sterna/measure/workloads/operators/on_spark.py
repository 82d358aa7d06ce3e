"""`sterna bench operators`, Spark's part: a hundred expressions at a hundred thousand messages a second.

A node, a publisher, a subscriber and the job `sterna pipeline operators` are real processes on this machine.  The job
is killed with SIGKILL in the middle and started again.  Every window of the expression over all topics is held against
the journal: as many messages, once, whether or not the job was there when it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import pyarrow as pa
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.processes import tie_to_parent
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.nodes import FeedNode, publishing, reader_of, started_node
from sterna.measure.workloads.pipeline.publisher import PublisherLoad
from sterna.pipeline.sink.publisher import SEQUENCE

RATE = 100_000
FEW = 1_000
"""Messages a second until every expression has had a result: Spark has started then."""
LINES = 96
WINDOW_S = 5
LATE_MS_MAX = 1000.0
HELD_MIN = 0.98
HOUR_S = 3600
PATIENCE_S = 300.0

TABLES = {"operators": {"engine": "spark", "hourly_s": WINDOW_S, "anchor": "wall"}}
EVERYTHING = "$SUM$HOURLYCOUNT/bench/#"
OVER_ALL = (EVERYTHING, "$AVG$HOURLYAVG/bench/#", "$MAX$HOURLYMAX/bench/#", "$MEDIAN$HOURLYMEDIAN/bench/#")
KINDS = ("AVG", "SUM", "MIN", "MAX", "COUNT", "STDDEV")
EXPRESSIONS = (*OVER_ALL, *(f"$HOURLY{KINDS[line % len(KINDS)]}/bench/{line:03}/+" for line in range(LINES)))
"""All windows end at the same instants; every message counts in five of them."""


@dataclass(frozen=True, slots=True)
class Times:
    warm_up_s: float = 30.0
    measure_s: float = 60.0


QUICK = Times(warm_up_s=20.0, measure_s=20.0)


def measure_spark(say: Say, quick: bool) -> list[FigureRow]:
    """Both rows of one run."""
    times = QUICK if quick else Times()
    with (
        started_node(tables=TABLES) as node,
        subscribed(node, EXPRESSIONS) as heard,
        tempfile.TemporaryDirectory() as directory,
    ):
        command = command_of(directory, node)
        with job_of(command) as job:
            with publishing(node, PublisherLoad(messages=RATE * HOUR_S, rate=FEW, lines=LINES)):
                wait_for(lambda: _is_served(heard), "first results", job)
            with publishing(node, PublisherLoad(messages=RATE * HOUR_S, rate=RATE, lines=LINES)) as publisher:
                time.sleep(times.warm_up_s)
                begin = time.time()
                time.sleep(times.measure_s)
                end, load = time.time(), os.getloadavg()[0]
                os.killpg(job.pid, signal.SIGKILL)
                if publisher.is_over:
                    raise MeasurementError(f"the publisher gave up at {RATE:,} messages a second")
        say(f"    the job was killed after {len(heard.results):,} results")
        last = max(_counted(node))
        with job_of(command) as job:
            wait_for(lambda: heard.newest_s() >= last, "results after the kill", job)
        late = [1000 * (came - of_s) for came, of_s in heard.times() if begin <= of_s < end - WINDOW_S]
        counted = _counted(node)
        held = sum(count for of_s, count in counted.items() if begin <= of_s - WINDOW_S and of_s <= end)
        windows = sum(begin <= of_s - WINDOW_S and of_s <= end for of_s in counted)
        say(f"    the load of the machine was {load:.1f}, on {os.cpu_count()} cores")
        return [judge_late(late, held / max(1, windows * WINDOW_S)), judge_exact(heard.totals(), counted, last)]


class ExpressionResults:
    """Results, with when they came."""

    def __init__(self) -> None:
        self.results: list[tuple[str, int, bytes, float]] = []

    def on_message(self, _client: Any, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        told = dict(getattr(message.properties, "UserProperty", []))
        self.results.append((message.topic, int(told[SEQUENCE].partition(".")[2]), bytes(message.payload), time.time()))

    def times(self) -> Iterator[tuple[float, float]]:
        """(when it came, end of the window)."""
        return ((came, end_us / 1e6) for _, end_us, _, came in self.results[:])

    def totals(self) -> list[tuple[float, int]]:
        """(end of the window, messages in it), of the expression over everything."""
        topic = EVERYTHING.replace("#", "$ALL")
        return [(end_us / 1e6, int(float(text))) for name, end_us, text, _ in self.results[:] if name == topic]

    def newest_s(self) -> float:
        return max((of_s for of_s, _ in self.totals()), default=0.0)


def _is_served(heard: ExpressionResults) -> bool:
    return len({topic for topic, _, _, _ in heard.results[:]}) == len(EXPRESSIONS)


@contextmanager
def subscribed(node: FeedNode, expressions: Sequence[str]) -> Iterator[ExpressionResults]:
    heard, granted = ExpressionResults(), threading.Semaphore(0)
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "bench-subscriber", protocol=MQTTProtocolVersion.MQTTv5)
    client.on_message = heard.on_message
    client.on_subscribe = lambda *_: granted.release()
    client.connect("127.0.0.1", node.port)
    client.loop_start()
    try:
        for expression in expressions:
            client.subscribe(expression, 1)
            if not granted.acquire(timeout=PATIENCE_S):
                raise MeasurementError(f"no answer to SUBSCRIBE {expression}")
        yield heard
    finally:
        client.disconnect()
        client.loop_stop()


def command_of(directory: str, node: FeedNode) -> list[str]:
    return [sys.executable, "-m", "sterna", "pipeline", "operators", directory, "--nodes", node.feed]


@contextmanager
def job_of(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The job until the block ends; then driver and JVM die at once."""
    with tempfile.TemporaryFile() as said:
        job = subprocess.Popen(
            command, stdout=said, stderr=said, start_new_session=True, preexec_fn=lambda: tie_to_parent()
        )
        try:
            yield job
        except MeasurementError as error:
            said.seek(0)
            raise MeasurementError(f"{error}; the job said: {said.read()[-500:].decode(errors='replace')}") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def wait_for(holds: Callable[[], bool], what: str, job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline or job.poll() is not None:
            raise MeasurementError(f"no {what} within {PATIENCE_S:g} s")
        time.sleep(0.2)


def _counted(node: FeedNode) -> dict[float, int]:
    """End of a window -> messages of the journal in it."""
    found: dict[float, int] = {}
    with reader_of(node, "check") as feed:
        for rows in feed.read(0, feed.status().next, ["bench/#"], columns=["ingress_time"]):
            ends = rows.column("ingress_time").cast(pa.int64()).to_numpy() // (WINDOW_S * 1_000_000) + 1
            for end, count in zip(*np.unique(ends, return_counts=True), strict=True):
                found[float(end) * WINDOW_S] = found.get(float(end) * WINDOW_S, 0) + int(count)
    return found


def judge_late(late_ms: list[float], held: float) -> FigureRow:
    if not late_ms:
        raise MeasurementError("no window ended while it was measured")
    p50, p99 = (float(value) for value in np.percentile(late_ms, (50, 99)))
    is_held = held >= HELD_MIN * RATE
    remarks = [f"p50 {p50:,.0f} ms; {len(late_ms):,} results; {held:,.0f} messages a second came in."]
    return FigureRow(
        name="spark-late",
        summary=f"{len(EXPRESSIONS)} expressions at {RATE:,} messages a second, each message in five of them, all "
        f"windows of {WINDOW_S} s ending at once: from a window's end to the subscriber having its result, over MQTT.",
        unit="ms p99",
        figure=p99,
        target=f"<= {LATE_MS_MAX:g}",
        verdict=verdict(is_held and p99 <= LATE_MS_MAX),
        remarks=remarks if is_held else [*remarks, "the rate was not held."],
    )


def judge_exact(told: list[tuple[float, int]], counted: dict[float, int], last: float) -> FigureRow:
    """The first window began before the subscription, so it is left out."""
    first = min(counted)
    expected = {of_s: count for of_s, count in counted.items() if first < of_s <= last}
    found = [one for one in told if first < one[0] <= last]
    wrong = sum(dict(found).get(of_s) != count for of_s, count in expected.items())
    twice = len(found) - len(dict(found))
    return FigureRow(
        name="spark-exact",
        summary="windows that came out wrong, twice or not at all, with the job killed (SIGKILL) and started again "
        "meanwhile; held against the node's journal.",
        unit="windows",
        figure=float(wrong + twice),
        target="<= 0",
        verdict=verdict(bool(expected) and not wrong and not twice),
        remarks=[f"{len(expected)} windows with {sum(expected.values()):,} messages; {wrong} wrong, {twice} twice."],
    )
