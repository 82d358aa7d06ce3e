"""A node's part in a network, and the requests of the network to the world that runs the node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from sterna.migration.settings import MigrationSettings
from sterna.operators.settings import OperatorSettings as OperatorSettings
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.neighbours import OverlayMaker
from sterna.routing.strategy import RoutingSettings

#: How long a subscriber waits for the news of its subscription to have reached every node, unless set otherwise.
SETTLE_S = 1.0


class NetworkWorld(Protocol):
    """The requests of the network to the world that runs the node."""

    def hold_links(self, dial: dict[str, str]) -> None:
        """Keep exactly these dialled, see `OverlayWorld.hold_links`."""

    def send_datagram(self, address: str, data: bytes) -> None: ...
    def send_discovery(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """A node's part in a network."""

    link: LinkSettings
    overlay: OverlayMaker | None = None
    """How neighbours are found; None: others dial this node, and it dials nobody."""
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    settle_s: float = SETTLE_S
    """How long a subscriber may wait for the news of its subscription to have reached every node."""
    feed: str = ""
    """Where bulk readers find this node's journal, if anywhere."""
    clients: str = ""
    """Where clients are to connect to this node, for other nodes to send them here; empty: nobody is told."""
    migration: MigrationSettings = field(default_factory=MigrationSettings)


def for_strategy(operators: OperatorSettings, strategy: str) -> OperatorSettings:
    """Where every node gets every message anyway, parts of expressions would only come on top."""
    return replace(operators, partials=False) if strategy == "publication-flooding" else operators
