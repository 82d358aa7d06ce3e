"""Settings of links between nodes.  The defaults suit nodes in one building.

`LinkTuning` is the part an operator may set: each field is a key of the `[network]` table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sterna.vocabulary import versions
from sterna.vocabulary.settings import Allowed
from sterna.vocabulary.versions import Versions

GATHER_BYTES_MAX = 1024 * 1024
"""The largest `batch_bytes` any node may be set to: a receiver must be ready for it, whatever its own setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTuning:
    keep_alive_s: Annotated[float, Allowed(0.05, 3600)] = 1.0
    """A link that has sent nothing else for so long sends a keep-alive.  Higher: less traffic, deaths noticed later."""
    dead_after_s: Annotated[float, Allowed(0.1, 86400)] = 3.0
    """A connection on which nothing was heard for so long is dropped.  Below two keep-alives jitter ends links."""
    resume_s: Annotated[float, Allowed(0, 86400)] = 2.0
    """How long a link waits for a new connection before its neighbour counts as gone.  Higher: longer gaps cost no
    synchronisation; lower: routes around a dead node are found sooner."""
    handshake_s: Annotated[float, Allowed(0.1, 3600)] = 5.0
    """From a new connection to an authenticated link."""
    resend_bytes: Annotated[int, Allowed(64 * 1024, 2**40)] = 8 * 1024 * 1024
    """Bytes kept for one link until they are acknowledged.  At half of it QoS 0 is dropped; at all of it the link
    starts afresh.  At least bandwidth times round-trip time, or the link cannot be filled."""
    batch_bytes: Annotated[int, Allowed(1024, GATHER_BYTES_MAX)] = 256 * 1024
    """Bytes gathered for one link before they are sent without waiting for the end of the turn."""
    ack_bytes: Annotated[int, Allowed(1024, 2**30)] = 256 * 1024
    """Bytes received over one link before they are acknowledged without waiting for something to send."""
    frame_bytes: Annotated[int, Allowed(512 * 1024, 2**29)] = 2 * 1024 * 1024
    """Largest single frame on a link; a message of `packet_bytes` must fit.  Both sides use the smaller of their
    settings; up to a quarter of `resend_bytes` is sound."""
    compress: bool = True
    """Deflate small batches, and send only their differences.  A client that can publish and watch the sizes of batches
    may guess at the rest of their contents, over TLS too."""
    pending_handshakes: Annotated[int, Allowed(1, 65535)] = 64
    """Connections of nodes that are not authenticated yet; a further one drops the oldest of them.  The `connections`
    to one node count as one."""


@dataclass(frozen=True, slots=True)
class LinkSettings(LinkTuning):
    """All that links need to know: the tuning, and the node's identity in its network."""

    network: str
    """Nodes link up only if they name the same network."""
    node: str
    """This node's name, unique in the network."""
    epoch: int
    """Counts the starts of this node: of two processes with one name the one with the higher epoch is the newer."""
    strategy: str
    """How messages are routed.  All nodes of a network must say the same."""
    key: bytes = field(repr=False)
    """The secret all nodes of the network share.  Any node that has it is believed."""
    certified: bool = False
    """A peer must show a certificate that names the node it says it is."""
    speaks: Versions = versions.LINK
    """Versions of the link protocol."""

    def __post_init__(self) -> None:
        assert 0 < self.batch_bytes <= GATHER_BYTES_MAX, "batch_bytes is out of range"
        assert 2 * self.frame_bytes <= self.resend_bytes, "two frames must fit into resend_bytes"
        assert self.keep_alive_s < self.dead_after_s, "a link must outlive the pause between two keep-alives"
