"""The brokers that can be compared, and how each is started: a fresh process, a fresh directory, its best settings.

`BROKERS` is the table; a further peer is one more `Broker`.  A started broker is ended on every way out, and dies with
this process if that is killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.ports import free_port
from sterna.measure.load import packets
from sterna.measure.load.shapes import Paced, Workload

START_S_MAX = 15.0
STOP_S_MAX = 10.0
PR_SET_PDEATHSIG = 1
LOG_TAIL_BYTES = 2000
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Broker:
    name: str
    settings: Callable[[Workload, int, Path], str]
    """The configuration file for a workload, a port and an empty directory."""
    command: Callable[[Path], list[str]]
    """What to run with that file."""
    describe: Callable[[], str]
    """Name and version, for the report."""
    remark: Callable[[Workload], str]
    """What a reader must know about this broker to judge the workload's figures; often empty."""


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    port: int


@contextmanager
def started(broker: Broker, workload: Workload, core: int | None) -> Iterator[Running]:
    """A broker that answers on its port; gone, with its directory, when the block ends."""
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as name:
        directory = Path(name)
        port = free_port()
        file = directory / "broker.conf"
        file.write_text(broker.settings(workload, port, directory))
        log = directory / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                broker.command(file),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: tie_to_parent(core),
                start_new_session=True,
            )
        try:
            _wait_until_it_answers(broker, process, port, log)
            yield Running(process.pid, port)
        finally:
            _stop(process)


def tie_to_parent(core: int | None) -> None:
    """In a new process, before its program: stay on the core, and die when the parent does."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    meter.pin(0, core)


def _wait_until_it_answers(broker: Broker, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as probe:
            probe.sendall(packets.connect("probe", clean=True))
            if probe.recv(4) == packets.CONNACK_ACCEPTED:
                return
        time.sleep(0.02)
    tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    raise MeasurementError(f"{broker.name} did not start; its last words: {tail or '(none)'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        try:
            process.terminate()
            process.wait(STOP_S_MAX)
        finally:
            # Also when we are interrupted while waiting; nothing happens to a process that has ended.
            process.kill()
            process.wait()


def _sterna_settings(workload: Workload, port: int, directory: Path) -> str:
    return f"""\
[node]
name = "bench"
data = "{directory}/data"
[journal]
durability = "{workload.durability}"
[limits]
connections_per_address = 20000
[admin]
bind = ""
[log]
level = "warning"
[[listener]]
bind = "127.0.0.1:{port}"
"""


def _mosquitto_settings(workload: Workload, port: int, directory: Path, *, nodelay: bool) -> str:
    """No limit on messages in flight or queued, no log, otherwise Debian's defaults.

    Mosquitto writes packet by packet.  Nagle's algorithm (its default) lets the kernel join them, which saves much
    CPU time and costs milliseconds, so at its best Mosquitto asks for `nodelay` only where latency is judged.
    """
    persistence = "true" if workload.durability == "fsync" else "false"
    lines = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "max_inflight_messages 0",
        "max_queued_messages 0",
        f"set_tcp_nodelay {str(nodelay).lower()}",
        f"persistence {persistence}",
        f"persistence_location {directory}/",
        "log_type error",
        "log_dest stderr",
    ]
    if os.getuid() == 0:
        lines.append("user root")
    return "\n".join(lines) + "\n"


def _mosquitto_program() -> str:
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MeasurementError("mosquitto is not installed; on Debian: apt-get install mosquitto")
    return found


def _mosquitto_version() -> str:
    told = subprocess.run([_mosquitto_program(), "-h"], capture_output=True, text=True, check=False).stdout
    return told.splitlines()[0] if told else "mosquitto"


def _mosquitto_remark(workload: Workload, *, nodelay: bool) -> str:
    if workload.durability == "fsync":
        return "acknowledges long before anything is on disk: persistence saves every 30 minutes."
    if isinstance(workload.load, Paced) and not nodelay:
        return "run with Nagle's algorithm, its default: less CPU time for milliseconds of latency."
    return ""


def _mosquitto(name: str, nodelay: Callable[[Workload], bool], settings: str) -> Broker:
    return Broker(
        name,
        settings=lambda workload, port, where: _mosquitto_settings(workload, port, where, nodelay=nodelay(workload)),
        command=lambda file: [_mosquitto_program(), "-c", str(file)],
        describe=lambda: f"{_mosquitto_version()} ({settings})",
        remark=lambda workload: _mosquitto_remark(workload, nodelay=nodelay(workload)),
    )


STERNA = Broker(
    "sterna",
    settings=_sterna_settings,
    command=lambda file: [sys.executable, "-m", "sterna", "node", "--config", str(file)],
    describe=lambda: f"sterna {version('sterna')}, Python {sys.version.split()[0]}",
    remark=lambda workload: "",
)
MOSQUITTO = _mosquitto(
    "mosquitto", lambda workload: workload.figure == "latency_p99_us", "set_tcp_nodelay only for latency"
)
MOSQUITTO_NODELAY = _mosquitto("mosquitto-nodelay", lambda workload: True, "set_tcp_nodelay always")

BROKERS = {broker.name: broker for broker in (STERNA, MOSQUITTO, MOSQUITTO_NODELAY)}
