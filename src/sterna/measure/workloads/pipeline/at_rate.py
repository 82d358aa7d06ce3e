"""The operators job on a cluster while messages come in at a rate: the part that the driver takes of the CPU time."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.harness.processes import WorkerProcess
from sterna.measure.harness.spark_cluster import SparkCluster
from sterna.measure.report import verdict
from sterna.measure.workloads.operators.on_spark import EXPRESSIONS, KINDS, LINES, PATIENCE_S, TABLES, WINDOW_S
from sterna.measure.workloads.pipeline.cluster_driver import ClusterFigures, ClusterJob
from sterna.measure.workloads.pipeline.nodes import FeedNode, publishing, started_node
from sterna.measure.workloads.pipeline.on_cluster import DRIVER_S_MAX
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.measure.workloads.pipeline.publisher import SENSORS, PublisherLoad

EXECUTORS = 2
SHARE_MAX = 0.10
HELD_MIN = 0.95
"""Batches have about a second, so both ends of what is measured may be off by one."""
HOUR_S = 3600
AT_ONCE = 500
"""Filters in a packet."""
MANY_TABLES = {
    "operators": {**TABLES["operators"], "daily_s": 2 * WINDOW_S},
    "limits": {"expressions_per_client": 10_000},
}


def many_expressions(count: int) -> list[str]:
    """Of one sensor each; a message counts in about ten of ten thousand."""
    all_of_them = (
        f"${period}{kind}/bench/{line:03}/{sensor}"
        for period, kind, line, sensor in itertools.product(("HOURLY", "DAILY"), KINDS, range(LINES), range(SENSORS))
    )
    return list(itertools.islice(all_of_them, count))


def measure_at_rate(plan: PipelinePlan, expressions: Sequence[str]) -> FigureRow:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-bench-")))
        node = stack.enter_context(started_node(tables=MANY_TABLES))
        stack.enter_context(subscribed_at_once(node, expressions))
        load = PublisherLoad(messages=plan.at_rate * HOUR_S, rate=plan.at_rate, lines=LINES)
        publisher = stack.enter_context(publishing(node, load))
        cluster = stack.enter_context(SparkCluster(directory, EXECUTORS))
        job = ClusterJob(
            master=cluster.master,
            workers=[worker.pid for worker in cluster.workers],
            feed=node.feed,
            kind="operators-at-rate",
            rows=plan.at_rate,
            rows_per_batch=0,
            warm_up_s=plan.at_rate_warm_up_s,
            measure_s=plan.at_rate_s,
        )
        driver = WorkerProcess("sterna.measure.workloads.pipeline.cluster_driver", job)
        stack.callback(driver.stop)
        found = driver.result(ClusterFigures, "the driver", DRIVER_S_MAX)
        if publisher.is_over:
            raise MeasurementError(f"the publisher gave up at {plan.at_rate:,} messages a second")
        return judge_at_rate(plan.at_rate, len(expressions), found)


def judge_at_rate(rate: int, expressions: int, found: ClusterFigures) -> FigureRow:
    share = found.driver_cpu_s / max(1e-9, found.driver_cpu_s + found.executors_cpu_s)
    held = found.rows / found.seconds
    remarks = [
        f"{held:,.0f} messages a second were read for {found.seconds:.0f} s in {found.batches} batches; CPU for a "
        f"message: driver {_cost(found, found.driver_cpu_s)}, executors {_cost(found, found.executors_cpu_s)}",
        f"resident memory at its most: driver {found.driver_mib:,.0f} MiB, executors {found.executors_mib:,.0f} MiB",
        f"the machine has {os.cpu_count()} cores for node, publisher, driver and executors together",
    ]
    is_held = held >= HELD_MIN * rate
    return FigureRow(
        name="operators-at-100k" if expressions <= len(EXPRESSIONS) else "operators-at-100k-of-10k",
        summary=f"the driver's share of the CPU time of the operators job, {expressions:,} expressions at {rate:,} "
        f"messages a second, {EXECUTORS} executors of one core.",
        unit="%",
        figure=100 * share,
        target=f"< {SHARE_MAX:.0%}",
        verdict=verdict(is_held and share < SHARE_MAX),
        remarks=remarks if is_held else [*remarks, "the rate was not held."],
    )


def _cost(found: ClusterFigures, cpu_s: float) -> str:
    return f"{1e6 * cpu_s / max(1, found.rows):.2f} µs ({cpu_s / found.seconds:.1%} of a core)"


@contextmanager
def subscribed_at_once(node: FeedNode, expressions: Sequence[str]) -> Iterator[None]:
    """By one client, with hundreds of filters in a packet."""
    refused: list[str] = []
    granted = threading.Semaphore(0)

    def on_subscribe(_client: object, _data: object, _id: int, reasons: Any, _properties: object) -> None:
        refused.extend(str(one) for one in reasons if getattr(one, "is_failure", False))
        granted.release()

    client = mqtt.Client(CallbackAPIVersion.VERSION2, "bench-subscriber", protocol=MQTTProtocolVersion.MQTTv5)
    client.on_subscribe = on_subscribe
    client.connect("127.0.0.1", node.port)
    client.loop_start()
    try:
        options = SubscribeOptions(qos=1)
        for first in range(0, len(expressions), AT_ONCE):
            client.subscribe([(one, options) for one in expressions[first : first + AT_ONCE]])
            if not granted.acquire(timeout=PATIENCE_S):
                raise MeasurementError(f"no answer to SUBSCRIBE from expression {first} on")
        if refused:
            raise MeasurementError(f"{len(refused):,} of {len(expressions):,} expressions were refused: {refused[0]}")
        yield
    finally:
        client.disconnect()
        client.loop_stop()
