"""The `$SYS` tree, under Mosquitto's names."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from .packets import Pingreq, Publish
from .peer import Broker, running_broker

NUMBER = r"\d+"
RATE = r"\d+\.\d\d"
VALUES = {
    "version": r".+ version \d+\.\d+.*",
    "uptime": r"\d+ seconds",
    "clients/connected": NUMBER,
    "clients/disconnected": NUMBER,
    "clients/expired": NUMBER,
    "clients/maximum": NUMBER,
    "clients/total": NUMBER,
    "messages/received": NUMBER,
    "messages/sent": NUMBER,
    "messages/stored": NUMBER,
    "bytes/received": NUMBER,
    "bytes/sent": NUMBER,
    "publish/messages/received": NUMBER,
    "publish/messages/sent": NUMBER,
    "publish/messages/dropped": NUMBER,
    "publish/bytes/received": NUMBER,
    "publish/bytes/sent": NUMBER,
    "retained messages/count": NUMBER,
    "subscriptions/count": NUMBER,
    "shared_subscriptions/count": NUMBER,
    "store/messages/count": NUMBER,
    "store/messages/bytes": NUMBER,
    "load/messages/received/1min": RATE,
    "load/messages/sent/5min": RATE,
    "load/publish/received/15min": RATE,
    "load/bytes/sent/1min": RATE,
    "load/connections/1min": RATE,
}


@pytest.fixture(scope="module")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A broker of this file's own: Mosquitto's values expire when they have not changed for a minute."""
    with running_broker(tmp_path_factory.mktemp("sys")) as address:
        yield address


@pytest.mark.parametrize(("name", "shape"), VALUES.items(), ids=VALUES)
def test_a_value_is_published_under_its_name(broker: Broker, name: str, shape: str) -> None:
    client = broker.join()
    client.subscribe(f"$SYS/broker/{name}")
    message = client.wait_for(Publish)
    assert message.topic == f"$SYS/broker/{name}"
    assert re.fullmatch(shape, message.payload.decode())


def test_the_version_is_retained(broker: Broker, version: int) -> None:
    client = broker.join(version)
    client.subscribe("$SYS/broker/version")
    assert client.wait_for(Publish).retain


def test_the_number_of_clients_follows_them(broker: Broker, version: int) -> None:
    watcher = broker.join(version)
    watcher.subscribe("$SYS/broker/clients/connected")
    deadline = time.monotonic() + 10
    for _ in range(50):
        broker.join(version)
    while int(watcher.wait_for(Publish).payload) < 51:
        assert time.monotonic() < deadline


def test_wildcards_reach_sys_only_by_name(broker: Broker, version: int) -> None:
    """[MQTT-4.7.2-1]"""
    asking, general = broker.join(version), broker.join(version)
    general.subscribe("#")
    general.subscribe("+/broker/#")
    asking.subscribe("$SYS/#")
    assert asking.wait_for(Publish).topic.startswith("$SYS/")
    assert not [message for message in general.waiting_messages() if message.topic.startswith("$SYS")]


def test_clients_cannot_write_to_sys(broker: Broker, version: int, topic: str) -> None:
    """Section 4.7.2: the server SHOULD keep clients from exchanging messages there."""
    watcher, writer = broker.join(version), broker.join(version)
    watcher.subscribe(f"$SYS/broker/{topic}")
    writer.send(Publish(f"$SYS/broker/{topic}", b"false"), Pingreq())
    with suppress(EOFError):  # ignored or closed, as the broker likes
        writer.receive()
    watcher.expect_nothing()
