"""The end of the demo at a terminal: a network that lives until Ctrl-C, to be watched on its dashboard.

Clients roam, an average is computed, and now and then a node dies and comes back.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Protocol

import paho.mqtt.client as paho
from rich.console import Console

ROAMING = 24
MOVE_EVERY_S = 2.0
KILL_EVERY_S = 45.0
DEAD_S = 8.0
PACE_S = 0.05


class WatchedDemoNode(Protocol):
    name: str
    port: int
    admin_port: int

    @property
    def dashboard(self) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


Join = Callable[[str, WatchedDemoNode], AbstractContextManager[paho.Client]]


def live(
    nodes: Sequence[WatchedDemoNode],
    join: Join,
    console: Console,
    until: Callable[[], bool],
    *,
    kill_every_s: float = KILL_EVERY_S,
    dead_s: float = DEAD_S,
) -> None:
    """`join` makes a client that goes where nodes send it.  The first node stays up: its page is the one to open."""
    address = nodes[0].dashboard
    rng = random.Random()
    with ExitStack() as clients:
        roaming = [clients.enter_context(join(f"roamer-{n:02}", nodes[n % len(nodes)])) for n in range(ROAMING)]
        watcher = clients.enter_context(join("demo-average", nodes[-1]))
        watcher.subscribe("$AVG/room/+/temp", qos=1)
        for number, client in enumerate(roaming):
            client.subscribe(f"room/{number % 6}/#", qos=1)
        console.print(f"\n[bold]The network lives on:[/] open [bold]{address}[/] in a browser; Ctrl-C ends it.")
        console.print(f"   {ROAMING} clients roam, an average is computed, and now and then a node dies and returns.")
        move_at = kill_at = time.monotonic()
        kill_at += kill_every_s
        dead: tuple[WatchedDemoNode, float] | None = None
        turn = 0
        while not until():
            turn += 1
            now = time.monotonic()
            roaming[turn % ROAMING].publish(f"room/{turn % 6}/temp", f"{20 + 5 * rng.random():.1f}", turn % 2)
            if now >= move_at:
                move_at = now + MOVE_EVERY_S
                _move(nodes[0].admin_port, f"roamer-{rng.randrange(ROAMING):02}", rng.choice(nodes).name)
            if dead is None and now >= kill_at:
                dead = (rng.choice(nodes[1:]), now + dead_s)
                dead[0].kill()
            elif dead is not None and now >= dead[1]:
                dead[0].start()
                dead, kill_at = None, time.monotonic() + kill_every_s
            time.sleep(PACE_S)


def _move(admin_port: int, client: str, to: str) -> None:
    """A client that cannot be moved now stays where it is."""
    body = json.dumps({"client": client, "to": to}).encode()
    order = urllib.request.Request(
        f"http://127.0.0.1:{admin_port}/move", body, {"Content-Type": "application/json"}, method="POST"
    )
    with suppress(OSError), urllib.request.urlopen(order, timeout=5):
        pass
