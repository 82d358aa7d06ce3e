"""What a node's part in a network is made of, and what the network asks of whoever runs the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sterna.migration.settings import MigrationSettings
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.tree_settings import TreeSettings
from sterna.routing.strategy import RoutingSettings


class NetworkWorld(Protocol):
    """What the network asks of whoever runs the node."""

    def hold_links(self, dial: dict[str, str]) -> None:
        """Keep exactly these dialled, see `OverlayWorld.hold_links`."""

    def send_datagram(self, address: str, data: bytes) -> None: ...
    def send_discovery(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """What a node's part in a network is made of."""

    link: LinkSettings
    overlay: TreeSettings | tuple[str, ...] = ()
    """How neighbours are found: a spanning tree, or the addresses of static ones."""
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    settle_s: float = 1.0
    """How long a subscriber may wait for the news of its subscription to have reached every node."""
    feed: str = ""
    """Where bulk readers find this node's journal, if anywhere."""
    clients: str = ""
    """Where clients are to connect to this node, for other nodes to send them here; empty: nobody is told."""
    migration: MigrationSettings = field(default_factory=MigrationSettings)
