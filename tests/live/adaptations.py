"""A network that adapts itself, in real processes at a distance: a cloud, an edge far from it, and gateways there.

Each host is a network namespace; the switch between them holds packets as long as the way is meant to take.  Admin
ports and clients use Unix sockets, which know no such borders.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sterna.broker.access.passwords import hash_password
from sterna.cli.admin_client import ask
from sterna.measure.harness.sites import AtADistance, NodePlace

from .nodes import START_S, LiveNode, wait_until

CLOUD, EDGE, CROWD = 0, 1, 2
"""Numbers of the hosts; coordinators are at the cloud."""
FAR_S, NEAR_S = 0.030, 0.001
"""One way."""
PASSWORD = "a long password"
USERS = ("boss", "g1", "g2", "g3")

_NODE = """
[node]
name = "{name}"
data = "{directory}/data"
[journal]
durability = "os"
[mqtt]
gateways = ["198.18.0.0/15"]
[[listener]]
bind = "{host}:1883"
anonymous = true
[authentication]
password_file = "{passwords}"
[adaptation]
users = ["boss"]
gateways = ["*"]
[admin]
bind = "unix:{directory}/node.sock"
[network]
name = "live"
bind = "{host}:7883"
key_file = "{key}"
neighbours = {neighbours}
overlay = "{overlay}"
{tree}
[log]
format = "json"
"""
_LINE = """
[adaptation]
network = "live"
nodes = ["{cloud}:1883"]
user = "{user}"
password_file = "{password}"
{more}
"""
_MEASURING = """
[measuring]
base_s = 1
max_s = 2
spacing_s = 0.02
lag_ms = 1000
"""
_WORKER = """
[worker]
name = "{name}"
fixed = {fixed}
data = "{directory}/worker"
echo = "{host}:7886"
node_file = "{directory}/node.toml"
report_s = 0.3
look_s = 0.2
{more}
[draining]
ready_s = 120
stop_s = 120
leave_s = 20
coordinator_s = 30
bar_s = 1
[admin]
bind = "unix:{directory}/worker.sock"
[log]
format = "json"
"""
_COORDINATOR = """
[coordinator]
name = "{name}"
say_s = 0.3
lead_after_s = 2
settle_s = 2
lost_s = 6
order_work_s = 60
order_pause_s = 1
[decisions]
pass_s = 0.5
steady_s = 0.5
cool_down_s = 2
high_s = 0.5
calm_s = 2
young_s = 2
pressure = "seed"
up = 2.0
down = 1.0
[admin]
bind = "unix:{directory}/coordinator.sock"
[log]
format = "json"
"""
_GATEWAY = """
[gateway]
name = "{name}"
[upstream]
nodes = ["{cloud}:1883"]
references = ["*"]
[[listener]]
bind = "unix:{directory}/clients.sock"
[admin]
bind = "unix:{directory}/gateway.sock"
[log]
format = "json"
"""


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
        return bool(found)

    def status(self, page: str = "/status") -> dict[str, Any]:
        status, body = self.ask(page)
        assert status == 200, body
        view: dict[str, Any] = json.loads(body)
        return view


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
        self._overlay = overlay
        self._directory = directory
        self._edge = edge
        self._stack = ExitStack()
        self.processes: dict[str, LiveProcess] = {}
        self._pids: set[int] = set()

    def __enter__(self) -> Self:
        self._key, self._password = self._directory / "key", self._directory / "password"
        self._key.write_text("a key that all nodes share\n")
        self._password.write_text(PASSWORD)
        passwords = self._directory / "passwords"
        passwords.write_text("".join(f"{hash_password(user, PASSWORD, random_bytes=os.urandom)}\n" for user in USERS))
        site = self._stack.enter_context(AtADistance(3, self._delay))
        self.places = site.places
        try:
            self.cloud = self.worker("cloud", CLOUD, fixed=True)
            self.edge = self.worker("edge", EDGE, fixed=False)
            self.cloud.start()
            self.edge.start()
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
            for name, process in self.processes.items():
                print(f"--- log of {name} ---\n{process.log()[-6_000:]}")
                node = self._directory / name / "worker" / "node.log"
                if node.exists():
                    print(f"--- log of its node ---\n{node.read_text()[-4_000:]}")

    def _delay(self, one: int, other: int) -> float:
        return NEAR_S if {one, other} <= {EDGE, CROWD} else FAR_S

    # -- who is there --

    def _line(self, user: str, more: str = "") -> str:
        return _LINE.format(cloud=self.places[CLOUD].host, user=user, password=self._password, more=more)

    def _sealed(self) -> str:
        return self._line("boss", f'key_file = "{self._key}"')

    def worker(self, name: str, number: int, *, fixed: bool) -> LiveWorker:
        place, directory = self.places[number], self._directory / name
        directory.mkdir()
        neighbours = [] if fixed else [f"{self.places[CLOUD].host}:7883"]
        passwords = self._directory / "passwords"
        (directory / "node.toml").write_text(
            _NODE.format(
                name="whoever",
                directory=directory,
                host=place.host,
                key=self._key,
                passwords=passwords,
                neighbours=neighbours,
                overlay=self._overlay,
                tree='[network.tree]\nmulticast = ""' if self._overlay == "spanning-tree" else "",
            )
        )
        more = "" if fixed else self._edge.format(directory=directory)
        toml = _WORKER.format(name=name, fixed=str(fixed).lower(), directory=directory, host=place.host, more=more)
        made = LiveWorker("worker", directory, toml + self._sealed() + _MEASURING, place)
        self.processes[name] = made
        return made

    def coordinator(self, name: str, more: str = "") -> LiveProcess:
        directory = self._directory / name
        toml = _COORDINATOR.format(name=name, directory=directory) + self._sealed() + more
        made = self.processes[name] = LiveProcess("coordinator", directory, toml, self.places[CLOUD])
        made.start()
        return made

    def gateway(self, name: str) -> LiveProcess:
        directory = self._directory / name
        toml = _GATEWAY.format(name=name, directory=directory, cloud=self.places[CLOUD].host)
        made = LiveProcess("gateway", directory, toml + self._line(name) + _MEASURING, self.places[CROWD])
        self.processes[name] = made
        made.start()
        return made

    def network_of(self, name: str) -> dict[str, Any]:
        """The page /network of a worker's node."""
        view: dict[str, Any] = ask(f"unix:{self._directory}/{name}/node.sock", "/network", None)
        return view

    def entrance(self, gateway: str) -> str:
        return str(self._directory / gateway / "clients.sock")
