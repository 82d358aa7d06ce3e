"""Real nodes that note what becomes of messages, so that they can be audited."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Row, SparkSession

from live.networks import LiveNetwork
from live.nodes import LiveNode
from sterna.measure.harness.ports import free_port
from sterna.pipeline.audit.contract import violations
from sterna.pipeline.jobs.audit import Audit, audit_network

RECORDED_S = 60.0


def audited(
    spark: SparkSession, network: AuditedNetwork, is_clean: Callable[[list[Row]], bool]
) -> tuple[Audit, list[Row]]:
    """The audit, done again while it is not clean: nobody can see when the last records of a node are written.

    Those that nothing else takes along are written once a second, if there is time.
    """
    end = time.monotonic() + RECORDED_S
    while True:
        found = audit_network(spark, {"nodes": ",".join(network.feeds.values())})
        rows = found.table.withColumn("violation", violations()).collect()
        if is_clean(rows) or time.monotonic() > end:
            return found, rows


class AuditedNetwork(LiveNetwork):
    """Three nodes in a row that note their deliveries."""

    def __init__(self, directory: Path, more: str = "", *, segment_bytes: int = 65536) -> None:
        """Segments that nobody needs any more may go, with their records."""
        self.feeds: dict[str, str] = {}
        self._segment_bytes = segment_bytes
        super().__init__(directory, ("ab", "bc"), more=more)

    def make(self, name: str, neighbours: list[str], strategy: str, more: str = "") -> LiveNode:
        self.feeds[name] = f"127.0.0.1:{free_port()}"
        node = super().make(name, neighbours, strategy, f'{more}[feed]\nbind = "{self.feeds[name]}"\n')
        told = node.file.read_text().replace("[journal]\n", "[journal]\ndeliveries = true\n")
        node.file.write_text(told.replace("segment_bytes = 65536", f"segment_bytes = {self._segment_bytes}"))
        return node
