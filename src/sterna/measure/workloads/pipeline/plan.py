"""The rows of the benchmark by name, and how big it is.  Needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("throughput", "micro-batch", "latency-1k", "latency-100k", "cpu", "cpu-small", "memory")
EXECUTORS = (1, 2, 4)
CLUSTER_KINDS = ("source", "operators", "archive")
ON_CLUSTER = {f"{kind}-on-{count}": (kind, count) for kind in CLUSTER_KINDS for count in EXECUTORS}
MEMORY_OF = {f"memory-of-{kind}": kind for kind in CLUSTER_KINDS}
AT_RATE = ("operators-at-100k", "operators-at-100k-of-10k")
BY_NAME_ONLY = ("audit", "audit-memory", "archive-files", "archive-messages", *ON_CLUSTER, *AT_RATE, *MEMORY_OF)
"""These take long: they are measured if they are named."""
EVERY = (*NAMES, *BY_NAME_ONLY)


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    rounds: int = 3
    warm_up_rounds: int = 2
    """Of what is read at full speed: Spark compiles its own code while it runs."""
    warm_up_batches: int = 100
    """Micro-batches of a few rows, as fast as they go, before those that are counted."""
    rows: int = 4_000_000
    """Of the journal that is read at full speed ..."""
    rows_per_batch: int = 500_000
    """... and of each micro-batch of that; the first is not counted."""
    batches: int = 20
    """Micro-batches of a few rows in each round, one a second; those of `batches_before` are not counted."""
    batches_before: int = 5
    latency_s: float = 20.0
    latency_warm_up_s: float = 15.0
    served_rows: int = 2_000_000
    """Rows served while the node's CPU time is read ..."""
    served_small_rows: int = 100_000
    """... and as many in frames of two."""
    lag: int = 10_000_000
    """How far the reader lags behind while the node's memory is watched."""
    audited: int = 100_000_000
    """Messages of the audit."""
    cluster_rows: int = 4_000_000
    at_rate: int = 100_000
    """Messages a second for the operators job on a cluster ..."""
    at_rate_warm_up_s: float = 30.0
    at_rate_s: float = 60.0
    expressions: int = 10_000
    """... and how many expressions it has at the most."""
    archived_files: int = 1_000_000
    """In a log that is made up."""
    archived: int = 100_000_000
    """Messages of an archive that is asked, ..."""
    archived_days: int = 100
    """... and of how many days they are."""


QUICK = PipelinePlan(
    rounds=1,
    warm_up_rounds=1,
    warm_up_batches=50,
    rows=1_500_000,
    rows_per_batch=250_000,
    batches=12,
    batches_before=3,
    latency_s=8.0,
    latency_warm_up_s=8.0,
    served_rows=500_000,
    served_small_rows=20_000,
    lag=1_000_000,
    audited=1_000_000,
    cluster_rows=400_000,
    at_rate_warm_up_s=20.0,
    at_rate_s=20.0,
    archived_files=100_000,
    archived=1_000_000,
    archived_days=10,
)
