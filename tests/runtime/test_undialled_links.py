"""An address that is dialled no more stays so, whatever moment it is told in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any

from sterna.overlay.channel import Channel
from sterna.overlay.link import Link, LinkTransport
from sterna.overlay.link_table import Links
from sterna.runtime.config.network_settings import link_settings
from sterna.runtime.config.settings import NetworkTable
from sterna.runtime.links.link_world import LinkWorld

NETWORK = NetworkTable(name="n", key="a key long enough", dial_s=0.001, dial_max_s=0.001)
TURNS = 200
"""Of the loop; with pauses of a millisecond, enough to dial dozens of times."""


class Caller:
    """A node that dials and is never answered."""

    def __init__(self) -> None:
        self.broker = self
        self.links = Links(
            link_settings(NETWORK, "caller", 1),
            self,
            now=time.monotonic,
            schedule=lambda at, action: None,
            rng=Random(),
        )
        self.world = LinkWorld(NETWORK, self, self, Random())

    def at(self, now: float) -> None: ...
    def after_work(self) -> None: ...
    def accept(self, transport: LinkTransport, address: str) -> Channel:
        return self.links.accept(transport, address)

    def dialled(self, transport: LinkTransport, address: str) -> Channel:
        return self.links.dialled(transport, address)

    def session_started(self, link: Link) -> None: ...
    def session_ended(self, link: Link, reason: str) -> None: ...
    def frames(self, link: Link, frames: list[tuple[int, bytes]]) -> None: ...
    def connection_lost(self, link: Link) -> None: ...
    def link_relieved(self, link: Link) -> None: ...
    def accepts(self, peer: str) -> str | None:
        return None

    def stands_by(self, peer: str) -> str | None:
        return None

    def report(self, event: str, **fields: object) -> None: ...


async def attempts_after_undialling_as_it_connects() -> int:
    """How often an address is dialled that is given up in the very turn in which its connection stands."""
    loop = asyncio.get_running_loop()
    caller, attempts = Caller(), 0
    callers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: callers.append(writer), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connect: Callable[..., Any] = loop.create_connection

    async def connect_and_undial(*words: Any, **more: Any) -> Any:
        nonlocal attempts
        attempts += 1
        made = await connect(*words, **more)
        loop.call_soon(caller.world.undial, address)
        return made

    loop.create_connection = connect_and_undial  # type: ignore[method-assign]
    caller.world.dial(address)
    for _ in range(TURNS):
        await asyncio.sleep(0.001)
    server.close()
    for writer in callers:
        writer.transport.abort()
    await asyncio.sleep(0)
    return attempts


def test_an_address_given_up_while_it_is_being_connected_is_not_dialled_again() -> None:
    assert asyncio.run(attempts_after_undialling_as_it_connects()) == 1
