"""The two nodes of docs/network.md, started as the page says: its commands print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from live.networks import hears
from live.nodes import LiveNode, wait_until
from sterna.measure.harness.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
PORTS = ("1883", "1884", "7883", "7884", "9883", "9884")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_two_nodes_as_the_page_makes_them_are_one_broker(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in PORTS}

    def here(text: str) -> str:
        """The page's ports may be taken."""
        return re.sub("|".join(PORTS), lambda found: ports[found[0]], text)

    (session,) = blocks("sh-session")
    commands = [line[2:] for line in here(session).splitlines() if line.startswith("$ ")]
    expected = [line for line in here(session).splitlines() if not line.startswith("$ ")]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(LiveNode(tmp_path / str(number), here(toml)))
            for number, toml in enumerate(blocks("toml")[:2])
        )
        wait_until(lambda: hears(first, ["second"]) and hears(second, ["first"]), "the nodes hear each other")
        sterna = f'sterna() {{ {sys.executable} -m sterna "$@"; }}\n'
        script = sterna + "\n".join(commands)
        result = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == expected
