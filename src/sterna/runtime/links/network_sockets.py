"""A node's network on this machine: links over TCP, datagrams over UDP, and the settings both go by.

Datagrams use the port number of the links.  Discovery is one more socket that hears a multicast group; where there is
no multicast, the configured neighbours are called one by one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Protocol

from sterna.broker.broker import Broker
from sterna.migration.settings import MigrationSettings
from sterna.node.network import Network
from sterna.node.network_settings import NetworkSettings
from sterna.node.node import Node
from sterna.overlay.kinds import OVERLAYS, DatagramUse
from sterna.overlay.neighbours import Member, checked_address
from sterna.runtime.admin.move_api import NetworkMoveApi
from sterna.runtime.config.feed_rules import EVERY_ADDRESS
from sterna.runtime.config.network_settings import link_settings
from sterna.runtime.config.process_tables import ListenerTable
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.secrets import NETWORK_KEY
from sterna.runtime.config.settings import NetworkTable, NetworkTls
from sterna.runtime.links.hello_sockets import HelloSockets
from sterna.runtime.links.link_world import LinkWorld, contexts
from sterna.runtime.links.network_view import NetworkView, view_of
from sterna.vocabulary.errors import ConfigurationError

log = logging.getLogger("sterna.network")


class NetworkedServer(Protocol):
    broker: Broker

    def after_work(self) -> None: ...


class Networking:
    """The world of a node's network; None of it exists for a lone node."""

    def __init__(self, table: NetworkTable, name: str, node: Node, server: NetworkedServer, rng: Random) -> None:
        self._table = table
        self._name = name
        self._node = node
        self._server = server
        self._rng = rng
        self._links: LinkWorld | None = None
        self._datagrams: Datagrams | HelloSockets | None = None
        self.network: Network | None = None
        self.moves: NetworkMoveApi | None = None

    async def start(self, feed: str, clients: str, migration: MigrationSettings) -> Bind | None:
        """Open the doors, then look for neighbours; where others can connect, if they can.  `feed` is the address of
        this node's feed and `clients` that of its door for clients, for the others to know."""
        bind = self._table.bind
        # The port must be known before the overlay tells others about it.
        datagrams = OVERLAYS[self._table.overlay].datagrams
        if bind is not None and datagrams:
            self._datagrams = await SOCKETS[datagrams].open(self._table, self._heard)
            bind = self._datagrams.bind
        self.network = self._node.join(
            lambda epoch: replace(self._settings(epoch, bind, feed), clients=clients, migration=migration), self
        )
        self.moves = NetworkMoveApi(self.network.moving, self._server)
        table = replace(self._table, bind=bind)
        self._links = LinkWorld(table, self._server, self.network, self._rng)
        address = await self._links.open()
        self._server.broker.at(monotonic())
        self.network.start()
        self._server.after_work()
        return address

    def prepare_tls(self, tls: NetworkTls | None) -> Callable[[], bool] | None:
        """A function that has new connections use these certificates; None if TLS was off, or will be.  May raise
        OSError."""
        link_tls = self._links.tls if self._links is not None else None
        if tls is None or link_tls is None:
            return None
        return partial(link_tls.renew, *contexts(tls))

    @property
    def certificate_expires_at(self) -> float | None:
        """None without TLS."""
        link_tls = self._links.tls if self._links is not None else None
        return link_tls.inward.expires_at if link_tls is not None else None

    def listens(self, listener: ListenerTable, address: Bind) -> None:
        """A port that was left to the system is known: other nodes send clients there, if nowhere else."""
        is_told = listener.transport == "tcp" and not listener.bind.port and address.host not in EVERY_ADDRESS
        if self.network is not None and is_told:
            self.network.router.clients_are_at(str(address))

    async def stop(self) -> None:
        if self.network is not None:
            self.network.stop()
        if self._links is not None:
            await self._links.close()
        if self._datagrams is not None:
            self._datagrams.close()

    def _settings(self, epoch: int, bind: Bind | None, feed: str) -> NetworkSettings:
        table = self._table
        link = link_settings(table, self._name, epoch)
        kind = OVERLAYS[table.overlay]
        member = Member(
            network=table.name,
            node=self._name,
            key=link.key,
            address=table.advertise or str(bind or ""),
            neighbours=table.neighbours,
            cpu=processor_mhz(),
            memory=memory_mib(),
        )
        overlay = kind.configured(member, table.overlay_table)
        return NetworkSettings(link, overlay, table.routing, table.settle_s, feed)

    def _heard(self, sender: str, data: bytes) -> None:
        self._server.broker.at(monotonic())
        if self.network is not None:
            self.network.datagram(sender, data)
        self._server.after_work()

    # -- what the network asks --

    def hold_links(self, dial: dict[str, str]) -> None:
        if self._links is not None:
            self._links.hold_links(dial)

    def send_datagram(self, address: str, data: bytes) -> None:
        if self._datagrams is not None:
            self._datagrams.send(address, data)

    def send_discovery(self, data: bytes) -> None:
        if self._datagrams is not None:
            self._datagrams.send_discovery(data)

    # -- what people ask --

    def view(self, *, tables: bool) -> NetworkView | None:
        """None before the network is there."""
        if self.network is None:
            return None
        dialled = self._links.dialled() if self._links is not None else {}
        return view_of(self.network, dialled, tables=tables)

    def feeds(self) -> dict[str, str]:
        """Node -> address of its feed."""
        return self.network.router.paths.feeds if self.network is not None else {}

    def neighbours(self) -> list[str]:
        return self.network.overlay.addresses if self.network is not None else list(self._table.neighbours)

    def change_neighbours(self, add: list[str], remove: list[str]) -> None:
        """All of it or, with a ConfigurationError, none; it holds until the node is started again."""
        if self.network is None:
            raise ConfigurationError("the node is still starting; try again")
        known = self.network.overlay.addresses
        unknown = [address for address in remove if address not in known]
        if unknown:
            raise ConfigurationError(f"not known here: {', '.join(unknown)}; known: {', '.join(known) or 'none'}")
        if both := [address for address in add if address in remove]:
            raise ConfigurationError(f"to be added and removed at once: {', '.join(both)}; say which")
        self._check_strangers(add)
        self.network.overlay.add(*add)
        self.network.overlay.remove(*remove)
        log.info("neighbours changed", extra={"added": add, "removed": remove})

    def _check_strangers(self, addresses: list[str]) -> None:
        """Applies the rule for configured neighbours: beyond this machine nobody is believed without a key."""
        if NETWORK_KEY.read(self._table):
            return
        for address in addresses:
            if not Bind.parse(checked_address(address)).is_local:
                raise ConfigurationError(f"nothing checks who answers at {address}; set key_file in [network]")


