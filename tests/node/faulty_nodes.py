"""Joined nodes whose disks can fail, stall and be checkpointed, whose processes die and start again, and whose clocks
differ."""

from __future__ import annotations

from collections import deque

from broker.lone_node import WALL_OFFSET, LoneNode
from conformance.packets import Connect
from node.joined_nodes import JoinedNode, Pipe, Town
from sterna.broker.commitments import Commit
from sterna.journal.memory_store import MemoryStore
from sterna.node.network_settings import NetworkSettings
from sterna.node.node import Saved
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.overlay.link_settings import LinkSettings


class FaultyNode(JoinedNode):
    def __init__(
        self, town: FaultyTown, name: str, store: MemoryStore | None = None, saved: Saved | None = None
    ) -> None:
        self.clock_ahead = town.clocks.get(name, 0.0)
        LoneNode.__init__(
            self, settings=town.journal, store=store, saved=saved, name=name, alone=False, functions=town.functions
        )
        self.saved = saved or Saved()
        self.town: FaultyTown = town
        self.name = name
        self.now = town.now
        self.broker.tell_time(self.now, self.wall)
        self.dialling: dict[str, str] = {}
        self.disk_is_full = False
        self.disk_stalls = False
        self._written: Commit | None = None
        self.network = self.node.join(self._settings, self)
        self.network.start()

    def _settings(self, epoch: int) -> NetworkSettings:
        link = LinkSettings("test", self.name, epoch, self.town.strategy, b"key", **self.town.link)  # type: ignore[arg-type]
        return NetworkSettings(link, clients=f"{self.name}:1883")

    @property
    def wall(self) -> float:
        return self.now + WALL_OFFSET + self.clock_ahead

    def finish(self, commit: Commit) -> None:
        if self.disk_is_full:
            self.broker.failed(commit, "the disk is full")
        else:
            super().finish(commit)

    def work(self) -> None:
        if self.disk_is_full:  # once a turn: what failed wants to be written again
            self.disk_stalls = False
            commit, self._written = self._written, None
            if commit is not None or self.broker.commitments.pending:
                self.finish(commit or self.broker.commitments.close())
            self.node.flush()
            return
        if not self.disk_stalls:
            if self._written is not None:
                commit, self._written = self._written, None
                self.finish(commit)
            super().work()
            return
        if self._written is None and self.broker.commitments.pending:
            self._written = self.broker.commitments.close()
        while self.broker.turns:
            self.take_turn()
        self.node.flush()

    def join_unheard(self, client_id: str) -> None:
        """Somebody connects for good: something to be written, whose answer nobody waits for."""
        self.dial().send(Connect(client_id, False, 0, None, None, None, {"session_expiry": 100}))

    def checkpoint(self) -> None:
        """As the world takes one: see `Changes`."""
        changes = self.node.changes()
        commit = self.broker.commitments.close()
        place = None if commit.group is None else self.store.write(commit.group)
        self.broker.committed(commit, place)
        changes = changes.begun_at(place)
        sessions = {**self.saved.sessions, **changes.sessions}
        retained = {**self.saved.retained, **changes.retained}
        for name in changes.sessions_gone:
            sessions.pop(name, None)
        for topic in changes.retained_gone:
            retained.pop(topic, None)
        self.saved = Saved(changes.position, sessions, retained)
        self.node.checkpointed(changes)


class PatientPipe(Pipe):
    """Bytes wait while the other side does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def move(self) -> bool:
        moved = False
        while self.waiting and not (isinstance(self.other, PatientPipe) and not self.other.reading):
            moved = True
            data = self.waiting.popleft()
            if self.other.channel is not None and not self.other.closed:
                self.other.channel.feed(data)
        if self.waiting and not self.closed:
            return moved
        return super().move() or moved


class SlowPipe(Pipe):
    """Bytes that are written to it arrive later; handshakes are quick."""

    def __init__(self, town: FaultyTown, delay_s: float) -> None:
        super().__init__()
        self._town = town
        self._delay_s = delay_s
        self._under_way: deque[tuple[float, bytes]] = deque()

    def write(self, data: bytes) -> None:
        is_open = self.channel is not None and self.channel.is_open
        self._under_way.append((self._town.now + (self._delay_s if is_open else 0.0), data))

    def move(self) -> bool:
        while self._under_way and self._under_way[0][0] <= self._town.now:
            self.waiting.append(self._under_way.popleft()[1])
        return super().move()


class FaultyTown(Town):
    def __init__(
        self,
        names: str,
        strategy: str = "subscription-flooding",
        clocks: dict[str, float] | None = None,
        functions: Functions = NO_FUNCTIONS,
        **link: float,
    ) -> None:
        self.clocks = clocks or {}
        self.functions = functions
        self.link = link
        super().__init__("", strategy)
        self.faulty = {name: FaultyNode(self, name) for name in names}
        self.nodes.update(self.faulty)

    def __getitem__(self, name: str) -> FaultyNode:
        return self.faulty[name]

    def connect(self, *pairs: str) -> None:
        for one, other in map(tuple, pairs):
            self._join(one, other, PatientPipe(), PatientPipe())
        self.pass_time(1)

    def _join(self, one: str, other: str, a: Pipe, b: Pipe) -> None:
        a.other, b.other = b, a
        self.pipes += a, b
        a.channel = self[one].network.dialled(a, other)
        b.channel = self[other].network.accept(b, one)

    def kill(self, name: str) -> None:
        """kill -9: nothing is said or written any more.  The others notice."""
        node = self.nodes.pop(name)
        for other in [other for other in self.nodes if other in node.network.links.links]:
            self.cut(name, other)

    def start(self, name: str) -> None:
        """Another process on what the disk holds."""
        before = self.faulty[name]
        self.nodes[name] = self.faulty[name] = FaultyNode(self, name, before.store, before.saved)

    def add(self, name: str) -> None:
        self.nodes[name] = self.faulty[name] = FaultyNode(self, name)

    def connect_slowly(self, one: str, other: str, delay_s: float) -> None:
        """A link whose bytes from `one` to `other` take their time."""
        self._join(one, other, SlowPipe(self, delay_s), Pipe())
