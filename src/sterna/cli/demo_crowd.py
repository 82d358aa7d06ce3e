"""The last part of the demo: a crowd appears far from the only node, gets a node of its own, and leaves again.

The hosts are network namespaces, 60 ms apart, which need root; without it this part is left out and says so.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from rich.console import Console

from sterna.cli.admin_client import Unanswered, ask
from sterna.cli.demo_nodes import start_tied
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.adaptive_files import CLOUD, CROWD, EDGE, FAR_S, NEAR_S, PLACES, AdaptiveFiles, delay_s
from sterna.measure.harness.sites import AtADistance, NodePlace, may_be_at_a_distance
from sterna.vocabulary.errors import SternaError

PATIENCE_S = 240.0
PACE_S = 0.01
STOP_S = 60.0


def crowd(directory: Path, console: Console, number: int) -> None:
    console.print(f"\n[bold]{number}. A crowd appears far away; a node starts beside it, and stops when it has gone[/]")
    if not may_be_at_a_distance():
        console.print("   left out: hosts at a distance are network namespaces, which need root")
        return
    with ExitStack() as running:
        try:
            site = running.enter_context(AtADistance(PLACES, delay_s))
        except MeasurementError as error:
            console.print(f"   left out: {error}", markup=False)
            return
        town = _Town(directory, AdaptiveFiles(directory, site.places), site.places, running)
        _come_and_go(town, console)


class _Town:
    """Real processes at their places."""

    def __init__(self, directory: Path, files: AdaptiveFiles, places: list[NodePlace], running: ExitStack) -> None:
        self._directory = directory
        self.files = files
        self._places = places
        self._running = running

    def start(self, command: str, name: str, toml: str, number: int) -> None:
        directory = self._directory / name
        file = directory / f"{command}.toml"
        file.write_text(toml)
        words = [*self._places[number].prefix, sys.executable, "-m", "sterna", command, "--config", str(file)]
        with (directory / "log").open("ab") as log:
            process = start_tied(words, log)
        self._running.callback(_stop, process)

    def ask(self, name: str, kind: str, page: str) -> Any:
        """None while it does not answer."""
        try:
            return ask(f"unix:{self._directory}/{name}/{kind}.sock", page, None)
        except Unanswered:
            return None

    def state(self, worker: str) -> tuple[str, list[str]]:
        """Of its node, and the gateways that are there."""
        status = self.ask(worker, "worker", "/status") or {}
        return status.get("state", ""), status.get("gateways", [])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Visitor:
    """A plain client behind a gateway; it keeps books."""

    def __init__(self, path: str, own: str, other: str) -> None:
        self._own = own
        self.sent = 0
        self.acknowledged = 0
        self.disconnected = 0
        self.received: list[str] = []
        self._subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, f"visitor-{own}", transport="unix")
        self._client.on_connect = lambda client, *_: client.subscribe([(f"{other}/1", 1), (f"{other}/2", 2)])
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _client, _data, message: self.received.append(
            f"{message.topic} {message.payload.decode()}"
        )
        self._client.on_publish = lambda *_: self._count()
        self._client.on_disconnect = lambda *_: self._gone()
        self._client.connect(path, 1883)
        self._client.loop_start()
        if not self._subscribed.wait(PATIENCE_S):
            raise SternaError("a visitor of the demo could not subscribe")

    def publish(self) -> None:
        for qos in (1, 2):
            self._client.publish(f"{self._own}/{qos}", str(self.sent // 2), qos)
            self.sent += 1

    def _count(self) -> None:
        self.acknowledged += 1

    def _gone(self) -> None:
        self.disconnected += 1

    def leave(self) -> None:
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_stop()


def _come_and_go(town: _Town, console: Console) -> None:
    files = town.files
    town.start("worker", "cloud", files.worker("cloud", CLOUD, fixed=True, more="leave_node = false"), CLOUD)
    town.start("worker", "edge", files.worker("edge", EDGE, fixed=False, more="leave_node = false"), EDGE)
    _wait_until(lambda: town.state("cloud")[0] == "serving", "the node at the cloud")
    town.start("coordinator", "coordinator", files.coordinator("coordinator"), CLOUD)
    for name in ("g1", "g2"):
        town.start("gateway", name, files.gateway(name), CROWD)
    _wait_until(lambda: all(Path(files.entrance(name)).exists() for name in ("g1", "g2")), "both gateways")
    console.print(
        f"   a node at the cloud, a worker without one at the edge, {2000 * FAR_S:.0f} ms away; "
        f"two gateways, {2000 * NEAR_S:.0f} ms from the edge"
    )
    visitors = [_Visitor(files.entrance("g1"), "one", "two"), _Visitor(files.entrance("g2"), "two", "one")]
    began = time.monotonic()

    def talk_until(done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > deadline:
                raise SternaError(f"waited {PATIENCE_S:.0f} s for {what}")
            for _ in range(10):
                for visitor in visitors:
                    visitor.publish()
                time.sleep(PACE_S)

    talk_until(lambda: town.state("edge")[0] == "serving", "a node at the edge")
    console.print(f"   {time.monotonic() - began:5.1f} s   a node was started at the edge")
    talk_until(lambda: town.state("edge")[1] == ["g1", "g2"], "the clients to move")
    console.print(f"   {time.monotonic() - began:5.1f} s   the clients of both gateways are there")
    status = town.ask("coordinator", "coordinator", "/status")
    for one in reversed(status["decisions"]):
        if not one["not_ordered"]:
            console.print(f"             {one['decision']}", markup=False)
    first, second = visitors
    _wait_until(lambda: all(one.acknowledged == one.sent for one in visitors), "every acknowledgement")
    _wait_until(lambda: len(set(first.received)) == second.sent and len(set(second.received)) == first.sent, "all")
    disconnected = sum(one.disconnected for one in visitors)
    for one in visitors:
        one.leave()
    left = time.monotonic()
    _wait_until(lambda: town.state("edge")[0] == "off", "the node at the edge to stop")
    console.print(f"   {time.monotonic() - left:5.1f} s after they left, the node was empty, drained and stopped")
    sent, received = first.sent + second.sent, len(set(first.received)) + len(set(second.received))
    twice = [text for one in visitors for text in set(one.received) if "/2 " in text and one.received.count(text) > 1]
    console.print(
        f"   sent {sent:,}, received {received:,}, lost {sent - received}, "
        f"QoS 2 duplicated {len(twice)}, clients disconnected {disconnected}"
    )


def _wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise SternaError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.05)
