"""Sockets for the hellos of nodes that move: one to speak, one to hear, on every interface of the link layer.

A hello goes to a multicast group, out of each interface by itself, with a hop limit of one: no router passes it on.
Its source is the address at which the sender takes links, so an IPv6 address keeps the scope it was heard in
(`[fe80::1%wlan0]:7883`).  Interfaces that come later are found within `LOOK_S`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from sterna.overlay.kinds import OVERLAYS
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import NetworkTable
from sterna.vocabulary.errors import ConfigurationError

log = logging.getLogger("sterna.network")

LOOK_S = 2.0
"""How often to look for interfaces that have come or gone."""
INTERFACES_MAX = 64

_UP, _LOOPBACK, _MULTICAST = 0x1, 0x8, 0x1000


class HelloSockets(asyncio.DatagramProtocol):
    def __init__(self, table: NetworkTable, heard: Callable[[str, bytes], None]) -> None:
        assert table.bind is not None
        self._heard = heard
        self._group: Bind = table.overlay_table.group(table.bind)
        self._named: tuple[str, ...] = table.overlay_table.interfaces
        self._is_local = table.bind.is_local
        self._family = socket.AF_INET6 if ":" in self._group.host else socket.AF_INET
        self._joined: dict[str, int] = {}
        self._looked_at = 0.0
        self._mouth = socket.socket(self._family, socket.SOCK_DGRAM)
        self._ear = socket.socket(self._family, socket.SOCK_DGRAM)
        self._transport: asyncio.DatagramTransport | None = None
        self.bind = table.bind

    @classmethod
    async def open(cls, table: NetworkTable, heard: Callable[[str, bytes], None]) -> HelloSockets:
        self = cls(table, heard)
        try:
            self._open_mouth()
            self._open_ear()
        except OSError as error:
            self.close()
            where = f"{self.bind} with the group {self._group}"
            fix = (
                f"set another bind in [network], or a group of its family in [network.{OVERLAYS[table.overlay].table}]"
            )
            raise ConfigurationError(f"cannot say hello from {where}: {error.strerror}; {fix}") from error
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=self._ear)
        self._look()
        return self

    def _open_mouth(self) -> None:
        mouth = self._mouth
        mouth.setblocking(False)
        if self._family == socket.AF_INET6:
            mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
        else:
            mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        mouth.bind(_address(self._family, self.bind))
        self.bind = Bind(self.bind.host, mouth.getsockname()[1])

    def _open_ear(self) -> None:
        ear = self._ear
        ear.setblocking(False)
        # Several nodes of one machine hear the same group.
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        everywhere = "::" if self._family == socket.AF_INET6 else self._group.host
        ear.bind((everywhere, self._group.port))

    # -- interfaces --

    def _look(self) -> None:
        """Join the group on interfaces that are new, and forget those that are gone."""
        self._looked_at = monotonic()
        found = dict(list(self._interfaces().items())[:INTERFACES_MAX])
        for name, index in found.items():
            if self._joined.get(name) != index:
                self._join(name, index)
        self._joined = {name: index for name, index in self._joined.items() if found.get(name) == index}

    def _interfaces(self) -> dict[str, int]:
        known = {name: index for index, name in socket.if_nameindex()}
        if self._named:
            return {name: known[name] for name in self._named if name in known}
        if self._is_local:
            return {name: index for name, index in known.items() if _flags(name) & _LOOPBACK}
        return {name: index for name, index in known.items() if _flags(name) & (_UP | _MULTICAST) == _UP | _MULTICAST}

    def _join(self, name: str, index: int) -> None:
        group = ipaddress.ip_address(self._group.host).packed
        try:
            if self._family == socket.AF_INET6:
                member = group + struct.pack("@I", index)
                self._ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
            else:
                member = struct.pack("@4s4si", group, b"\0" * 4, index)
                self._ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # it was down for a while: the membership has lasted
                log.debug("cannot hear hellos", extra={"interface": name, "reason": str(error)})
                return
        self._joined[name] = index
        log.info("says hello", extra={"interface": name, "group": str(self._group)})

    # -- the network's side --

    def send(self, address: str, data: bytes) -> None:
        """Hellos go to everybody: nobody is spoken to alone."""

    def send_discovery(self, data: bytes) -> None:
        if monotonic() - self._looked_at > LOOK_S:
            self._look()
        for name, index in self._joined.items():
            try:
                self._send(index, data)
            except OSError as error:  # the interface is down, or has no address yet
                log.debug("no hello", extra={"interface": name, "reason": str(error)})

    def _send(self, index: int, data: bytes) -> None:
        if self._family == socket.AF_INET6:
            self._mouth.sendto(data, (self._group.host, self._group.port, 0, index))
        else:
            member = struct.pack("@4s4si", b"\0" * 4, b"\0" * 4, index)
            self._mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member)
            self._mouth.sendto(data, (self._group.host, self._group.port))

    def datagram_received(self, data: bytes, address: Any) -> None:
        self._heard(_text_of(address), data)

    def error_received(self, error: Exception) -> None:
        """The overlay notices by the silence."""

    def close(self) -> None:
        self._mouth.close()
        if self._transport is not None:
            self._transport.close()
        else:
            self._ear.close()


def _address(family: int, bind: Bind) -> Any:
    """Of a socket, scope included; OSError if the host is of another family."""
    try:
        return socket.getaddrinfo(bind.host, bind.port, family=family, type=socket.SOCK_DGRAM)[0][4]
    except socket.gaierror as error:
        raise OSError(error.errno, error.strerror) from error


def _flags(name: str) -> int:
    try:
        return int(Path(f"/sys/class/net/{name}/flags").read_text(), 16)
    except (OSError, ValueError):
        return 0


def _text_of(address: Any) -> str:
    """host:port, with the scope of a link-local address."""
    host, port = address[0], address[1]
    if ":" not in host:
        return f"{host}:{port}"
    if len(address) > 3 and address[3] and "%" not in host and host.startswith("fe80"):
        host = f"{host}%{socket.if_indextoname(address[3])}"
    return f"[{host}]:{port}"
