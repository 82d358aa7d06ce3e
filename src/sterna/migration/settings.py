"""Settings of clients that move: the `[migration]` table of a node's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sterna.vocabulary.settings import Allowed


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """Clients that change their node ([more about it](migration.md)); of no effect without `[network]`."""

    owner_unreachable: Literal["new-session", "refuse"] = "new-session"
    """The answer to a client whose session is on a node that cannot be reached: a new session, or (`"refuse"`) no
    connection until it can."""
    owner_absent_s: Annotated[float, Allowed(0, 86400 * 365)] = 10.0
    """How long that node must have been away before its clients get a new session.  Until then they get no connection,
    and if it is back in time nothing is lost.  Messages of the old session are added
    [when the node is back](migration.md#when-the-old-owner-is-back)."""
    drain_s: Annotated[float, Allowed(0, 10)] = 0.15
    """How long a plain client that is moved by plan may take to acknowledge what it was sent, before it is sent on:
    this long or twice its round trip, if that is more and not over a quarter of `patience_s`.  The new node sends the
    rest again."""
    retry_s: Annotated[float, Allowed(0.02, 60)] = 0.5
    """Time without an answer after which a node sends its message again."""
    patience_s: Annotated[float, Allowed(0.1, 3600)] = 10.0
    """How long one step of a move may take before the move is given up, and how long a client waits for its session;
    then its connection is closed without a CONNACK, and it tries again."""
    at_once: Annotated[int, Allowed(1, 10_000)] = 64
    """Sessions that may be on their way from this node at a time, and to it; others wait in line.  Those that wait for
    their clients to come do not count, up to 16 times as many."""
    server_references: bool = False
    """Tell MQTT 5 clients that are moved by plan where to go, with DISCONNECT 0x9C or 0x9D and a Server Reference,
    instead of only closing their connections.  [Few libraries follow it](migration.md#effects-on-the-client), and
    libmosquitto's clients end."""
    rate: Annotated[float, Allowed(0.01, 100_000)] = 50.0
    """Clients that `sterna evacuate` begins to move per second."""
