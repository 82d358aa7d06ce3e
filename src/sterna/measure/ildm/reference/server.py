"""An interworking node of the paper as a process: sockets around `IldmNode`.

`python -m sterna.measure.ildm.reference.server FILE` reads the struct `Settings` as JSON.  On SIGTERM the node ends and
writes how many publications it transferred to its neighbours.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import uvloop

from sterna.measure.ildm.reference.api import Address, SessionInfo
from sterna.measure.ildm.reference.flooding import LiteralPublicationFlooding
from sterna.measure.ildm.reference.neighbourhood import Neighbourhood
from sterna.measure.ildm.reference.node import IldmNode
from sterna.measure.ildm.reference.subscriptions import LiteralSubscriptionFlooding

HOST = "127.0.0.1"
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
"""Waiting for one connection; more is not taken."""
DIAL_S_MAX = 10.0
DIAL_AGAIN_S = 0.05
TRANSFERRED = "transferred "
"""How the line begins that says so."""

ALGORITHMS: dict[str, type[Neighbourhood]] = {"PF": LiteralPublicationFlooding, "SF": LiteralSubscriptionFlooding}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    algorithm: Literal["PF", "SF"]
    port: int
    broker: int
    """Its port."""
    neighbours: tuple[int, ...] = ()
    """Ports of the nodes to dial."""
    connections: int = 1
    """To each of them."""


class Wire(asyncio.Protocol):
    """One connection; a `Transport` of the node."""

    __slots__ = ("_node", "_session", "_transport")

    def __init__(self, node: IldmNode, session: SessionInfo | None) -> None:
        self._node = node
        self._session = session
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._session is None:
            self._session = self._node.accepted(self, str(transport.get_extra_info("peername")))
        elif not self._node.established(self._session, self):
            transport.close()

    def data_received(self, data: bytes) -> None:
        assert self._session is not None
        self._node.received(self._session, data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._session is not None
        self._node.lost(self._session)

    def write(self, data: bytes) -> bool:
        """HOT."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:
            return False
        transport.write(data)
        return True

    def hold(self, *, held: bool) -> None:
        assert self._transport is not None
        if held:
            self._transport.pause_reading()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ReferenceServer:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self.algorithm: Neighbourhood | None = None
        self.node = IldmNode(Address(HOST, settings.broker), self._dial, self._start_algorithm)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in signal.SIGTERM, signal.SIGINT:
            loop.add_signal_handler(number, stopped.set)
        self.node.start()
        listener = await loop.create_server(lambda: Wire(self.node, None), HOST, self._settings.port)
        for port in self._settings.neighbours:
            self.node.add(Address(HOST, port))
        await stopped.wait()
        listener.close()
        assert self.algorithm is not None
        print(f"{TRANSFERRED}{self.algorithm.transferred}", flush=True)
        self.node.stop()

    def _start_algorithm(self, node: IldmNode) -> Neighbourhood:
        made = ALGORITHMS[self._settings.algorithm]
        self.algorithm = made(node, self._settings.name, node.broker, self._settings.connections)
        return self.algorithm

    def _dial(self, address: Address, session: SessionInfo) -> None:
        self._keep(self._connect(address, session))

    async def _connect(self, address: Address, session: SessionInfo) -> None:
        """Neighbours start one after the other, so a refusal is waited out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (DIAL_S_MAX if address != self.node.broker else 0)
        while True:
            try:
                await loop.create_connection(lambda: Wire(self.node, session), address.host, address.port)
                return
            except OSError as error:
                if loop.time() >= deadline:
                    print(f"{address} cannot be reached: {error}", file=sys.stderr, flush=True)
                    self.node.lost(session)
                    return
                await asyncio.sleep(DIAL_AGAIN_S)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main() -> int:
    if len(sys.argv) != 2:
        print(f"usage: python -m {__spec__.name} FILE", file=sys.stderr)
        return 2
    try:
        settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    except (OSError, msgspec.DecodeError) as error:
        print(f"{sys.argv[1]}: {error}; give a JSON file of {Settings.__struct_fields__}", file=sys.stderr)
        return 1
    uvloop.run(ReferenceServer(settings).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
