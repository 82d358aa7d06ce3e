"""The attachment of a simulated node to a model broker: what `runtime/interworking.py` is outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sterna.interworking.attachment import Attachment
from sterna.interworking.foreign_line import SUBACK, ForeignLine
from sterna.interworking.ports import InFlight, Output, OwnConnection
from sterna.interworking.proxy.proxy import Proxy
from sterna.interworking.settings import InterworkingSettings
from sterna.mqtt.client_packets import version_of
from sterna.mqtt.packets import CONNECT, PUBLISH
from sterna.node.companions import Companions
from sterna.node.foreign_session import ForeignSession
from sterna.node.relay_keeper import RelayKeeper, proxy_of
from sterna.simulation.client_packets import PacketReader, decode_publish
from sterna.simulation.foreign_broker import ForeignBroker
from sterna.simulation.kernel import Kernel, KernelTimer
from sterna.simulation.records import identity_of
from sterna.simulation.relays import RelayWorld
from sterna.simulation.streams import End

if TYPE_CHECKING:
    from sterna.simulation.machine import Running


class Taken(NamedTuple):
    """A message that a node took from the broker."""

    at: float
    identity: str
    """Its first word."""
    qos: int
    is_known: bool
    """It was in flight to the broker in the journal with which the node was started: its echo is to be expected."""


@dataclass(slots=True)
class Evidence:
    """Events between a node and the broker it is attached to, over all boots of the node."""

    taken: list[Taken] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """First words of messages that were in flight to the broker when the node was last started."""
    subscribed_at: float | None = None
    """When the node first confirmed what is to go to the broker."""
    doubted: set[str] = field(default_factory=set)
    """First words of messages that were in flight to the broker when the node was killed."""
    sessions_lost: int = 0
    """Sessions of the broker that the node found lost."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The broker that a machine is attached to."""

    broker: ForeignBroker
    settings: InterworkingSettings = field(default_factory=InterworkingSettings)
    network: str = "simulated"
    evidence: Evidence = field(default_factory=Evidence)


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
            keeper = RelayKeeper(running.broker, self.report)
            self.proxy = proxy_of(settings, keeper)
            host = Companions(running.broker, machine.name, self._version) if settings.extras else None
            self.relay = RelayWorld(running, foreign.broker, self.proxy, keeper, host)
        self.own = _ObservedSession(running, foreign)
        self.attachment = Attachment(
            foreign.settings,
            foreign.network,
            machine.name,
            foreign.broker.address,
            self,
            self.own,
            running.kernel.dice(f"{machine.name} attachment {running.number}"),
            proxy=self.proxy,
        )
        foreign.evidence.known = {identity_of(payload) for _, _, _, payload in self.own.in_flight()}

    def _version(self) -> int:
        abilities = self.attachment.abilities
        return abilities.version if abilities is not None else 0

    def killed(self) -> None:
        """With the node: what it knew of messages that the broker had received is gone."""
        for _, _, _, payload in self.own.in_flight():
            self._foreign.evidence.doubted.add(identity_of(payload))

    @property
    def now(self) -> float:
        return self._running.broker.now

    def later(self, seconds: float, act: Callable[[], None]) -> KernelTimer:
        timer = KernelTimer(act)
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


class _ObservedSession(ForeignSession):
    """The session of the broker at its node, with a witness to both ways."""

    def __init__(self, running: Running, foreign: Foreign) -> None:
        super().__init__(running.broker, running.machine.name, foreign.settings.in_doubt)
        self._kernel = running.kernel
        self._evidence = foreign.evidence

    def open(self, output: Output) -> OwnConnection:  # type: ignore[override]
        observed = _ObservedConnection(self._evidence, self._kernel, output)
        observed.connection = super().open(observed)
        return observed

    def forget_exchanges(self) -> InFlight:
        self._evidence.sessions_lost += 1
        return super().forget_exchanges()


class _ObservedConnection:
    """Between the attachment and its node: a connection to the one, an output to the other."""

    connection: OwnConnection

    def __init__(self, evidence: Evidence, kernel: Kernel, output: Output) -> None:
        self._evidence = evidence
        self._kernel = kernel
        self._output = output
        self._version = 0
        self._from_broker = PacketReader()
        self._from_node = PacketReader()
        self.close, self.abort = output.close, output.abort
        self.pause_reading, self.resume_reading = output.pause_reading, output.resume_reading
        self.get_write_buffer_size = output.get_write_buffer_size

    def feed(self, data: bytes) -> None:
        for first, body in self._from_broker.feed(data):
            if first >> 4 == CONNECT:
                self._version = version_of(body[6])
            elif first >> 4 == PUBLISH:
                taken = decode_publish(first, body, self._version)
                identity = identity_of(taken.payload)
                known = identity in self._evidence.known
                self._evidence.taken.append(Taken(self._kernel.now, identity, taken.qos, known))
        self.connection.feed(data)

    def write(self, data: bytes) -> None:
        for first, _ in self._from_node.feed(data):
            if first >> 4 == SUBACK and self._evidence.subscribed_at is None:
                self._evidence.subscribed_at = self._kernel.now
        self._output.write(data)

    def lost(self) -> None:
        self.connection.lost()

    def congested(self) -> None:
        self.connection.congested()

    def writable(self) -> None:
        self.connection.writable()


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
