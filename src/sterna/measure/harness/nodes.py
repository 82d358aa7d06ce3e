"""Nodes in a tree between which clients are moved, at the places of a site, and a gateway beside the clients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from sterna.measure.harness.brokers import sterna_command
from sterna.measure.harness.node_tables import network, toml
from sterna.measure.harness.processes import Process, answers, wait_until
from sterna.measure.harness.sites import NodePlace
from sterna.measure.harness.trees import look

START_S = 60.0
TOKEN = "of no use outside of this experiment"


def start_nodes(
    stack: ExitStack,
    names: Sequence[str],
    places: Sequence[NodePlace],
    directory: Path,
    linked_to: Sequence[int] | None = None,
) -> list[Process]:
    """Each linked to the one before it, or to the named one; they are there and hear everything of each other, until
    the stack is closed."""
    processes: list[Process] = []
    for number, name in enumerate(names):
        before = number - 1 if linked_to is None else linked_to[number]
        neighbour = places[before] if number else None
        file = directory / f"{name}.toml"
        file.write_text(settings(name, places[number], neighbour, directory))
        processes.append(start(stack, name, ["node", "--config", str(file)], places[number], directory))
    nodes = places[: len(names)]
    wait_until(lambda: _are_linked(nodes, processes), f"{', '.join(names)} are linked", START_S)
    return processes


def start_gateway(
    stack: ExitStack, place: NodePlace, nodes: Sequence[NodePlace], directory: Path
) -> tuple[Process, tuple[str, int]]:
    """On the loopback of its place, for clients that are there too; the first node is its first choice."""
    address = "127.0.0.1", place.clients
    addresses = ",".join(f"{node.host}:{node.clients}" for node in nodes)
    words = ["gateway", "--listen", f"{address[0]}:{address[1]}", "--nodes", addresses]
    process = start(stack, "gateway", words, place, directory)
    wait_until(lambda: _listens(process, place, address), "the gateway listens", START_S)
    return process, address


def _listens(process: Process, place: NodePlace, address: tuple[str, int]) -> bool:
    process.check()
    with place.socket() as made, suppress(OSError):
        made.settimeout(1.0)
        made.connect(address)
        return True
    return False


def start(stack: ExitStack, name: str, words: list[str], place: NodePlace, directory: Path) -> Process:
    process = Process(name, [*place.prefix, *sterna_command(*words)], directory)
    process.start()
    stack.callback(process.kill)
    return process


def _are_linked(places: Sequence[NodePlace], processes: Sequence[Process]) -> bool:
    for process in processes:
        process.check()
    views = [look(place, TOKEN) for place in places]
    heard = all(view is not None and len(view.synced) == len(places) - 1 for view in views)
    return heard and all(answers(place.host, place.clients) for place in places)


def settings(name: str, place: NodePlace, neighbour: NodePlace | None, directory: Path) -> str:
    """Every default but the patience that links of 2000 ms take, that clients are told where to go, and that a gateway
    may be anywhere."""
    links = network(
        "migration",
        place.links_address,
        [neighbour.links_address] if neighbour else [],
        key=TOKEN,
        settle_s=20,
        dead_after_s=20,
        handshake_s=20,
    )
    return toml(
        {
            **place_tables(name, place, directory),
            "mqtt": {"gateways": ["0.0.0.0/0"]},
            "admin": {"bind": f"{place.host}:{place.admin}", "token": TOKEN},
            "network": links,
            "migration": {"patience_s": 30, "server_references": True},
        }
    )


def place_tables(name: str, place: NodePlace, directory: Path) -> dict[str, Any]:
    """The tables that every node at a place has."""
    return {
        "node": {"name": name, "data": f"{directory}/{name}"},
        "log": {"format": "json"},
        "listener": [{"bind": f"{place.host}:{place.clients}", "anonymous": True}],
    }
