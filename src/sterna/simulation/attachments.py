"""The attachment of a simulated node to a model broker: what `runtime/interworking.py` is outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sterna.interworking.attachment import Attachment
from sterna.interworking.foreign_line import ForeignLine
from sterna.interworking.proxy.proxy import Proxy
from sterna.interworking.settings import InterworkingSettings
from sterna.node.companions import Companions
from sterna.node.foreign_session import ForeignSession
from sterna.simulation.foreign_broker import ForeignBroker
from sterna.simulation.kernel import Timer
from sterna.simulation.relays import RelayWorld
from sterna.simulation.streams import End

if TYPE_CHECKING:
    from sterna.simulation.machine import Running


@dataclass(frozen=True, slots=True)
class Foreign:
    """The broker that a machine is attached to."""

    broker: ForeignBroker
    settings: InterworkingSettings = field(default_factory=InterworkingSettings)
    network: str = "simulated"


class AttachmentWorld:
    """The world of one attachment, from one boot to one crash."""

    def __init__(self, running: Running, foreign: Foreign) -> None:
        self._running = running
        self._foreign = foreign
        machine = running.machine
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.proxy: Proxy | None = None
        self.relay: RelayWorld | None = None
        if foreign.settings.mode == "proxy":
            settings = foreign.settings
            self.proxy = Proxy(settings.witness_window, repeats_doubts=settings.in_doubt == "repeat")
            host = Companions(running.broker, machine.name, self._version) if settings.extras else None
            self.relay = RelayWorld(running, foreign.broker, self.proxy, host)
        self.attachment = Attachment(
            foreign.settings,
            foreign.network,
            machine.name,
            foreign.broker.address,
            self,
            ForeignSession(running.broker, machine.name, foreign.settings.in_doubt),
            running.kernel.dice(f"{machine.name} attachment {running.number}"),
            proxy=self.proxy,
        )

    def _version(self) -> int:
        abilities = self.attachment.abilities
        return abilities.version if abilities is not None else 0

    @property
    def now(self) -> float:
        return self._running.broker.now

    def later(self, seconds: float, act: Callable[[], None]) -> Timer:
        timer = Timer(act)
        self._running.later(seconds, timer.ring)
        return timer

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self.reports.append((event, fields))
        self._running.tell(f"reports {event}: {fields.get('reason', '')}")

    def dial(self, line: ForeignLine) -> None:
        machine = self._running.machine
        machine.network.dial(machine.name, self._foreign.broker.address, lambda end: self._dialled(line, end))

    def _dialled(self, line: ForeignLine, end: End | None) -> None:
        if end is None:
            self._running.work(line.lost, "nobody answers")
        elif self._running.alive:
            end.user = _ForeignStream(self._running, line)
            self._running.work(line.connected, end)
        else:
            end.abort()


class _ForeignStream:
    __slots__ = ("_line", "_running")

    def __init__(self, running: Running, line: ForeignLine) -> None:
        self._running = running
        self._line = line

    def received(self, data: bytes) -> None:
        self._running.work(self._line.feed, data)

    def lost(self) -> None:
        self._running.work(self._line.lost, "the connection broke")

    def congested(self) -> None:
        self._line.congested()

    def writable(self) -> None:
        self._running.work(self._line.writable)
