"""Client programs as people run them: a process per client, made with a library that is used as its own manual says.

Each keeps its session, subscribes at QoS 1 and prints the payloads it gets, one a line; when they came is noted here.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from .clients import Paho, Settings
from .nodes import LiveNode

HERE = Path(__file__).parent
#: Where `make` installs what tests/live/javascript names.
JAVASCRIPT = Path(sys.prefix) / "javascript"
NODE_RED = Path(sys.prefix) / "node-red"
STOP_S = 60.0


class Kind(NamedTuple):
    library: str
    version: int
    """4 or 5."""

    @property
    def knows_several_nodes(self) -> bool:
        """Can it be given a list of addresses?"""
        return self.library in ("mqtt.js", "aiomqtt")

    def __str__(self) -> str:
        return f"{self.library}, MQTT {'5' if self.version == 5 else '3.1.1'}"


#: Those that `make test` runs.
KINDS = [Kind(library, version) for library in ("paho", "aiomqtt", "mqtt.js", "mosquitto_sub") for version in (4, 5)]
#: And those that are too big for that.
MORE_KINDS = [Kind("Node-RED", 4), Kind("Node-RED", 5)]

Address = tuple[str, int]


class RealClient:
    """`with RealClient(kind, "c", "topic", [node.address], tmp_path) as client:` runs until the end of the block."""

    def __init__(self, kind: Kind, client_id: str, topic: str, addresses: Sequence[Address], directory: Path) -> None:
        self.kind = kind
        self.client_id = client_id
        self._topic = topic
        self._addresses = list(addresses)
        self._directory = directory / client_id
        #: Payloads, and when each of them came.
        self.got: list[tuple[float, str]] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        environment = {**os.environ, "NODE_PATH": str(JAVASCRIPT / "node_modules")}
        with (self._directory / "stderr").open("w") as stderr:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            )
        self._reader.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_S)
        self._reader.join(STOP_S)
        if error is not None:
            print(f"--- what {self.kind} said ---\n{self.words()[-4_000:]}")

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                # Node-RED has its log there, too.
                if self.kind.library != "Node-RED" or line.startswith(NODE_RED_MARK):
                    self.got.append((time.monotonic(), line.removeprefix(NODE_RED_MARK).strip()))

    def words(self) -> str:
        return (self._directory / "stderr").read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def payloads(self) -> list[str]:
        return [payload for _, payload in list(self.got)]

    def longest_gap_s(self, since: float) -> float:
        """The longest time without a message, from the last one before that moment on."""
        times = [at for at, _ in list(self.got)]
        first = max((number for number, at in enumerate(times) if at <= since), default=0)
        return max(
            (later - sooner for sooner, later in zip(times[first:], times[first + 1 :], strict=False)), default=0.0
        )

    # -- how each is started --

    def _command(self) -> list[str]:
        version, given = str(self.kind.version), [f"{host}:{port}" for host, port in self._addresses]
        if self.kind.library == "mosquitto_sub":
            return self._mosquitto_sub()
        if self.kind.library == "mqtt.js":
            script = str(HERE / "javascript" / "subscriber.js")
            return [_node(JAVASCRIPT), script, version, self.client_id, self._topic, *given]
        if self.kind.library == "Node-RED":
            return self._node_red()
        script = str(HERE / "subscriber.py")
        return [sys.executable, script, self.kind.library, version, self.client_id, self._topic, *given]

    def _mosquitto_sub(self) -> list[str]:
        host, port = self._addresses[0]
        version = ["-V", "5", "-x", "300"] if self.kind.version == 5 else ["-V", "311"]
        about = ["-h", host, "-p", str(port), "-i", self.client_id, "-c", "-q", "1", "-t", self._topic]
        return ["stdbuf", "-oL", "mosquitto_sub", *about, *version]

    def _node_red(self) -> list[str]:
        """An MQTT node whose messages are printed by a node of its own."""
        host, port = self._addresses[0]
        broker = {
            "id": "broker", "type": "mqtt-broker", "broker": host, "port": str(port), "clientid": self.client_id,
            "autoConnect": True, "usetls": False, "protocolVersion": str(self.kind.version), "keepalive": "60",
            "cleansession": False, "sessionExpiry": "300", "autoUnsubscribe": False,
        }  # fmt: skip
        comes = {
            "id": "in", "type": "mqtt in", "z": "tab", "topic": self._topic, "qos": "1", "datatype": "utf8",
            "broker": "broker", "nl": False, "rap": True, "rh": 0, "inputs": 0, "wires": [["out"]],
        }  # fmt: skip
        goes = {
            "id": "out",
            "type": "function",
            "z": "tab",
            "func": f"console.log('{NODE_RED_MARK}' + msg.payload)",
            "outputs": 0,
            "wires": [],
        }
        flows = [{"id": "tab", "type": "tab", "label": "t"}, broker, comes, goes]
        (self._directory / "flows.json").write_text(json.dumps(flows))
        (self._directory / "settings.js").write_text(
            "module.exports = { httpAdminRoot: false, httpNodeRoot: false, uiPort: 0, flowFile: 'flows.json', "
            f"mqttReconnectTime: {NODE_RED_RECONNECT_MS} }}\n"
        )
        program = str(NODE_RED / "node_modules" / "node-red" / "red.js")
        return [_node(NODE_RED), program, "--userDir", str(self._directory)]


#: Its manual has 15 s: how long it waits, whatever happened, before it connects again.
NODE_RED_RECONNECT_MS = 1000
#: Before the payloads that Node-RED prints.
NODE_RED_MARK = "payload "


def _node(packages: Path) -> str:
    """Node.js, with what it needs there; else what to do about it."""
    program = shutil.which("node")
    assert program is not None, "Node.js is missing: install nodejs and npm, then run `make test` again"
    assert (packages / "installed").exists(), f"its packages are missing: run `make .venv/{packages.name}/installed`"
    return program


def order(at: LiveNode, page: str, **words: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", at.admin_port, timeout=240)
    try:
        connection.request("POST", page, json.dumps(words), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
    finally:
        connection.close()


def sessions(node: LiveNode) -> dict[str, dict[str, Any]]:
    """Of this node, by client."""
    name = node.network()["node"]
    return {one["client"]: one for one in json.loads(node.ask("/clients")[1]) if one["node"] == name}


def is_served(node: LiveNode, client_id: str) -> bool:
    session = sessions(node).get(client_id)
    return session is not None and session["connected"] and session["subscriptions"] == 1


class Numbers:
    """Somebody who publishes a number every so often, at QoS 1, until it is told to stop."""

    def __init__(self, node: LiveNode, topic: str) -> None:
        self._paho = Paho(*node.address, Settings())
        self._topic = topic
        self._stop = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        while not self._stop.wait(0.05):
            self._paho.publish(self._topic, b"%d" % self.sent, 1)
            self.sent += 1

    def __enter__(self) -> Numbers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._paho.close()
