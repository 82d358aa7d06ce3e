"""Network namespaces with virtual cables between them: each node of a test has a machine of its own.

Needs root; where namespaces cannot be made, `needs_namespaces` skips a test with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def _why_not() -> str:
    """Why namespaces cannot be made here; empty if they can."""
    if os.geteuid():
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command"
    name = f"sterna-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "" if tried.returncode == 0 else f"ip netns add: {tried.stderr.strip()}"


WHY_NOT = _why_not()
needs_namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "namespaces can be made")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=240)


class Wires:
    """Namespaces and the links between them; `device(pair, name)` is the end of a link in a node's namespace."""

    def __init__(self, pairs: tuple[str, ...]) -> None:
        self.pairs = pairs
        self._prefix = f"s{os.getpid() % 100_000}"

    def space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def device(self, pair: str, name: str) -> str:
        return f"{self._prefix}{pair}{name}"

    def address(self, pair: str, name: str) -> str:
        """Of the range set apart for tests of networks; it exists in these namespaces only."""
        return f"198.18.{self.pairs.index(pair)}.{1 + pair.index(name)}"

    def __enter__(self) -> Wires:
        for name in sorted(set("".join(self.pairs))):
            ip("netns", "add", self.space(name))
            ip("-n", self.space(name), "link", "set", "lo", "up")
        for pair in self.pairs:
            one, other = self.device(pair, pair[0]), self.device(pair, pair[1])
            ip("-n", self.space(pair[0]), "link", "add", one, "type", "veth", "peer", "name", other)
            ip("-n", self.space(pair[0]), "link", "set", other, "netns", self.space(pair[1]))
            for name in (pair[0], pair[1]):
                device, space = self.device(pair, name), self.space(name)
                ip("-n", space, "address", "add", f"{self.address(pair, name)}/24", "dev", device)
                ip("-n", space, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in sorted(set("".join(self.pairs))):
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True)

    def cut(self, pair: str) -> None:
        ip("-n", self.space(pair[0]), "link", "set", self.device(pair, pair[0]), "down")

    def heal(self, pair: str) -> None:
        ip("-n", self.space(pair[0]), "link", "set", self.device(pair, pair[0]), "up")

    def spoil(self, pair: str, *what: str) -> None:
        """Have the kernel lose, delay or reorder packets of this link; skips where it cannot."""
        space, device = self.space(pair[0]), self.device(pair, pair[0])
        words = ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", "netem", *what]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this kernel spoils no links: {done.stderr.strip()}")
