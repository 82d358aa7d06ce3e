"""Messages published by HTTP reach subscribers, are safe before the answer, and bad ones are refused."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode

pytestmark = pytest.mark.slow


def post(node: LiveNode, order: dict[str, Any], **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"http://{node.admin}/publish", json.dumps(order).encode(), {"Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscriber_gets_what_http_published(node: LiveNode, join: Join, topic: str, qos: int) -> None:
    client = join(node)
    client.subscribe(topic, 2)
    status, body = post(node, {"topic": topic, "payload": "hällo", "qos": qos})
    assert (status, json.loads(body)) == (200, {"topic": topic, "qos": qos, "retain": False, "bytes": 6})
    (message,) = client.receive()
    assert (message.payload, message.qos) == ("hällo".encode(), qos)


def test_subscribers_at_other_nodes_get_what_http_published(tmp_path: Path, join: Join, topic: str) -> None:
    with LiveNetwork(tmp_path, ("ab", "bc")) as network:
        clients = [join(node) for node in network.nodes.values()]
        for client in clients:
            client.subscribe(f"{topic}/#", 1)
        assert post(network["a"], {"topic": f"{topic}/kept", "payload": "21", "qos": 1, "retain": True})[0] == 200
        for client in clients:
            (message,) = client.receive()
            assert (message.topic, message.payload, message.qos) == (f"{topic}/kept", b"21", 1)
        later = join(network["c"])
        later.subscribe(f"{topic}/kept", 1)
        assert later.receive()[0].retain


def test_what_was_answered_survives_kill_9(start_node: Callable[[str], LiveNode], join: Join, topic: str) -> None:
    node = start_node('[admin]\nbind = "127.0.0.1:0"\n')
    join(node, client_id="away", persistent=True).subscribe(topic, 1)
    assert post(node, {"topic": topic, "payload_base64": "AAH/", "retain": True})[0] == 200
    node.kill()
    node.restart()
    client = join(node)
    client.subscribe(topic, 1)
    (message,) = client.receive()
    assert (message.payload, message.retain) == (b"\x00\x01\xff", True)


@pytest.mark.parametrize(
    ("order", "status", "words"),
    [
        ({"topic": "a/#", "payload": ""}, 409, "is no topic"),
        ({"topic": "", "payload": ""}, 409, "is no topic"),
        ({"topic": "$SYS/broker/version", "payload": "9"}, 409, "the node's own"),
        ({"topic": "a", "qos": 3}, 400, "$.qos"),
        ({"topic": "a", "payload_base64": "?"}, 409, "payload_base64"),
        ({"topic": "a", "payload": "x", "payload_base64": "eA=="}, 409, "not both"),
        ({"topic": "a", "color": "red"}, 400, "unknown field `color`"),
        ({}, 400, "missing required field `topic`"),
    ],
)
def test_bad_orders_are_refused_with_the_remedy(node: LiveNode, order: dict[str, Any], status: int, words: str) -> None:
    answer = post(node, order)
    assert (answer[0], words in answer[1]) == (status, True), answer


def test_a_web_page_of_another_origin_publishes_nothing(node: LiveNode) -> None:
    assert post(node, {"topic": "a"}, Origin="http://example.org")[0] == 403
