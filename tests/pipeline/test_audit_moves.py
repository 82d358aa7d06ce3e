"""Clients of every kind change their nodes under load, by order and by themselves, a node is killed meanwhile, and the
audit accounts for every message."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from live.gateways import LiveGateway
from live.nodes import START_S, LiveNode, wait_until
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.admin import order
from sterna.measure.harness.sites import NodePlace
from sterna.measure.load.clients import AsyncClient
from sterna.measure.load.movers import Address, MovingClient

from .audited import AuditedNetwork, audited

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLIENTS = 200
SECONDS = float(os.environ.get("STERNA_TRAVEL_S", "10"))
MOVES_PER_S = 20.0
MESSAGES_PER_S = 100.0
ARRIVAL_S = 180.0
PUBLISHERS = ("a", "c")
VICTIM = "b"
SEGMENT_BYTES = 8 * 1024 * 1024
IMPATIENT = "[migration]\nowner_absent_s = 2\n"


async def open_(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address)


class Travellers:
    """A third plain MQTT 3.1.1, a third plain MQTT 5, a third behind a gateway; QoS 0, 1 and 2 among all of them."""

    def __init__(
        self, network: AuditedNetwork, gateway: LiveGateway, dice: random.Random, *, have_new_sessions: bool
    ) -> None:
        """`have_new_sessions`: the node is away until its clients are given new sessions elsewhere."""
        self._network = network
        self._have_new_sessions = have_new_sessions
        self._dice = dice
        self._addresses = {name: node.address for name, node in network.nodes.items()}
        self._gateway = gateway.address
        self.movers = [
            MovingClient(f"traveller-{number}", 5 if number % 3 == 1 else 4, open_) for number in range(CLIENTS)
        ]
        self.qos = {mover.name: number // 3 % 3 for number, mover in enumerate(self.movers)}
        self.sent: dict[str, list[bytes]] = {mover.name: [] for mover in self.movers}
        self._down: str | None = None
        self._over = False
        self.killed_at = 0.0
        self.moved = self.ordered = 0

    def is_plain(self, mover: MovingClient) -> bool:
        return mover.arrivals[0].where != self._gateway

    async def live(self) -> None:
        for number, mover in enumerate(self.movers):
            await mover.start(self._gateway if number % 3 == 2 else self._addresses[self._dice.choice("abc")])
            await mover.subscribe(f"travel/{mover.name}", self.qos[mover.name])
        talk = [asyncio.create_task(self._publish(name)) for name in PUBLISHERS]
        travel = asyncio.create_task(self._travel())
        await asyncio.sleep(SECONDS / 2)
        await self._until(lambda: travel.done() or (self.moved > 10 and self.ordered > 10))
        self._down = VICTIM
        await asyncio.to_thread(self._network[VICTIM].kill)
        self.killed_at = time.time()
        await asyncio.sleep(1.0)
        if self._have_new_sessions:
            await asyncio.to_thread(wait_until, self._given_new_sessions, "its clients have new sessions")
        await asyncio.to_thread(self._network[VICTIM].launch)
        await asyncio.to_thread(wait_until, self._network[VICTIM].is_up, "the node is back", START_S)
        self._down = None
        await asyncio.sleep(SECONDS / 2)
        await self._until(lambda: travel.done() or (self.moved > 20 and self.ordered > 20))
        self._over = True
        await asyncio.gather(travel, *talk)
        await self._arrive()

    async def _publish(self, node: str) -> None:
        """At QoS 2, one after another: what is noted here was acknowledged."""
        client = AsyncClient(f"publisher-{node}")
        host, port = self._addresses[node]
        await client.connect(port, host)
        own = [mover for number, mover in enumerate(self.movers) if PUBLISHERS[number % 2] == node]
        begun, count = time.monotonic(), 0
        while not self._over:
            mover = own[count % len(own)]
            count += 1
            payload = f"{count} {node}".encode()
            await client.publish(f"travel/{mover.name}", payload, 2)
            self.sent[mover.name].append(payload)
            await asyncio.sleep(max(0.0, begun + count * len(PUBLISHERS) / MESSAGES_PER_S - time.monotonic()))
        await client.leave()

    async def _travel(self) -> None:
        while not self._over:
            mover = self._dice.choice(self.movers)
            target = self._dice.choice([name for name in "abc" if name != self._down])
            if not self.is_plain(mover) or self._dice.random() < 0.5:
                mover.elsewhere = self._addresses[target] if self.is_plain(mover) else None
                with suppress(MeasurementError):
                    self.ordered += not await order(_desk(self._network["a"]), "", mover.name, target)
            elif mover.is_connected and mover.arrivals[-1].where != self._addresses.get(self._down or ""):
                mover.elsewhere = None
                mover.go(self._addresses[target])
                self.moved += 1
            await asyncio.sleep(1 / MOVES_PER_S)

    def _given_new_sessions(self) -> int:
        pages = [json.loads(self._network[name].ask("/migrations")[1]) for name in PUBLISHERS]
        return sum(page["counters"]["new_sessions"] for page in pages)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Or the test runs into its time-out."""
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _arrive(self) -> None:
        """A message that does not come in time is found missing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_S):
                await self._until(lambda: not any(self.missing(mover) for mover in self.movers if self.qos[mover.name]))

    def missing(self, mover: MovingClient) -> set[bytes]:
        return set(self.sent[mover.name]) - {heard.payload for heard in mover.heard}

    def repeated(self, mover: MovingClient) -> int:
        return len(mover.heard) - len({heard.payload for heard in mover.heard})

    def unexplained(self, mover: MovingClient) -> list[bytes]:
        """What came twice, and not because a node that was killed in between does not know what it had sent."""
        times = Counter((heard.payload, heard.at > self.killed_at) for heard in mover.heard)
        return [payload for (payload, _), count in times.items() if count > 1]

    async def leave(self) -> None:
        for mover in self.movers:
            await mover.leave()
        await asyncio.sleep(0.1)  # connections that were broken off are closed in a moment


def _desk(node: LiveNode) -> NodePlace:
    host, _, port = node.admin.rpartition(":")
    return NodePlace(host, 0, 0, int(port))


async def live(travellers: Travellers) -> None:
    try:
        await travellers.live()
    finally:
        await travellers.leave()


@pytest.mark.parametrize("have_new_sessions", [False, True])
def test_travelling_clients_lose_nothing_and_the_audit_knows(
    spark: SparkSession, tmp_path: Path, have_new_sessions: bool
) -> None:
    """On a busy machine some may have new sessions without being made to."""
    more = IMPATIENT if have_new_sessions else ""
    with AuditedNetwork(tmp_path, more, segment_bytes=SEGMENT_BYTES) as network:
        ports = [node.port for node in network.nodes.values()]
        with LiveGateway(tmp_path / "gateway", ports) as gateway:
            travellers = Travellers(network, gateway, random.Random(1), have_new_sessions=have_new_sessions)
            asyncio.run(live(travellers))
        at_qos_0 = [mover for mover in travellers.movers if not travellers.qos[mover.name]]
        # At QoS 0 a node that was killed does not know what it had sent; its clients do.
        explained = {mover.name for mover in at_qos_0 if travellers.repeated(mover)}

        def unexplained(rows: list[Row]) -> list[Row]:
            return [row for row in rows if row.violation and (row.qos or row.client not in explained)]

        def is_accounted(rows: list[Row], name: str) -> bool:
            expected: int = sum(row.expected for row in rows if row.client == name)
            return expected >= len(travellers.sent[name]) > 0

        def is_clean(rows: list[Row]) -> bool:
            return not unexplained(rows) and all(is_accounted(rows, mover.name) for mover in travellers.movers)

        _, rows = audited(spark, network, is_clean)
    assert travellers.moved > 20
    assert travellers.ordered > 20
    lost = {mover.name: travellers.missing(mover) for mover in travellers.movers if travellers.qos[mover.name]}
    # Sent at QoS 2 when its node was killed: only the client knows, and does not ask its new session.
    in_doubt = {row.client: row.reasons.get("owned-elsewhere", 0) for row in rows if row.qos == 2}
    assert {name: missing for name, missing in lost.items() if len(missing) > in_doubt.get(name, 0)} == {}
    twice = {mover.name: travellers.repeated(mover) for mover in travellers.movers if travellers.qos[mover.name] == 2}
    assert {name: count for name, count in twice.items() if count} == {}
    repeated = {mover.name: travellers.unexplained(mover) for mover in at_qos_0}
    assert {name: payloads for name, payloads in repeated.items() if payloads} == {}
    assert unexplained(rows) == []
    for mover in travellers.movers:
        assert is_accounted(rows, mover.name), [row for row in rows if row.client == mover.name]
