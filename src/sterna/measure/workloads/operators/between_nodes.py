"""What an aggregate over many nodes costs between them: parts of it beside the messages themselves.

Five nodes in a row, sensors at each of them, one client at the first that wants the average of all.  The same messages
at the same times, once with `partials` and once without; what the links carried in between is read from the nodes' own
counters, everything included.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import Row
from sterna.measure.harness.brokers import STERNA, Broker, started
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.ports import free_port
from sterna.measure.load import packets
from sterna.measure.load.connections import Client
from sterna.measure.load.shapes import WORKLOADS, Workload

NODES = 5
SENSORS = 20
"""At every node, each with a topic of its own."""
EXPRESSION = "$AVG/site/+/+/temperature"
PACE_S = 0.1
MESSAGES_PER_RESULT = NODES * SENSORS
"""Within one step of the pace every sensor says something once.  Sensors at the client's own node give results of their
own, at once, which cost nothing between nodes."""
TARGET = 10.0
JOINED_S_MAX = 20.0
SETTLE_S = 1.0

_LINK_BYTES = re.compile(r"^sterna_link_bytes_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Carried:
    """What one run came to."""

    messages: int
    results: int
    """That the client was given."""
    size: int
    """Between the nodes, over all links."""
    answer: bytes
    """The last result."""


@dataclass(frozen=True, slots=True)
class Savings:
    parts: Carried
    raw: Carried

    @property
    def ratio(self) -> float:
        """How many times as much the messages themselves took."""
        return self.raw.size / self.parts.size

    @property
    def is_reached(self) -> bool:
        return self.ratio >= TARGET and self.parts.answer == self.raw.answer

    @property
    def summary(self) -> str:
        parts, raw = self.parts, self.raw
        return (
            f"{NODES} nodes in a row, {SENSORS} sensors each, {EXPRESSION} at the first, {MESSAGES_PER_RESULT} "
            f"messages per step of the pace: {parts.messages:,} messages took {parts.size:,} bytes in parts, "
            f"{raw.size:,} as they are"
        )


def measure_network(say: Say, quick: bool) -> list[Row]:
    savings = measure(say, quick=quick)
    return [
        Row(
            name="network-bytes",
            summary=savings.summary,
            unit="bytes/message",
            figure=savings.parts.size / savings.parts.messages,
            beside=savings.raw.size / savings.raw.messages,
            ratio=savings.ratio,
            target=f">= {TARGET:g}x",
            verdict="reached" if savings.is_reached else "missed",
        )
    ]


def measure(say: Say, *, quick: bool) -> Savings:
    """Both runs, one after the other."""
    rounds = 50 if quick else 300
    carried = {}
    for partials in (True, False):
        carried[partials] = _run(rounds, partials=partials)
        say(f"    {'parts' if partials else 'messages'}: {carried[partials].size:,} bytes between {NODES} nodes")
    if carried[True].answer != carried[False].answer:
        raise MeasurementError(f"in parts the answer was {carried[True].answer!r}, else {carried[False].answer!r}")
    return Savings(carried[True], carried[False])


def _run(rounds: int, *, partials: bool) -> Carried:
    with _row(partials=partials) as (ports, admin), ExitStack() as stack:
        watcher = stack.enter_context(_client(ports[0], "watcher"))
        _wait_until_joined(watcher, ports)
        watcher.subscribe([EXPRESSION], 0)
        sensors = [stack.enter_context(_client(port, f"sensors-{number}")) for number, port in enumerate(ports)]
        watcher.socket.settimeout(0.001)
        came = bytearray()
        before = _link_bytes(admin)
        begin = time.perf_counter()
        for turn in range(rounds):
            for sensor in range(SENSORS):
                # Each at its own time: a step of the pace is shared out among all of them.
                for number, client in enumerate(sensors):
                    value = b"%.1f" % (20 + (turn * 7 + sensor * 3 + number) % 100 / 10)
                    client.socket.sendall(packets.publish(f"site/{number}/{sensor}/temperature", value))
                _read(watcher, came)
                due = begin + (turn + (sensor + 1) / SENSORS) * PACE_S
                time.sleep(max(0.0, due - time.perf_counter()))
        until = time.perf_counter() + SETTLE_S
        while time.perf_counter() < until:
            _read(watcher, came)
        payloads = list(_payloads(bytes(came)))
        if not payloads:
            raise MeasurementError("no result came")
        return Carried(rounds * MESSAGES_PER_RESULT, len(payloads), _link_bytes(admin) - before, payloads[-1])


def _read(watcher: Client, came: bytearray) -> None:
    with suppress(TimeoutError):
        came += watcher.socket.recv(65536)


def _payloads(data: bytes) -> Iterator[bytes]:
    """Of QoS 0 messages whose length takes one byte."""
    position = 0
    while position + 2 <= len(data):
        end = position + 2 + data[position + 1]
        topic = int.from_bytes(data[position + 2 : position + 4], "big")
        yield data[position + 4 + topic : end]
        position = end


@contextmanager
def _client(port: int, name: str) -> Iterator[Client]:
    client = Client(port, name, [])
    with client.socket:
        client.introduce(clean=True)
        yield client


@contextmanager
def _row(*, partials: bool) -> Iterator[tuple[list[int], list[int]]]:
    """Ports for clients and of the admin pages, first node to last."""
    workload = WORKLOADS[0]
    with ExitStack() as stack:
        ports: list[int] = []
        admin: list[int] = []
        following = 0
        for number in range(NODES, 0, -1):
            link, page = free_port(), free_port()
            broker = _node(number, link, following, page, partials=partials)
            ports.insert(0, stack.enter_context(started(broker, workload, None)).port)
            admin.insert(0, page)
            following = link
        yield ports, admin


def _node(number: int, link: int, following: int, page: int, *, partials: bool) -> Broker:
    def settings(workload: Workload, port: int, directory: Path) -> str:
        text = STERNA.settings(replace(workload, durability="memory"), port, directory)
        text = text.replace('name = "bench"', f'name = "n{number}"').replace('bind = ""', f'bind = "127.0.0.1:{page}"')
        neighbours = f'"127.0.0.1:{following}"' if following else ""
        return f"""\
{text}
[operators]
partials = {str(partials).lower()}
pace_ms = {PACE_S * 1000:.0f}
[network]
name = "bench"
bind = "127.0.0.1:{link}"
neighbours = [{neighbours}]
overlay = "static"
strategy = "subscription-flooding"
"""

    return replace(STERNA, settings=settings)


def _wait_until_joined(watcher: Client, ports: list[int]) -> None:
    """Until a message has come from every node."""
    watcher.subscribe(["joined/+"], 0)
    watcher.socket.settimeout(0.05)
    deadline = time.monotonic() + JOINED_S_MAX
    for number, port in enumerate(ports):
        with _client(port, f"joined-{number}") as client:
            heard = b""
            while f"joined/{number}".encode() not in heard:
                if time.monotonic() > deadline:
                    raise MeasurementError(f"nothing came from node {number + 1} in {JOINED_S_MAX:g} s")
                client.socket.sendall(packets.publish(f"joined/{number}", b"x"))
                with suppress(TimeoutError):
                    heard += watcher.socket.recv(65536)
    watcher.socket.settimeout(0.3)
    with suppress(TimeoutError):
        while watcher.socket.recv(65536):
            pass
    watcher.socket.settimeout(JOINED_S_MAX)


def _link_bytes(admin: list[int]) -> int:
    """That all nodes together have sent to their neighbours."""
    total = 0
    for port in admin:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                total += sum(round(float(number)) for number in _LINK_BYTES.findall(page.read().decode()))
        except OSError as error:
            raise MeasurementError(f"a node does not tell its counters: {error}") from error
    return total
