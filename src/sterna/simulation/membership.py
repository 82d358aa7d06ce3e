"""How the nodes of a scenario belong together: one network, one strategy, neighbours by name or by spanning tree."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sterna.migration.settings import MigrationSettings
from sterna.node.network_settings import NetworkSettings
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.tree_settings import TreeSettings
from sterna.simulation.links import LINK_PORT

NETWORK = "simulated"
KEY = b"a key everybody in the simulation knows"
#: Rather no session than a second one: then every promise holds whatever fails.
MIGRATION = MigrationSettings(owner_unreachable="refuse", server_references=True)
CLIENT_PORT = 1883
OVERLAYS = ("spanning-tree", "static")


def members(
    names: list[str], strategy: str, overlay: str, dice: Random, migration: MigrationSettings = MIGRATION
) -> dict[str, Callable[[int], NetworkSettings]]:
    """For each node, what it joins with.  A static overlay is a random tree: each node dials one before it."""
    found = {}
    for number, name in enumerate(names):
        neighbours = (f"{dice.choice(names[:number])}:{LINK_PORT}",) if number else ()
        how = _tree(name, dice) if overlay == "spanning-tree" else neighbours
        found[name] = _member(name, strategy, how, migration)
    return found


def _tree(name: str, dice: Random) -> TreeSettings:
    address = f"{name}:{LINK_PORT}"
    return TreeSettings(NETWORK, name, address, KEY, cpu=dice.choice((1000.0, 2000.0)), memory=dice.uniform(100, 8000))


def _member(
    name: str, strategy: str, overlay: TreeSettings | tuple[str, ...], migration: MigrationSettings
) -> Callable[[int], NetworkSettings]:
    def settings(epoch: int) -> NetworkSettings:
        return NetworkSettings(
            LinkSettings(NETWORK, name, epoch, strategy, KEY),
            overlay,
            clients=f"{name}:{CLIENT_PORT}",
            migration=migration,
        )

    return settings
