"""Where the nodes of the convergence experiment run: on loopback, or each in a network namespace, at a distance.

On loopback everybody is equally near and the tree is a star: its only inner node is the root.  At a distance, packets
between nodes pass a switch of ours that holds each for as long as its way is meant to take, and the shortest ways make
the tree of the traffic experiment.  That needs root; everything it sets up goes with this process.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from sterna.bench.brokers import tie_to_parent
from sterna.bench.ports import free_ports
from sterna.experiments.errors import ExperimentError
from sterna.experiments.placement import TREE
from sterna.experiments.processes import program

NEAR_S = 0.002
"""One way between nodes that are linked in the tree: two cables of 1 ms, as in the paper."""
FAR_S = 0.012
"""One way between all others, so that two near hops are shorter."""
PACKET_BYTES_MAX = 2048
_TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLIENTS, _LINKS, _ADMIN = 1883, 7883, 9883


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node runs and what it listens on."""

    host: str
    clients: int
    links: int
    admin: int
    prefix: tuple[str, ...] = ()
    """What its command begins with."""


class Site(Protocol):
    description: str
    places: list[Place]

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Loopback:
    description = "processes on loopback, all equally near (the tree is a star)"

    def __init__(self, nodes: int) -> None:
        ports = iter(free_ports(3 * nodes))
        self.places = [Place("127.0.0.1", *three) for three in zip(ports, ports, ports, strict=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """There is nothing to undo."""


class AtADistance:
    """A namespace and a tunnel device per node, and a switch between the devices."""

    description = (
        f"processes in network namespaces, {2000 * NEAR_S:g} ms of round trip between neighbours in the tree "
        f"0-1, 0-2, 1-3, 2-4 and {2000 * FAR_S:g} ms between all others"
    )

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        # Experiments at the same time must not share addresses; 198.18.0.0/15 is there for measurements.
        self._net = f"198.18.{os.getpid() % 256}"
        self._holders: list[subprocess.Popen[bytes]] = []
        self._devices: list[int] = []
        self._switch: Switch | None = None
        self.places: list[Place] = []

    def __enter__(self) -> Self:
        try:
            for number in range(self._nodes):
                self._add(number)
            self._add_ourselves()
        except BaseException:
            self._undo()
            raise
        self._switch = Switch(self._devices)
        self._switch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._undo()

    def _add(self, number: int) -> None:
        """Once its holder and its nodes have ended, the kernel lets the namespace go, and the device with us."""
        holder = subprocess.Popen(
            [program("unshare", "on Debian: apt-get install util-linux"), "--net", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: tie_to_parent(None),
        )
        self._holders.append(holder)
        _wait_for_namespace(holder.pid)
        prefix = (program("nsenter", "on Debian: apt-get install util-linux"), f"--net=/proc/{holder.pid}/ns/net")
        device = self._open(number)
        _ip("link", "set", device, "netns", str(holder.pid))
        host = f"{self._net}.{number + 1}"
        for words in (("addr", "add", f"{host}/24", "dev", device), ("link", "set", device, "up")):
            _ip(*words, prefix=prefix)
        _ip("link", "set", "lo", "up", prefix=prefix)
        self.places.append(Place(host, _CLIENTS, _LINKS, _ADMIN, prefix))

    def _add_ourselves(self) -> None:
        device = self._open(self._nodes)
        _ip("addr", "add", f"{self._net}.{self._nodes + 1}/24", "dev", device)
        _ip("link", "set", device, "up")

    def _open(self, number: int) -> str:
        name = f"st{os.getpid() % 100_000}n{number}"
        device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        self._devices.append(device)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
        return name

    def _undo(self) -> None:
        if self._switch is not None:
            self._switch.stop()
        for device in self._devices:
            os.close(device)
        for holder in self._holders:
            holder.kill()
            holder.wait()


def delay_s(source: int, target: int) -> float:
    """One way; whoever is no node is everywhere at once."""
    if max(source, target) > max(max(link) for link in TREE):
        return 0.0
    return NEAR_S if (source, target) in TREE or (target, source) in TREE else FAR_S


class Switch(threading.Thread):
    """Passes IPv4 packets between tunnel devices; the last byte of an address says which device it is at, from 1."""

    def __init__(self, devices: list[int]) -> None:
        super().__init__(name="switch", daemon=True)
        self._devices = devices
        self._held: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            now = time.monotonic()
            wait = max(0.0, min(0.1, self._held[0][0] - now)) if self._held else 0.1
            for device in select.select(self._devices, (), (), wait)[0]:
                self._take(self._devices.index(device))
            self._release(time.monotonic())

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _take(self, source: int) -> None:
        try:
            packet = os.read(self._devices[source], PACKET_BYTES_MAX)
        except (BlockingIOError, OSError):
            return
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return
        target = packet[19] - 1
        if 0 <= target < len(self._devices) and target != source:
            self._count += 1
            heapq.heappush(self._held, (time.monotonic() + delay_s(source, target), self._count, target, packet))

    def _release(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._held)
            try:
                os.write(self._devices[target], packet)
            except OSError:
                continue  # Its device is full or gone: lost, as on any network.


def may_be_at_a_distance() -> bool:
    """Whether this process may make namespaces and devices."""
    if os.geteuid() != 0 or not Path(_TUN).exists():
        return False
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def _wait_for_namespace(pid: int) -> None:
    ours = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 5.0
    while os.readlink(f"/proc/{pid}/ns/net") == ours:
        if time.monotonic() > deadline:
            raise ExperimentError("no network namespace could be made; run it on loopback: --loopback")
        time.sleep(0.005)


def _ip(*words: str, prefix: tuple[str, ...] = ()) -> None:
    done = subprocess.run([*prefix, "ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExperimentError(f"ip {' '.join(words)}: {done.stderr.strip()}; run it on loopback: --loopback")
