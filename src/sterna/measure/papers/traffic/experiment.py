"""How many bytes pass between brokers: the paper's experiment, all systems side by side under the same load.

Five brokers, twenty publishers of fifty messages each, one per second, five subscribers to all of them.  Topics and
payloads (the time of sending) are sized so that a PUBLISH is a packet of 98 bytes, as in the paper.  Everything is
counted from the start of the brokers until the last message has arrived everywhere; the brokers' end is not.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.comparison import Say
from sterna.measure.load.clients import AsyncClient
from sterna.measure.papers.traffic import systems
from sterna.measure.papers.traffic.placement import LOCALITIES, PUBLISHERS, SUBSCRIBERS, Placement, copies, place
from sterna.measure.papers.traffic.systems import Overlay, RunningNetwork, TrafficSystem
from sterna.measure.wire.byte_account import ByteAccount
from sterna.measure.wire.capture import Capture, may_capture
from sterna.measure.wire.relay import Relays

FILTER = "sensor/+/val"
ARRIVAL_S = 20.0
"""How long after the last message everything must have arrived."""
SETTLE_S = 0.5
"""The last acknowledgements come within this time and are counted."""
TREE_S = 3.0
"""How long a tree that forms by itself may still change after the last link came up."""

Wire = Capture | Relays


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    localities: tuple[int, ...] = LOCALITIES
    strategies: tuple[str, ...] = systems.STRATEGIES
    rounds: int = 3
    publishers: int = PUBLISHERS
    subscribers: int = SUBSCRIBERS
    messages: int = 50
    interval_s: float = 1.0
    qos: int = 2
    overlay: Overlay = "static"
    seed: int = 1
    capture: bool = field(default_factory=may_capture)
    """Packets are captured; else relays count bytes."""


class TrafficSample(msgspec.Struct, frozen=True, kw_only=True):
    """One system at one locality in one round."""

    system: str
    locality: int
    round: int
    publishers: tuple[int, ...]
    subscribers: tuple[int, ...]
    needed_copies: int
    """How often messages must cross a link of the tree if they go only where they have to."""
    delivered: int
    expected: int
    publish: int
    control: int
    total: int
    packets: int
    publish_packets: int
    publication_bytes: int
    kinds: dict[str, int]
    counts: dict[str, int]


def check(plan: TrafficPlan) -> None:
    """A measurement that cannot be done is refused before anything is started."""
    if plan.overlay == "spanning-tree" and not plan.capture:
        raise MeasurementError(
            "a tree that forms by itself can only be measured by capturing packets, which needs root"
        )


def run(plan: TrafficPlan, say: Say) -> list[TrafficSample]:
    check(plan)
    samples: list[TrafficSample] = []
    for number in range(plan.rounds):
        for locality in plan.localities:
            say(f"round {number + 1} of {plan.rounds}, locality {locality} %: {len(_systems(plan))} networks at once")
            samples += measure(plan, locality, number)
    return samples


def _systems(plan: TrafficPlan) -> list[TrafficSystem]:
    return [*(systems.sterna(strategy, plan.overlay) for strategy in plan.strategies), systems.mosquitto()]


def measure(plan: TrafficPlan, locality: int, number: int) -> list[TrafficSample]:
    """One round at one locality: every system gets the same clients at the same places at the same moments."""
    rng = Random(f"{plan.seed} {number} {locality}")
    placement = place(locality, plan.publishers, plan.subscribers, rng)
    phases = [rng.uniform(0.0, plan.interval_s) for _ in placement.publishers]
    with tempfile.TemporaryDirectory(prefix="sterna-traffic-") as name, ExitStack() as ends:
        networks = [RunningNetwork(system, Path(name) / system.name) for system in _systems(plan)]
        watched = {network.system.name: network.watched() for network in networks}
        wire: Wire = Capture(watched) if plan.capture else Relays(watched)
        ends.enter_context(wire)
        for network in networks:
            ends.callback(network.stop)
            network.start(wire.reach)
        for network in networks:
            network.wait_until_linked(wire.ledgers[network.system.name])
        if plan.overlay == "spanning-tree":
            time.sleep(TREE_S)
        offered = asyncio.run(_offer_all(plan, networks, placement, phases))
        wire.check()
        return [
            _sample(network, locality, number, placement, plan, offered[network.system.name], wire.ledgers)
            for network in networks
        ]


def _sample(
    network: RunningNetwork,
    locality: int,
    number: int,
    placement: Placement,
    plan: TrafficPlan,
    delivered: int,
    ledgers: dict[str, ByteAccount],
) -> TrafficSample:
    network.check()
    ledger = ledgers[network.system.name]
    return TrafficSample(
        system=network.system.name,
        locality=locality,
        round=number,
        publishers=placement.publishers,
        subscribers=placement.subscribers,
        needed_copies=copies(placement) * plan.messages,
        delivered=delivered,
        expected=plan.publishers * plan.messages * plan.subscribers,
        control=ledger.control,
        **asdict(ledger),
    )


async def _offer_all(
    plan: TrafficPlan, networks: list[RunningNetwork], placement: Placement, phases: list[float]
) -> dict[str, int]:
    offers = [_Offer(plan, network, placement, phases) for network in networks]
    for offer in offers:
        await offer.connect()
    await asyncio.gather(*(offer.publish() for offer in offers))
    with suppress(TimeoutError):
        async with asyncio.timeout(ARRIVAL_S):
            await asyncio.gather(*(offer.complete.wait() for offer in offers))
    await asyncio.sleep(SETTLE_S)
    delivered = {offer.network.system.name: offer.delivered for offer in offers}
    for offer in offers:
        await offer.leave()
    return delivered


class _Offer:
    """The clients of one network."""

    def __init__(self, plan: TrafficPlan, network: RunningNetwork, placement: Placement, phases: list[float]) -> None:
        self.network = network
        self._plan = plan
        self._placement = placement
        self._phases = phases
        #: Everything has arrived everywhere.
        self.complete = asyncio.Event()
        self.delivered = 0
        self._expected = plan.publishers * plan.messages * plan.subscribers
        self._subscribers = [AsyncClient(f"subscriber-{number}", self._heard) for number in range(plan.subscribers)]
        self._publishers = [AsyncClient(f"publisher-{number:02}") for number in range(plan.publishers)]

    def _heard(self, _topic: str, _payload: bytes) -> None:
        self.delivered += 1
        if self.delivered == self._expected:
            self.complete.set()

    async def connect(self) -> None:
        ports = self.network.ports.clients
        for client, place_of in zip(self._subscribers, self._placement.subscribers, strict=True):
            await client.connect(ports[place_of])
            await client.subscribe(FILTER, self._plan.qos)
        for client, place_of in zip(self._publishers, self._placement.publishers, strict=True):
            await client.connect(ports[place_of])

    async def publish(self) -> None:
        began = asyncio.get_running_loop().time()
        publishers = zip(self._publishers, self._phases, strict=True)
        await asyncio.gather(*(self._publish(client, n, began + at) for n, (client, at) in enumerate(publishers)))

    async def _publish(self, client: AsyncClient, number: int, begin: float) -> None:
        loop = asyncio.get_running_loop()
        for message in range(self._plan.messages):
            await asyncio.sleep(begin + message * self._plan.interval_s - loop.time())
            payload = str(time.time_ns() // 1_000_000).encode()
            await client.publish(f"sensor/{number:02}/val", payload, self._plan.qos)

    async def leave(self) -> None:
        for client in (*self._publishers, *self._subscribers):
            await client.leave()
