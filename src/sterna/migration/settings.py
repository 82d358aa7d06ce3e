"""What an operator may tune about clients that move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    owner_unreachable: Literal["begin-anew", "refuse"] = "begin-anew"
    """What a client gets whose session is on a node that cannot be reached: a new session, or no connection."""
    owner_absent_s: float = 60.0
    """For how long that node must have been away before its clients begin anew: until then they get no connection, and
    if it is back in time nothing is lost."""
    drain_s: float = 0.15
    """How long a client that is moved by plan may take to acknowledge what it was sent."""
    retry_s: float = 0.5
    """After how long without an answer something is said again."""
    patience_s: float = 10.0
    """How long a step may take before a move is given up, and a client waits for its session."""
    at_once: int = 64
    """Sessions that may be on their way from this node at a time, and to it."""
    server_references: bool = False
    """Tell MQTT 5 clients that are moved by plan where to go.  Few libraries do, and libmosquitto's clients end."""
    rate: float = 50.0
    """Clients that an evacuation begins to move per second."""
