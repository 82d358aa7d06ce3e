"""Links to other nodes on asyncio transports: a door for those who connect to us, and connections we keep making.

Nothing is decided about links here: a `Channel` gets the bytes and the words of flow, `Dialling` says when an address
is dialled.  Where several connections are configured, those we make to one node are a bundle; what others make is what
they say it is.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from contextlib import suppress
from random import Random
from time import monotonic
from typing import Any

from sterna.overlay.bundle import NAME_BYTES, Preamble
from sterna.overlay.dialling import LOOK_AGAIN_S, Dialling
from sterna.runtime.config.schema import Bind, Unusable
from sterna.runtime.config.settings import NetworkTable, NetworkTls
from sterna.runtime.links.bundles import BundledConnections, MemberProtocol, Newcomer
from sterna.runtime.links.connections import LinkedNode, LinkProtocol, LinkServer
from sterna.runtime.tls import RenewableContext, digest_of, expires_at, server_context
from sterna.vocabulary.errors import ConfigurationError

log = logging.getLogger(__name__)


class LinkTls:
    """How links are encrypted from now on."""

    def __init__(self, inward: ssl.SSLContext, outward: ssl.SSLContext, digest: str, expires_at: float) -> None:
        self.inward = RenewableContext(inward, digest, expires_at)
        self.outward = outward

    def renew(self, inward: ssl.SSLContext, outward: ssl.SSLContext, digest: str, expires_at: float) -> bool:
        """For connections to come; those that stand stay.  Whether that makes a difference."""
        self.outward = outward
        return self.inward.renew(inward, digest, expires_at)


class LinkWorld:
    """`open` the door, `dial` and `undial` addresses, `close` all of it."""

    def __init__(self, settings: NetworkTable, server: LinkServer, network: LinkedNode, rng: Random) -> None:
        self._settings = settings
        self._server = server
        self._network = network
        self._rng = rng
        self._door: asyncio.Server | None = None
        self._dials: dict[str, _Dial] = {}
        #: Bundles that are not complete yet, by name.
        self._gathering: dict[bytes, BundledConnections] = {}
        self.tls: LinkTls | None = LinkTls(*contexts(settings.tls)) if settings.tls is not None else None

    async def open(self) -> Bind | None:
        """Listen where the configuration says; the address, with the real port where 0 was asked for."""
        bind = self._settings.bind
        if bind is None:
            return None
        loop = asyncio.get_running_loop()
        inward = self.tls.inward.outer if self.tls is not None else None
        patience = self._settings.handshake_s if inward else None
        try:
            self._door = await loop.create_server(
                self._accepted, bind.host, bind.port, ssl=inward, ssl_handshake_timeout=patience
            )
        except OSError as error:
            reason = why(error)
            raise ConfigurationError(f"cannot listen on {bind}: {reason}; set another bind in [network]") from error
        return Bind(bind.host, self._door.sockets[0].getsockname()[1])

    def _accepted(self) -> LinkProtocol:
        return Newcomer(self._server, self._network.accept, self._gathering)

    def hold_links(self, dial: dict[str, str]) -> None:
        """Keep exactly these addresses dialled, whatever name they stand under; what is new comes last."""
        wanted = dict.fromkeys(dial.values())
        for address in [address for address in self._dials if address not in wanted]:
            self.undial(address)
        for address in wanted:
            self.dial(address)

    def dial(self, address: str) -> None:
        """Connect, and connect again, until it is undialled.  An address that is dialled already stays as it is."""
        if address in self._dials:
            return
        try:
            bind = Bind.parse(address)
            if bind.path:
                raise Unusable("nodes do not link over Unix sockets", "write host:port")
        except Unusable as error:
            log.warning("cannot connect to a neighbour", extra={"address": address, "reason": str(error)})
            return
        self._dials[address] = _Dial(bind, self._settings, self.tls, self._server, self._network, self._rng)

    def undial(self, address: str, reason: str = "no neighbour any more") -> None:
        """Dial no more, and end the link that came of it.  A link the other node made stays."""
        dial = self._dials.pop(address, None)
        if dial is not None:
            dial.stop(reason)

    def dialled(self) -> dict[str, str]:
        """For people: address -> how it stands with it."""
        return {address: dial.state() for address, dial in self._dials.items()}

    async def close(self) -> None:
        """Take and make no new connections."""
        for address in list(self._dials):
            self.undial(address, "the node is stopping")
        if self._door is not None:
            self._door.close()


class _Dial:
    """One address that is to be connected to."""

    def __init__(
        self,
        bind: Bind,
        settings: NetworkTable,
        tls: LinkTls | None,
        server: LinkServer,
        network: LinkedNode,
        rng: Random,
    ) -> None:
        self._bind = bind
        self._settings = settings
        self._tls = tls
        self._server = server
        self._network = network
        self._rng = rng
        self._connection: LinkProtocol | BundledConnections | None = None
        self._dialling = Dialling(network, rng, settings.dial_s, settings.dial_max_s)
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    def stop(self, reason: str) -> None:
        self._task.cancel()
        if self._connection is not None:
            # In a turn of its own: whoever asks may be in the middle of what a link told it.
            asyncio.get_running_loop().call_soon(self._leave, self._connection, reason)

    def _leave(self, connection: LinkProtocol | BundledConnections, reason: str) -> None:
        if connection.channel is not None:
            self._server.broker.at(monotonic())
            connection.channel.leave(reason)
            self._server.after_work()

    async def _keep_connected(self) -> None:
        while True:
            await self._connect_once()
            known = self._dialling.trouble
            while (pause_s := self._dialling.pause_s()) is None:
                known = self._tell_stand_by(known)
                await asyncio.sleep(LOOK_AGAIN_S)
            await asyncio.sleep(pause_s)

    def _tell_stand_by(self, known: str) -> str:
        """Why the address is not dialled; once per reason."""
        why_not = self._dialling.trouble
        if why_not != known:
            fields = {"address": str(self._bind), "peer": self._dialling.peer, "why": why_not}
            log.info("a link stands by", extra=fields)
        return why_not

    async def _connect_once(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # Not `wait_for`: it forgets that it was cancelled if the connection stands in the same turn, and then an
            # address that was given up would be dialled for ever.
            async with asyncio.timeout(self._settings.handshake_s):
                connection = await (self._open() if self._settings.connections == 1 else self._open_bundle())
        except (OSError, UnicodeError) as error:  # the latter for names that cannot be names of hosts
            self._complain(why(error))
            self._connection = None
            return
        self._dialling.connected(loop.time())
        await connection.gone.wait()
        self._connection = None
        if connection.channel is None:
            self._complain("the connection was closed")
        else:
            self._dialling.lost(connection.channel, loop.time())

    async def _open(self) -> LinkProtocol:
        protocol = self._connection = LinkProtocol(self._server, self._network.dialled)
        await self._connect(protocol, self._bind.host)
        return protocol

    async def _open_bundle(self) -> BundledConnections:
        count, name = self._settings.connections, self._rng.randbytes(NAME_BYTES)
        connections = self._connection = BundledConnections(self._server, count)
        first, *others = (MemberProtocol(connections, Preamble(name, index, count)) for index in range(count))
        try:
            await self._connect(first, self._bind.host)
            # A name may stand for several machines; the bundle has to come to one of them.
            opened = (self._connect(other, connections.host or self._bind.host) for other in others)
            for result in await asyncio.gather(*opened, return_exceptions=True):
                if result is not None:
                    raise result
        except BaseException:
            connections.bundle.abort()
            raise
        connections.open(self._network.dialled)
        return connections

    async def _connect(self, protocol: asyncio.Protocol, host: str) -> None:
        encrypted = self._tls is not None
        where: dict[str, Any] = {"host": host, "port": self._bind.port}
        if "%" in host:
            where = {"sock": await _scoped(host, self._bind.port)}
        await asyncio.get_running_loop().create_connection(
            lambda: protocol,
            **where,
            ssl=self._tls.outward if self._tls is not None else None,
            server_hostname=self._bind.host if encrypted else None,
            ssl_handshake_timeout=self._settings.handshake_s if encrypted else None,
        )

    def state(self) -> str:
        channel = self._connection.channel if self._connection is not None else None
        if channel is not None and channel.is_open:
            several = f" over {self._settings.connections} connections" if self._settings.connections > 1 else ""
            return f"linked with node {channel.peer}{several}"
        if self._dialling.is_linked:
            return f"linked with node {self._dialling.peer}, which made the connection"
        return self._dialling.trouble or "connecting"

    def _complain(self, reason: str) -> None:
        """Once per reason: it will be tried again and again."""
        if self._dialling.failed(reason):
            log.warning("cannot connect to a neighbour", extra={"address": str(self._bind), "reason": reason})


async def _scoped(host: str, port: int) -> socket.socket:
    """A connection to an IPv6 address that holds in the scope of one interface: the event loop would forget which."""
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    connected = asyncio.Event()
    try:
        sock.setblocking(False)
        error = sock.connect_ex(address)
        if error == errno.EINPROGRESS:
            loop.add_writer(sock.fileno(), connected.set)
            await connected.wait()
            loop.remove_writer(sock.fileno())
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        loop.remove_writer(sock.fileno())
        sock.close()
        raise
    return sock


def contexts(tls: NetworkTls) -> tuple[ssl.SSLContext, ssl.SSLContext, str, float]:
    """For connections others make and for those we make: each side shows a certificate of the same authority.  With
    the digest of their files, and when the certificate expires."""
    inward = server_context(str(tls.certificate), str(tls.key), str(tls.ca), required=True)
    outward = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(tls.ca))
    outward.minimum_version = ssl.TLSVersion.TLSv1_2
    outward.load_cert_chain(str(tls.certificate), str(tls.key))
    outward.check_hostname = tls.check_names
    return inward, outward, digest_of(tls.certificate, tls.key, tls.ca), expires_at(tls.certificate)


def why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        with suppress(ValueError, OverflowError):
            if error.errno is not None and error.errno > 0:
                return os.strerror(error.errno)
        return error.strerror or str(error)
    return str(error)
