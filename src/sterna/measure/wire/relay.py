"""Bytes between brokers where packets may not be captured: every connection goes through a relay that counts them.

Only what brokers write is seen, not the headers of packets; each piece read counts as a packet.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Self

from sterna.measure.errors import MeasurementError
from sterna.measure.wire.byte_account import ByteAccount
from sterna.measure.wire.capture import Watched
from sterna.measure.wire.conversations import WireReader

CHUNK_BYTES = 65_536
PATIENCE_S = 10.0


class Relays:
    """`with Relays(networks) as wire:`; what connects to `wire.reach(port)` comes out at the port, counted."""

    method = "bytes written by brokers, counted by relays; packet headers are not included (capturing needs root)"

    def __init__(self, watched: dict[str, Watched]) -> None:
        self.ledgers = {name: ByteAccount() for name in watched}
        self._watched = watched
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if error is None:
            self.check()

    def check(self) -> None:
        if self._failure is not None:
            raise MeasurementError(f"a relay failed: {self._failure}") from self._failure

    def reach(self, port: int) -> int:
        """Open a relay to this port; where it listens."""
        opened: Future[int] = asyncio.run_coroutine_threadsafe(self._open(port), self._loop)
        return opened.result(PATIENCE_S)

    async def _open(self, port: int) -> int:
        name = next(name for name, network in self._watched.items() if port in network.ports)

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                # Ended from outside only when everything ends; a handler that was cancelled would be reported.
                with suppress(asyncio.CancelledError):
                    await self._join(name, port, reader, writer)
            finally:
                self._tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _join(self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return  # Nobody is there yet: the broker that connected finds the connection closed and tries again.
        make, ledger = self._watched[name].reader, self.ledgers[name]
        ways = [
            asyncio.create_task(self._pump(reader, behind_writer, make(), ledger)),
            asyncio.create_task(self._pump(behind_reader, writer, make(), ledger)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # First: whoever ends everything may cancel the wait below.
            behind_writer.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, reader: WireReader, ledger: ByteAccount
    ) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                ledger.packet(len(data), len(data), reader.feed(data))
                target.write(data)
                await target.drain()
        except ConnectionError:
            return
        except MeasurementError as error:
            self._failure = error

    async def _end_all(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*self._tasks, return_exceptions=True), PATIENCE_S / 2)
