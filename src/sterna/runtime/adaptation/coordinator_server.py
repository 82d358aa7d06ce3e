"""A coordinator on this machine: control words in and out, time, and pages for people.  It decides nothing itself."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable

import uvloop

from sterna import __version__
from sterna.adaptation.coordinating import Coordinating, Said
from sterna.adaptation.topics import FROM_GATEWAYS, LEADING, REPORTS, control_topic
from sterna.adaptation.words import Mailroom, measuring_key
from sterna.runtime.adaptation.control_line import ControlLine
from sterna.runtime.adaptation.coordinator_pages import COORDINATOR, told
from sterna.runtime.adaptation.coordinator_settings import CoordinatorConfiguration
from sterna.runtime.adaptation.coordinator_shown import SaysForPeople
from sterna.runtime.adaptation.tables import CONTROL_KEY, account
from sterna.runtime.adaptation.worker_server import PERIOD_S
from sterna.runtime.admin.port import AdminPort
from sterna.runtime.admin.reloading import reloader
from sterna.runtime.admin.site import guard
from sterna.runtime.hangups import hold_back_hangups
from sterna.runtime.logs import configure
from sterna.runtime.reloading import ReloadOutcome
from sterna.vocabulary.errors import SternaError

log = logging.getLogger("sterna.coordinator")

TICK_S = 0.1


def run_coordinator(configuration: CoordinatorConfiguration, reread: Callable[[], CoordinatorConfiguration]) -> int:
    """Run until SIGTERM or SIGINT; the process's exit status.  `reread` reads the configuration again."""
    hold_back_hangups()
    configure(configuration.log.level, configuration.log.format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(CoordinatorServer(configuration, reread).run())
    except SternaError as error:
        log.error("cannot run", extra={"reason": str(error)})
        return 1


class CoordinatorServer:
    def __init__(self, configuration: CoordinatorConfiguration, reread: Callable[[], CoordinatorConfiguration]) -> None:
        self._configuration = configuration
        adaptation, table = configuration.adaptation, configuration.coordinator
        self._network = adaptation.network
        self._key = CONTROL_KEY.read(adaptation)
        boot = int(time.time() * 1000)
        self.mail = Mailroom(adaptation.network, adaptation.region, table.name, boot, self._key)
        self.core = Coordinating(
            table.name,
            adaptation.region,
            table,
            configuration.decisions,
            configuration.coordinates.settings().dimensions,
            random.SystemRandom(),
            time.monotonic(),
            self._echo_key,
        )
        filters = [
            control_topic(self._network, REPORTS, "+"),
            control_topic(self._network, FROM_GATEWAYS, "+"),
            control_topic(self._network, LEADING, adaptation.region),
        ]
        self.line = ControlLine(account(adaptation, f"coordinator-{table.name}"), filters, self._came, boot)
        self._admin = AdminPort(self, guard(configuration.admin), site=COORDINATOR)
        self._reloader = reloader(configuration, reread, self._admin)
        self._for_people = SaysForPeople(self, self._network)
        self._stopping = asyncio.Event()
        #: Decisions that are in the log.
        self._told = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        fields = {"version": __version__, "coordinator": self.core.leadership.name, "region": self.core.region}
        log.info("coordinator starting", extra={**fields, "act": self.core.settings.act})
        if self._configuration.admin.bind is not None:
            address = await self._admin.start(self._configuration.admin.bind)
            log.info("admin port", extra={"address": f"http://{address}"})
        self.line.start()
        tasks = [loop.create_task(work) for work in (self._tick(), self._reloader.heed_hangups())]
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await self.line.stop()
        await self._admin.stop()
        log.info("coordinator stopped")
        return 0

    async def _tick(self) -> None:
        was_leading = False
        while True:
            try:
                self.say(self.core.tick(time.monotonic()))
                self._for_people.tick(time.monotonic())
            except Exception:
                log.exception("a pass failed")
            if was_leading != self.core.leadership.is_leading:
                was_leading = not was_leading
                log.info("leading" if was_leading else "standing by", extra={"term": self.core.leadership.term})
            self._tell()
            await asyncio.sleep(TICK_S)

    def _tell(self) -> None:
        """Every decision is a line of the log."""
        new = self.core.made_in_all - self._told
        self._told = self.core.made_in_all
        for made in self.core.made[-new:] if new else ():
            log.info("decision", extra={"decision": told(made.decision), "not_ordered": made.ordered or None})

    def say(self, said: list[Said]) -> None:
        for kind, name, word in said:
            self.line.say(control_topic(self._network, kind, name), self.mail.write(word))

    def _came(self, topic: bytes, data: bytes) -> None:
        letter = self.mail.read(topic, data)
        if letter is not None:
            self.say(self.core.came(letter, time.monotonic()))

    def _echo_key(self) -> bytes:
        return measuring_key(self._network, self._key, int(time.time()) // PERIOD_S)

    # -- what the admin port asks --

    def why_not_ready(self) -> str | None:
        return self.line.trouble or None

    async def reload(self) -> ReloadOutcome:
        return await self._reloader.reload()
