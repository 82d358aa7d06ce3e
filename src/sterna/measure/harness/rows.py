"""Rows of brokers: each a process of its own, linked to the next, started from the last to the first.

A row is handed over when a message published at its first broker has come out at its last; all of it is gone when the
block ends.  Sterna's nodes are static neighbours, Mosquitto's are joined by bridges that carry everything both ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import MOSQUITTO, BrokerKind, RunningBroker, mosquitto_at_its_best, started, sterna
from sterna.measure.harness.node_tables import Tables, merged, network
from sterna.measure.harness.ports import free_port
from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClient
from sterna.measure.load.shapes import Workload

JOINED_S_MAX = 20.0
ASK_AGAIN_S = 0.05
READY_TOPIC = "bench/ready"


@dataclass(frozen=True, slots=True)
class RowSystem:
    """A kind of broker and how it is linked."""

    name: str
    alone: BrokerKind
    linked: Callable[[int, int, int], BrokerKind]
    """One of a row: (its number from 1, the port others link to, the next one's or 0)."""
    own_link_port: bool
    """Links have a port of their own; otherwise they use the clients'."""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """First to last."""

    ports: tuple[int, ...]
    pids: tuple[int, ...]

    @property
    def near(self) -> int:
        return self.ports[0]

    @property
    def far(self) -> int:
        return self.ports[-1]


@contextmanager
def started_row(system: RowSystem, nodes: int, workload: Workload, core: int | None) -> Iterator[BrokerRow]:
    """A row of brokers that pass messages on."""
    with ExitStack() as stack:
        row: list[RunningBroker] = []
        following = 0
        for number in range(nodes, 0, -1):
            link_port = free_port() if system.own_link_port else 0
            broker = system.alone if nodes == 1 else system.linked(number, link_port, following)
            running = stack.enter_context(started(broker, workload, core))
            following = link_port or running.port
            row.insert(0, running)
        ports = tuple(one.port for one in row)
        wait_until_joined(system.name, ports[-1], ports[:1])
        yield BrokerRow(ports, tuple(one.pid for one in row))


def wait_until_joined(name: str, listens: int, speak: Sequence[int]) -> None:
    """Until a message has come from each of the brokers at the ports `speak` to the one at the port `listens`."""
    deadline = time.monotonic() + JOINED_S_MAX
    for number, port in enumerate(speak):
        topic = f"{READY_TOPIC}/{number}"
        message = packets.publish(topic, packets.payload(0, 0))
        with connected(listens, "joined-far") as listener, connected(port, "joined-near") as speaker:
            listener.subscribe((topic,), 0)
            listener.socket.settimeout(ASK_AGAIN_S)
            while True:
                speaker.socket.sendall(message)
                with suppress(TimeoutError):
                    if listener.socket.recv(len(message)):
                        break
                if time.monotonic() > deadline:
                    raise MeasurementError(f"{name}: nothing came through from broker {number + 1} of a row")


@contextmanager
def connected(port: int, name: str) -> Iterator[LoadClient]:
    client = LoadClient(port, name, [])
    with client.socket:
        client.introduce(clean=True)
        yield client


def row_of_sterna(tables: Callable[[int], Tables]) -> RowSystem:
    """Nodes with further tables in their configuration, by number."""

    def linked(number: int, link_port: int, following: int) -> BrokerKind:
        links = network(
            "bench",
            f"127.0.0.1:{link_port}",
            [f"127.0.0.1:{following}"] if following else [],
            overlay="static",
            strategy="subscription-flooding",
        )
        return sterna(merged({"node": {"name": f"n{number}"}, "network": links}, tables(number)))

    return RowSystem("sterna", sterna(tables(1)), linked, own_link_port=True)


def _bridged(number: int, link_port: int, following: int) -> BrokerKind:
    if not following:
        return MOSQUITTO
    return mosquitto_at_its_best(
        f"connection row{number}",
        f"address 127.0.0.1:{following}",
        "topic # both 1",
        "notifications false",
        "restart_timeout 1",
    )


WITHOUT_WINDOW: Tables = {"limits": {"inflight": 10_000}}
"""As many messages in flight to one client as may come up: Mosquitto is run without that limit too.  Publishers are
answered by the first broker, so the last may have more to send than any publisher's window."""

ROW_OF_STERNA = row_of_sterna(lambda number: WITHOUT_WINDOW)
ROW_OF_MOSQUITTO = RowSystem("mosquitto", MOSQUITTO, _bridged, own_link_port=False)
