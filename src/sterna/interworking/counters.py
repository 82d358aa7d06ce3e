"""Counters of an attachment, by reason; the admin port shows all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class AttachmentCounters:
    taken: int = 0
    """Messages of the foreign broker that went into the network."""
    injected: int = 0
    """Messages of the network that went to the foreign broker, repetitions included."""
    held_back: Counter[str] = field(default_factory=Counter)
    """Messages of the foreign broker that did not go into the network, by reason."""
    not_injected: Counter[str] = field(default_factory=Counter)
    """Messages of the network that the foreign broker did not get or did not take, by reason."""
    in_doubt: Counter[str] = field(default_factory=Counter)
    """Messages in flight when the foreign broker lost its session: repeated, dropped, unknown."""
    sessions_lost: int = 0
    """Times the foreign broker had lost its session: what waited for us there is gone."""
    connections: int = 0
    failures: int = 0
    fences_sent: int = 0
    fences_back: int = 0
    fences_of_others: int = 0
    storms: int = 0
