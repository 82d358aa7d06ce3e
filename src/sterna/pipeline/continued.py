"""Sessions that went on at another node: for an audit, they are one session of the node where they began.

A client has one session in the network at a time, so the parts of a session are found by their ends: one node notes
that it has moved, another at nearly the same moment that it has arrived.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sterna.pipeline.intervals import ENDED, MOVED

PARTS = "client string, node string, session bigint, home string, whole bigint, part bigint, fate string"
_SCHEMA = pa.schema(
    [
        ("client", pa.string()),
        ("node", pa.string()),
        ("session", pa.int64()),
        ("home", pa.string()),
        ("whole", pa.int64()),
        ("part", pa.int64()),
        ("fate", pa.string()),
    ]
)

Part = tuple[str, int]
"""Node and session."""


def continued(subscriptions: DataFrame, deliveries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The same tables, with the parts of a session under the names of its first; their places keep the order."""
    parts = _parts(subscriptions)
    key = ["client", "node", "session"]
    told = subscriptions.join(f.broadcast(parts), key, "left")
    whole = told.select(
        f.coalesce("home", "node").alias("node"),
        "client",
        f.coalesce("whole", "session").alias("session"),
        f.col("node").alias("at_node"),
        *(name for name in told.columns if name not in (*key, "home", "whole", "part", "fate", "over", "arrived")),
        f.when(f.col("home").isNull(), _over()).otherwise(f.col("fate")).alias("over"),
    )
    came = deliveries.join(f.broadcast(parts), key, "left")
    names = [name for name in came.columns if name not in (*key, "home", "whole", "part", "fate", "place")]
    return whole, came.select(
        f.coalesce("home", "node").alias("node"),
        "client",
        f.coalesce("whole", "session").alias("session"),
        *names,
        f.struct(f.coalesce("part", f.lit(0)).alias("part"), "place").alias("place"),
    )


def _over() -> Column:
    """A session of which nobody says that it arrived has ended."""
    return f.when(f.col("over") == MOVED, ENDED).otherwise(f.col("over"))


def _parts(subscriptions: DataFrame) -> DataFrame:
    """Of all sessions that came from another node or went there: where they began, and which part each is."""
    told = subscriptions.select("client", "node", "session", "since", "until", "over", "arrived")
    movers = told.where("arrived").select("client").distinct()
    return told.join(f.broadcast(movers), "client").groupBy("client").applyInArrow(_joined, PARTS)


def _joined(rows: pa.Table) -> pa.Table:
    """All sessions of one client."""
    found: dict[Part, dict[str, Any]] = {}
    for row in rows.to_pylist():
        one = found.setdefault((row["node"], row["session"]), {"arrived": False, "since": row["since"], **row})
        one["arrived"] = one["arrived"] or row["arrived"]
        one["since"] = min(one["since"], row["since"])
        one["until"] = None if row["until"] is None or one["until"] is None else max(one["until"], row["until"])
        one["over"] = one["over"] if row["over"] is None else row["over"]
    before = _before(found)
    wholes: dict[Part, list[Part]] = {}
    for part in found:
        chain = [part]
        while chain[-1] in before and len(chain) <= len(found):
            chain.append(before[chain[-1]])
        if len(chain) > len(wholes.get(chain[-1], ())):
            wholes[chain[-1]] = chain[::-1]
    client = rows.column("client")[0].as_py()
    told = [
        {
            "client": client, "node": node, "session": session, "home": home[0], "whole": home[1], "part": number,
            "fate": _fate(found[chain[-1]]["over"]),
        }
        for home, chain in wholes.items()
        for number, (node, session) in enumerate(chain)
    ]  # fmt: skip
    return pa.Table.from_pylist(told, _SCHEMA)


def _fate(over: str | None) -> str | None:
    return ENDED if over == MOVED else over


def _before(found: dict[Part, dict[str, Any]]) -> dict[Part, Part]:
    """Of every part that arrived, the one it came from: the nearest in time of those that moved or are gone."""
    before: dict[Part, Part] = {}
    arrived = sorted((part for part, one in found.items() if one["arrived"]), key=lambda part: found[part]["since"])
    for part in arrived:
        since = found[part]["since"]
        left = [
            (abs((one["until"] - since).total_seconds()), other)
            for other, one in found.items()
            if other[0] != part[0] and one["since"] < since and one["until"] is not None and one["over"] != ENDED
            and other not in before.values()
        ]  # fmt: skip
        if left:
            before[part] = min(left)[1]
    return before
