"""Password checks take turns by address, pass over clients that have left, and refuse what does not fit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from sterna.broker.access.identity import Accepted, Refused
from sterna.broker.session.connection import ClientPeer, Connection, ConnectionState
from sterna.mqtt.reasons import Reason
from sterna.runtime.listeners.verifiers import THREADS, WAITING_MAX, WAITING_PER_ADDRESS_MAX, Verdict, Verifiers


class Client:
    """As much of a connection as verifying one needs."""

    def __init__(self, address: str) -> None:
        self.peer = ClientPeer(address)
        self.state: int = ConnectionState.AUTHENTICATING
        self.failed = 0

    def fail(self, code: int, _reason: str) -> None:
        self.failed = code
        self.state = ConnectionState.CLOSED


class Desk:
    """Verifiers whose checks take until they are let go."""

    def __init__(self) -> None:
        self.told: list[Client] = []
        self.verdicts: list[Verdict] = []
        self.checked: list[str] = []
        self._go_on = threading.Event()
        self._somebody_told = asyncio.Event()
        self.verifiers = Verifiers(self._tell)

    def _tell(self, connection: Connection, verdict: Verdict) -> None:
        self.told.append(cast(Client, connection))
        self.verdicts.append(verdict)
        self._somebody_told.set()

    def come(self, address: str) -> Client:
        client = Client(address)

        def verify() -> Verdict:
            self._go_on.wait()
            self.checked.append(address)
            return Accepted(None)

        self.verifiers.submit(cast(Connection, client), verify)
        return client

    async def finish(self, count: int) -> None:
        self._go_on.set()
        async with asyncio.timeout(60):
            while len(self.told) < count:
                self._somebody_told.clear()
                await self._somebody_told.wait()
        self.verifiers.close()


def run(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(Desk())

    asyncio.run(main())


def test_an_address_that_guesses_delays_itself_only() -> None:
    async def test(desk: Desk) -> None:
        for number in range(WAITING_PER_ADDRESS_MAX):
            desk.come(f"192.0.2.1:{number}")
        desk.come("192.0.2.2:1")
        await desk.finish(WAITING_PER_ADDRESS_MAX + 1)
        # Those under way, one of each line whose turn it is, and whatever the other thread took meanwhile.
        assert desk.checked.index("192.0.2.2:1") <= 2 * THREADS

    run(test)


def test_an_address_has_only_so_many_in_line() -> None:
    async def test(desk: Desk) -> None:
        clients = [desk.come(f"192.0.2.1:{number}") for number in range(WAITING_PER_ADDRESS_MAX + THREADS + 3)]
        assert [client.failed for client in clients][-3:] == [0x89] * 3
        assert not any(client.failed for client in clients[:-3])
        await desk.finish(WAITING_PER_ADDRESS_MAX + THREADS)

    run(test)


def test_when_all_lines_are_full_the_longest_gives_way() -> None:
    async def test(desk: Desk) -> None:
        crowd = [desk.come(f"192.0.2.{1 + number % 8}:{number}") for number in range(WAITING_MAX + THREADS)]
        newcomer = desk.come("198.51.100.1:1")
        assert not newcomer.failed
        assert sum(client.failed == 0x89 for client in crowd) == 1
        await desk.finish(WAITING_MAX + THREADS)
        assert newcomer in desk.told

    run(test)


@pytest.mark.parametrize("gone", [3, 10])
def test_clients_that_have_left_are_passed_over(gone: int) -> None:
    async def test(desk: Desk) -> None:
        clients = [desk.come(f"192.0.2.1:{number}") for number in range(12)]
        for client in clients[THREADS : THREADS + gone]:
            client.state = ConnectionState.CLOSED
        await desk.finish(12 - gone)
        assert len(desk.checked) == 12 - gone
        assert desk.verifiers.waiting == 0

    run(test)


def test_a_check_that_fails_refuses_its_client_and_delays_nobody() -> None:
    def verify() -> Verdict:
        raise MemoryError

    async def test(desk: Desk) -> None:
        for number in range(2 * THREADS):
            desk.verifiers.submit(cast(Connection, Client(f"192.0.2.1:{number}")), verify)
        desk.come("192.0.2.2:1")
        await desk.finish(2 * THREADS + 1)
        refused = [verdict for verdict in desk.verdicts if isinstance(verdict, Refused)]
        assert [verdict.code for verdict in refused] == [Reason.SERVER_UNAVAILABLE] * 2 * THREADS
        assert Accepted(None) in desk.verdicts

    run(test)
