"""Clients behind a load balancer that speaks the PROXY protocol: they are known by their own addresses."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.test_proxy_header import header

from .certificates import Authority
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

CONNECT = b"\x10\x14\x00\x04MQTT\x04\x02\x00\x3c\x00\x08proxied1"
CONNACK = b"\x20\x02\x00\x00"
StartNode = Callable[[str], LiveNode]


def config(proxies: str, more: str = "") -> str:
    listener = f'[[listener]]\nbind = "127.0.0.1:0"\nproxies = ["{proxies}"]\n'
    return f'[admin]\nbind = "127.0.0.1:0"\n{listener}{more}'


def addresses(node: LiveNode) -> list[str]:
    with urllib.request.urlopen(f"http://{node.admin}/clients", timeout=240) as answer:
        return [one["address"] for one in json.load(answer)]


def answer(node: LiveNode, sent: bytes) -> bytes:
    """The answer; nothing from a connection that is closed with our bytes unread."""
    with socket.create_connection(node.address, 60) as raw:
        try:
            raw.sendall(sent)
            return raw.recv(100)
        except ConnectionError:
            return b""


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_has_the_address_that_the_proxy_names(start_node: StartNode, tmp_path: Path, secure: bool) -> None:
    Authority(tmp_path, "proxies").issue("server")
    tls = f'certificate = "{tmp_path}/server.pem"\nkey = "{tmp_path}/server.key"\n' if secure else ""
    node = start_node(config("127.0.0.0/8", tls))
    with socket.create_connection(node.address, 60) as raw:
        sent = header("192.0.2.7", 40000)
        raw.sendall(sent[:5])
        raw.sendall(sent[5:])
        line: socket.socket = raw
        if secure:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            context.check_hostname = False
            line = context.wrap_socket(raw)
        line.sendall(CONNECT)
        assert line.recv(4) == CONNACK
        assert addresses(node) == ["192.0.2.7:40000"]
        line.close()


def test_without_the_header_nobody_gets_in(start_node: StartNode) -> None:
    node = start_node(config("127.0.0.1"))
    assert answer(node, CONNECT + b"\xc0\x00") == b""
    wait_until(lambda: node.metric("sterna_connections_refused_total", reason="proxy-header") == 1, "it is counted")


def test_a_stranger_cannot_name_an_address(start_node: StartNode) -> None:
    node = start_node(config("192.0.2.1"))
    assert answer(node, header("192.0.2.7", 40000) + CONNECT) == b""
    wait_until(lambda: node.metric("sterna_connections_refused_total", reason="proxy-header") == 1, "it is counted")
