"""The cost of an aggregate between many nodes: parts of it beside the messages themselves.

Five nodes in a row, sensors at each of them, one client at the first that wants the average of all.  The same messages
at the same times, once with `partials` and once without; what the links carried in between is read from the nodes' own
counters, everything included.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.harness.admin import page
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.node_tables import Tables
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.rows import connected, row_of_sterna, started_row, wait_until_joined
from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClient
from sterna.measure.load.shapes import Idle, Workload
from sterna.measure.report import verdict

WORKLOAD = Workload("aggregate", "an average over sensors at every node", Idle(connections=0, before=0))
NODES = 5
SENSORS = 20
"""At every node, each with a topic of its own."""
EXPRESSION = "$AVG/site/+/+/temperature"
PACE_S = 0.1
MESSAGES_PER_RESULT = NODES * SENSORS
"""Within one step of the pace every sensor says something once.  Sensors at the client's own node give results of their
own, at once, which cost nothing between nodes."""
TARGET = 10.0
SETTLE_S = 1.0

_LINK_BYTES = re.compile(r"^sterna_link_bytes_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Carried:
    """The outcome of one run."""

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


def measure_network(say: Say, quick: bool) -> list[FigureRow]:
    savings = measure(say, quick=quick)
    return [
        FigureRow(
            name="network-bytes",
            summary=savings.summary,
            unit="bytes/message",
            figure=savings.parts.size / savings.parts.messages,
            beside=savings.raw.size / savings.raw.messages,
            ratio=savings.ratio,
            target=f">= {TARGET:g}x",
            verdict=verdict(savings.is_reached),
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
    admin = free_ports(NODES)
    system = row_of_sterna(lambda number: _tables(admin[number - 1], partials=partials))
    with started_row(system, NODES, WORKLOAD, core=None) as row, ExitStack() as stack:
        wait_until_joined("sterna", row.near, row.ports)
        watcher = stack.enter_context(connected(row.near, "watcher"))
        watcher.subscribe([EXPRESSION], 0)
        sensors = [stack.enter_context(connected(port, f"sensors-{number}")) for number, port in enumerate(row.ports)]
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


def _read(watcher: LoadClient, came: bytearray) -> None:
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


def _tables(admin: int, *, partials: bool) -> Tables:
    return {
        "admin": {"bind": f"127.0.0.1:{admin}"},
        "operators": {"partials": partials, "pace_ms": round(PACE_S * 1000)},
    }


def _link_bytes(admin: list[int]) -> int:
    """That all nodes together have sent to their neighbours."""
    pages = [page("127.0.0.1", port, "/metrics") for port in admin]
    if None in pages:
        raise MeasurementError("a node does not tell its counters")
    return sum(round(float(found)) for text in pages for found in _LINK_BYTES.findall(text or ""))
