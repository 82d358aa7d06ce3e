"""An audit of made-up records: Parquet tables from `spark.range`, with one subscriber of everything.

As many deliveries as messages go to that subscriber; a few of them are missing, and the audit has to find just these.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.report import verdict
from sterna.measure.workloads.pipeline.memory_watch import MemoryWatch
from sterna.measure.workloads.pipeline.plan import PipelinePlan
from sterna.pipeline.audit.contract import audit
from sterna.pipeline.audit.node_records import DELIVERIES
from sterna.pipeline.audit.subscription_intervals import SUBSCRIPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS, PUBLISHERS = 1_000, 100
MISSING_EVERY = 10_007
BEGIN_S = 1_700_000_000
RATE_MIN = 100_000
"""Messages a second: a hundred million in less than 17 minutes."""
TIMES, GROWN_MAX = 4, 1.25
_ADAPTIVE = "spark.sql.adaptive.enabled"

_MESSAGES = (
    f"concat('t/', id % {TOPICS}) as topic",
    "cast(1 as tinyint) as qos",
    f"concat('p', id % {PUBLISHERS}) as publisher",
    "'a' as origin",
    "1L as epoch",
    "id as sequence",
    f"timestamp_millis({BEGIN_S}000L + id) as ingress_time",
)
_DELIVERIES = {
    "node": "'a'",
    "node_epoch": "1L",
    "place": "id",
    "at": f"timestamp_millis({BEGIN_S}000L + id + 5 + id % 50)",
    "client": "'all'",
    "session": "0L",
    "share": "cast(null as string)",
    "origin": "'a'",
    "epoch": "1L",
    "sequence": "id",
    "qos": "cast(1 as tinyint)",
    "resent": "false",
    "retained": "false",
    "dropped": "cast(null as string)",
    "messages": "1L",
}
_SUBSCRIPTION = {
    "node": "'a'",
    "client": "'all'",
    "session": "0L",
    "filter": "'#'",
    "qos": "1",
    "no_local": "false",
    "since": f"timestamp_seconds({BEGIN_S} - 60)",
    "stands": f"timestamp_seconds({BEGIN_S} - 60)",
}


def make_records(spark: SparkSession, directory: Path, messages: int) -> int:
    """How many deliveries are missing."""
    ids = spark.range(messages)
    ids.selectExpr(*_MESSAGES).write.parquet(str(directory / "messages"))
    # The last one came: those before it that are missing are lost and do not wait.
    there = ids.where(f"id % {MISSING_EVERY} != 1 or id = {messages - 1}")
    columns = [f"{_DELIVERIES[name.split()[0]]} as {name.split()[0]}" for name in DELIVERIES.split(", ")]
    there.selectExpr(*columns).write.parquet(str(directory / "deliveries"))
    return messages - there.count()


class AuditCost(NamedTuple):
    seconds: float
    jvm_mib: float
    python_mib: float


def measure_audit(spark: SparkSession, plan: PipelinePlan) -> FigureRow:
    return judge_audit(plan.audited, _cost(spark, plan.audited))


def judge_audit(messages: int, cost: AuditCost) -> FigureRow:
    rate = messages / cost.seconds
    return FigureRow(
        name="audit",
        summary=f"an audit of {messages:,} made-up messages, all for one subscriber, from Parquet files.",
        unit="messages/s",
        figure=rate,
        target=f">= {RATE_MIN:,}",
        verdict=verdict(rate >= RATE_MIN),
        remarks=[
            f"{cost.seconds:.1f} s; resident memory at its most: Spark {cost.jvm_mib:,.0f} MiB, "
            f"Python {cost.python_mib:,.0f} MiB"
        ],
    )


def measure_audit_memory(spark: SparkSession, plan: PipelinePlan) -> FigureRow:
    """First the small one: Spark gives no memory back."""
    few = max(1, plan.audited // TIMES)
    return judge_audit_memory(plan.audited, few, *(_cost(spark, messages) for messages in (plan.audited, few)[::-1]))


def judge_audit_memory(messages: int, few: int, before: AuditCost, cost: AuditCost) -> FigureRow:
    ours, beside = (one.jvm_mib + one.python_mib for one in (cost, before))
    return FigureRow(
        name="audit-memory",
        summary=f"most resident memory of Spark and Python for an audit of {messages:,} messages, beside {few:,}.",
        unit="MiB",
        figure=ours,
        beside=beside,
        ratio=ours / beside,
        target=f"<= {GROWN_MAX:g}x",
        verdict=verdict(ours / beside <= GROWN_MAX),
        remarks=[
            f"Spark {cost.jvm_mib:,.0f} beside {before.jvm_mib:,.0f} MiB, Python {cost.python_mib:,.0f} beside "
            f"{before.python_mib:,.0f} MiB; {cost.seconds:.1f} and {before.seconds:.1f} s"
        ],
    )


def _cost(spark: SparkSession, messages: int) -> AuditCost:
    before = spark.conf.get(_ADAPTIVE)
    spark.conf.set(_ADAPTIVE, "true")  # as the command does
    try:
        with tempfile.TemporaryDirectory(prefix="sterna-bench-") as directory:
            missing = make_records(spark, Path(directory), messages)
            return _audited(spark, Path(directory), messages, missing)
    finally:
        spark.conf.set(_ADAPTIVE, str(before))


def _audited(spark: SparkSession, directory: Path, messages: int, missing: int) -> AuditCost:
    empty = spark.createDataFrame([], SUBSCRIPTIONS)
    subscriptions = empty.unionByName(
        spark.range(1).selectExpr(*(f"{text} as {name}" for name, text in _SUBSCRIPTION.items())),
        allowMissingColumns=True,
    )
    told, deliveries = (spark.read.parquet(str(directory / name)) for name in ("messages", "deliveries"))
    with MemoryWatch() as watch:
        begin = time.monotonic()
        (row,) = audit(told, subscriptions, deliveries).collect()
        seconds = time.monotonic() - begin
    if (row["expected"], row["lost"], row["reordered"]) != (messages, missing, 0):
        raise MeasurementError(f"{missing} of {messages} are missing, and the audit says {row.asDict()}")
    return AuditCost(seconds, watch.jvm_mib, watch.python_mib)
