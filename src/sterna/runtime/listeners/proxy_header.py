"""The header with which a load balancer says who its client is (PROXY protocol, version 2).

It comes before everything else, TLS included.  Addresses of the header are believed only from proxies that the
configuration names; a header that is late, too long or no header ends the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
HEAD_BYTES = 16
BODY_BYTES_MAX = 4096
"""Addresses and what else the proxy tells of the connection; 216 would do for addresses alone."""

_LOCAL, _PROXY = 0x20, 0x21
_TCP_4, _TCP_6 = 0x11, 0x21


class BadProxyHeader(OSError):
    """The proxy did not say who its client is."""


def body_length(head: bytes) -> int:
    """Of the header that begins with these 16 bytes.  May raise BadProxyHeader."""
    if not head.startswith(SIGNATURE):
        raise BadProxyHeader("no PROXY protocol header of version 2: is the load balancer set to send one?")
    length = int.from_bytes(head[14:16])
    if length > BODY_BYTES_MAX:
        raise BadProxyHeader(f"a PROXY protocol header of {length} bytes, where {BODY_BYTES_MAX} are plenty")
    return length


def client_address(head: bytes, body: bytes) -> tuple[str, int] | None:
    """Host and port of the client; None if the proxy speaks for itself, as in its health checks.  May raise
    BadProxyHeader."""
    command, family = head[12], head[13]
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise BadProxyHeader(f"a PROXY protocol header with command 0x{command:02x}")
    size = {_TCP_4: 4, _TCP_6: 16}.get(family)
    if size is None or len(body) < 2 * size + 4:
        raise BadProxyHeader(f"a PROXY protocol header with family 0x{family:02x} and {len(body)} bytes")
    host = ipaddress.ip_address(body[:size])
    return str(host), int.from_bytes(body[2 * size : 2 * size + 2])


async def read_header(client: socket.socket, within_s: float) -> tuple[str, int] | None:
    """Read the header off a fresh connection, and not a byte more.  May raise OSError."""
    try:
        async with asyncio.timeout(within_s):
            head = await _exactly(client, HEAD_BYTES)
            return client_address(head, await _exactly(client, body_length(head)))
    except TimeoutError:
        raise BadProxyHeader("no PROXY protocol header in time") from None


async def _exactly(client: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < size:
        piece = await loop.sock_recv(client, size - len(found))
        if not piece:
            raise BadProxyHeader("the connection ended before its PROXY protocol header")
        found += piece
    return found
