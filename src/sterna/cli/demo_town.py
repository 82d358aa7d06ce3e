"""`sterna demo --town`: a network to be watched, with everything in it that the dashboard can show.

Five nodes in a tree, two of which workers run; a coordinator; two gateways with clients behind them; 200 clients that
roam; a Mosquitto; expressions; clients that are away while messages wait for them; and a Spark query.  All of it is
real processes and real clients, and goes with this one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import paho.mqtt.client as paho
from rich.console import Console

from sterna.broker.access.passwords import hash_password
from sterna.cli.demo_mosquitto import DemoMosquitto, find_mosquitto
from sterna.cli.demo_nodes import PATIENCE_S, DemoNode, follow, joined, leave, start_tied, wait_until
from sterna.cli.demo_spark import SparkCounts
from sterna.measure.harness.node_tables import toml
from sterna.measure.harness.ports import free_ports

ROAMING = 200
BEHIND_EACH_GATEWAY = 10
MOVE_EVERY_S = 0.5
PACE_S = 0.04
STOP_S = 30.0
NAMES = ("oslo", "porto", "turin", "hamburg", "lyon")
"""The first three are started here, the others by workers."""
LINKED_TO = {"porto": "oslo", "turin": "oslo", "hamburg": "porto", "lyon": "turin"}
LINES = ("press", "oven", "mill", "paint", "pack", "lift", "saw", "drill")
EXPRESSIONS = ("$AVG/plant/+/+/temp", "$MAX/plant/oven/+/temp", "$TMPCOUNT;0:01:00/plant/+/orders")
FENCES = {"fence_s": 2.0, "pause_max_s": 2.0}
THRESHOLDS = {"up": 1.0, "down": 0.02}
"""Of the pressure: on one machine a gateway saves parts of a millisecond, not hundreds."""
STATES = ("runs", "waits", "is cleaned")
_PASSWORD = "a long password"
_USERS = ("boss", "gate-1", "gate-2")


@dataclass(frozen=True, slots=True)
class WorkedNode:
    """A node that a worker runs; it has the addresses of a `DemoNode`."""

    name: str
    port: int
    admin_port: int
    link_port: int
    feed: str


class DemoTown:
    def __init__(self, directory: Path, console: Console, roaming: int = ROAMING, *, with_spark: bool = True) -> None:
        self._directory = directory
        self._console = console
        self._roaming = roaming
        self._with_spark = with_spark
        self._running = ExitStack()
        self._rng = random.Random(7)
        self._key, self._password, self._passwords = (directory / name for name in ("key", "password", "passwords"))
        self.mosquitto: DemoMosquitto | None = None
        self.spark: SparkCounts | None = None
        self.nodes: dict[str, DemoNode | WorkedNode] = {}
        self._clients: list[paho.Client] = []
        self._turn = 0
        self._move_at = 0.0

    @property
    def door(self) -> str:
        """The dashboard to open."""
        return self._door_node.dashboard

    @property
    def _door_node(self) -> DemoNode:
        node = self.nodes["oslo"]
        assert isinstance(node, DemoNode)
        return node

    @property
    def feeds(self) -> str:
        return ",".join(node.feed for node in self.nodes.values())

    def __enter__(self) -> DemoTown:
        began = time.monotonic()
        try:
            self._write_secrets()
            self._start_nodes()
            self._door_node.wait_for_page()
            up_s = time.monotonic() - began
            self._console.print(
                f"[bold]Open {self.door}[/] in a browser, {up_s:.1f} s after the start; Ctrl-C ends it."
            )
            self._start_adaptation()
            self._connect_clients()
            if self._with_spark:
                self.spark = SparkCounts(self.feeds, self._directory, Console(quiet=True), PATIENCE_S)
                self._running.callback(self.spark.stop)
            self._console.print(f"All are there {time.monotonic() - began:.1f} s after the start.")
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._running.close()

    # -- processes --

    def _write_secrets(self) -> None:
        self._key.write_text("a key that all nodes share\n")
        self._password.write_text(_PASSWORD)
        users = (hash_password(user, _PASSWORD, random_bytes=os.urandom) for user in _USERS)
        self._passwords.write_text("".join(f"{line}\n" for line in users))

    def _shared(self, *, is_edge: bool = False) -> str:
        """Tables that every node has.  Those of workers never become the root of the tree."""
        tree = {"multicast": "", **({"cpu_weight": 0, "memory_weight": 0} if is_edge else {})}
        return toml(
            {
                "mqtt": {"gateways": ["127.0.0.0/8"]},
                "journal": {"durability": "os", "deliveries": True},
                "authentication": {"password_file": str(self._passwords)},
                "adaptation": {"users": ["boss"], "gateways": ["*"]},
                "network.tree": tree,
            }
        )

    def _start_nodes(self) -> None:
        program = find_mosquitto()
        if program is not None:
            self.mosquitto = DemoMosquitto(program, self._directory)
            self._running.callback(self.mosquitto.stop)
            self.mosquitto.start()
        for name in NAMES[:3]:
            more = self._shared()
            if name == "turin" and self.mosquitto is not None:
                more += toml({"interworking": {"broker": self.mosquitto.address, "name": "Mosquitto", **FENCES}})
            neighbour = self.nodes.get(LINKED_TO.get(name, ""))
            assert neighbour is None or isinstance(neighbour, DemoNode)
            lines = {"anonymous": True}
            node = DemoNode(
                self._directory,
                name,
                neighbour,
                more,
                listener=lines,
                overlay="spanning-tree",
                key_file=self._key,
                is_door=name == "oslo",
            )
            self.nodes[name] = node
            self._running.callback(node.stop)
            node.launch()
        for started in self.nodes.values():
            assert isinstance(started, DemoNode)
            started.wait()

    def _start_adaptation(self) -> None:
        for name in NAMES[3:]:
            self._start_worker(name)
        for name in NAMES[3:]:
            admin_port = self.nodes[name].admin_port
            wait_until(lambda port=admin_port: _picture(port) is not None, f"the node of worker {name}")
        sealed = self._line("boss", {"key_file": str(self._key)})
        coordinator = {"name": "chief", "say_s": 0.5, "lead_after_s": 2, "settle_s": 2}
        decisions = {"pass_s": 1.0, **THRESHOLDS}
        tables = {"coordinator": coordinator, "decisions": decisions, "admin": {"bind": ""}, **sealed}
        self._run("coordinator", "chief", tables)
        for number in (1, 2):
            name = f"gate-{number}"
            tables = {
                "gateway": {"name": name},
                "upstream": {"nodes": [f"127.0.0.1:{self.nodes['hamburg'].port}"], "references": ["*"]},
                "listener": [{"bind": f"unix:{self._directory}/{name}.sock"}],
                "admin": {"bind": ""},
                **self._line(name, {}),
            }
            self._run("gateway", name, tables)
            path = self._directory / f"{name}.sock"
            wait_until(path.exists, f"gateway {name}")

    def _start_worker(self, name: str) -> None:
        port, admin, link, feed, echo = free_ports(5)
        node = WorkedNode(name, port, admin, link, f"127.0.0.1:{feed}")
        neighbour = self.nodes[LINKED_TO[name]]
        directory = self._directory / f"worker-{name}"
        directory.mkdir()
        node_tables = {
            "node": {"data": f"{directory}/data"},
            "listener": [{"bind": f"127.0.0.1:{port}", "anonymous": True}],
            "admin": {"bind": f"127.0.0.1:{admin}"},
            "network": {
                "name": "demo",
                "bind": f"127.0.0.1:{link}",
                "neighbours": [f"127.0.0.1:{neighbour.link_port}"],
                "overlay": "spanning-tree",
                "key_file": str(self._key),
            },
            "feed": {"bind": node.feed},
            "migration": {"server_references": True},
        }
        (directory / "node.toml").write_text(toml(node_tables) + self._shared(is_edge=True))
        worker = {
            "name": name,
            "site": "north" if name == "hamburg" else "south",
            "fixed": True,
            "data": f"{directory}/worker",
            "echo": f"127.0.0.1:{echo}",
            "node_file": f"{directory}/node.toml",
            "leave_node": False,
            "report_s": 1.0,
        }
        tables = {"worker": worker, "admin": {"bind": ""}, **self._line("boss", {"key_file": str(self._key)})}
        self._run("worker", name, tables)
        self.nodes[name] = node

    def _line(self, user: str, more: Mapping[str, object]) -> dict[str, object]:
        nodes = [f"127.0.0.1:{self.nodes['oslo'].port}"]
        return {
            "adaptation": {
                "network": "demo", "nodes": nodes, "user": user, "password_file": str(self._password), **more,
            }
        }  # fmt: skip

    def _run(self, command: str, name: str, tables: Mapping[str, object]) -> None:
        file = self._directory / f"{command}-{name}.toml"
        file.write_text(toml(tables))
        with (self._directory / f"{command}-{name}.log").open("ab") as log:
            process = start_tied([sys.executable, "-m", "sterna", command, "--config", str(file)], log)
        self._running.callback(_stop, process)

    # -- clients --

    def _connect_clients(self) -> None:
        places = list(self.nodes.values())
        for number in range(self._roaming):
            line = LINES[number % len(LINES)]
            client = self._running.enter_context(joined(f"{line}-{number:03}", places[number % len(places)], []))
            follow(client)
            client.subscribe([(f"plant/{line}/orders", 1), (f"plant/{line}/+/state", 0)])
            self._clients.append(client)
        office = self._running.enter_context(joined("office", self.nodes["oslo"], []))
        office.subscribe([(expression, 1) for expression in EXPRESSIONS])
        self._clients.append(office)
        self._leave_some_away()
        for number in (1, 2):
            for place in range(BEHIND_EACH_GATEWAY):
                self._join_gateway(f"gate-{number}", f"handheld-{number}{place}")

    def _leave_some_away(self) -> None:
        """Clients of the night shift: their sessions stay, and what comes for them waits."""
        for number in range(3):
            with joined(f"night-shift-{number}", self.nodes["porto"], []) as client:
                granted: list[int] = []
                client.on_subscribe = lambda _c, _d, packet, _reasons, _p, to=granted: to.append(packet)
                client.subscribe("plant/+/orders", 1)
                wait_until(lambda granted=granted: bool(granted), "the night shift")

    def _join_gateway(self, gateway: str, name: str) -> None:
        from paho.mqtt.enums import CallbackAPIVersion

        client = paho.Client(CallbackAPIVersion.VERSION2, name, transport="unix", clean_session=False)
        client.on_connect = lambda one, *_: one.subscribe("plant/+/orders", 1)
        client.connect(str(self._directory / f"{gateway}.sock"), 1883)
        client.loop_start()

        self._running.callback(leave, client)
        self._clients.append(client)

    def live(self, until: Callable[[], bool]) -> None:
        """Clients publish and roam."""
        while not until():
            self._turn += 1
            number = self._rng.randrange(self._roaming)
            client, line = self._clients[number], LINES[number % len(LINES)]
            client.publish(f"plant/{line}/{number:03}/temp", f"{20 + 60 * self._rng.random():.1f}", self._turn % 3)
            client.publish(f"plant/{line}/{number:03}/state", self._rng.choice(STATES), 1, True)
            if self._turn % 10 == 0:
                self._clients[self._roaming].publish(f"plant/{line}/orders", json.dumps({"order": self._turn}), 1)
            if time.monotonic() >= self._move_at:
                self._move_at = time.monotonic() + MOVE_EVERY_S
                self.move(f"{line}-{number:03}", self._rng.choice(NAMES))
            time.sleep(PACE_S)

    def move(self, client: str, to: str) -> None:
        """A client that cannot be moved now stays where it is."""
        self.order("/move", {"client": client, "to": to})

    def order(self, page: str, body: Mapping[str, object]) -> None:
        """To any node; refused is refused."""
        address = f"{self.door.rstrip('/')}{page}"
        words = {"Content-Type": "application/json"}
        request = urllib.request.Request(address, json.dumps(body).encode(), words, method="POST")
        with suppress(OSError), urllib.request.urlopen(request, timeout=5):
            pass


def live_town(directory: Path, console: Console) -> None:
    """Until Ctrl-C."""
    console.print("[bold]Five nodes, 200 clients, two workers and a coordinator, gateways, a Mosquitto and Spark[/]")
    with suppress(KeyboardInterrupt), DemoTown(directory, console) as town:
        town.live(lambda: False)
    console.print("\nstopped")


def _picture(admin_port: int) -> dict[str, object] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/dashboard/picture", timeout=10) as answer:
            found: dict[str, object] = json.load(answer)
            return found
    except OSError:
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
