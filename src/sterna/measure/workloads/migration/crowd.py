"""The cost of moving clients: moves a second, the time a client waits longer than one that stays, memory.

Three nodes in a row on loopback, a crowd of clients on the first (a third each at QoS 0, 1 and 2), and publishers on
all of them.  In every round the crowd connects again where it is (the peer everything is compared with), and goes to
the last node and back, by order and by itself: all at once, which tells how many moves a second there can be, and one
after another, which tells what a move costs the one who moves.  Some clients never move: what they wait in the same
moments is what there is to wait anyway.  In the end every message is accounted for.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.admin import order
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.meter import resident_kib
from sterna.measure.harness.nodes import TOKEN, start_nodes
from sterna.measure.harness.processes import Process
from sterna.measure.harness.sites import Loopback, NodePlace
from sterna.measure.load.clients import AsyncClient
from sterna.measure.load.movers import Address, HeardMessage, MovingClient

NAMES = ("first", "middle", "last")
FIRST, LAST = 0, 2
CALM_S = 1.0
"""Between two phases."""
MORE_MOVES = 20
"""Of every client, to see whether nodes grow with them."""
FORGOTTEN_S = 31.0
"""These nodes remember a move for thirty seconds (`patience_s`)."""
PHASE_S = 120.0
"""A crowd that has not arrived by then never will."""
ARRIVAL_S = 20.0
AFTERWARDS_S = 0.5
"""A message that comes so soon after a phase may still be late because of it."""

ALL_AT_ONCE = float("inf")
CONNECT_AGAIN = "connect again"
ORDERED = "moved by order"
TURN_UP = "turn up elsewhere"
BUSY = "way already"
"""The answer of a node that moves as many as it may at a time, and of one to which the session is still on its way."""
ASK_AGAIN_S = 0.02
ORDERS_AT_ONCE = 8
"""Connections to an admin port, which does not take many."""

Act = Callable[[MovingClient, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CrowdPlan:
    clients: int = 300
    stayers: int = 60
    messages_per_s: int = 300
    """In all."""
    pace: float = 25.0
    """Moves a second when they come one after another."""
    rounds: int = 3
    forgotten_s: float = FORGOTTEN_S


QUICK = CrowdPlan(clients=60, stayers=20, messages_per_s=100, rounds=1)


class PhaseLatency(msgspec.Struct, frozen=True, kw_only=True):
    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class CrowdPhase(msgspec.Struct, frozen=True, kw_only=True):
    """The whole crowd does something once."""

    what: str
    at_once: bool
    seconds: float
    per_s: float
    movers: PhaseLatency
    stayers: PhaseLatency


class SessionMemory(msgspec.Struct, frozen=True, kw_only=True):
    """KiB a session, connection included."""

    opened: float
    """On the node where it was opened,"""
    arrived: float
    """on one it was moved to for the first time,"""
    grown: float
    """and by how much all nodes together have grown with every further move of it."""


class DeliveryAccount(msgspec.Struct, frozen=True, kw_only=True):
    qos: int
    sent: int
    lost: int
    duplicated: int
    reordered: int


class CrowdMeasured(msgspec.Struct, frozen=True, kw_only=True):
    phases: list[CrowdPhase]
    memory: SessionMemory
    accounts: list[DeliveryAccount]
    anew: int
    """Clients that did not find their session."""


def measure(plan: CrowdPlan, say: Say) -> CrowdMeasured:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-bench-")))
        places = stack.enter_context(Loopback(len(NAMES))).places
        processes = start_nodes(stack, NAMES, places, directory)
        return asyncio.run(_Crowd(plan, places, processes, say).measure())


def percentiles(waits_ms: Sequence[float]) -> PhaseLatency:
    ordered = sorted(waits_ms) or [0.0]
    return PhaseLatency(
        messages=len(waits_ms),
        p50_ms=ordered[len(ordered) // 2],
        p99_ms=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        max_ms=ordered[-1],
    )


class _Crowd:
    def __init__(self, plan: CrowdPlan, places: list[NodePlace], processes: list[Process], say: Say) -> None:
        self._plan = plan
        self._places = places
        self._processes = processes
        self._say = say
        self._movers = [MovingClient(f"mover-{number}", 5, _open) for number in range(plan.clients)]
        self._stayers = [MovingClient(f"stayer-{number}", 5, _open) for number in range(plan.stayers)]
        self._everybody = self._movers + self._stayers
        #: Of each client, what it is owed.
        self._sent = [0] * len(self._everybody)
        self._over = False
        self._orders = asyncio.Semaphore(ORDERS_AT_ONCE)
        self._phases: list[CrowdPhase] = []

    def _address(self, number: int) -> Address:
        return self._places[number].host, self._places[number].clients

    def _resident_kib(self, number: int) -> int:
        return resident_kib(self._processes[number].pid)

    async def measure(self) -> CrowdMeasured:
        memory = await self._remember()
        publishing = [asyncio.create_task(self._publish(number)) for number in range(len(NAMES))]
        try:
            await asyncio.sleep(CALM_S)
            for _ in range(self._plan.rounds):
                for pace in (ALL_AT_ONCE, self._plan.pace):
                    await self._phase(CONNECT_AGAIN, self._go, FIRST, pace)
                    for what, act in ((ORDERED, self._ordered), (TURN_UP, self._go)):
                        await self._phase(what, act, LAST, pace)
                        await self._phase(what, act, FIRST, pace)
            self._over = True
            await asyncio.gather(*publishing)
        finally:
            for task in publishing:
                task.cancel()
        accounts = await self._end()
        anew = sum(not arrival.present for mover in self._movers for arrival in mover.arrivals[1:])
        return CrowdMeasured(phases=self._phases, memory=memory, accounts=accounts, anew=anew)

    async def _remember(self) -> SessionMemory:
        """Before anything is published, what sessions and their moves cost."""
        bare = self._resident_kib(FIRST)
        await self._begin()
        full, last = self._resident_kib(FIRST), self._resident_kib(LAST)
        await self._to(LAST)
        arrived = await self._settled_kib(LAST) - last
        await self._to(FIRST)
        await self._to_and_fro()  # until heaps have the shape they need
        warm = await self._settled_kib(*range(len(NAMES)))
        await self._to_and_fro()
        grown = await self._settled_kib(*range(len(NAMES))) - warm
        count = len(self._movers)
        opened = (full - bare) / len(self._everybody)
        return SessionMemory(opened=opened, arrived=arrived / count, grown=grown / count / MORE_MOVES)

    async def _to_and_fro(self) -> None:
        for _ in range(MORE_MOVES // 2):
            await self._to(LAST)
            await self._to(FIRST)

    async def _to(self, number: int) -> None:
        await asyncio.gather(*(self._ordered(mover, number) for mover in self._movers))

    async def _settled_kib(self, *numbers: int) -> int:
        """Once nodes have forgotten the moves."""
        await asyncio.sleep(self._plan.forgotten_s)
        return sum(self._resident_kib(number) for number in numbers)

    async def _begin(self) -> None:
        for number, mover in enumerate(self._everybody):
            await mover.start(self._address(FIRST))
            await mover.subscribe(_topic(number), number % 3)

    async def _publish(self, node: int) -> None:
        """To every client in turn, of those whose number says that they hear this node."""
        client = AsyncClient(f"publisher-{node}")
        await client.connect(self._places[node].clients, self._places[node].host)
        owed = [number for number in range(len(self._everybody)) if number // 3 % len(NAMES) == node]
        interval_s = len(NAMES) / self._plan.messages_per_s
        begun, count = time.monotonic(), 0
        while not self._over:
            number = owed[count % len(owed)]
            count += 1
            self._sent[number] += 1
            payload = f"{self._sent[number]} {time.time():.6f}".encode()
            await client.publish(_topic(number), payload, max(1, number % 3))
            await asyncio.sleep(max(0.0, begun + count * interval_s - time.monotonic()))
        await client.leave()

    # -- what the crowd does --

    async def _phase(self, what: str, act: Act, target: int, pace: float) -> None:
        begun = time.time()
        try:
            async with asyncio.timeout(PHASE_S):
                turns = enumerate(self._movers)
                spans = await asyncio.gather(*(_in_turn(number, pace, act, mover, target) for number, mover in turns))
        except TimeoutError:
            raise MeasurementError(f"{what}: not everybody arrived within {PHASE_S:g} s") from None
        ended = time.time()
        await asyncio.sleep(AFTERWARDS_S)
        pairs = zip(self._movers, spans, strict=True)
        phase = CrowdPhase(
            what=what,
            at_once=pace == ALL_AT_ONCE,
            seconds=ended - begun,
            per_s=len(self._movers) / (ended - begun),
            movers=percentiles([wait for mover, span in pairs for wait in _waits_ms(mover.heard, *span)]),
            stayers=percentiles([wait for mover in self._stayers for wait in _waits_ms(mover.heard, begun, ended)]),
        )
        self._phases.append(phase)
        waited = f"p99 {phase.movers.p99_ms:.0f} ms, of stayers {phase.stayers.p99_ms:.0f} ms"
        self._say(f"{what}: {phase.per_s:,.0f} a second; {waited}")
        await asyncio.sleep(CALM_S)

    async def _go(self, mover: MovingClient, target: int) -> None:
        before = len(mover.arrivals)
        mover.go(self._address(target))
        await self._arrives(mover, before, target)

    async def _ordered(self, mover: MovingClient, target: int) -> None:
        before, here = len(mover.arrivals), mover.arrivals[-1].where
        source = next(place for place in self._places if (place.host, place.clients) == here)
        while problem := await self._order(source, mover.name, NAMES[target]):
            if BUSY not in problem:
                raise MeasurementError(f"{mover.name} cannot be moved: {problem}")
            await asyncio.sleep(ASK_AGAIN_S)
        await self._arrives(mover, before, target)

    async def _arrives(self, mover: MovingClient, before: int, target: int) -> None:
        """There and nowhere else: one that is sent back where it was has not moved."""
        await mover.arrives_again(before)
        while mover.arrivals[-1].where != self._address(target):
            await mover.arrives_again(len(mover.arrivals))

    async def _order(self, source: NodePlace, client: str, target: str) -> str:
        async with self._orders:
            return await order(source, TOKEN, client, target)

    # -- the account --

    async def _end(self) -> list[DeliveryAccount]:
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_S):
                for number, mover in enumerate(self._everybody):
                    if number % 3:
                        await mover.hears(self._sent[number])
        accounts = []
        for qos in range(3):
            ours = [number for number in range(len(self._everybody)) if number % 3 == qos]
            told = [accounted(self._everybody[number].heard, self._sent[number]) for number in ours]
            sent = sum(self._sent[number] for number in ours)
            lost, duplicated, reordered = (sum(one[place] for one in told) for place in range(3))
            accounts.append(DeliveryAccount(qos=qos, sent=sent, lost=lost, duplicated=duplicated, reordered=reordered))
        for mover in self._everybody:
            await mover.leave()
        return accounts


def accounted(heard: Sequence[HeardMessage], sent: int) -> tuple[int, int, int]:
    """(lost, duplicated, reordered) of messages 1 to `sent`."""
    numbers = [int(one.payload.split()[0]) for one in heard]
    first: dict[int, None] = dict.fromkeys(numbers)
    newest, reordered = 0, 0
    for number in first:
        reordered += number < newest
        newest = max(newest, number)
    return sent - len(first), len(numbers) - len(first), reordered


async def _in_turn(number: int, pace: float, act: Act, mover: MovingClient, target: int) -> tuple[float, float]:
    """From when to when it was on its way."""
    await asyncio.sleep(number / pace)
    begun = time.time()
    await act(mover, target)
    return begun, time.time()


def _waits_ms(heard: Sequence[HeardMessage], begun: float, ended: float) -> list[float]:
    """Of what came between these instants, or soon after."""
    return [1000 * (one.at - float(one.payload.split()[1])) for one in heard if begun <= one.at <= ended + AFTERWARDS_S]


def _topic(number: int) -> str:
    return f"bench/{number}"


async def _open(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address)
