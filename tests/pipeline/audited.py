"""Real nodes that note what becomes of messages, so that they can be audited."""

from __future__ import annotations

from pathlib import Path

from live.networks import LiveNetwork, free_port
from live.nodes import LiveNode


class AuditedNetwork(LiveNetwork):
    """Three nodes in a row that note their deliveries."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.feeds: dict[str, str] = {}
        super().__init__(directory, ("ab", "bc"), more=more)

    def make(self, name: str, neighbours: list[str], strategy: str, more: str = "") -> LiveNode:
        self.feeds[name] = f"127.0.0.1:{free_port()}"
        node = super().make(name, neighbours, strategy, f'{more}[feed]\nbind = "{self.feeds[name]}"\n')
        node.file.write_text(node.file.read_text().replace("[journal]\n", "[journal]\ndeliveries = true\n"))
        return node
