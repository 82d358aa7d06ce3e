"""A node's notes for an audit, read as a reader of its feed does."""

from __future__ import annotations

from typing import Any

from broker.lone_node import LoneNode
from sterna.journal.frames import SEGMENT_HEADER_BYTES
from sterna.journal.settings import JournalSettings
from sterna.node.feed_records import KINDS, pick_records, unpack_records

RECORDED = JournalSettings(durability="os", deliveries=True)


def records(node: LoneNode, table: str) -> list[dict[str, Any]]:
    """The journal's share of them, in order, read as a reader of the feed does."""
    node.broker.journal.let_records_be_written()
    node.settle()
    found: list[dict[str, Any]] = []
    for segment in node.store.segments():
        data = node.store.read(segment.serial, SEGMENT_HEADER_BYTES, segment.size)
        picked = pick_records(data, segment.serial, SEGMENT_HEADER_BYTES, KINDS[table], None)
        piece = memoryview(b"\x02" + b"".join(map(bytes, picked.buffers)))
        found += [row for _, batch in unpack_records(piece, table, "here") for row in batch.to_pylist()]
    assert [row["place"] for row in found] == sorted({row["place"] for row in found})
    return found


def deliveries(node: LoneNode) -> list[tuple[Any, ...]]:
    names = ("client", "sequence", "qos", "resent", "dropped")
    return [tuple(row[name] for name in names) for row in records(node, "deliveries")]
