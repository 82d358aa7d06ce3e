"""A client is moved from one node to another while messages flow: the paper's experiments (see `migration_plan`).

Source and target are real nodes; the clients, one of each kind, are at a place of their own, and so is their gateway.
Publishers are everywhere at once.  A network serves all runs of an experiment; every run has clients and topics of its
own, moves all its clients, one shortly after the other, and ends when everything has arrived or can no longer be hoped
for.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.admin import is_served, leaves, order
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.nodes import TOKEN, start_gateway, start_nodes
from sterna.measure.harness.parallel import run_side_by_side
from sterna.measure.harness.processes import Process
from sterna.measure.harness.sites import AtADistance, Loopback, NodePlace, Site
from sterna.measure.harness.switch import Distances
from sterna.measure.load.clients import AsyncClient
from sterna.measure.load.movers import Address, MovingClient
from sterna.measure.papers.migration.plan import (
    BY_NAME,
    INTERVAL_MS,
    JITTER_MS,
    NEAR_MS,
    ClientKind,
    MigrationPlan,
    MovedTopic,
    MoveExperiment,
)
from sterna.measure.papers.migration.records import MOVES, MoveRecords, read

VERSIONS: dict[ClientKind, int] = {"gateway": 4, "mqtt5": 5, "mqtt311": 4}
SOURCE, TARGET, CLIENT = range(3)
NAMES = ("source", "target")
LET_IN_S = 90.0
MOVE_S = 30.0
"""Beyond what links take."""
AROUND_S = 1.5
"""Of messages before a move and after it, once those under way have arrived."""
ARRIVAL_S = 10.0
APART_S = 0.1 + 2 * NEAR_MS / 1000
"""Between the moves of a run."""
AT_A_TIME = 4
"""Experiments over links of seconds."""
BASELINE = BY_NAME["synced-A0_B1_C2"]
BASELINE_RUNS = 3


def run(plan: MigrationPlan, directory: Path, say: Say) -> None:
    """Everything; the records of every run are written below `directory`.  Those over links of seconds, which mostly
    wait, are made several at a time, the others one after the other: there milliseconds count."""
    lagging = [one for one in plan.experiments if plan.latencies(one).longest > NEAR_MS]
    lagging.sort(key=lambda one: -plan.latencies(one).shortest)  # what takes longest begins first
    for experiment in plan.experiments:
        if experiment not in lagging:
            run_one(plan, experiment, directory, say)
    run_side_by_side(run_one, [(plan, one, directory) for one in lagging], AT_A_TIME, say)


def run_one(plan: MigrationPlan, experiment: MoveExperiment, directory: Path, say: Say) -> None:
    with _network(plan, experiment) as network:
        for number in range(1, plan.runs + 1):
            try:
                records = asyncio.run(_run(plan, experiment, number, network))
            except MeasurementError as error:
                records = _failed(plan, experiment, number, str(error))
            records.write(directory, f"{experiment.name}-{number}")
            say(f"{experiment.name}, run {number} of {plan.runs}: {_told(records)}")
            network.check()


def _failed(plan: MigrationPlan, experiment: MoveExperiment, number: int, problem: str) -> MoveRecords:
    """A run that did not come about: the others count all the same."""
    now = time.time()
    clients = [(f"{experiment.name} {number} {kind}", kind) for kind in plan.kinds]
    return MoveRecords(
        moves=[(name, experiment.name, number, kind, now, None, None, False, 0, problem) for name, kind in clients]
    )


def processing_ms(plan: MigrationPlan, say: Say) -> float:
    """What a move takes where links take no time: the middle one of some."""
    near = replace(plan, experiments=(BASELINE,), runs=BASELINE_RUNS, at_a_distance=False)
    with tempfile.TemporaryDirectory(prefix="sterna-migration-") as name:
        run(near, Path(name), lambda line: say(f"without distances: {line}"))
        took = [move["finished"] - move["ordered"] for move in read(Path(name), "moves") if move["finished"]]
    return 1000 * median(took) if took else 0.0


def _told(records: MoveRecords) -> str:
    moves = [dict(zip(MOVES.names, row, strict=True)) for row in records.moves]
    took = (
        f"{one['kind']} {1000 * (one['finished'] - one['ordered']):.0f} ms" if one["finished"] else one["problem"]
        for one in moves
    )
    return f"{len(records.messages)} messages, {len(records.deliveries)} deliveries; moved: {', '.join(took)}"


# -- the network --


class MovingNetwork:
    def __init__(self, places: list[NodePlace], processes: list[Process], gateway: Address | None) -> None:
        self.places = places
        self._processes = processes
        self.gateway = gateway

    def address(self, number: int) -> Address:
        return self.places[number].host, self.places[number].clients

    def check(self) -> None:
        for process in self._processes:
            process.check()


@contextmanager
def _network(plan: MigrationPlan, experiment: MoveExperiment) -> Iterator[MovingNetwork]:
    """Links are made at the near distance, and lengthened when they stand."""
    distances = Distances(JITTER_MS / 1000, Random(f"{plan.seed} {experiment.name}"))
    distances.put(SOURCE, TARGET, NEAR_MS / 1000)
    site: Site = AtADistance(3, distances) if plan.at_a_distance else Loopback(3)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-migration-")))
        places = stack.enter_context(site).places
        processes = start_nodes(stack, NAMES, places, directory)
        gateway = None
        if "gateway" in plan.kinds:
            process, gateway = start_gateway(stack, places[CLIENT], places[: len(NAMES)], directory)
            processes.append(process)
        latencies = plan.latencies(experiment)
        distances.put(SOURCE, TARGET, latencies.source_to_target / 1000, latencies.target_to_source / 1000)
        distances.put(SOURCE, CLIENT, latencies.source_client / 1000)
        distances.put(TARGET, CLIENT, latencies.target_client / 1000)
        yield MovingNetwork(places, processes, gateway)


# -- a run --


class _Run:
    """The clients of one run, and what they write down."""

    def __init__(self, plan: MigrationPlan, experiment: MoveExperiment, number: int, network: MovingNetwork) -> None:
        self._experiment = experiment
        self._number = number
        self._network = network
        self.records = MoveRecords()
        self.movers: dict[ClientKind, MovingClient] = {kind: self._mover(kind) for kind in plan.kinds}
        self._publishing: list[asyncio.Task[None]] = []
        self._over = False
        self._flows = [(topic, where) for topic in experiment.topics for where in topic.published_at]

    def _mover(self, kind: ClientKind) -> MovingClient:
        target = self._network.address(TARGET)
        elsewhere = target if kind == "mqtt311" else None
        return MovingClient(self.client(kind), VERSIONS[kind], self._open, elsewhere=elsewhere)

    def client(self, kind: ClientKind) -> str:
        return f"{self._experiment.name} {self._number} {kind}"

    def topic(self, topic: MovedTopic) -> str:
        return f"{self._experiment.name}/{self._number}/{topic.name}"

    async def _open(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = self._network.places[CLIENT].socket()
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
        self._publishing = [asyncio.create_task(self._publish(topic, where)) for topic, where in self._flows]

    async def _publish(self, topic: MovedTopic, where: str) -> None:
        """At QoS 2, and in step however long the broker takes to answer."""
        name, path = f"{where} {topic.name} {self._number}", self.topic(topic)
        origin, interval_s = f"{path}@{where}", INTERVAL_MS / 1000 * len(topic.published_at)
        client = AsyncClient(f"{self._experiment.name} publisher {name}")
        host, port = self._network.address(NAMES.index(where))
        await client.connect(port, host)
        begun, sequence = time.monotonic(), 0
        try:
            while not self._over:
                sequence += 1
                at = time.time()
                await client.publish(path, f"{origin} {sequence}".encode(), 2)
                self.records.messages.append((path, 2, name, origin, 1, sequence, at))
                await asyncio.sleep(max(0.0, begun + sequence * interval_s - time.monotonic()))
        finally:
            await client.leave()

    async def move(self, kind: ClientKind, within_s: float, after_s: float) -> None:
        await asyncio.sleep(after_s)
        mover, places = self.movers[kind], self._network.places
        ordered = time.time()
        problem = await order(places[SOURCE], TOKEN, mover.name, NAMES[TARGET])
        finished = arrived = None
        if not problem:
            finished, arrived = await asyncio.gather(
                leaves(places[SOURCE], TOKEN, mover.name, within_s), self._arrives(kind, within_s)
            )
            problem = "" if finished and arrived else "never arrived at the target"
        connections = 1 if kind == "gateway" else 2
        self.records.moves.append(
            (mover.name, self._experiment.name, self._number, kind, ordered, finished, arrived,
             all(one.present for one in mover.arrivals[1:]), len(mover.arrivals) - connections, problem)
        )  # fmt: skip

    async def _arrives(self, kind: ClientKind, within_s: float) -> float | None:
        """A client behind a gateway notices nothing: the target is asked."""
        mover, target = self.movers[kind], self._network.address(TARGET)
        if kind == "gateway":
            return await is_served(self._network.places[TARGET], TOKEN, mover.name, within_s)
        return await mover.arrives(target, within_s)

    async def end(self, within_s: float) -> None:
        """Publish no more, and wait for what is under way."""
        self._over = True
        await asyncio.gather(*self._publishing)
        due = len(self.records.messages)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(mover.hears(due) for mover in self.movers.values()))
        for mover in self.movers.values():
            self._note(mover)
        await asyncio.gather(*(mover.forget() for mover in self.movers.values()))

    def _note(self, mover: MovingClient) -> None:
        """Behind a gateway a client cannot tell who serves it: the moment of the move divides what it heard."""
        names = {self._network.address(number): name for number, name in enumerate(NAMES)}
        moved = next((row[5] for row in self.records.moves if row[0] == mover.name and row[5]), float("inf"))
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


async def _run(plan: MigrationPlan, experiment: MoveExperiment, number: int, network: MovingNetwork) -> MoveRecords:
    found = _Run(plan, experiment, number, network)
    latencies = plan.latencies(experiment)
    longest_s = latencies.longest / 1000
    try:
        await found.begin()
        found.publish()
        await asyncio.sleep(longest_s + AROUND_S)
        await asyncio.gather(
            *(found.move(kind, MOVE_S + 10 * longest_s, number * APART_S) for number, kind in enumerate(plan.kinds))
        )
        await asyncio.sleep(longest_s + AROUND_S)
        await found.end(longest_s + ARRIVAL_S)
    except (TimeoutError, OSError, EOFError) as error:
        raise MeasurementError(f"{experiment.name}, run {number}: {error or type(error).__name__}") from error
    finally:
        found.cancel()
    return found.records
