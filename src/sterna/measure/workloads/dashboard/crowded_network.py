"""Two linked nodes with many clients and many retained topics: what the dashboard's pages are asked about."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.node_tables import Tables
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import wait_until
from sterna.measure.harness.rows import row_of_sterna, started_row
from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClients
from sterna.measure.load.shapes import Idle, Workload
from sterna.measure.workloads.dashboard.open_pages import answer_to

FLAT = "flat"
"""A level with as many names below it as in all the rest of the tree."""
BLOCK = 500
"""Messages per write."""
SETTLED_S_MAX = 120.0
DESCRIPTORS_BESIDE = 500
_RETAIN = 0x31


@dataclass(frozen=True, slots=True)
class CrowdedNetwork:
    pid: int
    """Of the node whose pages are asked,"""
    port: int
    """its clients' port,"""
    admin: int
    """and its admin port."""


@contextmanager
def crowded_network(clients: int, topics: int, core: int | None) -> Iterator[CrowdedNetwork]:
    """The clients are there and the other node knows the topics too; all is gone when the block ends."""
    _make_room_for(clients)
    admins = free_ports(2)

    def tables(number: int) -> Tables:
        return {"admin": {"bind": f"127.0.0.1:{admins[number - 1]}"}}

    workload = Workload("dashboard", "a network that is looked at", Idle(connections=0, before=0))
    with started_row(row_of_sterna(tables), 2, workload, core) as row, closing(LoadClients(*row.ports)) as crowd:
        for number in range(clients):
            client = crowd.connect_to(row.ports[number % 2], f"client-{number:05}")
            client.subscribe((f"client/{number:05}/orders",), 0)
        _retain(crowd, topics)
        for admin in admins:
            wait_until(partial(_knows, admin, topics), "every topic is known", SETTLED_S_MAX, 0.2)
        yield CrowdedNetwork(row.pids[0], row.near, admins[0])


def topic(number: int) -> str:
    """Half of them in a tree, half in one flat level."""
    half, place = number % 2, number // 2
    return f"{FLAT}/{place:05}" if half else f"plant/line-{place // 100:03}/sensor-{place % 100:02}"


def _retain(crowd: LoadClients, topics: int) -> None:
    publisher = crowd.connect("gardener")
    for start in range(0, topics, BLOCK):
        publisher.socket.sendall(b"".join(_retained_packet(one) for one in range(start, min(start + BLOCK, topics))))


def _retained_packet(number: int) -> bytes:
    return bytes((_RETAIN,)) + packets.publish(topic(number), packets.payload(0, number % 65536))[1:]


def _knows(admin: int, topics: int) -> bool:
    rows = json.loads(answer_to(admin, "/dashboard/picture"))["nodes"]
    return bool(rows) and all(row["totals"]["retained"] >= topics for row in rows)


def _make_room_for(clients: int) -> None:
    """Of descriptors; the nodes inherit it."""
    wanted = clients + DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise MeasurementError(f"{clients:,} clients need {wanted:,} descriptors, and {hard:,} are allowed: ulimit -n")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
