"""A running node as an operator sees it: clients, denied packets, packets at `debug`, and a log nobody can flood."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from .conftest import Join
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

StartNode = Callable[[str], LiveNode]

ADMIN = '[admin]\nbind = "127.0.0.1:0"\n'


def sterna(*words: str) -> str:
    run = subprocess.run([sys.executable, "-m", "sterna", *words], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_lone_node_lists_its_clients(node: LiveNode, join: Join, client_id: str, version: int) -> None:
    client = join(node, client_id=client_id, version=version, persistent=True)
    client.subscribe("topic", 1)
    connection = client.client.socket()
    assert isinstance(connection, socket.socket)
    address = f"127.0.0.1:{connection.getsockname()[1]}"

    def listed() -> list[str]:
        lines = sterna("clients", "--admin", node.admin).splitlines()
        return next(line.split("\t") for line in lines if line.startswith(client_id))

    name = "5" if version == 5 else "3.1.1"
    assert listed() == [client_id, "live", "connected, 0 waiting, 0 in flight", f"anonymous, {address}, MQTT {name}"]
    found = {one["client"]: one for one in json.loads(sterna("clients", "--json", "--admin", node.admin))}
    assert found[client_id] | {"number": 0, "address": address} == {
        "client": client_id,
        "node": "live",
        "connected": True,
        "user": None,
        "address": address,
        "version": name,
        "persistent": True,
        "subscriptions": 1,
        "inflight": 0,
        "queued": 0,
        "number": 0,
    }
    client.close()
    join(node).publish("topic", b"waits", 1)
    assert listed() == [client_id, "live", "away, 1 waiting, 0 in flight", f"anonymous, MQTT {name}"]


def test_a_lone_node_is_a_network_of_one(node: LiveNode) -> None:
    said = sterna("network", "--admin", node.admin)
    assert said.startswith("node live (epoch ")
    assert "network of one" in said
    assert sterna("migrations", "--admin", node.admin) == "node live: no moves since it was started\n"
    words = [sys.executable, "-m", "sterna", "move", "somebody", "--to", "second", "--admin", node.admin]
    run = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert (run.returncode, "no [network] table" in run.stderr) == (1, True)


# -- what is denied --

_RULES = """
[[authorization.rule]]
filters = ["open/#"]
"""


def test_what_is_denied_is_logged_with_client_topic_and_reason(start_node: StartNode, join: Join, version: int) -> None:
    node = start_node(ADMIN + _RULES)
    client = join(node, client_id="meter", version=version)
    client.publish("closed/1", b"payload", 1)
    assert client.subscribe("closed/#", 1) >= 0x80
    client.publish("open/1", b"payload", 1)
    wait_until(lambda: node.events("subscribe denied"), "the subscription is logged")
    for event, topic in (("publish denied", "closed/1"), ("subscribe denied", "closed/#")):
        (line,) = node.events(event)
        assert (line["level"], line["client"], line["topic"]) == ("warning", "meter", topic)
        assert line["reason"] == "no rule allows it, and the default is to deny"
    assert node.metric("sterna_publish_dropped_total", reason="not-authorized") == 1
    assert node.metric("sterna_subscriptions_refused_total", reason="not-authorized") == 1


def test_a_client_cannot_flood_the_log_with_what_it_may_not_do(start_node: StartNode, join: Join) -> None:
    node = start_node(ADMIN + _RULES)
    client = join(node, client_id="meter")
    for _ in range(2000):
        client.send("closed/1", b"payload")
    client.publish("open/1", b"", 1)
    assert node.metric("sterna_publish_dropped_total", reason="not-authorized") == 2000
    # Twice as many if a minute ended meanwhile.
    assert 10 <= len(node.events("publish denied")) <= 21


def test_strangers_cannot_flood_the_log_with_refusals(start_node: StartNode) -> None:
    node = start_node(ADMIN)
    for _ in range(200):
        with socket.create_connection(node.address, 60) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.recv(100)
    refused = sum(
        node.metric("sterna_connections_refused_total", reason=reason)
        for reason in ("protocol-error", "malformed-packet", "packet-too-large")
    )
    assert refused == 200
    assert 10 <= len(node.events("connection failed")) <= 21


# -- debug --


def test_debug_shows_packets_of_clients_and_info_does_not(start_node: StartNode, join: Join, version: int) -> None:
    node = start_node(f'{ADMIN}[log]\nformat = "json"\nlevel = "debug"\n')
    reader = join(node, client_id="reader", version=version, username="alice", password="hidden-password")
    reader.subscribe("plant/#", 1)
    writer = join(node, client_id="writer", version=version)
    for number in range(3):
        writer.send("plant/0", b"hidden-payload %d" % number)  # by the quick way
    writer.publish("plant/1", b"hidden-payload", 1)
    reader.receive(4)
    wait_until(lambda: [one for one in node.events("packet received") if one["packet"] == "PUBACK"], "PUBACK is logged")

    def seen(event: str, client: str) -> list[tuple[str, str | None, int | None]]:
        lines = [line for line in node.events(event) if line["client"] == client]
        return [(line["packet"], line.get("topic"), line.get("qos")) for line in lines]

    published = [("PUBLISH", "plant/0", 0)] * 3 + [("PUBLISH", "plant/1", 1)]
    assert seen("packet received", "writer") == [("CONNECT", None, None), *published]
    assert seen("packet sent", "reader") == [("CONNACK", None, None), ("SUBACK", None, None), *published]
    assert seen("packet sent", "writer") == [("CONNACK", None, None), ("PUBACK", None, None)]
    (subscribed,) = [line for line in node.events("packet received") if line["packet"] == "SUBSCRIBE"]
    assert (subscribed["filters"], subscribed["client"]) == ("plant/# at QoS 1", "reader")
    assert "hidden" not in node.log()
    node.file.write_text(node.file.read_text().replace('level = "debug"', 'level = "info"'))
    node.hang_up()
    wait_until(lambda: node.events("reloaded"), "the level is changed")
    before = len(node.events("packet received"))
    writer.publish("plant/1", b"more", 1)
    assert len(node.events("packet received")) == before


def test_packets_over_websocket_are_shown_as_they_are(start_node: StartNode, join: Join) -> None:
    listener = '[[listener]]\nbind = "127.0.0.1:0"\ntransport = "websocket"\n'
    node = start_node(f'{listener}[log]\nformat = "json"\nlevel = "debug"\n')
    client = join(node, client_id="page", transport="websockets")
    client.publish("plant/1", b"payload", 1)
    found = [(line["packet"], line.get("topic")) for line in node.events("packet received")]
    assert found == [("CONNECT", None), ("PUBLISH", "plant/1")]
    assert [line["packet"] for line in node.events("packet sent")] == ["CONNACK", "PUBACK"]
