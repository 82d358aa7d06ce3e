"""Several real nodes that are one broker: processes on loopback, linked as a test wants them.

Static networks are given as pairs of names ("ab": node b dials node a); a spanning tree forms by itself, its root being
the first node.  Ports are picked below those the system hands out, so that a killed node finds its own free again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sterna.measure.harness.ports import free_port

from .nodes import START_S, LiveNode, wait_until

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")
FIVE = ("ab", "bc", "cd", "ce")
"""Node c in the middle, d and e at it, and a at the end of a branch over b."""
SETTLE_S = 60.0

_TOML = """
[node]
name = "{name}"
data = "{directory}/data"
[journal]
durability = "os"
segment_bytes = 65536
[limits]
inflight = 16
[admin]
bind = "127.0.0.1:0"
[network]
name = "live"
bind = "127.0.0.1:{port}"
strategy = "{strategy}"
overlay = "{overlay}"
neighbours = {neighbours}
{more}
"""
_TREE = """
multicast = ""
cpu_weight = {weight}
memory_weight = 0
"""


class LiveNetwork:
    """`with LiveNetwork(tmp_path, FIVE, strategy) as network:` is a network in which everybody knows everybody."""

    def __init__(
        self,
        directory: Path,
        pairs: Iterable[str] = FIVE,
        strategy: str = "subscription-flooding",
        overlay: str = "static",
        more: str = "",
    ) -> None:
        self.pairs = tuple(pairs)
        self.strategy = strategy
        self.overlay = overlay
        self._directory = directory
        self._more = more
        names = sorted(set("".join(self.pairs)))
        self.ports = {name: free_port() for name in names}
        self.nodes = {name: self._node(name) for name in names}

    def _node(self, name: str) -> LiveNode:
        neighbours = [self.door(pair[0]) for pair in self.pairs if pair[1] == name]
        return self.make(name, neighbours, self.strategy)

    def make(self, name: str, neighbours: list[str], strategy: str, more: str = "") -> LiveNode:
        """A node that would belong here; it is not started."""
        port = self.ports.setdefault(name, free_port())
        if self.overlay == "spanning-tree":
            more += ("" if "[network.tree]" in self._more else "[network.tree]") + _TREE.format(
                weight=ord("z") - ord(name)
            )
            neighbours = [self.door(min(self.ports))] if name != min(self.ports) else []
        toml = _TOML.format(
            name=name,
            directory=self._directory / name,
            port=port,
            strategy=strategy,
            overlay=self.overlay,
            neighbours=neighbours,
            more=self._more + more,
        )
        return LiveNode(self._directory / name, toml)

    def door(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def __getitem__(self, name: str) -> LiveNode:
        return self.nodes[name]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes.values():
                node.launch()
            for node in self.nodes.values():
                wait_until(node.is_up, "a node of a network listens", START_S)
            self.wait_until_settled()
        except BaseException as error:
            self.__exit__(None, error, None)
            raise
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for name, node in self.nodes.items():
            if node.is_running:
                node.kill()
            if error is not None:
                print(f"--- log of node {name} ---\n{node.log()[-8_000:]}")

    # -- what can be seen of it --

    def wait_until_settled(self, within_s: float = SETTLE_S) -> None:
        """Every node that runs hears every other."""
        running = {name: node for name, node in self.nodes.items() if node.is_running}
        wait_until(
            lambda: all(hears(node, running) for node in running.values()), "all nodes hear all others", within_s
        )

    def wait_until_formed(self) -> None:
        """The tree has the shape it keeps unless something happens.

        That everybody hears everybody is not enough: while the root is new, nodes change to shorter paths at once, and
        what is under way at QoS 0 may be lost by that.
        """
        wait_until(
            lambda: not any(view["overlay"]["forming"] for view in self.views().values()),
            "the tree has formed",
            SETTLE_S,
        )
        self.wait_until_settled()

    def views(self) -> dict[str, dict[str, Any]]:
        return {name: node.network() for name, node in self.nodes.items() if node.is_running}

    def links(self) -> dict[str, list[str]]:
        return {name: linked(view) for name, view in self.views().items()}

    def check_logs(self) -> None:
        for node in self.nodes.values():
            assert "Traceback" not in node.log()
            assert not node.events("the journal is damaged")


def hears(node: LiveNode, others: Iterable[str]) -> bool:
    """Do all messages of the others come in at this node, and of nobody else?"""
    view = node.network()
    synced = {origin for origin, state in view["streams"].items() if state == "synced"}
    return synced == set(others) - {view["node"]}


def linked(view: dict[str, Any]) -> list[str]:
    return sorted(link["peer"] for link in view["links"] if link["connected"])
