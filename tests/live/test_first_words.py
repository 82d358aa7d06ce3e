"""Connections before they are clients: TLS that fails, pages of other hosts, WebSocket pings without end."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from conformance.packets import Connect
from sterna.runtime.listeners.listeners import FAILURES_LOGGED_MAX
from sterna.runtime.listeners.websocket import foreign_origin

from .certificates import Authority
from .conftest import Join
from .nodes import LiveNode, wait_until

MIB = 1024 * 1024
OUTPUT_BYTES = 65536
CONNACK_3_1_1 = b"\x20\x02\x00\x00"

_TOML = """
[limits]
output_bytes = {output_bytes}
[[listener]]
bind = "127.0.0.1:0"
[[listener]]
bind = "127.0.0.1:0"
{tls}
[[listener]]
bind = "unix:{unix}"
{tls}
[[listener]]
bind = "127.0.0.1:0"
transport = "websocket"
[[listener]]
bind = "127.0.0.1:0"
transport = "websocket"
allowed_origins = ["https://plant.example"]
[admin]
bind = "127.0.0.1:0"
"""


@dataclass
class Doors:
    node: LiveNode
    authority: Authority
    unix: Path

    @property
    def tls(self) -> int:
        return self.node.ports[1]

    @property
    def websocket(self) -> int:
        return self.node.ports[3]

    def failed_handshakes(self) -> float:
        return self.node.metric("sterna_connections_refused_total", reason="tls-handshake")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    directory = tmp_path_factory.mktemp("doors")
    short = Path(tempfile.mkdtemp(prefix="sterna-"))  # the path of a Unix socket must be short
    authority = Authority(directory / "authority", "authority")
    certificate, key = authority.issue("server")
    tls = f'certificate = "{certificate}"\nkey = "{key}"'
    with LiveNode(directory / "node", _TOML.format(output_bytes=OUTPUT_BYTES, tls=tls, unix=short / "mqtt")) as node:
        yield Doors(node, authority, short / "mqtt")
        assert node.stop() == 0
    shutil.rmtree(short)


# -- TLS --


def test_a_failed_handshake_is_logged_with_its_address_and_counted(doors: Doors) -> None:
    before = doors.failed_handshakes()
    with socket.create_connection(("127.0.0.1", doors.tls), 10) as raw:
        address = "{}:{}".format(*raw.getsockname())
        raw.sendall(Connect("plain").encode(5))
        with suppress(ConnectionError):
            while raw.recv(4096):
                pass
    wait_until(lambda: doors.failed_handshakes() == before + 1, "it is counted")
    told = [event for event in doors.node.events("TLS handshake failed") if event["address"] == address]
    assert [event["level"] for event in told] == ["warning"]
    assert told[0]["reason"] == "wrong version number: the client does not speak TLS"


def test_the_log_says_that_a_client_does_not_trust_the_certificate(doors: Doors) -> None:
    with socket.create_connection(("127.0.0.1", doors.tls), 10) as raw:
        address = "{}:{}".format(*raw.getsockname())
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(raw, server_hostname="localhost")

    def told() -> list[object]:
        failed = doors.node.events("TLS handshake failed")
        return [event["reason"] for event in failed if event["address"] == address]

    wait_until(lambda: bool(told()), "it is logged")
    assert told() == ["tlsv1 alert unknown ca: the client does not accept the certificate of this listener"]


def test_one_who_leaves_in_the_middle_of_the_handshake_is_counted(doors: Doors) -> None:
    before = doors.failed_handshakes()
    socket.create_connection(("127.0.0.1", doors.tls), 10).close()
    wait_until(lambda: doors.failed_handshakes() == before + 1, "it is counted")


def test_failed_handshakes_do_not_fill_the_log(doors: Doors) -> None:
    before = doors.failed_handshakes()
    for _ in range(3 * FAILURES_LOGGED_MAX):
        with socket.create_connection(("127.0.0.1", doors.tls), 10) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    wait_until(lambda: doors.failed_handshakes() == before + 3 * FAILURES_LOGGED_MAX, "all of them are counted")
    # Two periods at most have been begun since the node started.
    assert 0 < len(doors.node.events("TLS handshake failed")) <= 2 * FAILURES_LOGGED_MAX


def test_a_good_handshake_counts_as_none_that_failed(doors: Doors, join: Join, topic: str) -> None:
    before = doors.failed_handshakes()
    client = join(doors.tls, tls=doors.authority.context())
    client.subscribe(topic, 1)
    client.publish(topic, b"safe", 1)
    assert client.payloads() == [b"safe"]
    assert doors.failed_handshakes() == before


def test_tls_goes_over_a_unix_socket_too(doors: Doors) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(60)
        raw.connect(str(doors.unix))
        with doors.authority.context().wrap_socket(raw, server_hostname="localhost") as secured:
            secured.sendall(Connect("unix-tls").encode(4))
            assert secured.recv(4) == CONNACK_3_1_1


def test_connect_in_the_flight_that_ends_the_handshake_is_not_lost(doors: Doors) -> None:
    """With TLS 1.3 a client may speak as soon as it has said Finished: both arrive in one piece."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = doors.authority.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", doors.tls), 10) as raw:
        for _ in range(20):
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(65536))
        client.write(Connect("hasty").encode(4))
        raw.sendall(outgoing.read())
        answer = b""
        while len(answer) < 4:
            try:
                answer += client.read(4)
            except ssl.SSLWantReadError:
                incoming.write(raw.recv(65536))
        assert answer == CONNACK_3_1_1


