"""The same figures as `analysis.py` has, worked out by Spark from records in Parquet.

Sums over messages, seconds and gateways are Spark's; the driver gets tables of the size of a figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.adaptation.groups import LatencyGroups
from sterna.adaptation.settings import GROUPS_MS
from sterna.measure.papers.emma.analysis import (
    TownRow,
    is_settled,
    is_slow,
    last_minutes,
    made_row,
    settled_minute,
    spikes_of,
    wanted_nodes,
)
from sterna.measure.papers.emma.records import TABLES, RunRecords, TrafficSecond

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_BY_SECOND = """
    select second, topic, sum(latency_ms * messages) / sum(messages) as latency_ms
    from topics where run = :run group by second, topic
"""
_BY_MINUTE = f"""
    select cast(floor(second / :minute) as int) as minute, topic, avg(latency_ms) as latency_ms
    from ({_BY_SECOND}) group by minute, topic
"""
_BETWEEN = f"""
    select topic, avg(latency_ms) as latency_ms
    from ({_BY_SECOND}) where second >= :begin and second < :end group by topic
"""
_SUMS = f"select {', '.join(f'sum({name}) as {name}' for name in TrafficSecond._fields)} from traffic where run = :run"
_MANAGED = """
    select cast(floor(second / :minute) as int) as minute, sum(management) as management
    from traffic where run = :run group by minute
"""
_NODES = "select second, sum(if(runs, 1, 0)) as nodes from nodes where run = :run group by second"
_PLACES = """
    select one.second as second, one.round_trip_ms as there, other.round_trip_ms as here, count(*) as gateways
    from gateways one join gateways other on one.second = other.second and one.gateway = other.gateway
    where one.run = :measured and other.run = :placed
    group by one.second, one.round_trip_ms, other.round_trip_ms
"""


class SparkAnalysis:
    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        for name in TABLES:
            spark.read.parquet(str(directory / name)).createOrReplaceTempView(name)

    def row(self, run: RunRecords) -> TownRow:
        minute = int(run.playbook.minute_s)
        (sums,) = self._ask(_SUMS, run)
        nodes = self._nodes(run)
        managed = {row.minute: row.management for row in self._ask(_MANAGED, run, minute=minute)}
        latency: dict[str, list[float | None]] = {}
        minutes = range(len(nodes) // minute)
        for row in self._ask(_BY_MINUTE, run, minute=minute):
            latency.setdefault(row.topic, [None for _ in minutes])[row.minute] = row.latency_ms
        return made_row(
            run,
            sums=TrafficSecond(*sums),
            nodes=[nodes[(number + 1) * minute - 1] for number in minutes],
            managed=[managed[number] for number in minutes],
            latency_ms=dict(sorted(latency.items())),
        )

    def same_choice(self, measured: RunRecords, placed: RunRecords) -> float:
        groups = LatencyGroups(GROUPS_MS)
        same = count = 0
        for row in self._sql(_PLACES, measured=measured.name, placed=placed.name).collect():
            if is_settled(placed.playbook, row.second):
                count += row.gateways
                same += row.gateways * (groups.of(row.here / 1000) <= groups.of(row.there / 1000))
        return same / max(count, 1)

    def slower(self, static: RunRecords, dynamic: RunRecords) -> float:
        ratios = []
        for begin, end in last_minutes(static.playbook):
            one, other = (self._means(run, begin, end) for run in (static, dynamic))
            ratios += [other[topic] / one[topic] for topic in one.keys() & other.keys()]
        return max(ratios)

    def spikes(self, static: RunRecords, dynamic: RunRecords) -> list[int]:
        calm = self._means(static, *settled_minute(static.playbook))
        rows = self._ask(_BY_SECOND, dynamic)
        return spikes_of(dynamic.playbook, {row.second for row in rows if is_slow({row.topic: row.latency_ms}, calm)})

    def node_seconds(self, run: RunRecords) -> int:
        return sum(self._nodes(run))

    def matched(self, run: RunRecords) -> float:
        wanted = wanted_nodes(run.playbook)
        return sum(one == other for one, other in zip(self._nodes(run), wanted, strict=True)) / len(wanted)

    def _nodes(self, run: RunRecords) -> list[int]:
        """Second by second."""
        found = {row.second: row.nodes for row in self._ask(_NODES, run)}
        return [found.get(second, 0) for second in range(int(run.playbook.end_s))]

    def _means(self, run: RunRecords, begin: int, end: int) -> dict[str, float]:
        return {row.topic: row.latency_ms for row in self._ask(_BETWEEN, run, begin=begin, end=end)}

    def _ask(self, query: str, run: RunRecords, **words: Any) -> list[Row]:
        return self._sql(query, run=run.name, **words).collect()

    def _sql(self, query: str, **words: Any) -> DataFrame:
        return self._spark.sql(query, args=words)
