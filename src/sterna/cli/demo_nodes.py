"""The nodes and clients of `sterna demo`: real processes, which end with the demo however it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from sterna.measure.harness.node_tables import toml
from sterna.measure.harness.ports import free_ports, take_port
from sterna.measure.harness.processes import tie_to_parent
from sterna.vocabulary.errors import SternaError

PATIENCE_S = 240.0
DASHBOARD_PORT = 9883
"""The first node takes it if it is free: it is the one that documentation names."""


class Reached(Protocol):
    """Somebody who takes clients."""

    @property
    def port(self) -> int: ...


class DemoNode:
    """A real node in a process of its own."""

    def __init__(
        self,
        directory: Path,
        name: str,
        neighbour: DemoNode | None = None,
        more: str = "",
        *,
        listener: Mapping[str, object] | None = None,
        overlay: str = "static",
        key_file: Path | None = None,
        is_door: bool = False,
    ) -> None:
        """`more`: further tables of its configuration.  `is_door`: its dashboard is the one to open."""
        self.name = name
        self.port, self.admin_port, self.link_port, feed_port = free_ports(4)
        if is_door and take_port(DASHBOARD_PORT):
            self.admin_port = DASHBOARD_PORT
        self.feed = f"127.0.0.1:{feed_port}"
        self._config = directory / f"{name}.toml"
        self._log = directory / f"{name}.log"
        neighbours = [f"127.0.0.1:{neighbour.link_port}"] if neighbour else []
        network = {"name": "demo", "bind": f"127.0.0.1:{self.link_port}", "neighbours": neighbours, "overlay": overlay}
        tables = {
            "node": {"name": name, "data": f"{directory}/{name}"},
            "listener": [{"bind": f"127.0.0.1:{self.port}", **(listener or {})}],
            "admin": {"bind": f"127.0.0.1:{self.admin_port}"},
            "network": network | ({"key_file": str(key_file)} if key_file else {}),
            "feed": {"bind": self.feed},
            "migration": {"server_references": True},
        }
        self._config.write_text(toml(tables) + more)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.launch()
        self.wait()

    def launch(self) -> None:
        command = [sys.executable, "-m", "sterna", "node", "--config", str(self._config)]
        with self._log.open("ab") as log:
            self._process = start_tied(command, log)

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}/"

    def wait(self) -> None:
        """Until it takes clients."""
        self._wait_for(self.port)

    def wait_for_page(self) -> None:
        """Until its dashboard can be opened, which is a moment later."""
        self._wait_for(self.admin_port)

    def _wait_for(self, port: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.05)
        raise SternaError(f"the node did not start; its log says:\n{self._log.read_text()}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)


def follow(client: paho.Client, sent_to: Callable[[int], object] = lambda _port: None) -> None:
    """Go where a node says that the client is to go; paho connects again by itself, to the address it has.

    `sent_to` is told the port of each node, which may be one that the demo does not list."""

    def disconnected(
        _client: paho.Client, _data: object, _flags: object, _reason: object, told: Properties | None
    ) -> None:
        server = getattr(told, "ServerReference", None)
        if server:
            host, _, port = server.rpartition(":")
            sent_to(int(port))
            client.connect_async(host, int(port), clean_start=False, properties=lasting())

    client.on_disconnect = disconnected


@contextmanager
def joined(name: str, node: Reached, received: list[str]) -> Iterator[paho.Client]:
    """A client that keeps its session across reconnects, as a device would."""
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_queued_messages_set(0)
    client.reconnect_delay_set(1, 2)
    client.on_message = lambda _client, _data, message: received.append(f"{message.topic} {message.payload.decode()}")
    client.connect("127.0.0.1", node.port, clean_start=False, properties=lasting())
    client.loop_start()
    try:
        yield client
    finally:
        leave(client)


def leave(client: paho.Client) -> None:
    """Also of one that was about to connect again, which leaves its new socket open."""
    client.disconnect()
    client.loop_stop()
    left = client.socket()
    if left is not None:
        left.close()


def lasting() -> Properties:
    lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho has no types here
    lasting.SessionExpiryInterval = 3600
    return lasting


def wait_until(done: object, what: str, progress: object = None) -> None:
    assert callable(done)
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            so_far = f" (so far: {progress()})" if callable(progress) else ""
            raise SternaError(f"waited {PATIENCE_S:.0f} s for {what}{so_far}")
        time.sleep(0.02)


def start_tied(command: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """A process that Ctrl-C at the terminal does not reach: the demo ends it in its turn, and it dies with the demo."""
    return subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=tie_to_parent, start_new_session=True)
