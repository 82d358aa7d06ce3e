"""From the `[network]` table to the settings of the node's links."""

from __future__ import annotations

from sterna.overlay.link_settings import LinkSettings, LinkTuning
from sterna.runtime.config.secrets import NETWORK_KEY
from sterna.runtime.config.settings import NetworkTable
from sterna.vocabulary.settings import values_of


def link_settings(network: NetworkTable, node: str, epoch: int) -> LinkSettings:
    """May raise ConfigurationError (the key is of no use) or OSError (its file is not)."""
    return LinkSettings(
        network=network.name,
        node=node,
        epoch=epoch,
        strategy=network.strategy,
        key=NETWORK_KEY.read(network),
        certified=network.tls is not None and network.tls.check_nodes,
        **values_of(LinkTuning, network),
    )
