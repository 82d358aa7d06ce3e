"""Places where the processes of an experiment run: on loopback, or each in a network namespace, at a distance.

On loopback everybody is equally near.  At a distance, packets between places pass a switch of ours that holds each for
as long as its way is meant to take (the kernel's own way to do so is often not built in).  That needs root; everything
it sets up goes with this process.  This process has a place of its own, after the last of the others.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.exclusive import claim
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import program, tie_to_parent
from sterna.measure.harness.switch import Cables, Delay, Switch, Tap

_TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLIENTS, _LINKS, _ADMIN = 1883, 7883, 9883
PACKETS_UNDER_WAY = "1000"
_CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
NETS = 512
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where one node runs and what it listens on."""

    host: str
    clients: int
    links: int
    admin: int
    namespace: str = ""
    """Its network namespace; empty: that of this process."""

    @property
    def links_address(self) -> str:
        return f"{self.host}:{self.links}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command that is to run there."""
        if not self.namespace:
            return ()
        return (program("nsenter", "on Debian: apt-get install util-linux"), f"--net={self.namespace}")

    def socket(self) -> socket.socket:
        """A TCP socket that is there, wherever this process is."""
        if not self.namespace:
            return socket.socket()
        ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        theirs = os.open(self.namespace, os.O_RDONLY)
        try:
            _enter(theirs)
            try:
                return socket.socket()
            finally:
                _enter(ours)
        finally:
            os.close(theirs)
            os.close(ours)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise MeasurementError(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


class Site(Protocol):
    places: list[NodePlace]

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Loopback:
    def __init__(self, nodes: int) -> None:
        ports = iter(free_ports(3 * nodes))
        self.places = [NodePlace("127.0.0.1", *three) for three in zip(ports, ports, ports, strict=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """There is nothing to undo."""


class AtADistance:
    """A namespace and a tunnel device per place, and a switch between the devices."""

    def __init__(self, places: int, delay: Delay, cables: Cables | None = None, tap: Tap | None = None) -> None:
        self._count = places
        self._delay = delay
        self._cables = cables
        self._tap = tap
        self._number, self._claim = _claim_net()
        self._net = _net(self._number)
        self._holders: list[subprocess.Popen[bytes]] = []
        self._devices: list[int] = []
        self._switch: Switch | None = None
        self.places: list[NodePlace] = []

    def __enter__(self) -> Self:
        try:
            for number in range(self._count):
                self._add(number)
            self._add_ourselves()
        except BaseException:
            self._undo()
            raise
        self._switch = Switch(self._devices, self._delay, self._cables, self._tap)
        self._switch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._undo()

    def _add(self, number: int) -> None:
        """Once its holder and its processes have ended, the kernel lets the namespace go, and the device with us."""
        holder = subprocess.Popen(
            [program("unshare", "on Debian: apt-get install util-linux"), "--net", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: tie_to_parent(),
        )
        self._holders.append(holder)
        _wait_for_namespace(holder.pid)
        place = NodePlace(f"{self._net}.{number + 1}", _CLIENTS, _LINKS, _ADMIN, f"/proc/{holder.pid}/ns/net")
        device = self._open(number)
        _ip("link", "set", device, "netns", str(holder.pid))
        for words in (("addr", "add", f"{place.host}/24", "dev", device), ("link", "set", device, "up")):
            _ip(*words, prefix=place.prefix)
        _ip("link", "set", "lo", "up", prefix=place.prefix)
        # Long ways and small packets: TCP's usual ten of them under way at first would make it wait for itself.
        way = ("dev", device, "src", place.host, "initcwnd", PACKETS_UNDER_WAY)
        _ip("route", "replace", f"{self._net}.0/24", *way, prefix=place.prefix)
        _congest_plainly(place.prefix)
        self.places.append(place)

    def _add_ourselves(self) -> None:
        device = self._open(self._count)
        _ip("addr", "add", f"{self._net}.{self._count + 1}/24", "dev", device)
        _ip("link", "set", device, "up")

    def _open(self, number: int) -> str:
        name = f"sterna{self._number}n{number}"
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
        self._claim.close()


def _net(number: int) -> str:
    """198.18.0.0/15 is there for measurements."""
    return f"198.{18 + number // 256}.{number % 256}"


def _claim_net() -> tuple[int, socket.socket]:
    """Experiments at the same time must not share addresses: one would ask the nodes of another about its clients."""
    for number in range(NETS):
        held = claim(f"net-{_net(number)}")
        if held is not None:
            return number, held
    raise MeasurementError(f"{NETS} experiments are at a distance already; wait, or run it on loopback: --loopback")


def may_be_at_a_distance() -> bool:
    """Whether this process may make namespaces and devices."""
    if os.geteuid() != 0 or not Path(_TUN).exists():
        return False
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def _wait_for_namespace(pid: int) -> None:
    ours = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 5.0
    while os.readlink(f"/proc/{pid}/ns/net") == ours:
        if time.monotonic() > deadline:
            raise MeasurementError("no network namespace could be made; run it on loopback: --loopback")
        time.sleep(0.005)


def _congest_plainly(prefix: tuple[str, ...]) -> None:
    """Some ways to avoid congestion (BBR's) let next to nothing under way for a round trip, now and then, to measure
    it: over links of seconds everybody would wait for that.  Reno is in every kernel, and does not."""
    _run(*prefix, "sh", "-c", f"echo reno > {_CONGESTION}")


def _ip(*words: str, prefix: tuple[str, ...] = ()) -> None:
    _run(*prefix, "ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementError(f"{' '.join(words)}: {done.stderr.strip()}; run it on loopback: --loopback")
