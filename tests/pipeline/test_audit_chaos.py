"""Simulated nodes under random faults, their disks audited: what the checkers of the simulation found to be kept, the
audit finds kept too."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sterna.journal.columns import OWN_SCHEMA, read_batch
from sterna.journal.frames import HEADER_BYTES, MESSAGES, SEGMENT_HEADER_BYTES, parse_header
from sterna.journal.settings import JournalSettings
from sterna.journal.store import Store
from sterna.journal.table import as_table, numbers, own_rows, repeated
from sterna.node.feed_records import KINDS, RECORD_TABLES, pick_records, unpack_records
from sterna.pipeline.audit.contract import judge, offending
from sterna.pipeline.audit.subscription_intervals import intervals
from sterna.simulation import faults
from sterna.simulation.chaos import Chaos, StormPlan
from sterna.simulation.machine import MachineSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECORDED = MachineSettings(journal=JournalSettings(segment_bytes=16 * 1024, deliveries=True))
COLUMNS = ("topic", "qos", "publisher", "origin", "epoch", "sequence", "ingress_time")


def records(store: Store, node: str, table: str) -> list[pa.RecordBatch]:
    found = []
    for segment in store.segments():
        data = store.read(segment.serial, SEGMENT_HEADER_BYTES, segment.size)
        picked = pick_records(data, segment.serial, SEGMENT_HEADER_BYTES, KINDS[table], None)
        piece = memoryview(b"\x02" + b"".join(map(bytes, picked.buffers)))
        found += [batch for _, batch in unpack_records(piece, table, node)]
    return found


def messages(store: Store, node: str) -> list[pa.RecordBatch]:
    found = []
    for segment in store.segments():
        data = store.read(segment.serial, SEGMENT_HEADER_BYTES, segment.size)
        while header := parse_header(data[:HEADER_BYTES]):
            body, data = data[HEADER_BYTES:][: header.length], data[HEADER_BYTES + header.length :]
            if header.kind == MESSAGES:
                rows = read_batch(body, from_elsewhere=header.from_elsewhere)
                offsets, epochs = numbers([(header.base, header.items)]), repeated([(header.epoch, header.items)])
                mask = own_rows(rows) if rows.num_columns > len(OWN_SCHEMA) else None
                if mask is not None:
                    rows, offsets, epochs = rows.filter(mask), offsets.filter(mask), epochs.filter(mask)
                found.append(as_table(rows, offsets, epochs, node, COLUMNS))
    return found


def subscriptions(sessions: pa.Table, deliveries: pa.Table) -> pa.Table:
    lives: dict[str, dict[int, float]] = defaultdict(dict)
    for row in (*sessions.to_pylist(), *deliveries.to_pylist()):
        life = lives[row["node"]]
        life[row["node_epoch"]] = max(row["at"].timestamp(), life.get(row["node_epoch"], 0.0))
    in_order = {node: dict(sorted(epochs.items())) for node, epochs in lives.items()}
    clients: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in sessions.to_pylist():
        if row["what"] != "started":
            clients[row["node"], row["client"]].append(row)
    return pa.concat_tables(
        intervals(pa.Table.from_pylist(rows, RECORD_TABLES["sessions"]), in_order) for rows in clients.values()
    )


def test_what_simulated_nodes_noted_under_faults_accounts_for_every_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    kinds = tuple(kind for kind in faults.KINDS if kind != "clock")  # the audit is told that clocks are right
    plan = StormPlan(2001, nodes=3, seconds=20, faults=kinds, strategy="subscription-flooding", overlay="static")
    chaos = Chaos(plan, settings=RECORDED)
    for machine in chaos.scene.machines:
        machine.clock.skew_s = machine.clock.drift = 0.0
    outcome = chaos.run()
    assert outcome.kept, outcome.violations
    assert outcome.boots > 4
    disks = [(machine.disk.journal, machine.name) for machine in chaos.scene.machines]
    told = pa.Table.from_batches([batch for disk in disks for batch in messages(*disk)])
    sessions, deliveries = (
        pa.Table.from_batches([batch for store, name in disks for batch in records(store, name, table)])
        for table in ("sessions", "deliveries")
    )
    tables = {"told": told, "wanted": subscriptions(sessions, deliveries), "came": deliveries}
    for name, table in tables.items():
        pq.write_table(table, tmp_path / name)
    published, wanted, came = (spark.read.parquet(str(tmp_path / name)) for name in tables)
    judged = judge(published.where("qos > 0"), wanted, came).cache()
    assert judged.where("verdict = 'delivered'").count() > 900
    faulty = offending(judged).where("(verdict = 'lost' and qos > 0) or (times > 1 and qos != 1) or reordered")
    assert faulty.collect() == []
