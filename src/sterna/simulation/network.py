"""The simulated network: hosts, the paths between them, partitions, listeners, and datagrams.

Streams are in `streams.py`.  A host is a name; an address is "host:port".  A cut works in one direction, as some do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations

from sterna.simulation.kernel import Kernel
from sterna.simulation.streams import End, StreamSettings, join

Accept = Callable[[End], None]
Made = Callable[[End | None], None]
Received = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class Path:
    """How bytes travel from one host to another."""

    latency_s: float = 0.001
    """The least a packet takes."""
    jitter_s: float = 0.0005
    """Mean of what comes on top, exponentially distributed: most packets are quick, some are not."""
    bytes_per_s: float = 12_500_000.0
    loss: float = 0.01
    """Share of datagrams that never arrive.  Streams repeat what is lost, so there it is only latency."""
    duplication: float = 0.005
    """Share of datagrams that arrive twice."""


class SimulatedHost:
    """A machine on the network; `up` is False while it has no power."""

    __slots__ = ("ends", "name", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        #: Its ends of streams (a dict for its order).
        self.ends: dict[End, None] = {}


class SimulatedNetwork:
    def __init__(self, kernel: Kernel, path: Path | None = None, streams: StreamSettings | None = None) -> None:
        self.kernel = kernel
        self.streams = streams or StreamSettings()
        self.hosts: dict[str, SimulatedHost] = {}
        self.dice = kernel.dice("network")
        self._path = path or Path()
        self._paths: dict[tuple[str, str], Path] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._listeners: dict[str, Accept] = {}
        self._mailboxes: dict[str, Received] = {}
        self._next_port = 40_000
        #: Bytes sent to everybody, each once.
        self.said_bytes = 0
        #: Ends that hold bytes a cut kept from arriving.
        self.stalled: dict[End, None] = {}

    # -- geography --

    def host(self, name: str) -> SimulatedHost:
        found = self.hosts.get(name)
        if found is None:
            found = self.hosts[name] = SimulatedHost(name)
        return found

    def set_path(self, one: str, other: str, path: Path) -> None:
        """Both ways."""
        self._paths[one, other] = self._paths[other, one] = path

    def path(self, source: str, target: str) -> Path:
        return self._paths.get((source, target), self._path)

    def latency(self, source: str, target: str) -> float:
        path = self.path(source, target)
        return path.latency_s + self.dice.expovariate(1.0) * path.jitter_s

    # -- partitions --

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more.  Cuts add up: each needs to be mended."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        left = self._cuts[source, target] - 1
        if left:
            self._cuts[source, target] = left
            return
        del self._cuts[source, target]
        for end in list(self.stalled):
            if end.host == target and end.peer_host == source:
                # A sender that was repeating in vain gets through with the next try.
                self.kernel.after(self.latency(source, target) + self.dice.uniform(0, 0.2), end.release)

    def partition(self, groups: Iterable[Iterable[str]]) -> Callable[[], None]:
        """Hosts of different groups no longer reach each other; the answer ends that."""
        pairs = [
            pair
            for one, other in combinations([list(group) for group in groups], 2)
            for a in one
            for b in other
            for pair in ((a, b), (b, a))
        ]
        for pair in pairs:
            self.cut(*pair)
        self.kernel.tell(f"network: {len(pairs)} directions cut")

        def heal() -> None:
            for pair in pairs:
                self.mend(*pair)
            self.kernel.tell(f"network: {len(pairs)} directions mended")

        return heal

    # -- streams --

    def listen(self, address: str, accept: Accept) -> None:
        self._listeners[address] = accept

    def dial(self, source: str, address: str, made: Made) -> None:
        """Open a stream; `made` gets our end of it, or None if nobody answered or wanted us."""
        self._next_port += 1
        target = host_of(address)
        self.kernel.after(self.latency(source, target), self._asked, source, self._next_port, address, made)

    def _asked(self, source: str, port: int, address: str, made: Made) -> None:
        target = host_of(address)
        if not self.host(target).up or self.is_cut(source, target) or self.is_cut(target, source):
            self.kernel.after(self.streams.connect_s, made, None)
            return
        back = self.latency(target, source)
        accept = self._listeners.get(address)
        if accept is None:
            self.kernel.after(back, made, None)
            return
        ours, theirs = join(self, f"{source}:{port}", address, self.kernel.now + back)
        self.kernel.after(back, made, ours)
        accept(theirs)

    def sever(self, one: str, other: str, *, silently: bool) -> int:
        """Break every stream between two hosts: bytes under way are lost.  How many there were."""
        ends = [end for end in self.host(one).ends if end.peer_host == other]
        for end in ends:
            end.sever(silently=silently)
        return len(ends)

    def end_half_open(self) -> None:
        """Tell every host that holds an end of a stream that is gone without knowing."""
        for host in self.hosts.values():
            for end in list(host.ends):
                if end.is_half_open:
                    end.reset()

    def process_ended(self, name: str, *, power: bool) -> None:
        """Everything the host held is gone.  Without power nobody is told; otherwise its system resets the streams."""
        host = self.host(name)
        for address in [address for address in self._listeners if host_of(address) == name]:
            del self._listeners[address]
        for address in [address for address in self._mailboxes if host_of(address) == name]:
            del self._mailboxes[address]
        host.up = not power
        ends, host.ends = host.ends, {}
        for end in ends:
            end.vanish(reset=not power)

    # -- datagrams --

    def open_mailbox(self, address: str, received: Received) -> None:
        self._mailboxes[address] = received

    def send_datagram(self, source: str, address: str, data: bytes) -> None:
        """Perhaps it arrives, perhaps twice, perhaps after one that was sent later."""
        here, there = host_of(source), host_of(address)
        path = self.path(here, there)
        copies = 0 if self.dice.random() < path.loss else 2 if self.dice.random() < path.duplication else 1
        for _ in range(copies):
            self.kernel.after(self.latency(here, there), self._datagram_arrives, source, address, data)

    def send_to_all(self, source: str, data: bytes) -> None:
        """As multicast does: to every open mailbox but the sender's."""
        self.said_bytes += len(data)
        for address in list(self._mailboxes):
            if address != source:
                self.send_datagram(source, address, data)

    def _datagram_arrives(self, source: str, address: str, data: bytes) -> None:
        received = self._mailboxes.get(address)
        if received is not None and not self.is_cut(host_of(source), host_of(address)):
            received(source, data)


def host_of(address: str) -> str:
    return address.rpartition(":")[0]
