"""The feed as an operator sees it: an immutable snapshot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeedView:
    connections: int
    readers: int
    lag: int
    """Messages the slowest registered reader has not committed."""
    rows_sent: int
    bytes_sent: int
    lost: int
    """Messages that registered readers lost to retention."""
    parquet_files: int