@pytest.mark.parametrize("command", [["pub", "-m", "x"], ["sub"]], ids=["pub", "sub"])
def test_our_own_clients_say_what_is_wrong_with_a_plain_connection_to_a_tls_port(
    doors: Doors, command: list[str]
) -> None:
    words = [sys.executable, "-m", "sterna", *command, "-p", str(doors.tls), "-t", "a"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, env=kept)
    assert (ended.returncode, ended.stdout) == (7, "")
    complaint = "The connection was closed before CONNACK. Is this a TLS port? Try --cafile. A gateway"
    assert ended.stderr.startswith(f"Error: localhost:{doors.tls}: {complaint} ")


# -- Origin --


def upgrade(doors: Doors, origin: str | None, port: int = 0) -> ClientConnection:
    return connect(
        f"ws://127.0.0.1:{port or doors.websocket}/mqtt",
        subprotocols=[Subprotocol("mqtt")],
        compression=None,
        origin=None if origin is None else Origin(origin),
    )


@pytest.mark.parametrize("origin", [None, "http://127.0.0.1", "https://127.0.0.1:8080", "HTTP://127.0.0.1"])
def test_a_page_of_the_same_host_and_a_client_that_is_no_browser_may_connect(doors: Doors, origin: str | None) -> None:
    with upgrade(doors, origin) as websocket:
        websocket.send(Connect("page").encode(4))
        assert websocket.recv(10, decode=False) == CONNACK_3_1_1


@pytest.mark.parametrize(
    "origin",
    ["http://elsewhere.example", "http://127.0.0.1.elsewhere.example", "http://localhost", "null", "http://[", "x", ""],
)
def test_a_page_of_another_host_is_refused_and_named_in_the_log(doors: Doors, origin: str) -> None:
    before = len(doors.node.events("connection failed"))
    with pytest.raises(InvalidStatus) as refusal:
        upgrade(doors, origin)
    assert refusal.value.response.status_code == 403
    wait_until(lambda: len(doors.node.events("connection failed")) > before, "the refusal is logged")
    reason = doors.node.events("connection failed")[-1]["reason"]
    assert origin in reason
    assert reason.endswith("add it to allowed_origins of this [[listener]]")


@pytest.mark.parametrize(
    ("origins", "allowed", "refused"),
    [
        (["https://plant.example"], ["https://plant.example"], None),
        (["HTTPS://Plant.example"], ["https://plant.example"], None),
        (["https://plant.example:8443"], ["https://plant.example"], "https://plant.example:8443"),
        (["http://plant.example"], ["https://plant.example"], "http://plant.example"),
        (["http://here"], ["https://plant.example"], "http://here"),
        (["https://a", "https://plant.example"], ["https://plant.example"], "https://a, https://plant.example"),
        (["null"], ["null"], None),
        (["http://anywhere"], ["*"], None),
        ([], ["https://plant.example"], None),
        (["http://here", "http://here"], [], "http://here, http://here"),
    ],
)
def test_a_list_of_origins_is_taken_at_its_word(origins: list[str], allowed: list[str], refused: str | None) -> None:
    """It takes the place of the rule about the same host, and a client that names none is no browser."""
    headers = Headers([("Host", "here:9001"), *(("Origin", origin) for origin in origins)])
    assert foreign_origin(Request("/mqtt", headers), tuple(allowed)) == refused


def test_the_origins_of_the_configuration_may_connect_and_no_others(doors: Doors) -> None:
    port = doors.node.ports[4]
    for origin in ("https://plant.example", None):
        with upgrade(doors, origin, port) as websocket:
            assert websocket.subprotocol == "mqtt"
    with pytest.raises(InvalidStatus) as refusal:
        upgrade(doors, "http://127.0.0.1", port)
    assert refusal.value.response.status_code == 403


# -- pings --


def upgraded_by_hand(port: int) -> socket.socket:
    """A socket with a small buffer on which the WebSocket handshake is done, and which nobody reads."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    raw.settimeout(60)
    raw.connect(("127.0.0.1", port))
    lines = [
        *("GET /mqtt HTTP/1.1", "Host: here", "Upgrade: websocket", "Connection: Upgrade"),
        *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt"),
        f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
    ]
    raw.sendall("\r\n".join([*lines, "\r\n"]).encode())
    assert raw.recv(4096).startswith(b"HTTP/1.1 101 ")
    return raw


def send_until_cut_off(raw: socket.socket, data: bytes, at_most: int) -> int:
    sent = 0
    with suppress(ConnectionError):
        while sent < at_most:
            sent += raw.send(data)
    return sent


@pytest.mark.parametrize("is_connected", [False, True], ids=["before CONNECT", "after CONNECT"])
def test_a_websocket_that_pings_and_pings_and_never_reads_is_cut_off(
    doors: Doors, join: Join, is_connected: bool
) -> None:
    resident = doors.node.resident_bytes
    ping = b"\x89\xfd" + bytes(4) + bytes(125)  # the longest there is, masked with zeros
    with upgraded_by_hand(doors.websocket) as flood:
        if is_connected:
            packet = Connect("flood").encode(4)
            flood.sendall(b"\x82" + bytes([0x80 | len(packet)]) + bytes(4) + packet)
            assert flood.recv(6) == b"\x82\x04" + CONNACK_3_1_1
        assert send_until_cut_off(flood, ping * 500, 64 * MIB) < 64 * MIB
    assert doors.node.resident_bytes - resident < 16 * MIB
    assert join(doors.node).subscribe("still/here", 1) == 1
