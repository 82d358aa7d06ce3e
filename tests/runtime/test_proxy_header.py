"""The PROXY protocol's header, version 2: whole, cut, forged, and of kinds that carry no client."""

from __future__ import annotations

import ipaddress

import pytest

from sterna.runtime.listeners.proxy_header import (
    BODY_BYTES_MAX,
    HEAD_BYTES,
    SIGNATURE,
    BadProxyHeader,
    body_length,
    client_address,
)


def header(source: str, port: int, *, command: int = 0x21, family: int | None = None, more: bytes = b"") -> bytes:
    host = ipaddress.ip_address(source)
    body = host.packed * 2 + port.to_bytes(2) + (1883).to_bytes(2) + more
    kind = (0x11 if host.version == 4 else 0x21) if family is None else family
    return SIGNATURE + bytes([command, kind]) + len(body).to_bytes(2) + body


def parsed(data: bytes) -> tuple[str, int] | None:
    head = data[:HEAD_BYTES]
    return client_address(head, data[HEAD_BYTES : HEAD_BYTES + body_length(head)])


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_the_client_is_the_one_the_proxy_names(host: str) -> None:
    assert parsed(header(host, 40000)) == (host, 40000)
    assert parsed(header(host, 1, more=b"\x04\x00\x01x")) == (host, 1)


def test_a_health_check_of_the_proxy_names_nobody() -> None:
    assert parsed(SIGNATURE + b"\x20\x00\x00\x00") is None


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 1883\r\n",
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
        header("192.0.2.7", 1, command=0x31),
        header("192.0.2.7", 1, family=0x21),
        header("192.0.2.7", 1, family=0x31),
        SIGNATURE + b"\x21\x11\x00\x04abcd",
        SIGNATURE + b"\x21\x11" + (BODY_BYTES_MAX + 1).to_bytes(2),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        parsed(data)
