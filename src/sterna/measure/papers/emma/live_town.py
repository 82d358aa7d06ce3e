"""A playbook with real processes: workers and their nodes, a coordinator and gateways at a distance, plain clients.

Everything acts by the defaults of the product but for the tuning that is given, and for two kinds of patience that a
machine with little time to spare needs.  A second of the records is what the admin ports said then.  Nobody tells a
coordinator about the playbook: workers and gateways appear as processes, crowds as connections.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final

from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.adaptive_files import AdaptiveFiles, AdaptivePace
from sterna.measure.harness.admin import unix_page
from sterna.measure.harness.brokers import sterna_command
from sterna.measure.harness.comparison import Say
from sterna.measure.harness.node_tables import toml
from sterna.measure.harness.processes import Process, wait_until
from sterna.measure.harness.sites import AtADistance
from sterna.measure.papers.emma.control_plane import PING_BYTES
from sterna.measure.papers.emma.live_crowd import LiveCrowd, TownBooks
from sterna.measure.papers.emma.live_places import LivePlaces
from sterna.measure.papers.emma.playbooks import Playbook, PlaybookEvent
from sterna.measure.papers.emma.records import RunRecords, Second, TopicSecond, TrafficSecond, Way

START_S: Final = 600.0
LOOK_S: Final = 0.1
LAG_MS: Final = 50.0
"""Of a gateway whose samples count all the same: many processes share few processors."""
END_S: Final = 90.0
"""A worker that is told to end takes its node with it."""
COORDINATOR: Final = "coordinator"
EVACUATION_RATE: Final = 50
"""Clients a second."""
_ECHO_PORT: Final = 7886
_UDP: Final = 17


class Echoes:
    """Counts echoes on the wire.  The switch shows it every packet, in a thread of its own."""

    def __init__(self) -> None:
        self.count = self.bytes = 0

    def __call__(self, at: float, source: int, target: int, packet: bytes) -> None:
        header = 4 * (packet[0] & 15)
        ports = [int.from_bytes(packet[place : place + 2], "big") for place in (header, header + 2)]
        if packet[9] == _UDP and _ECHO_PORT in ports:
            self.count += 1
            self.bytes += len(packet)


class LiveTown:
    def __init__(self, playbook: Playbook, tuning: AdaptationTuning, way: Way, seed: int, say: Say) -> None:
        self._playbook = playbook
        self._say = say
        self._records = RunRecords(playbook, way)
        self._tuning = tuning
        self._places = LivePlaces(playbook, Random(f"{seed}/ways"))
        self._echoes = Echoes()

    def run(self, directory: Path) -> RunRecords:
        """`directory` is for files and logs of the processes."""
        with ExitStack() as stack:
            site = stack.enter_context(AtADistance(len(self._places), self._places.delay_s, tap=self._echoes))
            gateways = sorted({_flat(one.name) for one in self._playbook.events if one.kind == "gateway"})
            files = AdaptiveFiles(directory, site.places, gateways=gateways, pace=_pace(self._tuning))
            hosts = LiveHosts(stack, files, site, self._places, self._fixed())
            hosts.start_first(self._playbook)
            asyncio.run(LiveRun(self._playbook, self._records, hosts, self._echoes, self._say).play())
        return self._records

    def _fixed(self) -> set[str]:
        """Workers whose node always runs, or is started by hand."""
        return {one.name for one in self._playbook.events if one.fixed or one.kind == "start"}


def _pace(tuning: AdaptationTuning) -> AdaptivePace:
    usual = AdaptationTuning()
    changed = {
        one.name: getattr(tuning, one.name)
        for one in fields(tuning)
        if getattr(tuning, one.name) != getattr(usual, one.name)
    }
    return AdaptivePace(
        worker=toml({"draining": {"ready_s": START_S, "stop_s": END_S}}),
        coordinator=toml({"decisions": changed}),
        measuring=toml({"measuring": {"lag_ms": LAG_MS}}),
    )


def _flat(name: str) -> str:
    """As a process is called: names are levels of topics and parts of paths."""
    return name.replace("/", "-")


class LiveHosts:
    """The processes, and what their admin ports say."""

    def __init__(
        self, stack: ExitStack, files: AdaptiveFiles, site: AtADistance, places: LivePlaces, fixed: set[str]
    ) -> None:
        self._files = files
        self._site = site
        self._places = places
        self._fixed = fixed
        self._workers: dict[str, Process] = {}
        self._gateways: dict[str, Process] = {}
        self._running: list[Process] = []
        stack.callback(self._end)

    def _end(self) -> None:
        """Nodes go with their workers."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: one.stop(END_S), self._running))

    def _start(self, name: str, command: str, number: int, text: str) -> Process:
        file = self._files.directory / f"{name}.toml"
        file.write_text(text)
        words = [*self._site.places[number].prefix, *sterna_command(command, "--config", str(file))]
        process = Process(name, words, self._files.directory)
        process.start()
        self._running.append(process)
        return process

    @property
    def workers(self) -> list[str]:
        return list(self._workers)

    def is_fixed(self, worker: str) -> bool:
        return worker in self._fixed

    def start_first(self, playbook: Playbook) -> None:
        """The cloud and the workers of the first moment are there before a playbook begins, and a coordinator leads."""
        first = [one for one in playbook.events if one.kind == "worker" and not one.at_s]
        for event in sorted(first, key=lambda one: not one.fixed):
            self.start_worker(event)
            if event.fixed:
                self._wait_until_served(event.name)
        self._start(COORDINATOR, COORDINATOR, 0, self._files.coordinator(COORDINATOR))
        wait_until(lambda: self._acts(len(first)), "a coordinator leads and has heard of all workers", START_S, LOOK_S)
        for event in first:
            if event.name in self._fixed:
                self._wait_until_served(event.name)

    def start_worker(self, event: PlaybookEvent) -> None:
        name, number = _flat(event.name), self._places.numbers[event.name]
        more = f'leave_node = false\nsite = "{event.site}"'
        text = self._files.worker(name, number, fixed=event.name in self._fixed, more=more)
        self._workers[event.name] = self._start(name, "worker", number, text)

    def start_gateway(self, name: str) -> None:
        text = self._files.gateway(_flat(name))
        self._gateways[name] = self._start(_flat(name), "gateway", self._places.numbers[name], text)

    def entrance(self, gateway: str) -> tuple[str, Callable[[], None]]:
        """Where clients connect, and a check that the gateway is running."""
        return self._files.entrance(_flat(gateway)), self._gateways[gateway].check

    async def stop_gateway(self, name: str) -> None:
        await asyncio.to_thread(self._gateways.pop(name).stop)

    async def stop_by_hand(self, worker: str) -> None:
        """As operators do it: the clients go elsewhere, then the worker is told to end, and takes its node with it."""
        order = json.dumps({"node": _flat(worker), "rate": EVACUATION_RATE})
        if await unix_page(f"{self._files.directory}/{_flat(worker)}/node.sock", "/evacuate", order) is None:
            raise MeasurementError(f"{worker} could not be evacuated")
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            told = await self.status(worker, "worker")
            if told is not None and not told["clients"]:
                await asyncio.to_thread(self._workers.pop(worker).stop, END_S)
                return
            await asyncio.sleep(LOOK_S)
        raise MeasurementError(f"clients are left at {worker} after {END_S:g} s")

    async def status(self, name: str, kind: str) -> dict[str, Any] | None:
        """None if it does not answer."""
        text = await unix_page(f"{self._files.directory}/{_flat(name)}/{kind}.sock", "/status")
        told: dict[str, Any] | None = None if text is None else json.loads(text)
        return told

    def _wait_until_served(self, worker: str) -> None:
        wait_until(lambda: self._serves(worker), f"{worker} serves", START_S, LOOK_S)

    def _serves(self, worker: str) -> bool:
        self._workers[worker].check()
        told = asyncio.run(self.status(worker, "worker"))
        return told is not None and told["state"] == WorkerNodeState.SERVING

    def _acts(self, workers: int) -> bool:
        told = asyncio.run(self.status(COORDINATOR, "coordinator"))
        return told is not None and told["acts"] and len(told["workers"]) == workers


