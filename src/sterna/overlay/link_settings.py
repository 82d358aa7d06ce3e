"""What an operator can tune about links.  The defaults suit nodes in one building; each is a key of `[network]`."""

from __future__ import annotations

from dataclasses import dataclass, field

GATHER_BYTES_MAX = 1024 * 1024
"""The largest `batch_bytes` any node may be set to: what a receiver must be ready to take, whatever its own setting."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    network: str
    """Nodes link up only if they name the same network."""
    node: str
    """This node's name, unique in the network."""
    epoch: int
    """Counts the starts of this node: of two processes with one name the one with the higher epoch is the newer."""
    strategy: str
    """How messages are routed.  All nodes of a network must say the same."""
    key: bytes = field(repr=False)
    """The secret all nodes of the network share.  Whoever has it is believed to be any node."""
    keep_alive_s: float = 1.0
    """When nothing else was sent for so long, an empty batch is.  Higher: less traffic, deaths noticed later."""
    dead_after_s: float = 3.0
    """A connection on which nothing was heard for so long is dropped.  Below two keep-alives jitter kills links."""
    resume_s: float = 2.0
    """How long a session waits for a new connection after losing one.  Higher: longer gaps cost no synchronisation;
    lower: routes around a dead node are found sooner."""
    handshake_s: float = 5.0
    """From a new connection to an authenticated one."""
    resend_bytes: int = 8 * 1024 * 1024
    """Bytes kept for one link until they are acknowledged.  Congested at half of it; at all of it the session is given
    up.  At least bandwidth times round-trip time, or the link cannot be filled."""
    batch_bytes: int = 256 * 1024
    """Gathered bytes that are sent at once instead of at the end of the turn."""
    ack_bytes: int = 256 * 1024
    """Bytes received before they are acknowledged without waiting for something to send."""
    frame_bytes: int = 2 * 1024 * 1024
    """Largest frame.  Both sides use the smaller of their settings; up to a quarter of `resend_bytes` is sound."""
    compress: bool = True
    """Deflate small batches.  Whoever can publish and watch the sizes of batches may guess at what else is in them."""
    pending_handshakes: int = 64
    """Connections not authenticated yet; a further one drops the oldest of them."""
    certified: bool = False
    """A peer must show a certificate that names the node it says it is."""

    def __post_init__(self) -> None:
        assert 0 < self.batch_bytes <= GATHER_BYTES_MAX, "batch_bytes is out of range"
        assert 2 * self.frame_bytes <= self.resend_bytes, "two frames must fit into resend_bytes"
        assert self.keep_alive_s < self.dead_after_s, "a link must outlive the pause between two keep-alives"
