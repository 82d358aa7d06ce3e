"""Clients of every kind change their nodes under load, a node is killed meanwhile, and the audit accounts for every
message."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from live.gateways import LiveGateway
from live.nodes import START_S, wait_until
from sterna.experiments.clients import Client
from sterna.experiments.movers import Address, Mover
from sterna.pipeline.audit import violations
from sterna.pipeline.jobs_audit import audit_network

from .audited import AuditedNetwork

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CLIENTS = 200
SECONDS = 15.0
MOVES_PER_S = 20.0
MESSAGES_PER_S = 100.0
ARRIVAL_S = 60.0
PUBLISHERS = ("a", "c")
VICTIM = "b"


async def open_(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address)


class Travellers:
    """A third plain MQTT 3.1.1, a third plain MQTT 5, a third behind a gateway; QoS 0, 1 and 2 among all of them."""

    def __init__(self, network: AuditedNetwork, gateway: LiveGateway, dice: random.Random) -> None:
        self._network = network
        self._dice = dice
        self._addresses = {name: node.address for name, node in network.nodes.items()}
        self._gateway = gateway.address
        self.movers = [Mover(f"traveller-{number}", 5 if number % 3 == 1 else 4, open_) for number in range(CLIENTS)]
        self.plain = [mover for number, mover in enumerate(self.movers) if number % 3 != 2]
        self.sent: dict[str, list[bytes]] = {mover.name: [] for mover in self.movers}
        self._down: str | None = None
        self._over = False
        self.moved = 0

    def qos(self, mover: Mover) -> int:
        return self.movers.index(mover) // 3 % 3

    async def live(self) -> None:
        for number, mover in enumerate(self.movers):
            name = "abc"[number % 3] if number % 2 else self._dice.choice("abc")
            await mover.start(self._gateway if mover not in self.plain else self._addresses[name])
            await mover.subscribe(f"travel/{mover.name}", self.qos(mover))
        talk = [asyncio.create_task(self._publish(name)) for name in PUBLISHERS]
        travel = asyncio.create_task(self._travel())
        await asyncio.sleep(SECONDS / 3)
        self._down = VICTIM
        self.killed = time.time()
        await asyncio.to_thread(self._network[VICTIM].kill)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(self._network[VICTIM].launch)
        await asyncio.to_thread(wait_until, self._network[VICTIM].is_up, "the node is back", START_S)
        self._down = None
        await asyncio.sleep(SECONDS / 3)
        self._over = True
        await asyncio.gather(travel, *talk)
        await self._arrive()

    async def _publish(self, node: str) -> None:
        """At QoS 2, one after another: what is noted here was acknowledged."""
        client = Client(f"publisher-{node}")
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
            mover = self._dice.choice(self.plain)
            here = mover.arrivals[-1].where
            others = [name for name, address in self._addresses.items() if address != here and name != self._down]
            # Whose session died with its node waits for it: elsewhere it would have to begin anew.
            if mover.is_connected and here != self._addresses.get(self._down or ""):
                mover.go(self._addresses[self._dice.choice(others)])
                self.moved += 1
            await asyncio.sleep(1 / MOVES_PER_S)

    async def _arrive(self) -> None:
        for _ in range(round(ARRIVAL_S / 0.1)):
            if not any(self.missing(mover) for mover in self.movers if self.qos(mover)):
                return
            await asyncio.sleep(0.1)

    def missing(self, mover: Mover) -> set[bytes]:
        return set(self.sent[mover.name]) - {heard.payload for heard in mover.heard}

    def repeated(self, mover: Mover) -> int:
        return len(mover.heard) - len({heard.payload for heard in mover.heard})

    async def leave(self) -> None:
        for mover in self.movers:
            await mover.leave()
        await asyncio.sleep(0.1)  # connections that were broken off are closed in a moment


def test_travelling_clients_lose_nothing_and_the_audit_knows(spark: SparkSession, tmp_path: Path) -> None:
    async def live(travellers: Travellers) -> None:
        try:
            await travellers.live()
        finally:
            await travellers.leave()

    with AuditedNetwork(tmp_path) as network:
        ports = [node.port for node in network.nodes.values()]
        with LiveGateway(tmp_path / "gateway", ports) as gateway:
            travellers = Travellers(network, gateway, random.Random(1))
            asyncio.run(live(travellers))
        time.sleep(1.5)  # records that nothing else has taken along are written once a second
        found = audit_network(spark, {"nodes": ",".join(network.feeds.values())})
        rows = found.table.withColumn("violation", violations()).collect()
    anew = {mover.name for mover in travellers.movers if not all(one.present for one in mover.arrivals[1:])}
    print(f"{travellers.moved} moves, {len(anew)} began anew")
    for row in rows:
        if row.violation: print(row)
    twice = [mover.name for mover in travellers.movers if travellers.qos(mover) != 1 and travellers.repeated(mover)]
    for name in twice:
        mover = next(one for one in travellers.movers if one.name == name)
        seen = {}
        for h in mover.heard:
            if h.payload in seen:
                f = seen[h.payload]
                print(name, "qos", h.qos, h.payload, "first", f.at, f.via, f.again, "again", h.at, h.via, h.again, [(round(a.at,3), a.where[1], a.present) for a in mover.arrivals])
                break
            seen[h.payload] = h
    for mover in travellers.movers:
        if travellers.qos(mover) and travellers.missing(mover): print("MISSING", mover.name, travellers.qos(mover), travellers.missing(mover), [(round(a.at,3), a.where[1], a.present) for a in mover.arrivals])
    print({n: node.address for n, node in network.nodes.items()}, travellers.killed)
    assert [row for row in rows if row.violation] == []
    lost = {mover.name: len(travellers.missing(mover)) for mover in travellers.movers if travellers.qos(mover)}
    assert {name: count for name, count in lost.items() if count and name not in anew} == {}
    assert twice == []
    for mover in travellers.movers:
        of_it = [row for row in rows if row.client == mover.name]
        assert sum(row.expected for row in of_it) >= len(travellers.sent[mover.name]) > 0, of_it
