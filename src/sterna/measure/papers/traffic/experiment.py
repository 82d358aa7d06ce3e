"""How many bytes pass between brokers: the paper's experiment, all systems side by side under the same load.

Five brokers, twenty publishers of fifty messages each, one per second, five subscribers to all of them.  Topics and
payloads (the time of sending) are sized so that a PUBLISH is a packet of 98 bytes, as in the paper.  Everything is
counted from the start of the brokers until the last message has arrived everywhere; the brokers' end is not.  CPU time
and memory of each broker are those of the same run.

At a distance each broker has a cable of 1 ms and 1 Mb/s to a switch, as in the paper; clients are at their brokers.
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
from sterna.measure.harness.sites import AtADistance, Loopback, Site, may_be_at_a_distance
from sterna.measure.harness.switch import Cables
from sterna.measure.load.clients import AsyncClient
from sterna.measure.papers.traffic import systems
from sterna.measure.papers.traffic.placement import (
    BROKERS,
    LOCALITIES,
    PUBLISHERS,
    SUBSCRIBERS,
    ClientPlacement,
    copies,
    place,
)
from sterna.measure.papers.traffic.systems import Overlay, RunningNetwork, TrafficSystem
from sterna.measure.wire.byte_account import ByteAccount
from sterna.measure.wire.capture import Capture, Watched, may_capture
from sterna.measure.wire.relay import Relays
from sterna.measure.wire.switched import Switched

FILTER = "sensor/+/val"
ARRIVAL_S = 20.0
"""How long after the last message everything must have arrived."""
SETTLE_S = 0.5
"""The last acknowledgements come within this time and are counted."""
CABLE_S = 0.001
CABLE_BITS_PER_S = 1e6
"""Of the cable between a broker and the switch, as in the paper."""

Wire = Capture | Relays | Switched
OVERLAYS: tuple[Overlay, ...] = ("spanning-tree", "static")
HEADLINE: Overlay = "spanning-tree"
FLOODING = "publication-flooding"


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    localities: tuple[int, ...] = LOCALITIES
    strategies: tuple[str, ...] = systems.STRATEGIES
    overlays: tuple[Overlay, ...] = OVERLAYS
    rounds: int = 3
    publishers: int = PUBLISHERS
    subscribers: int = SUBSCRIBERS
    messages: int = 50
    interval_s: float = 1.0
    qos: int = 2
    seed: int = 1
    at_a_distance: bool = field(default_factory=may_be_at_a_distance)
    """Each broker has a cable of its own; else all are on loopback."""
    capture: bool = field(default_factory=may_capture)
    """On loopback: packets are captured; else relays count bytes."""


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
    cpu_percent: tuple[float, ...] = ()
    """Of one core, while messages were published, broker by broker."""
    resident_mib: tuple[float, ...] = ()


def check(plan: TrafficPlan) -> None:
    """A measurement that cannot be done is refused before anything is started."""
    if "spanning-tree" in plan.overlays and not plan.capture and not plan.at_a_distance:
        raise MeasurementError(
            "a tree that forms by itself can only be measured by capturing packets, which needs root; --overlay static"
        )


def run(plan: TrafficPlan, say: Say) -> list[TrafficSample]:
    check(plan)
    samples: list[TrafficSample] = []
    for number in range(plan.rounds):
        for locality in plan.localities:
            count = len(systems_of(plan))
            say(f"round {number + 1} of {plan.rounds}, locality {locality} %: {count} networks at once")
            samples += measure(plan, locality, number)
    return samples


def name_of(strategy: str, overlay: Overlay) -> str:
    return f"{strategy}, {'tree' if overlay == HEADLINE else overlay}"


def systems_of(plan: TrafficPlan) -> list[TrafficSystem]:
    """Publication flooding is there to compare with, on the static overlay only, if there is one."""
    ours = [
        systems.sterna(strategy, overlay, name_of(strategy, overlay))
        for overlay in plan.overlays
        for strategy in plan.strategies
        if strategy != FLOODING or overlay == plan.overlays[-1]
    ]
    return [*ours, systems.mosquitto()]


def measure(plan: TrafficPlan, locality: int, number: int) -> list[TrafficSample]:
    """One round at one locality: every system gets the same clients at the same places at the same moments."""
    rng = Random(f"{plan.seed} {number} {locality}")
    placement = place(locality, plan.publishers, plan.subscribers, rng)
    phases = [rng.uniform(0.0, plan.interval_s) for _ in placement.publishers]
    found = systems_of(plan)
    with tempfile.TemporaryDirectory(prefix="sterna-traffic-") as name, ExitStack() as ends:
        tap = Switched({system.name: Watched(frozenset(), system.reader) for system in found})
        site = ends.enter_context(_site(plan, len(found), tap))
        networks = [
            RunningNetwork(system, site.places[BROKERS * at : BROKERS * (at + 1)], Path(name) / f"network-{at}")
            for at, system in enumerate(found)
        ]
        wire = _wire(plan, networks, tap)
        ends.enter_context(wire)
        for network in networks:
            ends.callback(network.stop)
            network.start(wire.reach)
        for network in networks:
            network.wait_until_linked(wire.ledgers[network.system.name])
        before, began = {network.system.name: network.cpu_ns() for network in networks}, time.monotonic_ns()
        offered = asyncio.run(_offer_all(plan, networks, placement, phases))
        lasted_ns = time.monotonic_ns() - began
        wire.check()
        samples = [
            _sample(network, locality, number, placement, plan, offered[network.system.name], wire.ledgers)
            for network in networks
        ]
        return [
            _with_load(sample, network, before[network.system.name], lasted_ns)
            for sample, network in zip(samples, networks, strict=True)
        ]


def _site(plan: TrafficPlan, networks: int, tap: Switched) -> Site:
    count = BROKERS * networks
    if not plan.at_a_distance:
        return Loopback(count)
    return AtADistance(count, lambda *_: 2 * CABLE_S, Cables(CABLE_BITS_PER_S), tap.tap)


def _wire(plan: TrafficPlan, networks: list[RunningNetwork], tap: Switched) -> Wire:
    if plan.at_a_distance:
        tap.belong({place.host: network.system.name for network in networks for place in network.places})
        return tap
    watched = {network.system.name: network.watched() for network in networks}
    return Capture(watched) if plan.capture else Relays(watched)


def _with_load(sample: TrafficSample, network: RunningNetwork, before: list[int], lasted_ns: int) -> TrafficSample:
    used = zip(before, network.cpu_ns(), strict=True)
    return msgspec.structs.replace(
        sample,
        cpu_percent=tuple(100 * (after - earlier) / lasted_ns for earlier, after in used),
        resident_mib=tuple(kib / 1024 for kib in network.resident_kib()),
    )


def _sample(
    network: RunningNetwork,
    locality: int,
    number: int,
    placement: ClientPlacement,
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
        needed_copies=copies(placement, network.links) * plan.messages,
        delivered=delivered,
        expected=plan.publishers * plan.messages * plan.subscribers,
        control=ledger.control,
        **asdict(ledger),
    )


async def _offer_all(
    plan: TrafficPlan, networks: list[RunningNetwork], placement: ClientPlacement, phases: list[float]
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

    def __init__(
        self, plan: TrafficPlan, network: RunningNetwork, placement: ClientPlacement, phases: list[float]
    ) -> None:
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
        for client, number in zip(self._subscribers, self._placement.subscribers, strict=True):
            await self._connect(client, number)
            await client.subscribe(FILTER, self._plan.qos)
        for client, number in zip(self._publishers, self._placement.publishers, strict=True):
            await self._connect(client, number)

    async def _connect(self, client: AsyncClient, number: int) -> None:
        """From where the broker is: no packet of a client passes the switch."""
        at = self.network.places[number]
        await client.connect(at.clients, at.host, made=at.socket())

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
