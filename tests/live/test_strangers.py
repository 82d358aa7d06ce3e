"""Connections that have not logged in cost a node little: bytes, descriptors, and other clients' time are bounded."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from conformance.packets import Connect, Will

from .certificates import Authority
from .conftest import Join
from .nodes import LiveNode, wait_until

MIB = 1024 * 1024
ADMIN = '[admin]\nbind = "127.0.0.1:0"\n'
UNFINISHED = Connect("stranger", will=Will("t", b"x" * 60_000)).encode(4)[:-1]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def dial(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))


def is_closed(opened: socket.socket) -> bool:
    """Has the other side closed it by now?"""
    opened.setblocking(False)
    try:
        return opened.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def send_all(opened: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):
        opened.sendall(data)


def websocket_frame_of(size: int) -> bytes:
    """The header of a masked binary frame of so many bytes."""
    return b"\x82\xff" + struct.pack(">Q", size) + bytes(4)


def upgraded(stack: ExitStack, port: int) -> socket.socket:
    opened = dial(stack, port)
    opened.sendall(
        b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    assert b" 101 " in opened.recv(4096)
    return opened


def test_a_connect_larger_than_its_limit_is_refused_before_it_has_come(tmp_path: Path, stack: ExitStack) -> None:
    with LiveNode(tmp_path, ADMIN) as node:
        opened = dial(stack, node.port)
        send_all(opened, b"\x10\xff\xff\x3f")  # a CONNECT of 1 MiB, as far as its length goes
        wait_until(lambda: is_closed(opened), "it is closed")
        refused = node.metric("sterna_connections_refused_total", reason="packet-too-large")
        assert refused == 1
        assert "limits.connect_bytes" in node.events("connection failed")[0]["reason"]


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
def test_unfinished_connects_of_many_strangers_take_a_bounded_memory(
    tmp_path: Path, stack: ExitStack, join: Join, transport: str
) -> None:
    toml = f"""{ADMIN}[limits]
unauthenticated_bytes = {4 * MIB}
connect_s = 3600
[[listener]]
bind = "127.0.0.1:0"
[[listener]]
bind = "127.0.0.1:0"
transport = "websocket"
"""
    with LiveNode(tmp_path, toml) as node:
        before = node.resident_bytes
        strangers = []
        for _ in range(400):  # 24 MB of them
            if transport == "tcp":
                stranger = dial(stack, node.ports[0])
                send_all(stranger, UNFINISHED)
            else:
                stranger = upgraded(stack, node.ports[1])
                send_all(stranger, websocket_frame_of(MIB) + bytes(60_000))
            strangers.append(stranger)

        def refused() -> float:
            return node.metric("sterna_connections_refused_total", reason="quota-exceeded")

        wait_until(lambda: refused() >= 300, "those that do not fit are refused", 60.0)
        assert node.resident_bytes - before < 20 * MIB
        assert refused() < 400, "those that fit are not"
        # A CONNECT that comes in one piece is held by nobody.
        assert join(node).subscribe("t", 1) == 1


def test_a_websocket_frame_that_is_announced_larger_than_a_connect_is_not_waited_for(
    tmp_path: Path, stack: ExitStack
) -> None:
    toml = ADMIN + '[[listener]]\nbind = "127.0.0.1:0"\ntransport = "websocket"\n'
    with LiveNode(tmp_path, toml) as node:
        opened = upgraded(stack, node.port)
        send_all(opened, websocket_frame_of(MIB) + bytes(100_000))
        wait_until(lambda: is_closed(opened), "it is closed")
        assert node.metric("sterna_connections_refused_total", reason="packet-too-large") == 1


def test_handshakes_count_among_the_connections_of_their_address(tmp_path: Path, stack: ExitStack) -> None:
    certificate, key = Authority(tmp_path / "authority", "authority").issue("server")
    toml = f"""{ADMIN}[limits]
connections_per_address = 10
connect_s = 3600
[[listener]]
bind = "127.0.0.1:0"
certificate = "{certificate}"
key = "{key}"
"""
    with LiveNode(tmp_path / "node", toml) as node:
        silent = [dial(stack, node.port) for _ in range(30)]
        wait_until(lambda: sum(map(is_closed, silent)) == 20, "all but ten are closed")
        assert node.metric("sterna_connections_refused_total", reason="connections-per-address") == 20
        for one in silent:
            one.close()
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

        def is_let_in() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", node.port), 20) as raw:
                unverified.wrap_socket(raw).close()
                return True
            return False

        wait_until(is_let_in, "those that have left count no longer", 60.0)


def test_strangers_leave_descriptors_for_the_journal_and_the_admin_port(
    tmp_path: Path, stack: ExitStack, join: Join
) -> None:
    toml = f"""{ADMIN}[limits]
connect_s = 3600
connections = 5000
[journal]
segment_bytes = 65536
"""
    with LiveNode(tmp_path, toml, within=["prlimit", "--nofile=400:400"]) as node:
        said = node.events("open files bound the number of clients")
        assert [(event["level"], event["limits.connections"]) for event in said] == [("warning", 5000)]
        client = join(node)
        client.subscribe("t", 1)
        strangers = [dial(stack, node.port) for _ in range(600)]
        wait_until(lambda: node.metric("sterna_connections_refused_total", reason="descriptors") > 100, "many refused")
        for number in range(60):  # several segments
            client.publish("t", b"%d" % number + bytes(8000), 1)
        wait_until(lambda: len(client.messages) == 60, "all of them come back", 60.0)
        assert not node.events("the journal cannot be written")
        assert node.ask("/healthz")[0] == 200
        for one in strangers:
            one.close()
        assert join(node).subscribe("t", 1) == 1
