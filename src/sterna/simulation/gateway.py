"""One simulated host and the gateway on it: it has no disk, so it knows nothing after it was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sterna.broker.session.connection import ClientPeer
from sterna.gateway.client import GatewayClient
from sterna.gateway.gateway import Gateway
from sterna.gateway.servers import Servers
from sterna.gateway.settings import GatewayLimits, Patience
from sterna.gateway.upstream import Upstream
from sterna.mqtt.packets import CONNECT, PUBLISH
from sterna.simulation.client_packets import PacketReader, decode_connect, decode_publish
from sterna.simulation.kernel import Kernel, KernelTimer
from sterna.simulation.network import SimulatedNetwork
from sterna.simulation.records import identity_of
from sterna.simulation.streams import End

PORT = 1883


class GatewayMachine:
    """`nodes` are tried in this order."""

    def __init__(
        self,
        kernel: Kernel,
        network: SimulatedNetwork,
        name: str,
        nodes: Sequence[str],
        patience: Patience | None = None,
    ) -> None:
        self.kernel = kernel
        self.network = network
        self.name = name
        #: May grow while the gateway runs.
        self.nodes = list(nodes)
        self.patience = patience or Patience()
        self.running: RunningGateway | None = None
        self.boots = 0
        #: client -> when a node knew of no session of it, and the gateway began another one in its place.
        self.sessions_lost: dict[str, list[float]] = {}
        #: client -> when it was brought to a node.
        self.connected: dict[str, list[float]] = {}
        #: The identity of each message that it gave to nodes -> those it gave it to, as often as it did.
        self.sends: dict[str, list[str]] = {}

    @property
    def address(self) -> str:
        return f"{self.name}:{PORT}"

    def boot(self) -> None:
        if self.running is None:
            self.boots += 1
            self.network.host(self.name).up = True
            self.running = RunningGateway(self, self.boots)
            self.network.listen(self.address, self.running.accept)
            self.kernel.tell(f"{self.name} boot {self.boots}")

    def kill(self, *, power: bool = False) -> None:
        """The process ends between two instructions; with `power`, so does the machine, and nobody is told."""
        if self.running is not None:
            self.running.alive = False
            self.running = None
            self.kernel.tell(f"{self.name} {'loses power' if power else 'is killed'}")
            self.network.process_ended(self.name, power=power)


class RunningGateway:
    """A process: the gateway's world, from one boot to one crash."""

    def __init__(self, machine: GatewayMachine, number: int) -> None:
        self.machine = machine
        self.kernel = machine.kernel
        self.alive = True
        dice = self.kernel.dice(f"{machine.name} gateway {number}")
        servers = Servers(machine.nodes, machine.patience, dice, references=["*"])
        self.gateway = Gateway(machine.name, servers, GatewayLimits(), machine.patience, self, dice, self.kernel.now)

    def work(self, action: Callable[..., None], *arguments: Any) -> None:
        if self.alive:
            self.gateway.at(self.kernel.now)
            action(*arguments)

    def accept(self, end: End) -> None:
        self.work(self._accept, end)

    def _accept(self, end: End) -> None:
        client = self.gateway.accept(end, ClientPeer(end.peer.address))
        if client is None:
            end.abort()
        else:
            end.user = GatewayStream(self, client)

    # -- what the gateway asks of its world --

    def dial(self, server: str, upstream: Upstream) -> None:
        self.machine.network.dial(self.machine.name, server, lambda end: self._dialled(upstream, end))

    def _dialled(self, upstream: Upstream, end: End | None) -> None:
        if end is None:
            self.work(upstream.failed, "nobody answers")
        elif self.alive:
            end.user = GatewayStream(self, upstream)
            self.work(upstream.connected, _CountedEnd(end, self.machine))
        else:
            end.abort()

    def later(self, seconds: float, act: Callable[[], None]) -> KernelTimer:
        timer = KernelTimer(act)
        self.kernel.after(seconds, self.work, timer.ring)
        return timer

    def report(self, event: str, fields: dict[str, Any]) -> None:
        if event == "session lost":
            self.machine.sessions_lost.setdefault(fields["client"], []).append(self.kernel.now)
        self.kernel.tell(f"{self.machine.name} {event}: {fields}")


class _CountedEnd:
    """The way to a node; notes whom and which messages the gateway brings there."""

    __slots__ = ("_end", "_machine", "_reader", "_version")

    def __init__(self, end: End, machine: GatewayMachine) -> None:
        self._end = end
        self._machine = machine
        self._reader = PacketReader()
        self._version = 0

    def write(self, data: bytes) -> None:
        for first, body in self._reader.feed(data):
            if first >> 4 == CONNECT:
                self._version, client = decode_connect(body)
                self._machine.connected.setdefault(client, []).append(self._machine.kernel.now)
            elif first >> 4 == PUBLISH:
                identity = identity_of(decode_publish(first, body, self._version).payload)
                self._machine.sends.setdefault(identity, []).append(self._end.peer_host)
        self._end.write(data)

    def close(self) -> None:
        self._end.close()

    def abort(self) -> None:
        self._end.abort()

    def pause_reading(self) -> None:
        self._end.pause_reading()

    def resume_reading(self) -> None:
        self._end.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._end.get_write_buffer_size()


class Working(Protocol):
    """A process that does one piece of work after the other."""

    def work(self, action: Callable[..., None], *arguments: Any) -> None: ...


class GatewayStream:
    """Between a stream and a client of the gateway, or its connection to a node."""

    __slots__ = ("_running", "_side")

    def __init__(self, running: Working, side: GatewayClient | Upstream) -> None:
        self._running = running
        self._side = side

    def received(self, data: bytes) -> None:
        self._running.work(self._side.feed, data)

    def lost(self) -> None:
        self._running.work(self._side.lost)

    def congested(self) -> None:
        self._running.work(self._side.congested)

    def writable(self) -> None:
        self._running.work(self._side.writable)
