"""One node, every way in at once: TCP, TLS, mutual TLS, WebSocket, secure WebSocket, Unix socket."""

from __future__ import annotations

import base64
import re
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from conformance.packets import Connect, Disconnect, Pingreq

from .certificates import Authority
from .clients import Paho, Refused, mosquitto, output
from .conftest import Join
from .nodes import LiveNode, wait_until

WAYS = ["tcp", "tls", "mutual", "websocket", "secure", "unix"]
LARGE = bytes(range(256)) * 3600  # 900 KB
CONNACK_3_1_1 = b"\x20\x02\x00\x00"

_TOML = """
[limits]
connect_s = 5.0
[authentication]
certificates = true
[[listener]]
bind = "127.0.0.1:0"
[[listener]]
bind = "127.0.0.1:0"
{tls}
[[listener]]
bind = "127.0.0.1:0"
{tls}
client_ca = "{ca}"
require_certificate = true
[[listener]]
bind = "127.0.0.1:0"
transport = "websocket"
[[listener]]
bind = "127.0.0.1:0"
transport = "websocket"
{tls}
[[listener]]
bind = "unix:{unix}"
[authorization]
default = "allow"
[[authorization.rule]]
user = ["anonymous"]
filters = ["users/#"]
effect = "deny"
[[authorization.rule]]
filters = ["users/%u/#"]
[[authorization.rule]]
filters = ["users/#"]
effect = "deny"
"""


@dataclass
class House:
    """The node with all its doors, and the keys to them."""

    node: LiveNode
    authority: Authority
    stranger: Authority
    unix: Path

    def port(self, way: str) -> int:
        return self.node.ports[WAYS.index(way)]

    def door(self, way: str) -> tuple[int | Path, dict[str, Any]]:
        """Where to knock, and how."""
        settings: dict[str, Any] = {}
        if way in ("tls", "secure"):
            settings["tls"] = self.authority.context()
        if way == "mutual":
            settings["tls"] = self.authority.context(self.authority.issue("alice"))
        if way in ("websocket", "secure"):
            settings["transport"] = "websockets"
        if way == "unix":
            return self.unix, {"transport": "unix"}
        return self.port(way), settings


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("house")
    # The path of a Unix socket has to fit into 107 bytes, which pytest's directories may not.
    short = Path(tempfile.mkdtemp(prefix="sterna-"))
    authority = Authority(directory / "authority", "live authority")
    certificate, key = authority.issue("server")
    tls = f'certificate = "{certificate}"\nkey = "{key}"'
    toml = _TOML.format(tls=tls, ca=authority.file, unix=short / "mqtt")
    with LiveNode(directory / "node", toml) as node:
        yield House(node, authority, Authority(directory / "stranger", "somebody else"), short / "mqtt")
        assert node.stop() == 0
        assert not (short / "mqtt").exists(), "the socket file goes with the node"
    shutil.rmtree(short)


@pytest.fixture
def enter(house: House, join: Join) -> Callable[..., Paho]:
    def enter(way: str, **settings: Any) -> Paho:
        at, needed = house.door(way)
        return join(at, **needed, **settings)

    return enter


@pytest.mark.parametrize("way", WAYS)
def test_every_transport_carries_every_qos_both_ways(
    enter: Callable[..., Paho], way: str, version: int, topic: str
) -> None:
    client = enter(way, version=version)
    client.subscribe(topic, 2)
    sent = [(b"%d" % number, number % 3) for number in range(60)]
    for payload, qos in sent:
        client.send(topic, payload, qos)
    assert sorted((int(m.payload), m.qos) for m in client.receive(60)) == [(int(p), qos) for p, qos in sent]


def test_a_message_that_came_one_way_leaves_by_all_the_others(enter: Callable[..., Paho], topic: str) -> None:
    clients = {way: enter(way, version=4 + number % 2) for number, way in enumerate(WAYS)}
    for client in clients.values():
        client.subscribe(topic, 1)
    for way, client in clients.items():
        client.publish(topic, way.encode(), 1)
    for client in clients.values():
        assert client.payloads(len(WAYS)) == [way.encode() for way in WAYS]


@pytest.mark.parametrize("way", WAYS)
def test_a_large_payload_crosses_every_transport(enter: Callable[..., Paho], way: str, topic: str) -> None:
    client = enter(way)
    client.subscribe(topic, 1)
    client.publish(topic, LARGE, 1)
    assert client.payloads() == [LARGE]


@pytest.mark.parametrize("way", ["tls", "unix"])
def test_mosquitto_comes_in_through_tls_and_unix_sockets(house: House, way: str, version: int, topic: str) -> None:
    door = ["--cafile", str(house.authority.file)] if way == "tls" else ["--unix", str(house.unix)]
    port = house.port(way)
    with mosquitto("mosquitto_pub", port, version, *door, "-t", topic, "-m", "kept", "-r", "-q", "1") as publisher:
        output(publisher)
    with mosquitto("mosquitto_sub", port, version, *door, "-t", topic, "-C", "1") as subscriber:
        assert output(subscriber) == b"kept\n"


