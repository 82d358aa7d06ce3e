"""A worker's hands: it looks at its node, carries out the deeds of `adaptation/draining.py`, and remembers.

A deed that fails is tried again at the next look, as long as the node is in the same state.  A file has all that the
next worker needs to know, before a deed begins: the state, the process, what is owed, the highest term.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sterna.adaptation.draining import DrainAction, DrainEvent, DrainingTuning, Facts, NodeLife
from sterna.adaptation.orders import Authority
from sterna.adaptation.picture import READING, WorkerNodeState
from sterna.adaptation.serving import ServedTopic, ServedTotals, ServingRates, served_flows
from sterna.adaptation.words import SERVED_MAX, Served, ServedFlow
from sterna.migration.gateway_moves import GatewayPage
from sterna.runtime.adaptation.node_admin import NodeAdmin, NodeSilent
from sterna.runtime.adaptation.node_hosts import CommandHost, HostFailure, NodeHost, ProcessHost, Remembered
from sterna.runtime.adaptation.worker_settings import WorkerTable
from sterna.runtime.disk.private_files import write_private

log = logging.getLogger("sterna.worker")

END_LOOK_S = 0.05
HEARD_S = 10.0
"""A node is back if it was heard to serve within this."""
_OPENED = frozenset({WorkerNodeState.SERVING, WorkerNodeState.LEAVING, WorkerNodeState.DRAINING})


class WorkerState(msgspec.Struct):
    """The file of a worker."""

    state: WorkerNodeState = WorkerNodeState.OFF
    process: Remembered = msgspec.field(default_factory=Remembered)
    owed: list[str] = []
    wanted: bool = False
    terminated: bool = False
    term: int = 0
    leader: str = ""


@dataclass(slots=True)
class NodeLook:
    """The last look at the node."""

    facts: Facts = field(default_factory=Facts)
    gateways: tuple[Served, ...] = ()
    flows: tuple[ServedFlow, ...] = ()
    plain: int = 0
    connections: int = 0
    cpu: float = 0.0
    lag_s: float = 0.0
    bytes_per_s: float = 0.0


class NodeKeeper:
    def __init__(self, worker: WorkerTable, draining: DrainingTuning) -> None:
        self._worker = worker
        self._file = worker.data / "state.json"
        self.saved = _read(self._file)
        self._host = _host(worker, self.saved.process)
        self._admin = NodeAdmin(worker.name, worker.admin, worker.admin_token_file)
        now = time.monotonic()
        self.life = NodeLife(
            draining,
            state=self.saved.state,
            since=now,
            wait_for_absent=worker.wait_for_absent,
            owed=set(self.saved.owed),
            wanted=worker.fixed or self.saved.wanted,
            terminated=self.saved.terminated,
        )
        self.seen = NodeLook()
        self.trouble = ""
        self._reads_at: dict[str, float] = {}
        """Nodes that this one owes something -> when they last served, or got ready for it."""
        self.coordinator_heard_at = now
        self.reported = True
        """False: something happened that is to be reported at once."""
        self._undone: list[DrainAction] = []
        self._one_at_a_time = asyncio.Lock()
        self._cpu: tuple[float, float] | None = None
        self._rates = ServingRates()

    @property
    def state(self) -> WorkerNodeState:
        return self.life.state

    # -- looking --

    async def look(self) -> None:
        async with self._one_at_a_time:
            await self._look()

    async def order(self, event: DrainEvent) -> str:
        """Empty, or why it cannot be."""
        async with self._one_at_a_time:
            return await self._order(event)

    async def _look(self) -> None:
        await self._retry()
        now = time.monotonic()
        self.seen = await self._see()
        await self._carry_out(self.life.look(self.seen.facts, now))

    async def _order(self, event: DrainEvent) -> str:
        if event is DrainEvent.STOP_ORDERED and self._worker.fixed:
            return "its node is fixed"
        before, now = self.state, time.monotonic()
        deeds = self.life.ordered(event, now)
        if deeds is None:
            barred = self.life.barred_until - now
            return f"barred for {barred:.0f} s more" if barred > 0 else f"its node is {before.value}"
        await self._carry_out(deeds)
        return ""

    async def _see(self) -> NodeLook:
        alive = await self._host.is_alive()
        if not alive:
            return NodeLook(Facts(back=self._back(), coordinator_heard_at=self.coordinator_heard_at))
        try:
            return await self._see_running()
        except NodeSilent as error:
            if self.state in _OPENED:
                self._complain(str(error))
            return NodeLook(Facts(alive=True, sessions=1, coordinator_heard_at=self.coordinator_heard_at))

    def heard_of(self, node: str, state: str) -> None:
        """By the worker of that node."""
        if node in self.life.owed and state in READING:
            self._reads_at[node] = time.monotonic()

    def _back(self) -> frozenset[str]:
        """Those heard lately: one that is away again is not to start this node."""
        now = time.monotonic()
        return frozenset(name for name, at in self._reads_at.items() if now - at <= HEARD_S)

    async def _see_running(self) -> NodeLook:
        ready = await self._admin.is_ready()
        seen = NodeLook(lag_s=self._admin.answer_s, cpu=self._cpu_share())
        facts: dict[str, Any] = {"alive": True, "ready": ready and await self._is_joined()}
        if ready and self.state in _OPENED:
            page = await self._admin.gateways()
            self._tell_of(page, seen)
            facts["movable"] = sum(one.clients - one.immovable for one in page.gateways)
        if ready and self.state in (WorkerNodeState.LEAVING, WorkerNodeState.DRAINING):
            facts |= _drain_facts(await self._admin.drain())
        seen.facts = Facts(**facts, coordinator_heard_at=self.coordinator_heard_at)
        return seen

    def _tell_of(self, page: GatewayPage, seen: NodeLook) -> None:
        served = [
            ServedTotals(one.gateway, one.clients, one.subscriptions, one.deliveries)
            for one in page.gateways
            if _is_name(one.gateway)
        ]
        seen.gateways, seen.bytes_per_s = self._rates.look(served[:SERVED_MAX], page.bytes, time.monotonic())
        topics = [ServedTopic(one.topic, one.publishers, one.readers) for one in page.flows]
        seen.flows = served_flows(topics, seen.gateways)
        seen.plain = page.plain
        seen.connections = page.plain + sum(one.clients for one in page.gateways)

    async def _is_joined(self) -> bool:
        """Linked, with the streams of all nodes it knows; not the root of a tree, unless it is to stay."""
        if self.state not in (WorkerNodeState.STARTING, WorkerNodeState.STUCK) or self._worker.fixed:
            return True
        view = await self._admin.network()
        if view["overlay"].get("root") == self._worker.name and view["paths"]:
            self._complain(
                "it became the root of the tree: set cpu_weight and memory_weight in its [network.tree] to 0"
            )
            return False
        return is_joined(view)

    def _cpu_share(self) -> float:
        """Of the processors it may use: one for each of its processes."""
        used, now, before = self._host.cpu_s(), time.monotonic(), self._cpu
        if used is None:
            return 0.0
        self._cpu = (used, now)
        if before is None or now <= before[1]:
            return 0.0
        return min(max((used - before[0]) / (now - before[1]) / self._host.processes(), 0.0), 1.0)

    # -- deeds --

    async def _retry(self) -> None:
        undone, self._undone = self._undone, []
        if undone:
            await self._carry_out(tuple(undone))

    async def _carry_out(self, deeds: tuple[DrainAction, ...]) -> None:
        if not deeds:
            return
        self.save()
        state = self.state
        if state is WorkerNodeState.STUCK:
            self._complain(self.trouble or "it does not get ready, or does not end: look after it")
        for deed in deeds:
            try:
                await self._do(deed)
            except (HostFailure, NodeSilent) as error:
                self._complain(str(error))
                if deed in (DrainAction.OPEN, DrainAction.CLOSE, DrainAction.EVACUATE) and self.state is state:
                    self._undone.append(deed)
        self.save()

    async def _do(self, deed: DrainAction) -> None:
        if deed in (DrainAction.START, DrainAction.START_CLOSED):
            log.info("starting the node", extra={"node": self._worker.name})
            await self._host.start()
        elif deed is DrainAction.OPEN:
            await self._admin.open()
            self.trouble = ""
            log.info("the node serves", extra={"node": self._worker.name})
        elif deed is DrainAction.CLOSE:
            log.info("the node is to stop", extra={"node": self._worker.name})
            await self._admin.close()
        elif deed is DrainAction.EVACUATE:
            await self._admin.evacuate(self._worker.evacuation_rate)
        elif deed is DrainAction.TERMINATE:
            log.info("ending the node", extra={"node": self._worker.name, "owed": len(self.life.owed)})
            await self._host.stop()
        elif deed is DrainAction.BAR:
            self._complain(self.trouble or "the node ended before it was ready")
        elif deed is DrainAction.REPORT:
            self.reported = False

    async def move(self, gateway: str, to: str) -> dict[str, Any]:
        return await self._admin.move_gateway(gateway, to)

    async def end_node(self, within_s: float) -> None:
        """The worker is stopped and is to leave nothing behind."""
        await self._host.stop()
        for _ in range(int(within_s / END_LOOK_S)):
            if not await self._host.is_alive():
                break
            await asyncio.sleep(END_LOOK_S)

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("trouble with the node", extra={"node": self._worker.name, "reason": trouble})
        self.trouble = trouble[:500]

    def save(self, authority: Authority | None = None) -> None:
        saved = self.saved
        if authority is not None:
            saved.term, saved.leader = authority
        if isinstance(self._host, ProcessHost):
            saved.process = self._host.remembered
        life = self.life
        saved.state, saved.owed = life.state, sorted(life.owed)
        saved.wanted, saved.terminated = life.wanted, life.terminated
        write_private(self._file, msgspec.json.encode(saved))


def is_joined(view: dict[str, Any]) -> bool:
    """Of the page /network: it hears nodes that are not its own processes, and all of these hear them."""
    siblings: dict[str, dict[str, str]] = view.get("siblings", {})
    others = view["paths"].keys() - siblings.keys()
    streams = [view["streams"], *siblings.values()]
    return bool(others) and all(
        others <= one.keys() and all(state == "synced" for state in one.values()) for one in streams
    )


def _drain_facts(proof: dict[str, Any]) -> dict[str, Any]:
    return {
        "sessions": proof["sessions"] if proof["closed"] else max(1, proof["sessions"]),
        "remains": proof["remains"],
        "moves": proof["moves"],
        "probe_back": not proof["unanswered"],
        "synced": not proof["unsynced"],
        "absent": frozenset(proof["absent"]),
        "readers_behind": proof["readers_behind"],
    }


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 64 and all(one.isascii() and (one.isalnum() or one in "_.-") for one in name)


def _read(file: Path) -> WorkerState:
    try:
        return msgspec.json.decode(file.read_bytes(), type=WorkerState)
    except FileNotFoundError:
        return WorkerState()
    except (OSError, msgspec.MsgspecError) as error:
        log.error("the worker's memory cannot be read; it begins anew", extra={"file": str(file), "reason": str(error)})
        return WorkerState()


def _host(worker: WorkerTable, remembered: Remembered) -> NodeHost:
    if worker.host == "command":

        def filled(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word.replace("{name}", worker.name) for word in words)

        return CommandHost(filled(worker.start), filled(worker.stop), filled(worker.status), worker.command_s)
    assert worker.node_file is not None
    environment = {"STERNA_NODE_NAME": worker.name, "STERNA_NETWORK_CLIENTS": worker.clients}
    if not worker.fixed:
        # The most capable node is the root of a tree, and a tree is made anew when its root comes or goes.
        environment |= {"STERNA_NETWORK_TREE_CPU_WEIGHT": "0", "STERNA_NETWORK_TREE_MEMORY_WEIGHT": "0"}
    return ProcessHost(worker.node_file, worker.data / "node.log", environment, remembered)
