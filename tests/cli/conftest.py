"""A real Mosquitto, and both command lines to compare on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import WAIT_S, Mosquitto
from live.left_out import leave_out
from sterna.measure.harness.ports import free_ports

_CONFIGURATION = """
per_listener_settings true
listener {open} 127.0.0.1
allow_anonymous true
listener {guarded} 127.0.0.1
allow_anonymous false
password_file {directory}/passwords
acl_file {directory}/acl
listener 0 {directory}/socket
allow_anonymous true
listener {websocket} 127.0.0.1
protocol websockets
allow_anonymous true
"""


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    broker = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if broker is None:
        leave_out("mosquitto is not installed")
    directory = tmp_path_factory.mktemp("mosquitto")
    subprocess.run(["mosquitto_passwd", "-c", "-b", directory / "passwords", "bob", "secret"], check=True)
    (directory / "acl").write_text("user bob\ntopic read ok/#\n")
    # Its WebSocket listener now and then finds a port taken that was free a moment ago: then it gets others.
    for attempt in range(10):
        ports, process = _started(broker, directory)
        try:
            _wait_for_port(ports.websocket, process, directory / "log")
            break
        except AssertionError:
            process.kill()
            process.wait(WAIT_S)
            if attempt == 9:
                raise
    try:
        yield ports
    finally:
        process.terminate()
        process.wait(WAIT_S)


def _started(broker: str, directory: Path) -> tuple[Mosquitto, subprocess.Popen[bytes]]:
    open_port, guarded, websocket = free_ports(3)
    ports = Mosquitto(open_port, guarded, websocket, directory / "socket")
    # Or it would change to a user who may not read these files.
    user = "user root" if os.geteuid() == 0 else ""
    (directory / "conf").write_text(user + _CONFIGURATION.format(directory=directory, **ports._asdict()))
    with (directory / "log").open("wb") as log:
        return ports, subprocess.Popen([broker, "-c", directory / "conf"], stdout=log, stderr=log)


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(WAIT_S * 50):
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"mosquitto did not start: {log.read_text()}")
