"""Joins the parts of a session that moved between nodes: for the audit it is one session of the node where it began.

Both nodes record the number under which the session left and arrived, so no clock is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sterna.pipeline.audit.subscription_intervals import ENDED, MOVED
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

_STAMPS = "map<string, struct<epoch: bigint, sequence: bigint>>"
PARTS = (
    "client string, node string, session bigint, home string, whole bigint, part bigint, turn int, "
    f"least {_STAMPS}, most {_STAMPS}, at_qos_2 {_STAMPS}, fate string"
)
_VECTOR = pa.map_(pa.string(), pa.struct([("epoch", pa.int64()), ("sequence", pa.int64())]))
_SCHEMA = pa.schema(
    [
        ("client", pa.string()),
        ("node", pa.string()),
        ("session", pa.int64()),
        ("home", pa.string()),
        ("whole", pa.int64()),
        ("part", pa.int64()),
        ("turn", pa.int32()),
        ("least", _VECTOR),
        ("most", _VECTOR),
        ("at_qos_2", _VECTOR),
        ("fate", pa.string()),
    ]
)

Part = tuple[str, int]
"""Node and session."""

Vector = dict[str, Stamp]


@dataclass(slots=True)
class SessionNumbers:
    over: str | None = None
    came: int | None = None
    went: int | None = None
    begun: list[Vector] = field(default_factory=list)
    """From where on it hears what it subscribed to, if it took the place of another one."""
    reached: list[Vector] = field(default_factory=list)
    """Up to where it was in charge, if it is over."""


def continued(subscriptions: DataFrame, deliveries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The same tables, with the parts of a session under the names of its first; their places keep the order.

    A session that took the place of one at a node that was away goes on with it, too.  The old one's messages come
    whenever that node is back: so they have no place among others, and a `turn` of their own.
    """
    parts = _parts(subscriptions)
    key = ["client", "node", "session"]
    of_part = [name for name in parts.columns if name not in key]
    told = subscriptions.join(f.broadcast(parts), key, "left")
    turn = f.coalesce("turn", f.lit(0))
    whole = told.select(
        f.coalesce("home", "node").alias("node"),
        "client",
        f.coalesce("whole", "session").alias("session"),
        f.col("node").alias("at_node"),
        turn.alias("turn"),
        *(name for name in told.columns if name not in (*key, *of_part, "over", "came", "went", "begun")),
        f.when(f.col("home").isNull(), _over()).otherwise(f.col("fate")).alias("over"),
    )
    came = deliveries.join(f.broadcast(parts), key, "left")
    names = [name for name in came.columns if name not in (*key, *of_part, "place")]
    is_old = _is_upto(f.col("least"))
    may_be_old = f.when(f.col("qos") == 2, _is_upto(f.col("at_qos_2"))).otherwise(_is_upto(f.col("most")))
    place = f.struct(f.coalesce("part", f.lit(0)).alias("part"), "place")
    return whole, came.select(
        f.coalesce("home", "node").alias("node"),
        "client",
        f.coalesce("whole", "session").alias("session"),
        *names,
        (turn - f.when(is_old, 1).otherwise(0)).alias("turn"),
        f.when(~may_be_old, place).alias("place"),
    )


def _is_upto(vector: Column) -> Column:
    """Did the session that took its place begin to hear the origin later?"""
    return f.coalesce(f.struct("epoch", "sequence") <= vector[f.col("origin")], f.lit(False))


def _over() -> Column:
    """A session of which nobody says that it arrived has ended."""
    return f.when(f.col("over") == MOVED, ENDED).otherwise(f.col("over"))


def _parts(subscriptions: DataFrame) -> DataFrame:
    """Of all sessions that came from another node or went there: where they began, and which part each is."""
    told = subscriptions.select("client", "node", "session", "over", "came", "went", "begun", "reached")
    movers = told.where("came is not null").select("client").distinct()
    return told.join(f.broadcast(movers), "client").groupBy("client").applyInArrow(_joined, PARTS)


def _joined(rows: pa.Table) -> pa.Table:
    """All sessions of one client."""
    found: dict[Part, SessionNumbers] = {}
    for row in rows.to_pylist():
        one = found.setdefault((row["node"], row["session"]), SessionNumbers())
        one.over, one.came, one.went = one.over or row["over"], one.came or row["came"], one.went or row["went"]
        for vectors, vector in ((one.begun, row["begun"]), (one.reached, row["reached"])):
            if vector is not None:
                vectors.append({origin: Stamp(**stamp) for origin, stamp in vector})
    client = rows.column("client")[0].as_py()
    told = [{"client": client, **one} for whole in _wholes(found) for one in _told(whole, found)]
    return pa.Table.from_pylist(told, _SCHEMA)


def _told(whole: list[Part], found: dict[Part, SessionNumbers]) -> Iterator[dict[str, Any]]:
    (home, first), fate = whole[0], _fate(found[whole[-1]].over)
    turn, begun, reached, left = 0, list[Vector](), list[Vector](), list[Vector]()
    for number, (node, session) in enumerate(whole):
        one = found[node, session]
        if number and one.begun:
            turn, begun, left = turn + 1, one.begun, list(reached)
        reached += one.reached
        yield {
            "node": node, "session": session, "home": home, "whole": first, "part": number, "turn": turn,
            "least": _bound(min, begun), "most": _bound(max, begun), "at_qos_2": _bound(max, left), "fate": fate,
        }  # fmt: skip


def _wholes(found: dict[Part, SessionNumbers]) -> list[list[Part]]:
    """The parts of each session, in order: those one of which went under the number that another one came under."""
    came = {one.came: part for part, one in found.items() if one.came is not None}
    whole_of: dict[Part, list[Part]] = {part: [part] for part in found}
    for part, one in found.items():
        after = came.get(one.went) if one.went is not None else None
        if after is not None and whole_of[after] is not whole_of[part]:
            whole_of[part] += whole_of[after]
            for other in whole_of[after]:
                whole_of[other] = whole_of[part]
    wholes = {id(whole): whole for whole in whole_of.values()}
    return [sorted(whole, key=lambda part: _numbered(found[part])) for whole in wholes.values()]


def _numbered(one: SessionNumbers) -> tuple[float, float]:
    """Numbers grow.  A session that began without one was first."""
    return (-math.inf if one.came is None else one.came, math.inf if one.went is None else one.went)


def _bound(of: Callable[[Iterable[Stamp]], Stamp], vectors: list[Vector]) -> list[tuple[str, dict[str, int]]] | None:
    """Up to there the session that it took the place of is in charge of all that it subscribed to (min), or of some
    (max).  At QoS 2 that goes on where it was not known what that one had delivered, until it has handed over."""
    if not vectors:
        return None
    origins = sorted({origin for vector in vectors for origin in vector})
    bounds = [(origin, of([vector.get(origin, BEFORE_ALL) for vector in vectors])) for origin in origins]
    return [(origin, {"epoch": stamp.epoch, "sequence": stamp.sequence}) for origin, stamp in bounds]


def _fate(over: str | None) -> str | None:
    return ENDED if over == MOVED else over
