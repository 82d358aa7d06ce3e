"""Counters of the proxy; the admin port shows them beside those of the attachment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class ProxyCounters:
    witnessed: int = 0
    """Publications of clients that the foreign broker passed on to this node, and that are in the journal."""
    not_witnessed: int = 0
    """Publications that the foreign broker acknowledged and passed on to nobody: its access rules forbid them, or it
    had passed them on before."""
    in_doubt: Counter[str] = field(default_factory=Counter)
    """Publications at QoS 2 of clients whose session the foreign broker lost: witnessed, repeated, dropped, unknown."""
