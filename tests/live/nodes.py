"""A real node in a process of its own: started from a TOML snippet, waited for, stopped, killed, started again.

It binds to loopback on ports the system picks, and keeps them when it is started again.  Its log is JSON lines in its
directory, one file for all its lives.  A node in a network namespace is reached by Unix sockets, which know no such
borders.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from sterna.cli.admin_client import UnixConnection

START_S = 120.0
STOP_S = 60.0

_NODE = '[node]\nname = "live"\ndata = "{directory}/data"\n'
_LISTENER = '[[listener]]\nbind = "127.0.0.1:0"\n'
_NO_ADMIN = '[admin]\nbind = ""\n'
_LOG = '[log]\nformat = "json"\n'


def wait_until(holds: Callable[[], object], what: str, within_s: float = 60.0) -> None:
    """Come back as soon as it holds; fail saying what was waited for."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {within_s} s in vain: {what}"
        time.sleep(0.01)


class LiveNode:
    """`with LiveNode(tmp_path, '[journal]\\ndurability = "os"') as node:` is a node that takes clients."""

    command = "node"
    program: tuple[str, ...] = (sys.executable, "-m", "sterna")

    def __init__(self, directory: Path, toml: str = "", *, within: Sequence[str] = ()) -> None:
        """`within` are words before the command, such as those that take it into a network namespace."""
        self.directory = directory
        self.ports: list[int] = []
        """Of the listeners in order; a Unix socket's is 0."""
        self.admin_port = 0
        self.network_port = 0
        self.admin = ""
        """Address of the admin port as commands take it."""
        self._sockets: list[str] = []
        self._within = tuple(within)
        self._lived = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._toml = toml
        self.file = directory / "sterna.toml"
        self._log = directory / "node.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.file.write_text(self._completed(toml))

    def _completed(self, toml: str) -> str:
        """The snippet, with a listener if it names none, and without an admin port unless it names one."""
        parts = [] if "[node]" in toml else [_NODE.format(directory=self.directory)]
        parts += [toml, "\n"]
        parts += [] if "[[listener]]" in toml else [_LISTENER]
        parts += [] if "[admin]" in toml else [_NO_ADMIN]
        parts += [] if "[log]" in toml else [_LOG]
        return "".join(parts)

    # -- its lives --

    def start(self) -> Self:
        self.launch()
        try:
            wait_until(self.is_up, "the node listens", START_S)
        except BaseException:
            self.kill()
            raise
        return self

    restart = start

    def launch(self) -> None:
        """Start it without waiting."""
        assert self._process is None or self._process.poll() is not None, "it is still running"
        self._lived = self._log.stat().st_size if self._log.exists() else 0
        command = [*self._within, *self.program, self.command, "--config", str(self.file)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment())

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
        ports = {f"STERNA_LISTENER_{i}_BIND": f"127.0.0.1:{port}" for i, port in enumerate(self.ports) if port}
        if self.admin_port:
            ports["STERNA_ADMIN_BIND"] = f"127.0.0.1:{self.admin_port}"
        if self.network_port:
            ports["STERNA_NETWORK_BIND"] = f"127.0.0.1:{self.network_port}"
        return kept | ports

    def is_up(self) -> bool:
        """Does it take clients?  Fails if it never will."""
        is_up = self._is_up()
        assert is_up or not self._process_ended(), f"the node does not start:\n{self.log()}"
        return is_up

    def _is_up(self) -> bool:
        events = self.events(since=self._lived)
        listening = [event["address"] for event in events if event["event"] == "listening"]
        admin = [event["address"] for event in events if event["event"] == "admin port"]
        if len(listening) < max(1, self._toml.count("[[listener]]")) or ("[admin]" in self._toml and not admin):
            return False
        self.ports = [port_of(address) for address in listening]
        self._sockets = [address.removeprefix("unix:") for address in listening]
        self.admin = admin[0].removeprefix("http://") if admin else ""
        self.admin_port = port_of(self.admin)
        door = [event["address"] for event in events if event["event"] == "open to other nodes" and event["address"]]
        if door and door[0].startswith("127.0.0.1:"):
            self.network_port = port_of(door[0])
        return True

    def _process_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: no farewell, nothing written any more."""
        self._end(signal.SIGKILL)

    def hang_up(self) -> None:
        """SIGHUP: it reads its configuration again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(STOP_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # One that is measured leaves its figures only if it may end by itself.
        self.stop() if "COVERAGE_PROCESS_CONFIG" in os.environ else self.kill()
        if error is not None:
            print(f"--- log of the node ---\n{self.log()[-20_000:]}")

    # -- what can be seen of it --

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def entrance(self) -> tuple[str, int] | str:
        """Of the first listener; a Unix socket's is its path."""
        return self.address if self.port else self._sockets[0]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def events(self, name: str = "", since: int = 0) -> list[dict[str, Any]]:
        """The log's events, all or those of one name; a line not finished yet, or not JSON, is left out."""
        whole = self._log.read_bytes()[since:].rpartition(b"\n")[0]
        found = [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return [event for event in found if not name or event["event"] == name]

    def ask(self, page: str) -> tuple[int, str]:
        """Status and body of a page of the admin port."""
        connection = self._admin_connection()
        try:
            connection.request("GET", page)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _admin_connection(self) -> http.client.HTTPConnection:
        if self.admin_port:
            return http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=240)
        return UnixConnection(self.admin.removeprefix("unix:"))

    def network(self) -> dict[str, Any]:
        """The answer of `/network`."""
        status, body = self.ask("/network")
        assert status == 200, body
        view: dict[str, Any] = json.loads(body)
        return view

    def metric(self, name: str, **labels: str) -> float:
        """A value of /metrics; 0 if it has not been counted yet."""
        samples = (one for family in text_string_to_metric_families(self.ask("/metrics")[1]) for one in family.samples)
        return next((one.value for one in samples if one.name == name and one.labels == labels), 0.0)

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def is_at_rest(self) -> bool:
        """For a second its memory stays as it is, and none of its threads works or waits for a processor."""
        before = self.resident_bytes
        for _ in range(10):
            time.sleep(0.1)
            if self._is_at_work() or self.resident_bytes != before:
                return False
        return True

    def _is_at_work(self) -> bool:
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return any(thread.read_text().rpartition(")")[2].split()[0] in "RD" for thread in threads)


def port_of(address: str) -> int:
    return 0 if not address or address.startswith("unix:") else int(address.rpartition(":")[2])
