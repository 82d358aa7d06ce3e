"""How the nodes of a scenario belong together: one network, one strategy, neighbours by name or by spanning tree."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sterna.migration.settings import MigrationSettings
from sterna.node.network_settings import NetworkSettings
from sterna.overlay.kinds import OVERLAYS
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.neighbours import Member, OverlayMaker
from sterna.routing.strategy import RoutingSettings
from sterna.simulation.links import LINK_PORT

NETWORK = "simulated"
KEY = b"a key everybody in the simulation knows"
#: Rather no session than a second one: then every promise holds whatever fails.
MIGRATION = MigrationSettings(owner_unreachable="refuse")
ROUTING = RoutingSettings()
CLIENT_PORT = 1883


def members(
    names: list[str],
    strategy: str,
    overlay: str,
    dice: Random,
    migration: MigrationSettings = MIGRATION,
    routing: RoutingSettings = ROUTING,
    *,
    star: bool = False,
) -> dict[str, Callable[[int], NetworkSettings]]:
    """For each node, what it joins with.  A static overlay is a random tree: each node dials one before it, or, of a
    star, the first."""
    found = {}
    for number, name in enumerate(names):
        before = names[: 1 if star else number]
        neighbours = (f"{dice.choice(before)}:{LINK_PORT}",) if number else ()
        found[name] = _member(name, strategy, _overlay(overlay, name, neighbours, dice), migration, routing)
    return found


def _overlay(kind: str, name: str, neighbours: tuple[str, ...], dice: Random) -> OverlayMaker:
    """Nodes that speak by datagrams find their neighbours by themselves, and compare their machines."""
    made = OVERLAYS[kind]
    if not made.datagrams:
        return made.configured(Member(NETWORK, name, KEY, neighbours=neighbours), made.tuning())
    cpu, memory = dice.choice((1000.0, 2000.0)), dice.uniform(100, 8000)
    return made.configured(Member(NETWORK, name, KEY, f"{name}:{LINK_PORT}", cpu=cpu, memory=memory), made.tuning())


def _member(
    name: str, strategy: str, overlay: OverlayMaker, migration: MigrationSettings, routing: RoutingSettings
) -> Callable[[int], NetworkSettings]:
    def settings(epoch: int) -> NetworkSettings:
        return NetworkSettings(
            LinkSettings(NETWORK, name, epoch, strategy, KEY),
            overlay,
            routing,
            clients=f"{name}:{CLIENT_PORT}",
            migration=migration,
        )

    return settings
