"""The rows of the benchmark by name, and how big it is.  Needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("throughput", "micro-batch", "latency-1k", "latency-100k", "cpu", "cpu-small", "memory")


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
)
