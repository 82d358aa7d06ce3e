"""A client is moved from one node to another while messages flow: the paper's experiments and ours (see `plan`).

Source and target are real nodes; the clients, one of each kind, are at a place of their own, and so is their gateway.
Publishers are everywhere at once.  A network serves all runs of an experiment; every run has clients and topics of its
own, moves all its clients, one shortly after the other, and ends when everything has arrived or can no longer be hoped
for, and then nothing has come for a while: a repetition may come late.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.admin import is_served, watch
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.nodes import TOKEN
from sterna.measure.harness.parallel import run_side_by_side
from sterna.measure.load.clients import AsyncClient
from sterna.measure.load.movers import Address, MovingClient
from sterna.measure.papers.migration.network import NAMES, SOURCE, TARGET, MovingNetwork, network
from sterna.measure.papers.migration.plan import (
    INTERVAL_MS,
    NEAR_MS,
    ClientKind,
    MigrationPlan,
    MovedTopic,
    MoveExperiment,
)
from sterna.measure.papers.migration.records import MOVES, MoveRecords

VERSIONS: dict[ClientKind, int] = {"gateway": 4, "mqtt5": 5, "mqtt311": 4}
LET_IN_S = 90.0
MOVE_S = 30.0
"""Beyond what links take."""
AROUND_S = 1.5
"""Of messages before a move and after it, once those under way have arrived."""
ARRIVAL_S = 10.0
QUIET_S = 1.0
"""For so long, and twice what the longest link takes, nothing has come when a run is over."""
APART_S = 0.1 + 2 * NEAR_MS / 1000
"""Between the moves of a run."""
AT_A_TIME = 4
"""Experiments over links of seconds."""


def run(plan: MigrationPlan, directory: Path, say: Say) -> None:
    """Everything; the records of every run are written below `directory`.  Those over links of seconds, which mostly
    wait, are made several at a time, the others one after the other: there milliseconds count."""
    lagging = [one for one in plan.experiments if plan.slowest_s(one) > 1.0]
    lagging.sort(key=lambda one: -plan.latencies(one).shortest)  # what takes longest begins first
    for experiment in plan.experiments:
        if experiment not in lagging:
            run_one(plan, experiment, directory, say)
    run_side_by_side(run_one, [(plan, one, directory) for one in lagging], AT_A_TIME, say)


def run_one(plan: MigrationPlan, experiment: MoveExperiment, directory: Path, say: Say) -> None:
    with network(plan, experiment) as nodes:
        for number in range(1, plan.runs + 1):
            try:
                records = asyncio.run(run_in(plan, experiment, number, nodes))
            except MeasurementError as error:
                records = _failed(plan, experiment, number, str(error))
            records.write(directory, f"{experiment.name}-{number}")
            say(f"{experiment.name}, run {number} of {plan.runs}: {_told(records)}")
            nodes.check()


def _failed(plan: MigrationPlan, experiment: MoveExperiment, number: int, problem: str) -> MoveRecords:
    """A run that did not come about: the others count all the same."""
    now = time.time()
    clients = [(f"{experiment.name} {number} {kind}", kind) for kind in plan.kinds]
    return MoveRecords(
        moves=[(name, experiment.name, number, kind, now, None, None, False, 0, "", problem) for name, kind in clients]
    )


def _told(records: MoveRecords) -> str:
    moves = [dict(zip(MOVES.names, row, strict=True)) for row in records.moves]
    took = (
        f"{one['kind']} {1000 * (one['arrived'] - one['ordered']):.0f} ms" if one["arrived"] else one["problem"]
        for one in moves
    )
    return (
        f"{len(records.messages)} messages, {len(records.deliveries)} deliveries; served at target: {', '.join(took)}"
    )


# -- a run --


class MoveRun:
    """The clients of one run, and what they write down."""

    def __init__(self, plan: MigrationPlan, experiment: MoveExperiment, number: int, nodes: MovingNetwork) -> None:
        self._experiment = experiment
        self._number = number
        self._network = nodes
        self.records = MoveRecords()
        self.movers: dict[ClientKind, MovingClient] = {kind: self._mover(kind) for kind in plan.kinds}
        self._publishing: list[asyncio.Task[None]] = []
        self._over = False
        #: Clients that have come to the target, or will not.
        self._settled = 0

    def _mover(self, kind: ClientKind) -> MovingClient:
        target = self._network.address(TARGET)
        elsewhere = target if kind == "mqtt311" else None
        return MovingClient(self.client(kind), VERSIONS[kind], self._open, elsewhere=elsewhere)

    def client(self, kind: ClientKind) -> str:
        return f"{self._experiment.name} {self._number} {kind}"

    def topic(self, topic: MovedTopic) -> str:
        return f"{self._experiment.name}/{self._number}/{topic.name}"

    async def _open(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = self._network.client_place.socket()
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, address)
        except BaseException:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    async def begin(self) -> None:
        """Everybody is there and has what it wants."""
        at_source, gateway = self._network.address(SOURCE), self._network.gateway
        firsts = {kind: gateway if kind == "gateway" and gateway else at_source for kind in self.movers}
        await asyncio.gather(*(_let_in(mover, firsts[kind]) for kind, mover in self.movers.items()))
        topics = self._experiment.topics
        await asyncio.gather(*(self._subscribe(mover, topic) for mover in self.movers.values() for topic in topics))

    async def _subscribe(self, mover: MovingClient, topic: MovedTopic) -> None:
        since = time.time()
        await mover.subscribe(self.topic(topic), topic.qos)
        self.records.subscriptions.append((mover.name, self.topic(topic), topic.qos, since, time.time()))

    def publish(self) -> None:
        begun = time.monotonic()
        self._publishing = [
            asyncio.create_task(self._publish(topic, where, begun))
            for topic in self._experiment.topics
            for where in topic.published_at
        ]

    async def _publish(self, topic: MovedTopic, where: str, begun: float) -> None:
        """In step however long the broker takes to answer; two publishers of a topic take turns."""
        name, path = f"{where} {topic.name} {self._number}", self.topic(topic)
        turns = len(topic.published_at)
        origin, interval_s = f"{path}@{where}", INTERVAL_MS / 1000 * turns
        turn_s = interval_s * topic.published_at.index(where) / turns
        client = AsyncClient(f"{self._experiment.name} publisher {name}")
        host, port = self._network.address(NAMES.index(where))
        await client.connect(port, host)
        sequence = 0
        try:
            while not self._over:
                await asyncio.sleep(max(0.0, begun + turn_s + sequence * interval_s - time.monotonic()))
                sequence += 1
                at = time.time()
                await client.publish(path, f"{origin} {sequence}".encode(), topic.published)
                self.records.messages.append((path, topic.published, name, origin, 1, sequence, at))
        finally:
            await client.leave()

    async def move(self, within_s: float) -> None:
        """All clients, one shortly after the other; both nodes are watched meanwhile."""
        if self._experiment.is_cut:
            await self._network.cut_and_link()
        watching = [asyncio.create_task(self._watch(node)) for node in (SOURCE, TARGET)]
        try:
            await asyncio.gather(
                *(self._move(kind, within_s, number * APART_S) for number, kind in enumerate(self.movers))
            )
            async with asyncio.timeout(within_s):
                await asyncio.gather(*watching)
        finally:
            for task in watching:
                task.cancel()
        self._date_ends()

    async def _watch(self, node: int) -> None:
        """Note every change of state of the clients on their way, until all have come and gone."""
        states: dict[str, str] = {}
        due = {mover.name for mover in self.movers.values()}
        side = ("leaving", "arriving")[node]

        def note(at: float, told: dict[str, Any]) -> bool:
            now = {one["client"]: one["state"] for one in told[side] if one["client"] in due}
            for client in now.keys() | states.keys():
                state = now.get(client, "")
                if state != states.get(client, ""):
                    self.records.states.append((client, NAMES[node], state, at))
                    states[client] = state
            is_over = self._settled >= len(due)
            return bool(now) or not is_over

        await watch(self._network.places[node], TOKEN, note)

    def _date_ends(self) -> None:
        """A move has ended at the source when it no longer speaks of it."""
        ends = {row[0]: row[3] for row in self.records.states if row[1] == NAMES[SOURCE] and not row[2]}
        place = MOVES.names.index("finished")
        for number, row in enumerate(self.records.moves):
            self.records.moves[number] = (*row[:place], ends.get(row[0]), *row[place + 1 :])

    async def _move(self, kind: ClientKind, within_s: float, after_s: float) -> None:
        await asyncio.sleep(after_s)
        mover = self.movers[kind]
        reads = await self._network.reads_third() if self._experiment.is_cut else ""
        ordered = time.time()
        problem = await self._network.order(mover.name)
        arrived = None if problem else await self._arrives(kind, within_s)
        self._settled += 1
        if not problem and arrived is None:
            problem = "never arrived at the target"
        connections = 1 if kind == "gateway" else 2
        self.records.moves.append(
            (mover.name, self._experiment.name, self._number, kind, ordered, None, arrived,
             all(one.present for one in mover.arrivals[1:]), len(mover.arrivals) - connections, reads, problem)
        )  # fmt: skip

    async def _arrives(self, kind: ClientKind, within_s: float) -> float | None:
        """A client behind a gateway notices nothing: the target is asked."""
        mover, target = self.movers[kind], self._network.address(TARGET)
        if kind == "gateway":
            return await is_served(self._network.places[TARGET], TOKEN, mover.name, within_s)
        return await mover.arrives(target, within_s)

    async def end(self, within_s: float, quiet_s: float) -> None:
        """Publish no more, wait for what is under way, and then until nothing comes any more."""
        self._over = True
        await asyncio.gather(*self._publishing)
        due = len(self.records.messages)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(mover.hears(due) for mover in self.movers.values()))
        await asyncio.gather(*(mover.hears_nothing_for(quiet_s) for mover in self.movers.values()))
        for mover in self.movers.values():
            self._note(mover)
        await asyncio.gather(*(mover.forget() for mover in self.movers.values()))

    def _note(self, mover: MovingClient) -> None:
        """Behind a gateway a client cannot tell who serves it: the moment of the move divides what it heard."""
        names = {self._network.address(number): name for number, name in enumerate(self._network.names)}
        place = MOVES.names.index("arrived")
        moved = next((row[place] for row in self.records.moves if row[0] == mover.name and row[place]), float("inf"))
        for place, heard in enumerate(mover.heard):
            origin, _, sequence = heard.payload.decode().rpartition(" ")
            via = names.get(heard.via) or NAMES[heard.at > moved]
            row = (mover.name, heard.topic, origin, 1, int(sequence), heard.qos, heard.at, place, heard.again, via)
            self.records.deliveries.append(row)

    def cancel(self) -> None:
        for task in self._publishing:
            task.cancel()


async def _let_in(mover: MovingClient, where: Address) -> None:
    """Over links of seconds, a node that has to ask the other may run out of patience with a client, or a gateway."""
    async with asyncio.timeout(LET_IN_S):
        while True:
            try:
                await mover.start(where)
            except (ConnectionError, EOFError):
                await asyncio.sleep(1.0)
            else:
                return


async def run_in(plan: MigrationPlan, experiment: MoveExperiment, number: int, nodes: MovingNetwork) -> MoveRecords:
    """One run."""
    found = MoveRun(plan, experiment, number, nodes)
    slowest_s = plan.slowest_s(experiment)
    try:
        if experiment.is_cut:
            await nodes.is_whole_again()
        await found.begin()
        found.publish()
        await asyncio.sleep(slowest_s + AROUND_S)
        await found.move(MOVE_S + 10 * slowest_s)
        await asyncio.sleep(slowest_s + AROUND_S)
        await found.end(slowest_s + ARRIVAL_S, 2 * slowest_s + QUIET_S)
    except (TimeoutError, OSError, EOFError) as error:
        raise MeasurementError(f"{experiment.name}, run {number}: {error or type(error).__name__}") from error
    finally:
        found.cancel()
    return found.records
