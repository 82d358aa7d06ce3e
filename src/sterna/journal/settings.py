"""How safely and how long the journal keeps messages: the `[journal]` table of a node's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sterna.vocabulary.settings import Allowed

Durability = Literal["fsync", "os", "memory"]


@dataclass(frozen=True, slots=True)
class JournalSettings:
    durability: Durability = "fsync"
    """When a message counts as kept: `"fsync"` on the disk (survives power loss), `"os"` handed to the operating system
    (survives a crash of the node), `"memory"` in memory only (survives nothing)."""

    segment_bytes: Annotated[int, Allowed(64 * 1024, 2**40)] = 64 * 1024 * 1024
    """Size at which a new file is begun.  Retention drops whole files, so smaller ones trim more finely."""

    retention_bytes: int = 1024 * 1024 * 1024
    """Bytes kept before the oldest file goes.  With `"memory"` these are bytes of RAM."""

    retention_age_s: float = 7 * 24 * 3600.0
    """Age at which a file goes, counted from its newest message or record of a delivery, see [Clocks](#clocks)."""

    group_commit_ms: Annotated[float, Allowed(0, 1000)] = 2.0
    """How long acknowledgements may wait to share one sync.  Higher saves syncs, lower answers sooner."""

    keep: tuple[str, ...] = ()
    """Topic filters: messages at QoS 0 that match are kept too, so that they are in the table of messages (see
    [`[feed]`](#feed)).  No client waits for that, but they no longer take the quickest way through the node."""

    deliveries: bool = False
    """Note who subscribed, and what became of every message for each of them, so that
    [`sterna pipeline audit`](pipeline.md#audit) can account for it.  About 100 bytes of the journal for each delivery;
    needs the extra `feed`."""
