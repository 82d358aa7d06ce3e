"""Real nodes with a feed, messages for them, and what Spark made of those."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from live.nodes import LiveNode, wait_until
from sterna.measure.harness.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ACKNOWLEDGED_S = 120.0


class FeedingNode(LiveNode):
    """`feed` are further keys of the [feed] table."""

    def __init__(self, directory: Path, toml: str = "", *, name: str, **feed: object) -> None:
        self.name = name
        self._listeners: list[paho.Client] = []
        self._feed_port = free_port()
        keys = {"bind": self.feed, **feed}
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
        node = f'[node]\nname = "{name}"\ndata = "{directory}/data"\n'
        super().__init__(directory, f"{node}{toml}\n[feed]\n{lines}\n")

    @property
    def feed(self) -> str:
        return f"127.0.0.1:{self._feed_port}"

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        super().start()
        wait_until(self._feeds, "the feed answers")
        return self

    restart = start

    def _feeds(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self._feed_port)) == 0

    def listen(self, client_id: str, topic_filter: str) -> None:
        """Somebody at QoS 1 who stays for as long as the node is there."""
        subscribed = threading.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.on_subscribe = lambda *_: subscribed.set()
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        client.subscribe(topic_filter, 1)
        assert subscribed.wait(ACKNOWLEDGED_S)
        self._listeners.append(client)

    def kill(self) -> None:
        for client in self._listeners:
            client.loop_stop()
            client._reset_sockets()  # which paho leaves to the collector
        self._listeners.clear()
        super().kill()

    def publish(self, topic: str, payloads: Iterable[Any], qos: int = 1) -> None:
        """Each acknowledged when this comes back."""
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.max_inflight_messages_set(1000)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        sent = [client.publish(topic, str(payload), qos) for payload in payloads]
        for one in sent:
            one.wait_for_publish(ACKNOWLEDGED_S)
            assert one.is_published()
        client.disconnect()
        client.loop_stop()
        client._reset_sockets()  # which paho leaves to the collector


def finished(begin: Callable[[], StreamingQuery], within_s: float) -> StreamingQuery:
    """A query that takes what is there now and ends."""
    from sterna.pipeline.retry import with_more_tries

    def run() -> StreamingQuery:
        query = begin()
        assert query.awaitTermination(int(within_s)), f"the query did not end within {within_s:g} s"
        return query

    return with_more_tries(run, print)


def payloads(table: DataFrame) -> list[str]:
    """As text, sorted: what is there twice stands there twice."""
    return sorted(bytes(row.payload).decode() for row in table.select("payload").collect())


def numbers(table: DataFrame) -> list[int]:
    """Payloads that are numbers, sorted."""
    return sorted(map(int, payloads(table)))
