"""Deals expressions out to lanes, which share nothing: each lane is a task of its own.

Windows of an expression are computed from parts, so any lane may have it.  Expressions that need order have the lane of
their filter: values travel once to all that read the same messages.  Rules that pass messages on share numbers with the
same rules of the same node, so these have one lane.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from sterna.pipeline.expressions.registry import Entry


class ExpressionLane(NamedTuple):
    number: int
    among: int

    def has(self, entry: Entry) -> bool:
        return lane_of(entry, self.among) == self.number


ALONE = ExpressionLane(0, 1)


def lane_of(entry: Entry, lanes: int) -> int:
    """The same for as long as the expression is there."""
    if lanes == 1:
        return 0
    if not entry.needs_order:
        return entry.number % lanes
    expression = entry.expression
    key = entry.node.encode() + b"\0" + entry.rules if expression.forwards else expression.topic_filter
    return crc32(key) % lanes