class Datagrams(asyncio.DatagramProtocol):
    """One socket to send from and be answered at, one that hears the multicast group."""

    def __init__(self, table: NetworkTable, heard: Any) -> None:
        self._heard = heard
        self._group: Bind | None = table.overlay_table.multicast
        self._sender: asyncio.DatagramTransport | None = None
        self._listener: asyncio.DatagramTransport | None = None
        self.bind: Bind | None = None

    @classmethod
    async def open(cls, table: NetworkTable, heard: Any) -> Datagrams:
        assert table.bind is not None
        self = cls(table, heard)
        loop = asyncio.get_running_loop()
        try:
            self._sender, _ = await loop.create_datagram_endpoint(
                lambda: self, local_addr=(table.bind.host, table.bind.port)
            )
        except OSError as error:
            raise ConfigurationError(
                f"cannot receive datagrams on {table.bind}: {error.strerror}; set another bind in [network]"
            ) from error
        self.bind = Bind(table.bind.host, self._sender.get_extra_info("sockname")[1])
        if self._group is not None:
            await self._join(self._group, table.bind.host)
        return self

    async def _join(self, group: Bind, interface: str) -> None:
        """Hear the group; without multicast, discovery goes by the configured addresses alone."""
        assert self._sender is not None
        ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ear.bind((group.host, group.port))
            member = struct.pack("4s4s", socket.inet_aton(group.host), socket.inet_aton(interface))
            ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            ear.setblocking(False)
            mouth = self._sender.get_extra_info("socket")
            mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            self._listener, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=ear)
        except OSError as error:
            ear.close()
            self._group = None
            log.warning("no multicast; neighbours are looked for at their addresses", extra={"reason": str(error)})

    def datagram_received(self, data: bytes, address: Any) -> None:
        self._heard(f"{address[0]}:{address[1]}", data)

    def error_received(self, error: Exception) -> None:
        """Nobody is there to receive what was sent: the overlay notices by the silence."""

    def send(self, address: str, data: bytes) -> None:
        if self._sender is not None and not self._sender.is_closing():
            host, _, port = address.rpartition(":")
            try:
                self._sender.sendto(data, (host.strip("[]"), int(port)))
            except (OSError, ValueError) as error:
                log.debug("a datagram could not be sent", extra={"address": address, "reason": str(error)})

    def send_discovery(self, data: bytes) -> None:
        if self._group is not None:
            self.send(str(self._group), data)

    def close(self) -> None:
        for transport in (self._sender, self._listener):
            if transport is not None:
                transport.close()


SOCKETS: dict[DatagramUse, type[Datagrams] | type[HelloSockets]] = {
    DatagramUse.GROUP: Datagrams,
    DatagramUse.HELLOS: HelloSockets,
}


def processor_mhz() -> float:
    """The speed of all processors of this machine together, as far as it tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return sum(found) if found else 1000.0 * (os.cpu_count() or 1)


def memory_mib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
