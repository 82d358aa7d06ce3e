"""Rows of brokers: each a process of its own, linked to the next, started from the last to the first.

A row is handed over when a message published at its first broker has come out at its last; all of it is gone when the
block ends.  Sterna's nodes are static neighbours, Mosquitto's are joined by bridges that carry everything both ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import MOSQUITTO, STERNA, Broker, Running, started
from sterna.measure.harness.ports import free_port
from sterna.measure.load import packets
from sterna.measure.load.connections import Client
from sterna.measure.load.shapes import Workload

JOINED_S_MAX = 20.0
ASK_AGAIN_S = 0.05
READY_TOPIC = "bench/ready"


@dataclass(frozen=True, slots=True)
class System:
    """A kind of broker and how it is linked."""

    name: str
    broker: Broker
    links: Callable[[int, int, int], str]
    """What the configuration of one broker gets: (its number, the port others link to, the next one's or 0)."""
    own_link_port: bool
    """Links have a port of their own; otherwise they use the clients'."""


@dataclass(frozen=True, slots=True)
class Row:
    near: int
    """Port of the first broker."""
    far: int
    """Port of the last broker."""
    pids: tuple[int, ...]
    """First to last."""


@contextmanager
def started_row(system: System, nodes: int, workload: Workload, core: int | None) -> Iterator[Row]:
    """A row of brokers that pass messages on."""
    with ExitStack() as stack:
        row: list[Running] = []
        following = 0
        for number in range(nodes, 0, -1):
            link_port = free_port() if system.own_link_port else 0
            broker = system.broker if nodes == 1 else _linked(system, number, link_port, following)
            running = stack.enter_context(started(broker, workload, core))
            following = link_port or running.port
            row.insert(0, running)
        joined = Row(row[0].port, row[-1].port, tuple(one.pid for one in row))
        _wait_until_joined(system, joined)
        yield joined


def _linked(system: System, number: int, link_port: int, following: int) -> Broker:
    plain = system.broker.settings

    def settings(workload: Workload, port: int, directory: Path) -> str:
        alone = plain(workload, port, directory).replace('name = "bench"', f'name = "n{number}"')
        return alone + system.links(number, link_port, following)

    return replace(system.broker, settings=settings)


def _wait_until_joined(system: System, row: Row) -> None:
    """Until a message has gone from the first broker to the last."""
    deadline = time.monotonic() + JOINED_S_MAX
    listener = Client(row.far, "joined-far", [])
    speaker = Client(row.near, "joined-near", [])
    message = packets.publish(READY_TOPIC, packets.payload(0, 0))
    with listener.socket, speaker.socket:
        listener.introduce(clean=True)
        speaker.introduce(clean=True)
        listener.subscribe((READY_TOPIC,), 0)
        listener.socket.settimeout(ASK_AGAIN_S)
        while time.monotonic() < deadline:
            speaker.socket.sendall(message)
            with suppress(TimeoutError):
                if listener.socket.recv(len(message)):
                    return
                break
    raise MeasurementError(f"{system.name}: nothing came through a row of {len(row.pids)} in {JOINED_S_MAX:g} s")


def _neighbours(number: int, link_port: int, following: int) -> str:
    neighbours = f'["127.0.0.1:{following}"]' if following else "[]"
    return f"""\
[network]
name = "bench"
bind = "127.0.0.1:{link_port}"
neighbours = {neighbours}
overlay = "static"
strategy = "subscription-flooding"
"""


def _bridge(number: int, link_port: int, following: int) -> str:
    if not following:
        return ""
    lines = [
        f"connection row{number}",
        f"address 127.0.0.1:{following}",
        "topic # both 1",
        "notifications false",
        "restart_timeout 1",
    ]
    return "\n".join(lines) + "\n"


def _without_window(workload: Workload, port: int, directory: Path) -> str:
    """As many messages in flight to one client as may come up: Mosquitto is run without that limit too.

    Publishers are answered by the first broker, so the last may have more to send than any publisher's window.
    """
    return STERNA.settings(workload, port, directory).replace("[limits]\n", "[limits]\ninflight = 10000\n")


ROW_OF_STERNA = System("sterna", replace(STERNA, settings=_without_window), _neighbours, own_link_port=True)
ROW_OF_MOSQUITTO = System("mosquitto", MOSQUITTO, _bridge, own_link_port=False)
