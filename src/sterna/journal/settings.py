"""How safely and how long the journal keeps what it is given.

Each field is a key of the `[journal]` table of the configuration file, under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Durability = Literal["fsync", "os", "memory"]


@dataclass(frozen=True, slots=True)
class JournalSettings:
    durability: Durability = "fsync"
    """When a message counts as kept: on the disk (fsync, survives power loss), handed to the operating system
    (os, survives a crash of the node), or in memory only (memory, survives nothing)."""

    segment_bytes: int = 64 * 1024 * 1024
    """Size at which a new segment is begun.  Retention drops whole segments, so smaller ones trim more finely."""

    retention_bytes: int = 1024 * 1024 * 1024
    """Bytes kept before the oldest segment goes.  With durability "memory" these are bytes of RAM."""

    retention_age_s: float = 7 * 24 * 3600.0
    """Seconds after which a segment goes, counted from its newest message."""

    group_commit_ms: float = 2.0
    """How long acknowledgements may wait to share one sync.  Higher saves syncs, lower answers sooner."""

    keep: tuple[str, ...] = ()
    """Topic filters: messages at QoS 0 that match are appended too, so that they are in the table of messages.  Nobody
    waits for it, and it costs them the quick way through the node."""

    deliveries: bool = False
    """Note who subscribed, and what became of every message for each of them, so that an audit can account for it.
    About 100 bytes of the journal for each delivery."""