class LiveRun:
    """The playbook by the clock, and the records."""

    def __init__(self, playbook: Playbook, records: RunRecords, hosts: LiveHosts, echoes: Echoes, say: Say) -> None:
        self._playbook = playbook
        self._records = records
        self._hosts = hosts
        self._echoes = echoes
        self._say = say
        self._books = TownBooks(time.monotonic())
        self._crowds: dict[str, LiveCrowd] = {}
        self._at = {event.name: event.at for event in playbook.events if event.at is not None}
        self._states: dict[str, WorkerNodeState] = {}
        self._on: dict[str, str] = {}
        self._moves = 0
        self._counted = TrafficSecond()

    async def play(self) -> None:
        failed: list[Exception] = []
        try:
            await self._play()
        except* (MeasurementError, OSError) as errors:
            failed += errors.exceptions
        for problem in [*self._books.problems, *failed]:
            self._say(str(problem))
        if failed:
            raise MeasurementError(f"the run ended early: {failed[0]}")
        self._records.account = self._books.account()

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as going:
            going.create_task(self._watch())
            for event in self._playbook.events:
                await asyncio.sleep(max(0.0, event.at_s - self._books.now()))
                happening = self._happening(event)
                if happening is not None:
                    going.create_task(happening)
        for crowd in self._crowds.values():
            await crowd.leave()

    def _happening(self, event: PlaybookEvent) -> Coroutine[Any, Any, None] | None:
        match event.kind:
            case "worker" if event.at_s:
                self._hosts.start_worker(event)
            case "gateway":
                return self._comes(event)
            case "leave":
                return self._leaves(event.name, event.at_s)
            case "stop":
                return self._hosts.stop_by_hand(event.name)
        return None

    async def _comes(self, event: PlaybookEvent) -> None:
        assert event.crowd is not None
        self._hosts.start_gateway(event.name)
        crowd = self._crowds[event.name] = LiveCrowd(event.name, event.crowd, self._books)
        await crowd.come(*self._hosts.entrance(event.name))
        self._records.came_s[event.name, event.at_s] = self._books.now()

    async def _leaves(self, gateway: str, at_s: float) -> None:
        await self._crowds.pop(gateway).leave()
        self._records.left_s[gateway, at_s] = self._books.now()
        await self._hosts.stop_gateway(gateway)

    # -- second by second --

    async def _watch(self) -> None:
        for number in range(int(self._playbook.end_s)):
            await asyncio.sleep(max(0.0, number - self._books.now()))
            names = self._hosts.workers
            told = await asyncio.gather(*(self._hosts.status(name, "worker") for name in names))
            self._note_nodes({name: one for name, one in zip(names, told, strict=True) if one})
            coordinator = await self._hosts.status(COORDINATOR, "coordinator")
            self._records.seconds.append(self._second(number, bool(coordinator and coordinator["acts"])))
            if number and not number % 60:
                self._say(f"{number} s: nodes at {', '.join(sorted(self._states)) or 'no worker'}")

    def _note_nodes(self, told: dict[str, dict[str, Any]]) -> None:
        """A worker that does not answer is as it was."""
        for name, one in told.items():
            before = self._states.get(name, WorkerNodeState.OFF)
            after = WorkerNodeState(one["state"])
            if not self._hosts.is_fixed(name):
                self._note_change(name, before, after)
            self._states[name] = after
        there = set(self._hosts.workers)
        self._states = {
            name: state for name, state in self._states.items() if state is not WorkerNodeState.OFF and name in there
        }
        for gateway in self._at.keys() & {name for name, _ in self._records.came_s}:
            here = [name for name, one in told.items() if _flat(gateway) in one["gateways"]]
            before_node = self._on.get(gateway)
            if here and before_node not in here:
                self._moves += before_node is not None
                self._on[gateway] = here[0]
        self._on = {gateway: node for gateway, node in self._on.items() if gateway in self._crowds}

    def _note_change(self, name: str, before: WorkerNodeState, after: WorkerNodeState) -> None:
        now = round(self._books.now(), 1)
        if before is WorkerNodeState.OFF and after is not WorkerNodeState.OFF:
            self._records.starts.append((now, name))
        elif before is WorkerNodeState.SERVING and after not in (before, WorkerNodeState.STARTING):
            self._records.stops.append((now, name))

    def _second(self, number: int, acts: bool) -> Second:
        """As it is, with the messages that have come since the last one."""
        topics = self._books.second(number - 1)
        echoes = self._echoes
        now = TrafficSecond(echoes.count, PING_BYTES * echoes.count, *self._books.traffic(), echoes.bytes)
        traffic = TrafficSecond(*(after - before for after, before in zip(now, self._counted, strict=True)))
        self._counted = now
        at = {gateway: self._at[gateway] for gateway in self._on}
        return Second(
            states=dict(self._states),
            latency_ms={topic: _mean(rows) for topic, rows in _by_topic(topics).items()},
            traffic=traffic,
            on=dict(self._on),
            at=at,
            slowest_ms={topic: max(row.latency_ms for row in rows) for topic, rows in _by_topic(topics).items()},
            acting=int(acts),
            moves=self._moves,
            topics=topics,
        )


def _by_topic(rows: list[TopicSecond]) -> dict[str, list[TopicSecond]]:
    return {topic: [row for row in rows if row.topic == topic] for topic in sorted({row.topic for row in rows})}


def _mean(rows: list[TopicSecond]) -> float:
    return fmean([row.latency_ms for row in rows], [row.messages for row in rows])
