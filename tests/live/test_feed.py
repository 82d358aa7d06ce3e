"""The feed of a real node: what clients published is in the table, through restarts, kills and bad readers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sterna.measure.harness.ports import free_port
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.feed.errors import FeedError, FeedRefused, Unreachable

from .certificates import Authority
from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

TOKEN = "a token of sixteen bytes or more"

Start = Callable[[str], LiveNode]


def feed(more: str = "", journal: str = "") -> tuple[str, str]:
    """A configuration with a feed, and the feed's address."""
    port = free_port()
    return f'[feed]\nbind = "127.0.0.1:{port}"\n{more}\n[journal]\n{journal}\n', f"127.0.0.1:{port}"


def payloads(client: FeedClient, **options: Any) -> list[bytes]:
    found = client.read(0, client.status().next, **options)
    return [payload for batch in found for payload in batch.column("payload").to_pylist()]


def all_there(client: FeedClient, offset: int) -> None:
    wait_until(lambda: client.status(beyond=offset - 1, wait_ms=200).next >= offset, f"offset {offset} is safe")


def test_what_was_acknowledged_is_in_the_table_and_survives_a_kill(start_node: Start, join: Join) -> None:
    toml, address = feed(journal="segment_bytes = 65536")
    node = start_node(toml)
    publisher = join(node, version=5)
    publisher.publish_all("plant/a", [b"%d" % number for number in range(500)], qos=2)
    with FeedClient(address, "test") as client:
        epoch = client.status().epoch
        assert payloads(client) == [b"%d" % number for number in range(500)]
        assert client.register(100) == 100
        assert client.commit(200) == 200
        node.kill()
        with pytest.raises(FeedError):
            client.status()
        node.restart()
        status = client.status()
        assert status.epoch > epoch
        assert payloads(client)[:500] == [b"%d" % number for number in range(500)]
        assert client.register(0) == 200


def test_a_node_killed_in_the_middle_of_a_read_is_told_and_the_range_reads_on_elsewhere(
    start_node: Start, join: Join
) -> None:
    toml, address = feed()
    node = start_node(toml)
    publisher = join(node)
    publisher.publish_all("plant/a", [bytes(60_000)] * 400, qos=1)
    with FeedClient(address, "test", timeout_s=60) as client:
        all_there(client, 400)
        reading = client.read(0, 400)
        batches = [next(reading)]
        node.kill()
        with pytest.raises(Unreachable):
            batches.extend(reading)
        got = sum(batch.num_rows for batch in batches)
        assert 0 < got < 400
        node.restart()
        rest = [offset for batch in client.read(got, 400) for offset in batch.column("offset").to_pylist()]
        assert rest == list(range(got, 400))


def test_messages_at_qos_0_are_kept_where_the_operator_asks(start_node: Start, join: Join) -> None:
    toml, address = feed(journal='keep = ["kept/#"]')
    node = start_node(toml)
    subscriber, publisher = join(node), join(node)
    subscriber.subscribe("#", 1)
    for number in range(300):
        publisher.send("kept/a", b"kept %d" % number, 0)
        publisher.send("loose/a", b"loose", 0)
    publisher.publish("last", b"last", qos=1)
    wait_until(lambda: len(subscriber.messages) == 601, "the subscriber has everything")
    assert [one.payload for one in subscriber.messages if one.topic == "kept/a"] == [b"kept %d" % n for n in range(300)]
    with FeedClient(address, "test") as client:
        all_there(client, 301)
        assert payloads(client) == [b"kept %d" % number for number in range(300)] + [b"last"]
        node.kill()
        node.restart()
        assert payloads(client)[:301] == [b"kept %d" % number for number in range(300)] + [b"last"]
    assert len(subscriber.messages) == 601


def test_kept_messages_at_qos_0_come_once_to_other_nodes_too(tmp_path: Path, join: Join) -> None:
    with LiveNetwork(tmp_path, ("ab",), more='[feed]\nbind = "127.0.0.1:0"\n') as network:
        for node in network.nodes.values():
            node.file.write_text(node.file.read_text().replace("[journal]", '[journal]\nkeep = ["#"]'))
        for node in network.nodes.values():
            node.stop()
            node.restart()
        network.wait_until_settled()
        subscriber, publisher = join(network["b"]), join(network["a"])
        subscriber.subscribe("#", 0)
        for number in range(200):
            publisher.send("t", b"%d" % number, number % 2)
        wait_until(lambda: len(subscriber.messages) >= 200, "the subscriber has everything")
        assert sorted(int(one.payload) for one in subscriber.messages) == list(range(200))
        tables = {name: _table(node) for name, node in network.nodes.items()}
        assert sorted(map(int, tables["a"])) == list(range(200))
        assert tables["b"] == []


