"""A real gateway in a process of its own, in front of real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .nodes import LiveNode


class LiveGateway(LiveNode):
    """`with LiveGateway(tmp_path, [node.port]) as gateway:` takes clients; lives and log are as a node's."""

    command = "gateway"

    def __init__(self, directory: Path, nodes: Sequence[int], toml: str = "") -> None:
        self._nodes = ", ".join(f'"127.0.0.1:{port}"' for port in nodes)
        super().__init__(directory, toml if "[admin]" in toml else '[admin]\nbind = "127.0.0.1:0"\n' + toml)

    def _completed(self, toml: str) -> str:
        parts = ['[log]\nformat = "json"\n', toml]
        if "[upstream]" not in toml:
            parts.append(f"\n[upstream]\nnodes = [{self._nodes}]\n")
        if "[[listener]]" not in toml:
            parts.append('\n[[listener]]\nbind = "127.0.0.1:0"\n')
        return "".join(parts)
