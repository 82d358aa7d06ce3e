"""The Mosquitto of `sterna demo`: a broker of another make, in a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from sterna.cli.demo_nodes import start_tied
from sterna.measure.harness.ports import free_ports
from sterna.vocabulary.errors import SternaError

PATIENCE_S = 60.0
_CONFIGURATION = """
user root
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {directory}/
"""


def find_mosquitto() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class DemoMosquitto:
    """Its sessions survive a restart."""

    name = "mosquitto"

    def __init__(self, program: str, directory: Path) -> None:
        (self.port,) = free_ports(1)
        place = directory / "mosquitto"
        place.mkdir()
        self._file, self._log = place / "mosquitto.conf", place / "mosquitto.log"
        self._file.write_text(_CONFIGURATION.format(port=self.port, directory=place))
        self._command = [program, "-c", str(self._file)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            process = self._process = start_tied(self._command, log)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        raise SternaError(f"Mosquitto did not start; its log says:\n{self._log.read_text()}")

    def stop(self) -> None:
        """It writes its sessions to disk first."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
