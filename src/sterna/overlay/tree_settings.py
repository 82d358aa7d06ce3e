"""Settings of the spanning tree, each with its unit and the cost of a lower or higher value.

`TreeTuning` is the part an operator may set: each field is a key of the `[network.tree]` table.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeTuning:
    cpu_weight: float = 1.0
    """Weight of the processors (MHz, all together) in a node's capability, which is `cpu_weight` x MHz +
    `memory_weight` x MiB.  The most capable node is the root."""

    memory_weight: float = 1.0
    """Weight of the memory (MiB) in a node's capability."""

    listen_s: float = 0.3
    """After the start, how long to listen before the first parent is dialled.  Lower: more false starts in a crowd."""

    ping_s: float = 0.8
    """How often a neighbour in the tree is pinged.  Lower: changes are seen sooner, for more datagrams (two per link
    each time).  Others are measured when they are found, and one of them every `sample_s`."""

    sample_s: float = 12.0
    """How often one of the nodes that are not neighbours is pinged, in turn the one not heard for longest and the one
    that should be on the shortest way.  Lower: shorter paths are found sooner, for two more datagrams per node."""

    dead_after_s: float = 1.5
    """A neighbour not heard for this long is dead.  After two thirds of it, it is asked more often, and then the others
    ask it too.  Lower: deaths without a hint are noticed sooner, and lost datagrams more often taken for a death."""

    probe_s: float = 0.5
    """A peer whose link broke is asked repeatedly; without an answer for this long (and two round trips) it is dead."""

    discover_s: float = 2.0
    """How often the root calls into the multicast group, and every node the seed addresses at which nobody has answered
    (all of it more often in the first second)."""

    round_s: float = 0.25
    """How often the root starts a new round.  Nodes forget a root whose rounds stop rising."""

    change_s: float = 0.002
    """A shorter path to the root is taken only if it is shorter by more than this, ..."""

    change_ratio: float = 0.2
    """... by more than this part of the present one (lower: nearer to the best tree, and more changes), ..."""

    steady_s: float = 1.0
    """... and has been so for this long."""


@dataclass(frozen=True, slots=True)
class TreeSettings(TreeTuning):
    """All that the tree needs to know: the tuning, the node and its machine, and what nobody had to change yet."""

    network: str
    """The network's name.  Datagrams of other networks look like junk: the name is part of the key."""

    node: str
    """This node's name, unique in the network, at most 128 bytes."""

    address: str = ""
    """Where others reach this node ("host:port"), datagrams and links alike.  Empty: where its datagrams come from."""

    key: bytes = field(default=b"", repr=False)
    """The network's shared key.  Nodes believe senders that have it and ignore all others."""

    cpu: float = 0.0
    """The speed of this machine's processors together, in MHz (L of the paper)."""

    memory: float = 0.0
    """The memory of this machine, in MiB (M of the paper; there in KiB, which made the processor irrelevant)."""

    young_ping_s: float = 0.15
    """How often a peer is pinged while it is new or the tree forms, so that distances are known when they matter."""

    young_s: float = 1.0
    """How long a peer is new.  A root too: while it is, shorter paths to it are taken at once."""

    call_s: float = 30.0
    """How often a node that is not the root calls into the multicast group, and any node a seed that has answered."""

    pings_per_s: float = 400.0
    """Pings sent per second at most; with more peers than that allows, everything slows down in proportion."""

    dead_ping_s: float = 1.0
    """How often one of the dead is asked whether it is back; those who meet again introduce the rest.  It bounds how
    long a healed partition goes unnoticed."""

    forget_s: float = 600.0
    """How long the dead are asked.  After that only discovery finds them again."""

    hop_s: float = 0.0005
    """The cost of passing through a node, added to the round trip of each hop.  0: round trips alone count; then, on a
    network much faster than its nodes, chance makes long branches."""

    link_patience_s: float = 5.0
    """A parent that answers datagrams but gives no link for this long is passed over ..."""

    pass_over_s: float = 30.0
    """... for this long, if there is any other way to the root."""

    peers_max: int = 256
    """Peers known at once.  One more is not heard, and reported."""

    seeds: tuple[str, ...] = ()
    """Addresses to call besides those the world knows; more can be added at run time."""

    @property
    def capability(self) -> float:
        """C = alpha * L + beta * M."""
        return self.cpu_weight * self.cpu + self.memory_weight * self.memory
