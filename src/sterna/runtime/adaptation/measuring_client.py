"""Measuring over sockets: the cycle of `adaptation/measuring.py` with a control line and echoes, for both its users."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sterna.adaptation.measuring import Effect, Measuring, MeasuringTuning, Ping
from sterna.adaptation.words import Found, GatewayReport, Measure, SentCoordinate, Word
from sterna.overlay.coordinates import Coordinate
from sterna.overlay.echoes import EchoAsker
from sterna.overlay.vivaldi import Vivaldi
from sterna.overlay.vivaldi_settings import VivaldiSettings
from sterna.runtime.adaptation.echo_port import EchoClient, RecentLag
from sterna.runtime.disk.private_files import write_private

REST_S = 0.5
"""The longest sleep between two looks at the clock."""


class MeasuringClient:
    def __init__(
        self,
        name: str,
        settings: MeasuringTuning,
        vivaldi: VivaldiSettings,
        say: Callable[[Word, Coordinate], None],
        *,
        remember: Path | None = None,
        keys: Callable[[], list[bytes]] | None = None,
        learned: Callable[[], None] = lambda: None,
    ) -> None:
        """`remember`: a file for the coordinate.  `keys`: of one who has the network's; a gateway is given one.
        `learned` is called when an answer of the coordinator has come."""
        self._remember = remember
        self._say = say
        self._keys = keys
        self._learned = learned
        rng = random.SystemRandom()
        self.vivaldi = Vivaldi(rng, vivaldi, remembered=_remembered(remember))
        self.asker = EchoAsker(rng)
        self.measuring = Measuring(name, settings, self.vivaldi, self.asker, time.monotonic(), keys() if keys else ())
        self._echoes = EchoClient(self._echo_came)
        self._lag = RecentLag()
        self._tasks: list[asyncio.Task[None]] = []
        self._cycles_saved = 0

    @property
    def coordinate(self) -> Coordinate:
        return self.measuring.coordinate

    @property
    def echo_bytes(self) -> int:
        """Sent and received, without headers."""
        return self._echoes.sent_bytes + self._echoes.received_bytes

    async def start(self) -> None:
        await self._echoes.open()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._run(), self._lag.watch())]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._echoes.close()
        self._save()

    def found(self, word: Found) -> None:
        self._do(self.measuring.found(word, time.monotonic()))
        self._learned()

    def asked(self, word: Measure) -> None:
        self._do(self.measuring.asked(word, time.monotonic()))

    async def _run(self) -> None:
        while True:
            now = time.monotonic()
            if self._keys is not None:
                self.measuring.keys = self._keys()
            self._do(self.measuring.tick(now))
            if self.measuring.cycles > self._cycles_saved:
                self._cycles_saved = self.measuring.cycles
                self._save()
            await asyncio.sleep(min(max(self.measuring.due_at - time.monotonic(), 0.005), REST_S))

    def _echo_came(self, data: bytes) -> None:
        self.measuring.echoed(data, time.monotonic(), self._lag.seconds)

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ping):
                self._echoes.send(effect.address, effect.data, by_tcp=effect.by_tcp)
            elif not (self._keys is not None and isinstance(effect.word, GatewayReport)):
                # A worker's coordinate goes with its own reports.
                self._say(effect.word, self.coordinate)

    def _save(self) -> None:
        if self._remember is not None:
            write_private(self._remember, msgspec.json.encode(SentCoordinate.of(self.coordinate)))


def _remembered(file: Path | None) -> Coordinate | None:
    if file is None:
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=SentCoordinate).coordinate
    except (OSError, msgspec.MsgspecError):
        return None
