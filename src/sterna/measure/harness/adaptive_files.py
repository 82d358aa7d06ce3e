"""Configurations of a small network that adapts itself: a cloud, an edge far from it, and gateways there.

Timers are short unless others are given, so that a crowd that comes is served within seconds and one that goes is
forgotten as soon.  Admin ports and listeners of gateways are Unix sockets, which know no borders of network namespaces.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sterna.broker.access.passwords import hash_password
from sterna.measure.harness.sites import NodePlace

CLOUD, EDGE, CROWD = 0, 1, 2
"""Numbers of the places; coordinators are at the cloud."""
PLACES = 3
FAR_S, NEAR_S = 0.030, 0.001
"""One way."""
CALM_S = 2.0
"""For so long the pressure on a node must be low before it is stopped."""
_PASSWORD = "a long password"
_BOSS = "boss"
"""As whom workers and coordinators come."""
_GATEWAYS = ("g1", "g2", "g3")

_NODE = """
[node]
data = "{directory}/data"
[journal]
durability = "os"
[mqtt]
gateways = ["198.18.0.0/15", "127.0.0.0/8"]
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
MEASURING = """
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
{more}
{pace}
[admin]
bind = "unix:{directory}/worker.sock"
[log]
format = "json"
"""
_COORDINATOR = """
[coordinator]
name = "{name}"
{more}
{pace}
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


@dataclass(frozen=True, slots=True)
class AdaptivePace:
    """How quickly everybody acts: lines of the files.  A worker's and a coordinator's begin within their own table."""

    worker: str
    coordinator: str
    measuring: str


QUICK: Final = AdaptivePace(
    worker="""report_s = 0.3
look_s = 0.2
[draining]
ready_s = 120
stop_s = 120
leave_s = 20
coordinator_s = 30
bar_s = 1
""",
    coordinator=f"""say_s = 0.3
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
calm_s = {CALM_S}
young_s = 2
pressure = "seed"
up = 2.0
down = 1.0
""",
    measuring=MEASURING,
)


def delay_s(one: int, other: int) -> float:
    """From one place to another; the switch of `AtADistance` asks."""
    return NEAR_S if {one, other} <= {EDGE, CROWD} else FAR_S


class AdaptiveFiles:
    """Each process has a directory of its own, named as it is."""

    def __init__(
        self,
        directory: Path,
        places: Sequence[NodePlace],
        overlay: str = "static",
        gateways: Sequence[str] = _GATEWAYS,
        pace: AdaptivePace = QUICK,
    ) -> None:
        self.directory = directory
        self._pace = pace
        self._places = places
        self._overlay = overlay
        self._cloud = places[CLOUD].host
        self._key, self._password, self._passwords = (directory / name for name in ("key", "password", "passwords"))
        self._key.write_text("a key that all nodes share\n")
        self._password.write_text(_PASSWORD)
        users = (hash_password(user, _PASSWORD, random_bytes=os.urandom) for user in (_BOSS, *gateways))
        self._passwords.write_text("".join(f"{line}\n" for line in users))

    def worker(self, name: str, number: int, *, fixed: bool, more: str = "") -> str:
        """Of a worker at that place; the file of its node is written.  `more`: lines for `[worker]`."""
        directory = self._directory_of(name)
        host = self._places[number].host
        node = _NODE.format(
            directory=directory,
            host=host,
            key=self._key,
            passwords=self._passwords,
            neighbours=[] if number == CLOUD else [f"{self._cloud}:7883"],
            overlay=self._overlay,
            tree='[network.tree]\nmulticast = ""' if self._overlay == "spanning-tree" else "",
        )
        (directory / "node.toml").write_text(node)
        own = _WORKER.format(
            name=name, fixed=str(fixed).lower(), directory=directory, host=host, more=more, pace=self._pace.worker
        )
        return own + self._sealed() + self._pace.measuring

    def coordinator(self, name: str, more: str = "") -> str:
        """`more`: lines for `[coordinator]`."""
        directory = self._directory_of(name)
        own = _COORDINATOR.format(name=name, directory=directory, more=more, pace=self._pace.coordinator)
        return own + self._sealed()

    def gateway(self, name: str) -> str:
        own = _GATEWAY.format(name=name, directory=self._directory_of(name), cloud=self._cloud)
        return own + self._line(name) + self._pace.measuring

    def entrance(self, gateway: str) -> str:
        """Where clients of a gateway connect."""
        return str(self.directory / gateway / "clients.sock")

    def _directory_of(self, name: str) -> Path:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return directory

    def _line(self, user: str, more: str = "") -> str:
        return _LINE.format(cloud=self._cloud, user=user, password=self._password, more=more)

    def _sealed(self) -> str:
        return self._line(_BOSS, f'key_file = "{self._key}"')
