"""How far a streaming query is behind the nodes, from what Spark says of its progress.

Spark has no way for a source in Python to add metrics of its own, but its progress holds where the last batch ended and
how far the nodes were.  The names are those of Spark's Kafka source.  Needs no Spark.
"""

from __future__ import annotations

import json
from typing import Any

from sterna.pipeline.offsets import node_of, without_cut


def offsets_behind_latest(progress: Any) -> dict[str, int]:
    """Node -> messages that were there and not read.  `progress`: `query.lastProgress`, or one of `recentProgress`."""
    behind: dict[str, int] = {}
    for source in progress["sources"]:
        reached, latest = (without_cut(_offsets(source[name])) for name in ("endOffset", "latestOffset"))
        for journal, head in latest.items():
            behind[node_of(journal)] = max(0, head - reached.get(journal, 0))
    return dict(sorted(behind.items()))


def lag_metrics(progress: Any) -> dict[str, float]:
    """Of all nodes the least, the most, the mean and the sum, and how long the rest takes at the rate of this batch."""
    behind = list(offsets_behind_latest(progress).values()) or [0]
    rate = progress["processedRowsPerSecond"] or 0.0
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "offsetsBehindLatest": sum(behind),
        "secondsBehindLatest": sum(behind) / rate if rate else 0.0,
    }


def _offsets(text: Any) -> dict[str, int]:
    found = json.loads(text) if isinstance(text, str) and text else text
    return found if isinstance(found, dict) else {}
