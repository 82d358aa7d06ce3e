"""docs/gateway.md, done as it says: a node is killed under a subscriber that prints what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from live.gateways import LiveGateway
from live.nodes import LiveNode, wait_until
from sterna.measure.harness.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


PATIENT = "[limits]\nconnect_s = 120\n"
"""For a node that starts slowly on a busy machine."""


@pytest.mark.slow
@pytest.mark.parametrize("back_first", [True, False])
def test_a_subscriber_behind_a_gateway_does_not_notice_that_its_node_was_killed(
    tmp_path: Path, back_first: bool
) -> None:
    ports = {port: str(free_port()) for port in ("1883", "1884", "9884")}

    def here(text: str) -> str:
        """The page's ports may be taken."""
        return re.sub("|".join(ports), lambda found: ports[found[0]], text)

    def command(block: str) -> list[str]:
        return [sys.executable, "-m", *shlex.split(here(block).splitlines()[0].removeprefix("$ "))]

    listen, first, second = blocks("sh-session")
    node_toml = f'[[listener]]\nbind = "127.0.0.1:{ports["1883"]}"\n'
    with (
        LiveNode(tmp_path / "node", node_toml) as node,
        LiveGateway(tmp_path / "gateway", [], here(blocks("toml")[0]) + PATIENT) as gateway,
        subprocess.Popen(command(listen), stdout=subprocess.PIPE, text=True) as subscriber,
    ):
        try:
            wait_until(lambda: gateway.metric("sterna_gateway_bytes_down_total") >= 9, "CONNACK and SUBACK")
            subprocess.run(command(first), check=True, timeout=120)
            node.kill()
            if back_first:
                node.restart()
            publisher = subprocess.Popen(command(second))
            if not back_first:
                wait_until(lambda: gateway.metric("sterna_gateway_clients") >= 2, "the publisher is connected")
                node.restart()
            assert publisher.wait(120) == 0
            said, _ = subscriber.communicate(timeout=120)
        finally:
            subscriber.kill()
    assert said.splitlines() == listen.splitlines()[1:]
