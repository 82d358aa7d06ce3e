"""Settings of the overlay of nodes that move, each with its unit and the cost of a lower or higher value.

`MobileTuning` is the part an operator may set: each field is a key of the `[network.mobile]` table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sterna.overlay.leadership import STALE_ROUNDS
from sterna.vocabulary.settings import Allowed, Choice

STEADY, FIRST_HEARD = "steady", "first-heard"


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileTuning:
    hello_s: Annotated[float, Allowed(0.05, 60)] = 0.5
    """How often a node says hello to all within reach.  A neighbour whose last three hellos are missing is gone.
    Lower: changes are noticed sooner, for more air time."""

    calm_hello_s: Annotated[float, Allowed(0.05, 60)] = 0.5
    """While nothing changes, the pause between two hellos grows from `hello_s` up to this.  Higher: less air time at
    rest; a node that dies then is missed later, after three hellos of that pause."""

    hello_air_bytes_s: Annotated[int, Allowed(100, 100_000_000)] = 100_000
    """So many bytes a second the hellos of all within reach may take together; where more nodes hear each other, each
    says hello less often.  Lower: more room for messages on a slow radio; changes are noticed later."""

    hello_bytes: Annotated[int, Allowed(64, 1200)] = 1200
    """A hello is not longer than this, long names excepted; neighbours that do not fit in are named in turn.  For
    radios with short frames."""

    parent: Annotated[str, Choice((STEADY, FIRST_HEARD))] = STEADY
    """How a node chooses its way to the leader: `"steady"` keeps the parent while it leads and prefers fewer hops, then
    older neighbours, then fewer children; `"first-heard"` follows whoever brought the leader's last round first."""

    steady_s: Annotated[float, Allowed(0, 3600)] = 2.0
    """A way with fewer hops is taken when it has been there for so long.  Lower: shorter ways, more changes."""

    link_patience_s: Annotated[float, Allowed(0.1, 3600)] = 3.0
    """A parent that is heard but gives no link for this long is passed over ..."""

    pass_over_s: Annotated[float, Allowed(0.1, 86400)] = 10.0
    """... for this long, if there is any other."""


@dataclass(frozen=True, slots=True)
class MobileSettings(MobileTuning):
    """All that the overlay needs to know: the tuning, the node, and bounds that nobody had to change yet."""

    network: str
    """The network's name.  Hellos of other networks look like junk: the name is part of the key."""

    node: str
    """This node's name, unique in the network, at most 128 bytes."""

    key: bytes = field(default=b"", repr=False)
    """The network's shared key.  Nodes believe senders that have it and ignore all others."""

    neighbours_max: int = 256
    """Neighbours heard at once.  One more is not heard, and counted."""

    @property
    def stale_s(self) -> float:
        """A leader whose rounds have not risen for so long is gone, whoever still speaks of it."""
        return STALE_ROUNDS * self.hello_s
