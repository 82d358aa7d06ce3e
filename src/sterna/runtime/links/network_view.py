"""A snapshot of a node's part in its network, as a value for the admin port, metrics and commands."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sterna.node.network import Network
from sterna.overlay.link import LinkCounters
from sterna.overlay.link_table import Links


@dataclass(frozen=True, slots=True)
class LinkView:
    """One neighbour: the link with it, and what all link sessions with it came to since the node started."""

    peer: str
    session: str
    """Of the present link session, in hexadecimal; empty if there is none."""
    connected: bool
    congested: bool
    unacknowledged_bytes: int
    messages: int
    bytes_sent: int
    bytes_received: int
    control_bytes: int
    """Those of `bytes_sent` that carry no message of a client."""
    resends: int
    resumptions: int
    sessions: int
    version: int
    """Of the link protocol, which both nodes speak; 0 without a link session."""


@dataclass(frozen=True, slots=True)
class NetworkView:
    network: str
    """Empty: the node is alone."""
    node: str
    epoch: int
    """Grows with each start of the node."""
    strategy: str
    overlay: dict[str, Any]
    links: list[LinkView] = field(default_factory=list)
    dialled: dict[str, str] = field(default_factory=dict)
    """Address -> how it stands with it."""
    streams: dict[str, str] = field(default_factory=dict)
    """Origin -> whether everything it says comes in: synced, fetching or unsynced."""
    vector: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Origin -> epoch and sequence of the last of its messages that was taken, or not wanted."""
    paths: dict[str, str] = field(default_factory=dict)
    """Origin -> the neighbour its messages come by."""
    away: dict[str, dict[str, float]] = field(default_factory=dict)
    """With `strategy = "mobile"`: nodes that cannot be reached -> seconds since they could, messages that entered here
    for them meanwhile, and the age of the oldest."""
    gaps: dict[str, dict[str, float]] = field(default_factory=dict)
    """With `strategy = "mobile"`: origins that are known to have come further than this node has read -> messages
    missing at most, and for how many seconds."""
    carried: dict[str, Any] = field(default_factory=dict)
    """Messages that this node carries for others: how many, bytes, age, how many were handed on or dropped, and for
    whom."""
    ways: dict[str, int] = field(default_factory=dict)
    """With `strategy = "mobile"`: claims made, false ones contradicted, nodes asked where they are, words refused."""
    tables: dict[str, Any] = field(default_factory=dict)
    """Sizes of the routing tables."""
    forwarded: int = 0
    taken: int = 0
    refused: int = 0
    nonsense: int = 0
    """Frames that made no sense, whose links were ended."""
    spoilt: int = 0
    """Messages and letters of nodes further away that made no sense and were left out."""
    loose_dropped: dict[str, int] = field(default_factory=dict)
    """QoS 0 messages that did not go on to another node, by reason."""
    moves: dict[str, int] = field(default_factory=dict)
    """Sessions that came from other nodes or went to them, by what became of that."""
    unconfirmed: int = 0
    """Subscriptions acknowledged after `settle_s` though not every node had answered."""
    foreign: dict[str, Any] = field(default_factory=dict)
    """The broker of another make that the node is attached to: address, state, trouble, abilities."""


def lone_view(node: str, epoch: int) -> NetworkView:
    """A network of one."""
    return NetworkView(network="", node=node, epoch=epoch, strategy="", overlay={"overlay": "none"})


LINK_WAIT_S: Final = 30.0
"""A node that has no link for so long after its start is the only one, or nobody can help it by waiting."""
STREAMS_WAIT_S: Final = 120.0
"""The same for messages of other nodes that it has yet to fetch."""


def why_not_caught_up(view: NetworkView, uptime_s: float) -> str | None:
    """The reason for which a node that was started should not yet be followed by the next one: messages of nodes that
    it can reach do not come in yet.  None if they do, and at a lone node."""
    if not view.network or uptime_s > STREAMS_WAIT_S:
        return None
    if not any(link.connected for link in view.links):
        return "no link to another node yet" if uptime_s <= LINK_WAIT_S else None
    behind = sorted(origin for origin, state in view.streams.items() if state != "synced" and origin in view.paths)
    return f"messages of {', '.join(behind[:5])} do not come in yet" if behind else None


def view_of(network: Network, dialled: dict[str, str], *, tables: bool) -> NetworkView:
    """`tables`: with their sizes, which takes a look at every filter."""
    router, settings = network.router, network.links.settings
    return NetworkView(
        network=settings.network,
        node=settings.node,
        epoch=settings.epoch,
        strategy=settings.strategy,
        overlay=network.overlay.view(),
        links=_links(network.links),
        dialled=dialled,
        streams=router.streams.states(),
        vector={origin: (stamp.epoch, stamp.sequence) for origin, stamp in router.streams.vector.items()},
        paths={origin: path.link for origin, path in router.paths.known.items()},
        away=router.paths.absence(),
        gaps=router.streams.gaps(router.paths.frontiers()),
        ways=router.paths.counted(),
        carried=network.carrying.view() if network.carrying.is_on else {},
        tables=sizes(router.strategy.table()) if tables else {},
        forwarded=router.counters.forwarded,
        taken=router.counters.taken,
        refused=router.counters.refused,
        nonsense=router.counters.nonsense,
        spoilt=router.counters.spoilt,
        loose_dropped=dict(sorted(router.losses.by_reason.items())),
        moves=asdict(network.moving.counters),
        unconfirmed=router.probes.timed_out,
    )


def _links(links: Links) -> list[LinkView]:
    return [_link(peer, counters, links) for peer, counters in sorted(links.counters.items())]


def _link(peer: str, counters: LinkCounters, links: Links) -> LinkView:
    link = links.links.get(peer)
    return LinkView(
        peer,
        f"{link.session_id:016x}" if link else "",
        link is not None and link.connected,
        link is not None and link.congested,
        link.unacknowledged_bytes if link else 0,
        counters.messages,
        counters.bytes_sent,
        counters.bytes_received,
        counters.control_bytes,
        counters.resends,
        counters.resumptions,
        counters.sessions,
        link.version if link else 0,
    )


def sizes(table: dict[str, Any]) -> dict[str, Any]:
    """The same table with every list replaced by its length: filters may be many, and are the clients' business."""
    return {key: _size(value) for key, value in table.items() if not isinstance(value, str)}


def _size(value: Any) -> Any:
    if isinstance(value, dict):
        return len(value) if all(isinstance(item, str) for item in value.values()) else sizes(value)
    return len(value) if isinstance(value, list | tuple) else value