# -- TLS --


def test_the_common_name_of_a_certificate_is_the_user(enter: Callable[..., Paho], house: House) -> None:
    alice = enter("mutual")
    assert alice.subscribe("users/alice/#", 1) == 1
    assert alice.subscribe("users/bob/#", 1) == 0x87
    assert enter("tls").subscribe("users/alice/#", 1) == 0x87, "without a certificate it is nobody"
    assert any(event.get("user") == "alice" for event in house.node.events("client connected"))


def test_a_user_name_that_is_not_the_certificates_is_refused(enter: Callable[..., Paho]) -> None:
    with pytest.raises(Refused) as refusal:
        enter("mutual", username="bob", password="")
    assert refusal.value.code == 0x86


@pytest.mark.parametrize("certificate", ["none", "another authority's"])
def test_a_client_without_a_certificate_we_believe_in_does_not_get_through_mutual_tls(
    house: House, certificate: str
) -> None:
    shown = house.stranger.issue("alice") if certificate != "none" else None
    assert not is_welcome(house.port("mutual"), house.authority.context(shown))
    assert is_welcome(house.port("mutual"), house.authority.context(house.authority.issue("alice")))


@pytest.mark.parametrize("tls", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("certificate", "alert"),
    [
        ("none", "ALERT_(CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE)|HANDSHAKE_FAILURE"),
        ("a stranger's", "ALERT_UNKNOWN_CA"),
    ],
)
def test_a_refused_certificate_is_answered_with_an_alert(
    house: House, certificate: str, alert: str, tls: ssl.TLSVersion
) -> None:
    context = house.authority.context(house.stranger.issue("alice") if certificate != "none" else None)
    context.minimum_version = context.maximum_version = tls
    with (
        socket.create_connection(("127.0.0.1", house.port("mutual")), 10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1", do_handshake_on_connect=False) as secured,
        pytest.raises(ssl.SSLError) as told,
    ):
        _finish(secured)
    assert re.search(alert, str(told.value.reason)), told.value.reason


def _finish(secured: ssl.SSLSocket) -> None:
    secured.do_handshake()
    secured.recv(1)  # in TLS 1.3 the server has the last word


def test_certificates_alone_may_say_who_comes_in(house: House, start_node: Callable[[str], LiveNode]) -> None:
    """Nobody need show one to get through TLS, but who shows none has no name, and the nameless are refused."""
    certificate, key = house.authority.issue("server")
    node = start_node(
        f"""
[authentication]
certificates = true
[[listener]]
bind = "127.0.0.1:0"
certificate = "{certificate}"
key = "{key}"
client_ca = "{house.authority.file}"
anonymous = false
"""
    )
    assert is_welcome(node.port, house.authority.context(house.authority.issue("alice")))
    assert not is_welcome(node.port, house.authority.context())


def is_welcome(port: int, context: ssl.SSLContext) -> bool:
    """Whether a CONNECT is answered.  In TLS 1.3 a refused certificate shows only when reading."""
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as secured:
                secured.sendall(Connect("tls-client").encode(4))
                return secured.recv(4) == CONNACK_3_1_1
        except (ssl.SSLError, ConnectionError):
            return False


def test_a_client_that_trusts_another_authority_is_not_fooled(house: House) -> None:
    with (
        socket.create_connection(("127.0.0.1", house.port("tls")), 10) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        house.stranger.context().wrap_socket(raw, server_hostname="127.0.0.1")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_older_than_1_2_is_refused(house: House) -> None:
    context = house.authority.context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    # An alert or a connection that just ends, by the version of OpenSSL; that 1.2 is taken other tests show.
    with socket.create_connection(("127.0.0.1", house.port("tls")), 10) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_plain_mqtt_on_a_tls_port_is_closed(house: House) -> None:
    with socket.create_connection(("127.0.0.1", house.port("tls")), 10) as raw:
        raw.sendall(Connect("plain").encode(5))
        assert CONNACK_3_1_1[:1] != everything(raw)[:1]


@pytest.mark.slow
def test_a_tls_handshake_that_never_comes_is_given_up_in_connect_time(house: House) -> None:
    with socket.create_connection(("127.0.0.1", house.port("tls")), 60) as silent:
        assert silent.recv(1) == b"", "the node closes it, well before we lose patience"


def everything(raw: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    found = b""
    try:
        while data := raw.recv(4096):
            found += data
    except ConnectionResetError:
        pass
    return found


# -- WebSocket --


def upgrade(house: House, *subprotocols: str) -> ClientConnection:
    offered = [Subprotocol(name) for name in subprotocols] or None
    return connect(f"ws://127.0.0.1:{house.port('websocket')}/mqtt", subprotocols=offered, compression=None)


@pytest.mark.parametrize("offered", [["soap"], []], ids=["another", "none"])
def test_a_websocket_without_the_mqtt_subprotocol_is_refused(house: House, offered: list[str]) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        upgrade(house, *offered)
    assert refusal.value.response.status_code == 400


def test_the_mqtt_subprotocol_is_chosen_among_others(house: House) -> None:
    with upgrade(house, "soap", "mqtt") as websocket:
        assert websocket.subprotocol == "mqtt"


def test_a_text_frame_ends_the_connection(house: House) -> None:
    with upgrade(house, "mqtt") as websocket:
        websocket.send("not binary")
        with pytest.raises(ConnectionClosed) as end:
            websocket.recv(10)
        assert end.value.rcvd is not None
        assert end.value.rcvd.code == 1003


def test_packets_may_be_cut_and_joined_by_frames_at_will(house: House) -> None:
    with upgrade(house, "mqtt") as websocket:
        connect_bytes = Connect("cut").encode(4)
        for byte in connect_bytes[:-1]:
            websocket.send(bytes([byte]))
        websocket.send(connect_bytes[-1:] + Pingreq().encode(4) * 3)
        answered = b""
        while len(answered) < 10:
            answered += bytes(websocket.recv(10, decode=False))
        assert answered == CONNACK_3_1_1 + b"\xd0\x00" * 3
        websocket.send([Pingreq().encode(4)[:1], Pingreq().encode(4)[1:]])  # one message in two fragments
        assert websocket.recv(10, decode=False) == b"\xd0\x00"


def test_a_client_that_disconnects_sees_its_websocket_closed_in_order(house: House) -> None:
    with upgrade(house, "mqtt") as websocket:
        websocket.send(Connect("orderly").encode(4))
        assert websocket.recv(10, decode=False) == CONNACK_3_1_1
        websocket.send(Disconnect().encode(4))
        with pytest.raises(ConnectionClosed) as end:
            websocket.recv(10)
        assert end.value.rcvd is not None
        assert end.value.rcvd.code == 1000


def test_a_websocket_ping_is_answered(house: House) -> None:
    with upgrade(house, "mqtt") as websocket:
        assert websocket.ping().wait(60)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"POST /mqtt HTTP/1.1\r\n\r\n",
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
    ],
    ids=["no upgrade", "no GET", "no HTTP"],
)
def test_what_is_no_websocket_handshake_is_answered_with_an_error_and_closed(
    house: House, request_bytes: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", house.port("websocket")), 10) as raw:
        raw.sendall(request_bytes)
        assert not everything(raw).startswith((b"HTTP/1.1 2", b"HTTP/1.1 101", b"\x20"))


def test_a_frame_without_a_mask_ends_the_connection(house: House) -> None:
    with socket.create_connection(("127.0.0.1", house.port("websocket")), 10) as raw:
        handshake = [
            *("GET /mqtt HTTP/1.1", "Host: here", "Upgrade: websocket", "Connection: Upgrade"),
            *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt"),
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
        ]
        raw.sendall("\r\n".join([*handshake, "\r\n"]).encode())
        raw.recv(4096)
        raw.sendall(b"\x82\x02" + Pingreq().encode(4))
        assert everything(raw).startswith(b"\x88\x13\x03\xea"), "a close frame, 1002 (protocol error)"


def test_a_bad_handshake_is_logged_with_its_address(house: House) -> None:
    with socket.create_connection(("127.0.0.1", house.port("websocket")), 10) as raw:
        address = "{}:{}".format(*raw.getsockname())
        raw.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        everything(raw)
    failures = [event for event in house.node.events("connection failed") if event["address"] == address]
    assert ["WebSocket" in event["reason"] for event in failures] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("spoken", ["nothing", "half a handshake", "a handshake and no CONNECT"])
def test_a_websocket_on_which_no_connect_comes_is_closed_in_connect_time(house: House, spoken: str) -> None:
    if spoken == "a handshake and no CONNECT":
        with upgrade(house, "mqtt") as websocket, pytest.raises(ConnectionClosed):
            websocket.recv(8)
        return
    with socket.create_connection(("127.0.0.1", house.port("websocket")), 8) as raw:
        raw.sendall(b"" if spoken == "nothing" else b"GET /mqtt HTTP/1.1\r\nHost: h")
        everything(raw)
    assert any("CONNECT" in event["reason"] for event in house.node.events("connection failed"))


# -- Unix sockets --


@pytest.mark.slow
def test_a_socket_file_left_by_a_killed_node_is_replaced(start_node: Callable[[str], LiveNode], join: Join) -> None:
    path = Path(tempfile.mkdtemp(prefix="sterna-")) / "mqtt"
    node = start_node(f'[[listener]]\nbind = "unix:{path}"\n')
    node.kill()
    assert path.exists()
    node.restart()
    assert not join(path, transport="unix").session_present
    assert node.stop() == 0
    wait_until(lambda: not path.exists(), "the socket file is gone")
    path.parent.rmdir()