def _table(node: LiveNode) -> list[bytes]:
    with FeedClient(node.events("feed")[-1]["address"], "test") as client:
        return payloads(client)


def test_strangers_are_refused_and_tls_hides_what_is_read(start_node: Start, join: Join, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority", "feeds")
    certificate, key = authority.issue("node")
    toml, address = feed(f'token = "{TOKEN}"\ncertificate = "{certificate}"\nkey = "{key}"')
    node = start_node(toml)
    join(node).publish("plant/a", b"secret", qos=1)
    with FeedClient(address, "test", TOKEN, tls=str(authority.file)) as client:
        assert payloads(client) == [b"secret"]
    with pytest.raises(FeedRefused, match="the token is wrong"):
        FeedClient(address, "test", "wrong", tls=str(authority.file)).status()
    with pytest.raises(FeedRefused, match="its certificate is not accepted"):
        FeedClient(address, "test", TOKEN, tls=True).status()
    with pytest.raises(FeedError):
        FeedClient(address, "test", TOKEN, timeout_s=5).status()
    assert TOKEN not in node.log()


def test_readers_do_not_keep_clients_waiting(start_node: Start, join: Join) -> None:
    """Three readers that read everything again and again, and one that takes nothing, beside a publisher."""
    toml, address = feed(journal='durability = "os"')
    node = start_node(toml)
    publisher = join(node)
    publisher.publish_all("plant/a", [bytes(50_000)] * 200, qos=1)
    stop = threading.Event()
    rounds: list[int] = []

    def read_on(name: str) -> None:
        with FeedClient(address, name) as client:
            while not stop.is_set():
                rounds.append(sum(batch.num_rows for batch in client.read(0, 200, ["plant/+"])))

    stuck = FeedClient(address, "stuck")
    reading = stuck.read(0, 200)
    next(reading)
    readers = [threading.Thread(target=read_on, args=(f"reader-{number}",)) for number in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(50):
            publisher.publish("plant/b", b"%d" % number, qos=1)  # returns when it is acknowledged
        wait_until(lambda: len(rounds) >= 6, "readers get their rows")
    finally:
        stop.set()
        for reader in readers:
            reader.join(60)
        stuck.close()
    assert set(rounds) == {200}
    assert "Traceback" not in node.log()


@pytest.mark.slow
def test_memory_stays_flat_while_a_reader_lags(start_node: Start, join: Join) -> None:
    toml, address = feed(journal='durability = "os"\nsegment_bytes = 1048576')
    node = start_node(toml)
    publisher = join(node)
    with FeedClient(address, "lagging") as client:
        client.register(0)
        reading = None
        before = 0
        for round_ in range(6):
            publisher.publish_all("plant/a", [bytes(100_000)] * 200, qos=1)
            if reading is None:
                reading = client.read(0, 1200)
                next(reading)  # and no more: the rest is held back
            if round_ == 2:
                before = node.resident_bytes
        assert node.resident_bytes - before < 24 * 1024 * 1024


def test_metrics_tell_of_readers(start_node: Start, join: Join) -> None:
    toml, address = feed()
    node = start_node(toml + '[admin]\nbind = "127.0.0.1:0"\n')
    join(node).publish("plant/a", b"x", qos=1)
    with FeedClient(address, "test") as client:
        client.register(0)
        assert payloads(client) == [b"x"]
        assert node.metric("sterna_feed_connections") == 1
        assert node.metric("sterna_feed_readers") == 1
        assert node.metric("sterna_feed_lag") == 1
        assert node.metric("sterna_feed_rows_sent_total") == 1


def test_sealed_segments_become_files_of_the_table(start_node: Start, join: Join, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    directory = tmp_path / "shelf"
    toml, address = feed(f'parquet = "{directory}"', "segment_bytes = 65536")
    node = start_node(toml)
    publisher = join(node)
    publisher.publish_all("plant/a", [b"%d" % number + bytes(1000) for number in range(150)], qos=1)
    with FeedClient(address, "test") as client:
        wait_until(lambda: client.parquet()[1], "a segment is a file")
        first = client.parquet()[1][0]
        table = pq.read_table(directory / first.name)
        assert table.column("offset").to_pylist() == list(range(first.first, first.stop))
        numbers = [payload.rstrip(b"\0") for payload in table.column("payload").to_pylist()]
        assert numbers == [b"%d" % offset for offset in range(first.first, first.stop)]
    assert node.stop() == 0
