"""Several nodes in a test's hands, joined by links that are lists of bytes; one clock for all of them.

`settle` lets everybody work until nothing moves any more without time passing.
"""

from __future__ import annotations

from collections import deque

from broker.lone_node import LoneNode
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.migration.settings import MigrationSettings
from sterna.node.network_settings import NetworkSettings
from sterna.overlay.channel import Channel
from sterna.overlay.link_settings import LinkSettings


class Pipe:
    """One end of a connection between two nodes."""

    def __init__(self) -> None:
        self.other: Pipe = self
        self.channel: Channel | None = None
        self.waiting: deque[bytes] = deque()
        #: The connection is silently dead in this direction, for now.
        self.held = False
        self.closed = False

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.waiting.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def move(self) -> bool:
        """Bytes on their way arrive; True if any did."""
        moved = bool(self.waiting) and not self.held
        while self.waiting and not self.held:
            data = self.waiting.popleft()
            if self.other.channel is not None and not self.other.closed:
                self.other.channel.feed(data)
        if self.closed and self.other.channel is not None and not self.other.closed:
            self.other.closed = True
            self.other.channel.lost()
            return True
        return moved


class Town:
    journal = JournalSettings(durability="os")

    def __init__(
        self, names: str, strategy: str = "subscription-flooding", migration: MigrationSettings | None = None
    ) -> None:
        self.migration = migration or MigrationSettings()
        self.now = 100.0
        self.strategy = strategy
        self.pipes: list[Pipe] = []
        self.nodes = {name: JoinedNode(self, name) for name in names}

    def __getitem__(self, name: str) -> JoinedNode:
        return self.nodes[name]

    def connect(self, *pairs: str) -> None:
        self.connect_now(*pairs)
        self.pass_time(1)

    def connect_now(self, *pairs: str) -> None:
        """The handshake is done when this returns, and little else."""
        for one, other in map(tuple, pairs):
            a, b = Pipe(), Pipe()
            a.other, b.other = b, a
            self.pipes += a, b
            a.channel = self[one].network.dialled(a, other)
            b.channel = self[other].network.accept(b, one)
        self.pass_time(0.05)

    def hold(self, one: str, other: str, *, held: bool = True) -> None:
        """Bytes from one node to the other wait on their way."""
        for pipe in self.pipes:
            peers = [end.channel.link.peer for end in (pipe, pipe.other) if end.channel and end.channel.link]
            if peers == [other, one]:
                pipe.held = held

    def cut(self, one: str, other: str) -> None:
        """The connection breaks, bytes under way are lost, and the session is not resumed."""
        for pipe in self.pipes:
            ends = {end.channel.link.peer for end in (pipe, pipe.other) if end.channel and end.channel.link}
            if not pipe.closed and ends == {one, other}:
                for end in (pipe, pipe.other):
                    end.waiting.clear()
                    end.closed = True
                    if end.channel is not None:
                        end.channel.lost()
        self.pipes = [pipe for pipe in self.pipes if not pipe.closed]
        self.pass_time(3)

    def crash(self, name: str) -> None:
        """The process is gone and another starts on what its disk holds; it has no links yet."""
        for other in [other for other in self.nodes if other in self[name].network.links.links]:
            self.cut(name, other)
        self.nodes[name] = JoinedNode(self, name, store=self[name].store)

    def settle(self) -> None:
        for _ in range(10_000):
            for node in self.nodes.values():
                node.work()
            if not sum(pipe.move() for pipe in self.pipes):
                return
        raise AssertionError("the nodes do not come to rest")

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.settle()
            self.now = min(end, self.now + 0.01)
            for node in self.nodes.values():
                node.now = self.now
                node.broker.handle_deadlines(self.now)
        self.settle()


class JoinedNode(LoneNode):
    def __init__(self, town: Town, name: str, epoch: int = 1, store: MemoryStore | None = None) -> None:
        super().__init__(settings=town.journal, epoch=epoch, store=store, name=name, alone=False)
        self.town = town
        self.name = name
        self.now = town.now
        self.broker.tell_time(self.now, self.wall)
        self.dialling: dict[str, str] = {}
        self.network = self.node.join(self._settings, self)
        self.network.start()

    def _settings(self, epoch: int) -> NetworkSettings:
        return NetworkSettings(
            LinkSettings("test", self.name, epoch, self.town.strategy, b"key"),
            clients=f"{self.name}:1883",
            migration=self.town.migration,
        )

    def work(self) -> None:
        super().settle()
        self.node.flush()

    def settle(self) -> None:
        self.town.settle()

    def hold_links(self, dial: dict[str, str]) -> None:
        self.dialling = dial

    def send_datagram(self, address: str, data: bytes) -> None:
        raise AssertionError("static neighbours need no datagrams")

    def send_discovery(self, data: bytes) -> None:
        raise AssertionError("static neighbours need no datagrams")
