"""A node's links in virtual time: a door for those who connect to it, addresses it keeps dialled, and datagrams.

`Dialling` says when an address is dialled, as it does outside.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sterna.node.network import Network as NodeNetwork
from sterna.node.network_settings import NetworkSettings
from sterna.overlay.channel import Channel
from sterna.overlay.dialling import LOOK_AGAIN_S, Dialling
from sterna.simulation.streams import End

if TYPE_CHECKING:
    from sterna.simulation.machine import Running

LINK_PORT = 7883
OUTPUT_BYTES = 512 * 1024

MakeSettings = Callable[[int], NetworkSettings]
"""The network settings of a node, given the epoch of this start."""


class SimulatedLinkWorld:
    """The NetworkWorld of one process."""

    def __init__(self, running: Running, settings: MakeSettings, dice: Random) -> None:
        self.running = running
        self.dice = dice
        self.address = f"{running.machine.name}:{LINK_PORT}"
        self._dials: dict[str, _SimulatedDial] = {}
        self.network: NodeNetwork = running.node.join(settings, self)

    def open(self) -> None:
        world = self.running.machine.network
        world.listen(self.address, self._accept)
        world.open_mailbox(self.address, self._datagram)
        self.network.start()

    def _accept(self, end: End) -> None:
        self.running.work(self._open_channel, end)

    def _open_channel(self, end: End) -> None:
        end.buffer_bytes = OUTPUT_BYTES
        end.user = LinkStream(self.running, self.network.accept(end, end.peer.address), None)

    def _datagram(self, sender: str, data: bytes) -> None:
        self.running.work(self.network.datagram, sender, data)

    # -- what the node asks --

    def hold_links(self, dial: dict[str, str]) -> None:
        wanted = dict.fromkeys(dial.values())
        for address in [address for address in self._dials if address not in wanted]:
            self._dials.pop(address).stop()
        for address in wanted:
            if address not in self._dials:
                self._dials[address] = _SimulatedDial(self, address)

    def send_datagram(self, address: str, data: bytes) -> None:
        self.running.machine.network.send_datagram(self.address, address, data)

    def send_discovery(self, data: bytes) -> None:
        self.running.machine.network.send_to_all(self.address, data)


class _SimulatedDial:
    """One address that is to be connected to."""

    def __init__(self, world: SimulatedLinkWorld, address: str) -> None:
        self._world = world
        self._running = world.running
        self._address = address
        self._wanted = True
        self._channel: Channel | None = None
        self._dialling = Dialling(world.network, world.dice)
        self._running.later(0.0, self._connect)

    def stop(self) -> None:
        self._wanted = False
        if self._channel is not None:
            self._channel.leave("no neighbour any more")

    def _connect(self) -> None:
        if self._wanted:
            machine = self._running.machine
            machine.network.dial(machine.name, self._address, self._made)

    def _made(self, end: End | None) -> None:
        if not (self._wanted and self._running.alive):
            if end is not None:
                end.abort()
        elif end is None:
            self._running.work(self._failed)
        else:
            self._running.work(self._open_channel, end)

    def _failed(self) -> None:
        self._dialling.failed("no answer in time")
        self._wait()

    def _open_channel(self, end: End) -> None:
        self._dialling.connected(self._running.kernel.now)
        end.buffer_bytes = OUTPUT_BYTES
        # A channel may be refused, and its transport aborted, before anybody listens: hence the order.
        channel = self._channel = self._world.network.dialled(end, self._address)
        end.user = LinkStream(self._running, channel, self._gone)

    def _gone(self) -> None:
        channel, self._channel = self._channel, None
        assert channel is not None
        self._dialling.lost(channel, self._running.kernel.now)
        self._wait()

    def _wait(self) -> None:
        if not self._wanted:
            return
        pause_s = self._dialling.pause_s()
        if pause_s is None:
            self._running.later(LOOK_AGAIN_S, self._wait)
        else:
            self._running.later(pause_s, self._connect)


class LinkStream:
    """Between a stream and a Channel."""

    __slots__ = ("_channel", "_gone", "_running")

    def __init__(self, running: Running, channel: Channel, gone: Callable[[], None] | None) -> None:
        self._running = running
        self._channel = channel
        self._gone = gone

    def received(self, data: bytes) -> None:
        self._running.work(self._channel.feed, data)

    def lost(self) -> None:
        self._running.work(self._lost)

    def _lost(self) -> None:
        self._channel.lost()
        if self._gone is not None:
            self._gone()

    def congested(self) -> None:
        self._channel.congested()

    def writable(self) -> None:
        self._running.work(self._channel.writable)
