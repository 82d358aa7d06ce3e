"""The brokers that can be compared, and how each is started: a fresh process, a fresh directory, its best settings.

`BROKERS` is the table; a further peer is one more `BrokerKind`.  A started broker is ended on every way out, and dies
with this process if that is killed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sterna import __version__
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.node_tables import Tables, merged, toml
from sterna.measure.harness.ports import free_port
from sterna.measure.harness.processes import Process, program
from sterna.measure.load import packets
from sterna.measure.load.shapes import Paced, Workload

START_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class BrokerKind:
    name: str
    settings: Callable[[Workload, int, Path], str]
    """The configuration file for a workload, a port and an empty directory."""
    command: Callable[[Path], list[str]]
    """The command line that runs it with that file."""
    describe: Callable[[], str]
    """Name and version, for the report."""
    remark: Callable[[Workload], str]
    """A note that a reader needs about this broker to judge the workload's figures; often empty."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    pid: int
    port: int


@contextmanager
def started(broker: BrokerKind, workload: Workload, core: int | None) -> Iterator[RunningBroker]:
    """A broker that answers on its port; gone, with its directory, when the block ends."""
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as name:
        directory = Path(name)
        port = free_port()
        file = directory / "broker.conf"
        file.write_text(broker.settings(workload, port, directory))
        process = Process(broker.name, broker.command(file), directory, core)
        process.start()
        try:
            _wait_until_it_answers(process, port)
            yield RunningBroker(process.pid, port)
        finally:
            process.stop()


def _wait_until_it_answers(process: Process, port: int) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.is_running:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as probe:
            probe.sendall(packets.connect("probe", clean=True))
            if probe.recv(4) == packets.CONNACK_ACCEPTED:
                return
        time.sleep(0.02)
    raise MeasurementError(f"{process.name} did not start; its last words: {process.last_words()}")


def sterna(tables: Tables | None = None) -> BrokerKind:
    """A node, with these tables in its configuration besides what every node here has."""

    def settings(workload: Workload, port: int, directory: Path) -> str:
        plain: Tables = {
            "node": {"name": "bench", "data": f"{directory}/data"},
            "journal": {"durability": workload.durability},
            "limits": {"connections_per_address": 20_000},
            "admin": {"bind": ""},
            "log": {"level": "warning"},
            "listener": [{"bind": f"127.0.0.1:{port}"}],
        }
        return toml(merged(plain, tables or {}))

    return BrokerKind(
        "sterna",
        settings=settings,
        command=lambda file: sterna_command("node", "--config", str(file)),
        describe=describe_sterna,
        remark=lambda workload: "",
    )


def sterna_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "sterna", *words]


def describe_sterna() -> str:
    return f"sterna {__version__}, Python {sys.version.split()[0]}"


def mosquitto_settings(port: int, *lines: str, host: str = "127.0.0.1") -> str:
    """No limit on messages in flight or queued, no log, otherwise Debian's defaults."""
    plain = [
        f"listener {port} {host}",
        "allow_anonymous true",
        "max_inflight_messages 0",
        "max_queued_messages 0",
        "log_type error",
        "log_dest stderr",
    ]
    if os.getuid() == 0:
        plain.append("user root")
    return "\n".join((*plain, *lines)) + "\n"


def mosquitto_command(file: Path) -> list[str]:
    return [_mosquitto_program(), "-c", str(file)]


def _mosquitto_program() -> str:
    return program("mosquitto", "on Debian: apt-get install mosquitto")


def mosquitto_version() -> str:
    told = subprocess.run([_mosquitto_program(), "-h"], capture_output=True, text=True, check=False).stdout
    return told.splitlines()[0] if told else "mosquitto"


def _mosquitto_remark(workload: Workload, *, nodelay: bool) -> str:
    if workload.durability == "fsync":
        return "acknowledges long before anything is on disk: persistence saves every 30 minutes."
    if isinstance(workload.load, Paced) and not nodelay:
        return "run with Nagle's algorithm, its default: less CPU time for milliseconds of latency."
    return ""


def mosquitto(name: str, nodelay: Callable[[Workload], bool], described: str, lines: Sequence[str] = ()) -> BrokerKind:
    """Mosquitto writes packet by packet.  Nagle's algorithm (its default) lets the kernel join them, which saves much
    CPU time and costs milliseconds, so at its best Mosquitto asks for `nodelay` only where latency is judged.
    """

    def settings(workload: Workload, port: int, directory: Path) -> str:
        return mosquitto_settings(
            port,
            f"set_tcp_nodelay {str(nodelay(workload)).lower()}",
            f"persistence {str(workload.durability == 'fsync').lower()}",
            f"persistence_location {directory}/",
            *lines,
        )

    return BrokerKind(
        name,
        settings=settings,
        command=mosquitto_command,
        describe=lambda: f"{mosquitto_version()} ({described})",
        remark=lambda workload: _mosquitto_remark(workload, nodelay=nodelay(workload)),
    )


def is_judged_by_latency(workload: Workload) -> bool:
    return workload.figure == "latency_p99_us"


def mosquitto_at_its_best(*lines: str) -> BrokerKind:
    """With further lines of its configuration."""
    return mosquitto("mosquitto", is_judged_by_latency, "set_tcp_nodelay only for latency", lines)


STERNA = sterna()
MOSQUITTO = mosquitto_at_its_best()
MOSQUITTO_NODELAY = mosquitto("mosquitto-nodelay", lambda workload: True, "set_tcp_nodelay always")

BROKERS = {broker.name: broker for broker in (STERNA, MOSQUITTO, MOSQUITTO_NODELAY)}
