"""On a cluster executors do the reading, and the archive holds each acknowledged message once, whatever is killed.

One story, for starting Spark takes most of its time: an executor, a node and the driver die one after the other while
messages come in, and in the end the cluster itself is asked what is there.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from live.nodes import wait_until
from sterna.pipeline.jobs.archive import Archive

from .cluster import ENVIRONMENT, QUICK_JVM, SparkCluster
from .driving import Driver
from .feeding import FeedingNode

SOON_S = 240.0
"""Spark starts, perhaps on a busy machine."""
UNACKNOWLEDGED_MAX = 50
PAUSE_S = 0.02
"""Between two messages: a few dozen a second, so that there is news in every batch."""


class Publisher:
    """Publishes 0, 1, 2, ... at QoS 1 until it is told to end, and then until all are acknowledged."""

    def __init__(self, node: FeedingNode) -> None:
        self.node = node
        self.sent = 0
        self.in_doubt: set[int] = set()
        """Numbers that were on their way when a connection broke: these are sent again, and may be there twice."""
        # No lock: paho calls back with its own locks held.
        self._numbers: dict[int, int] = {}
        """By packet identifier; there are too few messages for one to be used twice."""
        self._acknowledged: set[int] = set()
        """Packet identifiers."""
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._publish, name=f"publisher at {node.name}")
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = self._on_publish
        self._client.on_disconnect = self._on_disconnect

    def __enter__(self) -> Publisher:
        self._client.connect("127.0.0.1", self.node.port)
        self._client.loop_start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()
        wait_until(lambda: not self._unacknowledged(), f"every message to {self.node.name} is acknowledged", SOON_S)
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets()  # which paho leaves to the collector

    def _publish(self) -> None:
        while not self._leave.wait(PAUSE_S):
            if len(self._unacknowledged()) < UNACKNOWLEDGED_MAX:
                sent = self._client.publish(f"{self.node.name}/count", str(self.sent), qos=1)
                self._numbers[sent.mid] = self.sent
                self.sent += 1

    def _unacknowledged(self) -> set[int]:
        return {number for packet_id, number in list(self._numbers.items()) if packet_id not in self._acknowledged}

    def _on_publish(self, _client: object, _data: object, packet_id: int, _reason: object, _properties: object) -> None:
        self._acknowledged.add(packet_id)

    def _on_disconnect(self, *_: object) -> None:
        self.in_doubt |= self._unacknowledged() | {self.sent}  # the last may be just on its way


def command(cluster: SparkCluster, *words: str) -> list[str]:
    quick = ["--conf", f"spark.executor.extraJavaOptions={QUICK_JVM}"]
    return [sys.executable, "-m", "sterna", "pipeline", *words, "--master", cluster.master, *quick]


def run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=SOON_S, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def archiving(cluster: SparkCluster, archive: Archive, feeds: str) -> Driver:
    words = command(cluster, "archive", str(archive.directory), "--nodes", feeds, "--every", "0.1")
    return Driver(words, archive.directory.with_suffix(".log"), ENVIRONMENT)


def finish_two_batches(driver: Driver, archive: Archive) -> None:
    enough = archive.last_batch() + 2
    driver.wait_until(lambda: archive.last_batch() >= enough, "two more batches are in the archive", SOON_S)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_archive_on_a_cluster_holds_each_acknowledged_message_once_whatever_is_killed(
    start_feeding: Callable[..., FeedingNode], tmp_path: Path
) -> None:
    north, south = nodes = start_feeding("north"), start_feeding("south")
    feeds = ",".join(node.feed for node in nodes)
    ports = [int(node.feed.rpartition(":")[2]) for node in nodes]
    archive = Archive(tmp_path / "archive")
    (tmp_path / "cluster").mkdir()
    with SparkCluster(tmp_path / "cluster") as cluster:

        def both_read() -> bool:
            return all(worker.reads(ports) for worker in cluster.readers)

        with Publisher(north) as at_north, Publisher(south) as at_south:
            with archiving(cluster, archive, feeds) as driver:
                driver.wait_until(both_read, "executors of both workers read", SOON_S)
                cluster.workers[0].kill_executor()
                driver.wait_until(both_read, "an executor has taken the dead one's place", SOON_S)
                finish_two_batches(driver, archive)
                north.kill()
                north.restart()
                finish_two_batches(driver, archive)
            run(command(cluster, "archive", str(archive.directory), "--nodes", feeds, "--available-now"))
        everything = "select origin, epoch, sequence, payload from messages"
        words = ["query", everything, "--archive", str(archive.directory), "--nodes", feeds]
        answer = run(command(cluster, *words, "--output", "csv", "--limit", "1000000"))
    rows = list(csv.DictReader(io.StringIO(answer)))
    assert len({(row["origin"], row["epoch"], row["sequence"]) for row in rows}) == len(rows)
    for publisher in (at_north, at_south):
        found = Counter(int(row["payload"]) for row in rows if row["origin"] == publisher.node.name)
        assert set(found) == set(range(publisher.sent))
        assert {number for number, times in found.items() if times > 1} <= publisher.in_doubt
