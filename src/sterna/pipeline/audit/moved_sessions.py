"""Joins the parts of a session that moved between nodes: for the audit it is one session of the node where it began.

Both nodes record the number under which the session left and arrived, so no clock is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sterna.pipeline.audit.subscription_intervals import ENDED, MOVED

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


@dataclass(slots=True)
class SessionNumbers:
    over: str | None = None
    came: int | None = None
    went: int | None = None


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
        *(name for name in told.columns if name not in (*key, "home", "whole", "part", "fate", "over", "came", "went")),
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
    told = subscriptions.select("client", "node", "session", "over", "came", "went").distinct()
    movers = told.where("came is not null").select("client").distinct()
    return told.join(f.broadcast(movers), "client").groupBy("client").applyInArrow(_joined, PARTS)


def _joined(rows: pa.Table) -> pa.Table:
    """All sessions of one client."""
    found: dict[Part, SessionNumbers] = {}
    for row in rows.to_pylist():
        one = found.setdefault((row["node"], row["session"]), SessionNumbers())
        one.over, one.came, one.went = one.over or row["over"], one.came or row["came"], one.went or row["went"]
    left = {one.went: part for part, one in found.items() if one.went is not None}
    before = {part: left[one.came] for part, one in found.items() if one.came in left}
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
            "fate": _fate(found[chain[-1]].over),
        }
        for home, chain in wholes.items()
        for number, (node, session) in enumerate(chain)
    ]  # fmt: skip
    return pa.Table.from_pylist(told, _SCHEMA)


def _fate(over: str | None) -> str | None:
    return ENDED if over == MOVED else over
