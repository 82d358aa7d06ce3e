"""Members of a process group: the configuration of each, made from that of the whole.

All members listen on the same ports (SO_REUSEPORT), and the kernel gives each new connection to one of them.  The first
has the name, the data and the neighbours that the configuration names; the others are linked to it.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sterna.overlay.kinds import OVERLAYS
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import Configuration, FeedTable, NetworkTable
from sterna.runtime.disk.backups import MEMBER
from sterna.vocabulary.errors import ConfigurationError

FIRST = 1


class GroupPlan(msgspec.Struct, frozen=True):
    """The plan that all members have to know; a file in the group's directory."""

    process: int
    """Identifier of the group's own process."""
    ports: list[int]
    """Of the listeners in order; 0 for a Unix socket."""
    link_port: int
    """Where the first member takes links if the configuration names no port for them."""


def name_of(name: str, member: int) -> str:
    return name if member == FIRST else f"{name}-{member}"


def admin_socket(directory: Path, member: int) -> Path:
    return directory / f"{member}.sock"


def part_of(member: int) -> str:
    """The directory of its data below that of the whole, and below that of a backup."""
    return "" if member == FIRST else f"{MEMBER}{member}"


def check_group(configuration: Configuration) -> None:
    """ConfigurationError if the configuration cannot be that of several processes."""
    network = configuration.network
    if network is not None and not OVERLAYS[network.overlay].is_fixed:
        raise ConfigurationError(
            f'several processes need the static overlay, and [network] overlay is "{network.overlay}"; '
            'set overlay = "static", or start one node per core with a file of its own'
        )


def plan_of(directory: Path) -> GroupPlan:
    return msgspec.json.decode((directory / "plan").read_bytes(), type=GroupPlan)


def member_configuration(configuration: Configuration, member: int, directory: Path) -> Configuration:
    """Of one member; `directory` is the group's own, which nobody else can read."""
    plan = plan_of(directory)
    whole, is_first = configuration.node, member == FIRST
    node = replace(
        whole,
        name=name_of(whole.name, member),
        data=whole.data / part_of(member),
        backups=whole.backups_directory,
        processes=1,
    )
    listeners = tuple(
        listener if listener.bind.path else replace(listener, bind=Bind(listener.bind.host, port))
        for listener, port in zip(configuration.listeners, plan.ports, strict=True)
        if is_first or not listener.bind.path  # a Unix socket has one listener
    )
    return replace(
        configuration,
        node=node,
        listeners=listeners,
        network=_network(configuration, plan, directory, is_first=is_first),
        feed=_feed(configuration.feed, is_first=is_first),
        interworking=configuration.interworking if is_first else None,  # a foreign broker is attached once
        admin=replace(configuration.admin, bind=Bind(path=str(admin_socket(directory, member)))),
    )


def link_bind(configuration: Configuration) -> Bind:
    """Where the first member takes links.  Port 0: at one that is chosen before, as the others have to know it."""
    network = configuration.network
    return network.bind if network is not None and network.bind is not None else Bind("127.0.0.1", 0)


def _network(configuration: Configuration, plan: GroupPlan, directory: Path, *, is_first: bool) -> NetworkTable:
    """The first member is linked with the world, the others with the first."""
    network = configuration.network
    if network is None:
        network = NetworkTable(name=configuration.node.name, key_file=directory / "key")
    bind = link_bind(configuration)
    bind = Bind(bind.host, bind.port or plan.link_port)
    if is_first:
        return with_fields(network, bind=bind)
    return with_fields(network, bind=None, advertise=None, neighbours=(str(_reached(bind)),))


def _reached(bind: Bind) -> Bind:
    """Where a process of this machine finds it."""
    return Bind({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind.host, bind.host), bind.port)


def _feed(feed: FeedTable | None, *, is_first: bool) -> FeedTable | None:
    """Readers that know the first member's feed find the others through it."""
    return feed if feed is None or is_first else replace(feed, bind=Bind(feed.bind.host, 0), advertise="")
