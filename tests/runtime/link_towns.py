"""Nodes that have links and nothing else, over real sockets on loopback, and a relay between them that can be cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import uvloop

from sterna.overlay.channel import Channel
from sterna.overlay.link import Link, LinkTransport
from sterna.overlay.link_table import Links
from sterna.runtime.config.network_settings import link_settings
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import NetworkTable
from sterna.runtime.links.link_world import LinkWorld

NETWORK = NetworkTable(name="n", bind=Bind("127.0.0.1", 0), key="a key long enough", dial_s=0.02, dial_max_s=0.1)
#: As above, where a busy machine that is late for seconds must not end a link.
LASTING = replace(NETWORK, resume_s=60.0, dead_after_s=60.0)
PATIENCE_S = 60.0


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(), 240))


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"did not happen: {what}"
        await asyncio.sleep(0.005)


async def turns(count: int = 20) -> None:
    """What lies in sockets of this process is heard within a few turns of its loop, however slow the machine is."""
    for _ in range(count):
        await asyncio.sleep(0.001)


async def time_to_dial(times: int = 8) -> None:
    """As long as a node takes that dials so often and is always hung up on: who would dial again has done so."""
    met = 0

    def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal met
        met += 1
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    caller = Town("caller")
    caller.world.dial(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await until(lambda: met >= times, f"{times} attempts")
    server.close()
    await leave(caller)


class Town:
    """A node that has links and nothing else."""

    def __init__(self, name: str, network: NetworkTable = NETWORK) -> None:
        self.broker = self
        self.loop = asyncio.get_running_loop()
        rng = Random()
        self.links = Links(link_settings(network, name, 1), self, now=time.monotonic, schedule=self.schedule, rng=rng)
        self.world = LinkWorld(network, self, self, rng)
        self.address = ""
        self.got: list[bytes] = []
        self.sessions: list[int] = []
        self.ended: list[str] = []
        self.reports: list[tuple[str, object]] = []

    async def open(self) -> Town:
        bind = await self.world.open()
        self.address = str(bind)
        return self

    def schedule(self, at: float, action: Callable[[], None]) -> None:
        def act() -> None:
            action()
            self.links.flush()

        self.loop.call_later(max(0.0, at - time.monotonic()), act)

    def at(self, now: float) -> None:
        pass

    def after_work(self) -> None:
        self.links.flush()

    def accept(self, transport: LinkTransport, address: str) -> Channel:
        return self.links.accept(transport, address)

    def dialled(self, transport: LinkTransport, address: str) -> Channel:
        return self.links.dialled(transport, address)

    def session_started(self, link: Link) -> None:
        self.sessions.append(link.session_id)

    def session_ended(self, link: Link, reason: str) -> None:
        self.ended.append(reason)

    def frames(self, link: Link, frames: list[tuple[int, bytes]]) -> None:
        self.got += [body for _, body in frames]

    def connection_lost(self, link: Link) -> None: ...

    def link_relieved(self, link: Link) -> None:
        pass

    def accepts(self, peer: str) -> str | None:
        return None

    def stands_by(self, peer: str) -> str | None:
        return None

    def report(self, event: str, **fields: object) -> None:
        self.reports.append((event, fields.get("reason")))

    def connected(self, peer: str) -> bool:
        return peer in self.links.links and self.links.links[peer].connected

    def send(self, peer: str, *bodies: bytes) -> None:
        for body in bodies:
            self.links.links[peer].send(1, body)
        self.links.flush()


class Relay:
    """Stands between two nodes and can cut what passes through it, or hold each connection up for a while."""

    def __init__(self, target: str, *, delay_s: float = 0.0) -> None:
        """`delay_s` is the longest a piece of bytes is held up."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._delay_s = delay_s
        self._rng = Random(1)
        #: Both ends of each connection that stands, oldest first.
        self._standing: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self.connections = 0

    async def open(self) -> str:
        self.server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        onward_reader, onward = await asyncio.open_connection(self._host, self._port)
        self._standing.append((writer, onward))
        await asyncio.gather(self._pump(reader, onward), self._pump(onward_reader, writer))
        self._standing.remove((writer, onward))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):  # the latter is what uvloop says of a connection that is gone
            while data := await reader.read(65536):
                if self._delay_s:
                    await asyncio.sleep(self._rng.uniform(0, self._delay_s))
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self, most: int | None = None) -> None:
        """All that stands, or the oldest of it."""
        for pair in self._standing[:most]:
            for writer in pair:
                writer.transport.abort()

    async def close(self) -> None:
        self.server.close()
        self.cut()
        await until(lambda: not self._standing, "an empty relay")


async def two(network: NetworkTable = NETWORK) -> tuple[Town, Town]:
    a, b = await Town("a", network).open(), await Town("b", network).open()
    a.world.dial(b.address)
    await until(lambda: a.connected("b") and b.connected("a"), "a link")
    return a, b


def are_linked(a: Town, b: Town, resumptions: int) -> bool:
    """Both know it, after the link has been resumed so often."""
    return a.connected("b") and b.connected("a") and a.links.counters["b"].resumptions == resumptions


async def leave(*towns: Town) -> None:
    for town in towns:
        await town.world.close()
        for peer in list(town.links.links):
            town.links.close(peer, "the test is over")
    await asyncio.sleep(0)
