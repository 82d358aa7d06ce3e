"""The broker under test: our node, or with `STERNA_PEER=mosquitto` Debian's Mosquitto, on a free loopback port.

Both are given the same small limits, so that tests can reach them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack
from uuid import uuid4

from .client import Client
from .packets import Connect, Will
from .properties import Properties

NAME = os.environ.get("STERNA_PEER", "sterna")
START_S = 60.0

_STERNA = """
[node]
name = "conformance"
data = "{directory}/data"
[journal]
durability = "memory"
[mqtt]
sys_interval_s = 1
[[listener]]
bind = "127.0.0.1:{port}"
[admin]
bind = ""
[limits]
packet_bytes = 100000
receive_maximum = 10
topic_aliases = 10
keep_alive_s = 600
connect_s = 1.0
"""

_MOSQUITTO = """
user root
allow_anonymous true
persistence false
sys_interval 1
set_tcp_nodelay true
listener {port} 127.0.0.1
max_packet_size 100000
max_inflight_messages 10
max_topic_alias 10
max_keepalive 600
"""


def _command(directory: Path, port: int) -> list[str]:
    if NAME == "mosquitto":
        configuration = directory / "mosquitto.conf"
        configuration.write_text(_MOSQUITTO.format(port=port))
        return ["/usr/sbin/mosquitto", "-v", "-c", str(configuration)]
    assert NAME == "sterna", f"STERNA_PEER names no broker we can start: {NAME}"
    configuration = directory / "sterna.toml"
    configuration.write_text(_STERNA.format(directory=directory, port=port))
    return [sys.executable, "-m", "sterna", "node", "--config", str(configuration)]


@contextmanager
def running_broker(directory: Path) -> Iterator[tuple[str, int]]:
    """The address of a broker that accepts connections; it is stopped on leaving, its log stays in `directory`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = ("127.0.0.1", int(probe.getsockname()[1]))
    log = directory / "broker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(_command(directory, address[1]), stdout=output, stderr=output)
    try:
        _wait_until_accepting(address, process, log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(START_S)


def _wait_until_accepting(address: tuple[str, int], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(address, 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{NAME} does not accept connections:\n{log.read_text()}")


class Broker:
    """Opens connections to the broker under test, and drops them all when the test is over."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._clients: list[Client] = []

    def dial(self, version: int = 5, client_id: str | None = None) -> Client:
        """A connection on which nothing has been sent yet."""
        name = new_client_id() if client_id is None else client_id
        client = Client(self._address, version, name, says_why=NAME == "sterna")
        self._clients.append(client)
        return client

    def join(
        self,
        version: int = 5,
        client_id: str | None = None,
        clean: bool = True,
        keep_alive: int = 60,
        will: Will | None = None,
        **properties: Unpack[Properties],
    ) -> Client:
        """A client whose CONNECT was accepted."""
        client = self.dial(version, client_id)
        client.connect(Connect(client.client_id, clean, keep_alive, will, properties=properties))
        return client

    def resume(self, version: int, client_id: str, **properties: Unpack[Properties]) -> Client:
        """A client with a session that outlives its connection: begun if it is new, else continued."""
        if version == 5:
            properties.setdefault("session_expiry", 300)
        return self.join(version, client_id, clean=False, **properties)

    def hang_up(self) -> None:
        for client in self._clients:
            client.drop()


def new_client_id() -> str:
    return f"client-{uuid4().hex[:12]}"
