"""A network that adapts itself, in real processes at a distance: a cloud, an edge far from it, and gateways there.

Each host is a network namespace; the switch between them holds packets as long as the way is meant to take.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sterna.cli.admin_client import ask
from sterna.measure.harness.adaptive_files import CLOUD, CROWD, EDGE, PLACES, AdaptiveFiles, delay_s
from sterna.measure.harness.sites import AtADistance, NodePlace

from .nodes import START_S, LiveNode, port_of, wait_until

_ADAPTING = """
[adaptation]
network = "live"
key_file = "{key}"
nodes = ["127.0.0.1:1"]
[admin]
bind = "127.0.0.1:0"
[log]
format = "json"
"""
_WORKER = """
[worker]
name = "host"
host = "command"
start = ["true"]
stop = ["true"]
status = ["false"]
admin = "127.0.0.1:1"
clients = "127.0.0.1:1"
echo = "127.0.0.1:0"
data = "{data}"
"""
_HERE = NodePlace("127.0.0.1", 0, 0, 0)
_ALONE = {"worker": _WORKER, "coordinator": '[coordinator]\nname = "boss"\n'}


class LiveProcess(LiveNode):
    """One of the others: it is up when its admin port is."""

    def __init__(self, command: str, directory: Path, toml: str, place: NodePlace) -> None:
        self.command = command
        super().__init__(directory, toml, within=place.prefix)

    def _completed(self, toml: str) -> str:
        return toml

    def _is_up(self) -> bool:
        found = [event["address"] for event in self.events("admin port", since=self._lived)]
        self.admin = found[0].removeprefix("http://") if found else ""
        self.admin_port = port_of(self.admin)
        return bool(found)

    def status(self, page: str = "/status") -> dict[str, Any]:
        status, body = self.ask(page)
        assert status == 200, body
        view: dict[str, Any] = json.loads(body)
        return view


def lone_process(command: str, directory: Path) -> LiveProcess:
    """A worker or coordinator on loopback that nobody speaks to."""
    directory.mkdir(parents=True)
    (directory / "key").write_text("a key that all nodes share\n")
    toml = _ALONE[command].format(data=directory / "data") + _ADAPTING.format(key=directory / "key")
    return LiveProcess(command, directory, toml, _HERE)


class LiveWorker(LiveProcess):
    def node_pid(self) -> int:
        pid: int = self.status()["pid"]
        return pid

    def state(self) -> str:
        state: str = self.status()["state"]
        return state


class LiveAdaptation:
    """`with LiveAdaptation(tmp_path) as town:` has a cloud that serves and an edge that is off."""

    def __init__(self, directory: Path, edge: str = "", overlay: str = "static") -> None:
        """`edge`: more lines for the table of the worker there."""
        self._directory = directory
        self._edge = edge.format(directory=directory / "edge")
        self._overlay = overlay
        self._stack = ExitStack()
        self.processes: dict[str, LiveProcess] = {}
        self._pids: set[int] = set()

    def __enter__(self) -> Self:
        site = self._stack.enter_context(AtADistance(PLACES, delay_s))
        self.places = site.places
        self.files = AdaptiveFiles(self._directory, site.places, self._overlay)
        try:
            self.cloud = self._worker("cloud", CLOUD, self.files.worker("cloud", CLOUD, fixed=True))
            self.edge = self._worker("edge", EDGE, self.files.worker("edge", EDGE, fixed=False, more=self._edge))
            wait_until(lambda: self.cloud.state() == "serving", "the cloud serves", START_S)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for process in self.processes.values():
            if isinstance(process, LiveWorker):
                with suppress(Exception):
                    self._pids.add(process.node_pid())
            if process._process is not None:
                process.kill()
        by_command = self._directory / "edge" / "pid"
        self._pids |= {int(by_command.read_text())} if by_command.exists() else set()
        for pid in self._pids - {0}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._stack.close()
        if error is not None:
            self._print_logs()

    def _print_logs(self) -> None:
        for name, process in self.processes.items():
            print(f"--- log of {name} ---\n{process.log()[-6_000:]}")
            node = self._directory / name / "worker" / "node.log"
            if node.exists():
                print(f"--- log of its node ---\n{node.read_text()[-4_000:]}")

    # -- who is there --

    def _worker(self, name: str, number: int, toml: str) -> LiveWorker:
        made = LiveWorker("worker", self._directory / name, toml, self.places[number])
        self.processes[name] = made
        made.start()
        return made

    def coordinator(self, name: str, more: str = "") -> LiveProcess:
        """`more`: lines for its table."""
        return self._started(name, "coordinator", self.files.coordinator(name, more), CLOUD)

    def gateway(self, name: str) -> LiveProcess:
        return self._started(name, "gateway", self.files.gateway(name), CROWD)

    def _started(self, name: str, command: str, toml: str, number: int) -> LiveProcess:
        made = self.processes[name] = LiveProcess(command, self._directory / name, toml, self.places[number])
        made.start()
        return made

    def network_of(self, name: str) -> dict[str, Any]:
        """The page /network of a worker's node."""
        view: dict[str, Any] = ask(f"unix:{self._directory}/{name}/node.sock", "/network", None)
        return view

    def entrance(self, gateway: str) -> str:
        return self.files.entrance(gateway)
