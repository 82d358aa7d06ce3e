"""A worker on this machine: it measures, answers echoes, reports, and runs its node as coordinators order."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from typing import Any

import uvloop

from sterna import __version__
from sterna.adaptation.draining import DrainEvent
from sterna.adaptation.orders import Authority, OrderDesk
from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.topics import LEADING, REPORTS, TO_WORKERS, control_topic
from sterna.adaptation.words import (
    Found,
    Leading,
    Leaving,
    Mailroom,
    MoveGateway,
    Order,
    OrderState,
    ResumeNode,
    SignedWord,
    StartNode,
    Word,
    WorkerReport,
    measuring_key,
)
from sterna.overlay.coordinates import Coordinate
from sterna.overlay.echoes import EchoAnswerer
from sterna.runtime.adaptation.control_line import ControlLine
from sterna.runtime.adaptation.echo_port import EchoPort
from sterna.runtime.adaptation.measuring_client import MeasuringClient
from sterna.runtime.adaptation.node_admin import NodeSilent
from sterna.runtime.adaptation.node_keeper import NodeKeeper
from sterna.runtime.adaptation.tables import CONTROL_KEY, account
from sterna.runtime.adaptation.worker_pages import WORKER
from sterna.runtime.adaptation.worker_settings import WorkerConfiguration
from sterna.runtime.admin.port import AdminPort
from sterna.runtime.admin.reloading import reloader
from sterna.runtime.admin.site import guard
from sterna.runtime.disk.private_files import make_private_directory
from sterna.runtime.hangups import hold_back_hangups
from sterna.runtime.logs import configure
from sterna.runtime.reloading import ReloadOutcome
from sterna.vocabulary.errors import SternaError

log = logging.getLogger("sterna.worker")

MOVE_LOOK_S = 0.25
MOVE_S = 60.0
"""How long the clients of one gateway may take to move."""
PERIOD_S = 3600
"""How long a key of echoes is given out; it is taken for as long before and after."""
OWED_MAX = 100
NODE_END_S = 30.0
_EVENTS = {StartNode: DrainEvent.START_ORDERED, ResumeNode: DrainEvent.RESUME_ORDERED}


def run_worker(configuration: WorkerConfiguration, reread: Callable[[], WorkerConfiguration]) -> int:
    """Run until SIGTERM or SIGINT; the process's exit status.  `reread` reads the configuration again."""
    hold_back_hangups()
    configure(configuration.log.level, configuration.log.format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(WorkerServer(configuration, reread).run())
    except SternaError as error:
        log.error("cannot run", extra={"reason": str(error)})
        return 1


class WorkerServer:
    def __init__(self, configuration: WorkerConfiguration, reread: Callable[[], WorkerConfiguration]) -> None:
        self._configuration = configuration
        worker, adaptation = configuration.worker, configuration.adaptation
        make_private_directory(worker.data)
        self.name = worker.name
        self._network = adaptation.network
        self._key = CONTROL_KEY.read(adaptation)
        boot = int(time.time() * 1000)
        self.mail = Mailroom(adaptation.network, adaptation.region, worker.name, boot, self._key)
        self.keeper = NodeKeeper(worker, configuration.draining)
        saved = self.keeper.saved
        self.desk = OrderDesk(boot, Authority(saved.term, saved.leader))
        self.answerer = EchoAnswerer()
        self._echo_port = EchoPort(self._echo_came)
        self._echo = worker.advertise
        filters = [
            control_topic(adaptation.network, TO_WORKERS, worker.name),
            control_topic(adaptation.network, LEADING, adaptation.region),
        ]
        filters += [control_topic(adaptation.network, REPORTS, name) for name in saved.owed[:OWED_MAX]]
        self.line = ControlLine(account(adaptation, f"worker-{worker.name}"), filters, self._came, boot)
        self.client = MeasuringClient(
            worker.name,
            configuration.measuring,
            configuration.coordinates.settings(),
            self._say,
            remember=worker.data / "coordinate.json",
            keys=lambda: self._echo_keys()[:1],
        )
        self._admin = AdminPort(self, guard(configuration.admin), site=WORKER)
        self._reloader = reloader(configuration, reread, self._admin)
        self._stopping = asyncio.Event()
        self._due = asyncio.Event()
        self._moves: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        worker = self._configuration.worker
        log.info("worker starting", extra={"version": __version__, "worker": self.name, "host": worker.host})
        echo = await self._echo_port.start(worker.echo)
        self._echo = self._echo or str(echo)
        log.info("echo port", extra={"address": str(echo)})
        if self._configuration.admin.bind is not None:
            address = await self._admin.start(self._configuration.admin.bind)
            log.info("admin port", extra={"address": f"http://{address}"})
        await self.client.start()
        self.line.start()
        tasks = [loop.create_task(work) for work in (self._look(), self._report(), self._reloader.heed_hangups())]
        await self._stopping.wait()
        for task in (*tasks, *self._moves):
            task.cancel()
        await self._stop()
        return 0

    async def _stop(self) -> None:
        log.info("worker stopping", extra={"worker": self.name})
        self._say(Leaving(), self.client.coordinate)
        self.client.stop()
        self._echo_port.stop()
        if not self._configuration.worker.leave_node and self.keeper.state is not WorkerNodeState.OFF:
            await self.keeper.end_node(NODE_END_S)
        await self.line.stop()
        await self._admin.stop()
        log.info("worker stopped")

    # -- periodically --

    async def _look(self) -> None:
        while True:
            try:
                await self.keeper.look()
            except Exception:
                log.exception("a look at the node failed")
            if not self.keeper.reported:
                self.keeper.reported = True
                self._due.set()
            for name in sorted(self.keeper.life.owed)[:OWED_MAX]:
                self.line.hear(control_topic(self._network, REPORTS, name))
            await asyncio.sleep(self._configuration.worker.look_s)

    async def _report(self) -> None:
        while True:
            self._due.clear()
            self._say(self.report(), self.client.coordinate)
            self.desk.reported(self.mail.counter, time.monotonic())
            try:
                await asyncio.wait_for(self._due.wait(), self._configuration.worker.report_s)
            except TimeoutError:
                continue

    def report(self) -> WorkerReport:
        worker, keeper, seen, now = self._configuration.worker, self.keeper, self.keeper.seen, time.monotonic()
        return WorkerReport(
            site=worker.site,
            state=keeper.state.value,
            in_state_s=now - keeper.life.since,
            echo=self._echo,
            clients=worker.clients,
            fixed=worker.fixed,
            price=worker.price,
            cpu=seen.cpu,
            lag_s=seen.lag_s,
            bytes_per_s=seen.bytes_per_s,
            connections=seen.connections,
            serves=seen.gateways,
            others=seen.plain,
            barred_s=max(0.0, keeper.life.barred_until - now),
            term=self.desk.highest.term,
            trouble=keeper.trouble,
            flows=seen.flows,
        )

    # -- words --

    def _say(self, word: Word, place: Coordinate) -> None:
        self.line.say(control_topic(self._network, REPORTS, self.name), self.mail.write(word, place))

    def _came(self, topic: bytes, data: bytes) -> None:
        letter = self.mail.read(topic, data)
        if letter is None:
            return
        word = letter.word
        if isinstance(word, Leading):
            self.keeper.coordinator_heard_at = time.monotonic()
        elif isinstance(word, Found):
            self.client.found(word)
        elif isinstance(word, Order):
            self._ordered(letter, word)
        elif isinstance(word, WorkerReport):
            self.keeper.heard_of(letter.sender, word.state)

    def _ordered(self, letter: SignedWord, order: Order) -> None:
        answer = self.desk.came(order, letter.sender, time.monotonic())
        if answer is not None:
            self._say(answer, self.client.coordinate)
            return
        self.keeper.coordinator_heard_at = time.monotonic()
        self.keeper.save(self.desk.highest)
        task = asyncio.get_running_loop().create_task(self._carry_out(order))
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _carry_out(self, order: Order) -> None:
        what = order.what
        log.info("order", extra={"what": type(what).__name__, "order": order.id, "term": order.term})
        try:
            if isinstance(what, MoveGateway):
                state, reason = await self._move(order, what)
            else:
                reason = await self.keeper.order(_EVENTS.get(type(what), DrainEvent.STOP_ORDERED))
                state = OrderState.REFUSED if reason else OrderState.UNDER_WAY
        except NodeSilent as error:
            state, reason = OrderState.FAILED, str(error)
        if reason:
            log.warning("order not carried out", extra={"order": order.id, "reason": reason})
        self._say(self.desk.answer(order, state, reason), self.client.coordinate)
        self._due.set()

    async def _move(self, order: Order, move: MoveGateway) -> tuple[OrderState, str]:
        """Until none of its clients is here that can go; the order is given to the node again and again meanwhile."""
        self._say(self.desk.answer(order, OrderState.UNDER_WAY), self.client.coordinate)
        deadline, begun = time.monotonic() + MOVE_S, 0
        while True:
            outcome: dict[str, Any] = await self.keeper.move(move.gateway, move.to)
            begun += outcome["begun"]
            refused = "; ".join(f"{count} clients: {reason}" for reason, count in outcome["refused"].items())
            if not (outcome["begun"] or outcome["under_way"] or outcome["left"]):
                return (OrderState.DONE, "") if begun or not refused else (OrderState.FAILED, refused)
            if time.monotonic() > deadline:
                return OrderState.FAILED, f"it takes longer than {MOVE_S:g} s"
            await asyncio.sleep(MOVE_LOOK_S)

    # -- echoes --

    def _echo_came(self, data: bytes, source: str, now: float) -> bytes | None:
        return self.answerer.came(data, source, self._echo_keys(), self.client.coordinate, now)

    def _echo_keys(self) -> list[bytes]:
        """Of this period, the one before and, for clocks that are ahead, the next."""
        period = int(time.time()) // PERIOD_S
        if period != self._period:
            self._period = period
            self._keys = [measuring_key(self._network, self._key, period + shift) for shift in (0, -1, 1)]
        return self._keys

    _period = -1
    _keys: list[bytes] = []  # noqa: RUF012

    # -- what the admin port asks --

    def why_not_ready(self) -> str | None:
        return self.line.trouble or None

    async def reload(self) -> ReloadOutcome:
        return await self._reloader.reload()
