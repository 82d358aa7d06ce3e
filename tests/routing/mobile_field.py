"""Tables of strategy `mobile` in nodes whose links a test makes and breaks; frames in flight die with their link.

Around each table stands the least of a node: link sessions that keep order, the parent that its overlay would name, and
a list of what it was told.  Time passes only when a test says so.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

from sterna.routing.mobile import MobileRouting
from sterna.routing.mobile_frames import Claim, Delta, MobileFrame, NodeRecord, Query, decode
from sterna.routing.strategy import RoutingSettings, Shares
from sterna.vocabulary.identity import BEFORE_ALL, Stamp

TABLE_FRAMES = (Claim, NodeRecord, Delta, Query)
"""Those that go out at once; the others ride on what is told when there is time."""


class Rover:
    def __init__(self, field: MobileField, name: str, epoch: int) -> None:
        self.field = field
        self.name = name
        self.epoch = epoch
        self.parents: tuple[str, ...] = ()
        self.sessions: dict[str, int] = {}
        self.doubts: list[str] = []
        self.stamp = BEFORE_ALL
        self.up = True
        self.routing = MobileRouting(
            name, self, now=lambda: field.now, schedule=self._schedule, settings=field.settings
        )
        self.routing.paths(epoch, "", "", self)

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        self.field.at(at, lambda: action() if self.up else None)

    # -- asked by the table --

    def send(self, link: str, body: bytes) -> None:
        self.field.send(self.name, link, body)

    def refetch(self, origin: str) -> None: ...
    def changed(self, topic_filter: bytes | None) -> None: ...
    def no_longer_wanted(self, link: str, filters: list[bytes]) -> None: ...
    def session_of(self, link: str) -> int:
        return self.sessions[link]

    def path_in_doubt(self, origin: str, link: str) -> None:
        self.doubts.append(origin)

    def frontier_heard(self, origin: str, frontier: Stamp) -> None: ...
    def path_left(self, origin: str, link: str) -> None: ...
    def path_lost(self, origin: str) -> None: ...
    def shares_announced(self, origin: str, shares: Shares) -> None: ...
    def offers_changed(self) -> None: ...
    def namesake_found(self, link: str) -> None:
        self.field.namesakes += 1

    def frontier(self) -> Stamp:
        return self.stamp

    def upward(self) -> tuple[str, ...] | None:
        return self.parents

    # -- what can be seen of it --

    def via(self, node: str) -> str | None:
        return self.routing.link_to(node)

    def wants(self, node: str) -> set[bytes]:
        return set(self.routing.filters_of(node))


class MobileField:
    def __init__(self, *names: str, forget_nodes_s: float = 1e6) -> None:
        self.settings = RoutingSettings(forget_nodes_s=forget_nodes_s)
        self.now = 0.0
        self.rovers: dict[str, Rover] = {}
        #: Frames in flight, numbered; and the number of the last that came out of each wire.
        self.wires: dict[tuple[str, str], deque[tuple[int, bytes]]] = {}
        self._came: dict[tuple[str, str], int] = {}
        self._number = count(1)
        self.sent: list[tuple[str, str, MobileFrame]] = []
        self.namesakes = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._session = count(1)
        for name in names:
            self.boot(name)

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), action))

    def boot(self, name: str, *, wants: bytes | None = None) -> None:
        epoch = self.rovers[name].epoch + 1 if name in self.rovers else 1
        self.rovers[name] = Rover(self, name, epoch)
        self.rovers[name].routing.want(wants or b"f/" + name.encode())

    def kill(self, name: str) -> None:
        for pair in [pair for pair in self.wires if pair[0] == name]:
            self.unlink(*pair)
        self.rovers[name].up = False

    # -- links --

    def link(self, child: str, parent: str) -> None:
        """The child dials its parent; a former parent stays linked until `unlink`."""
        rover = self.rovers[child]
        rover.parents = (parent, *(name for name in rover.parents if name != parent and (child, name) in self.wires))
        if (child, parent) in self.wires:
            return
        session = next(self._session)
        for one, other in ((child, parent), (parent, child)):
            self.wires[one, other] = deque()
            self.rovers[one].sessions[other] = session
        for one, other in ((child, parent), (parent, child)):
            self.rovers[one].routing.link_started(other)

    def unlink(self, one: str, other: str) -> None:
        """Frames in flight are lost."""
        if (one, other) not in self.wires:
            return
        for here, there in ((one, other), (other, one)):
            del self.wires[here, there]
        for here, there in ((one, other), (other, one)):
            self.rovers[here].parents = tuple(name for name in self.rovers[here].parents if name != there)
            self.rovers[here].routing.link_ended(there)

    def move(self, child: str, parent: str, *, make_before_break: bool = False) -> None:
        old = self.rovers[child].parents[:1]
        if make_before_break:
            self.link(child, parent)
            self.settle()
        for former in old:
            self.unlink(child, former)
        self.link(child, parent)

    def send(self, source: str, target: str, body: bytes) -> None:
        self.sent.append((source, target, decode(body)))
        if (source, target) in self.wires:
            self.wires[source, target].append((next(self._number), body))

    def deliver(self, source: str, target: str) -> None:
        """The next frame on a wire."""
        number, body = self.wires[source, target].popleft()
        assert number > self._came.get((source, target), 0), "a frame has overtaken another"
        self._came[source, target] = number
        self.rovers[target].routing.receive(source, body)
        self.rovers[target].routing.flush()

    def settle(self) -> None:
        """Everything in flight arrives; no time passes."""
        for rover in self.rovers.values():
            if rover.up:
                rover.routing.flush()
        for _ in range(100_000):
            busy = [pair for pair, frames in self.wires.items() if frames]
            if not busy:
                return
            for pair in busy:
                while self.wires.get(pair):
                    self.deliver(*pair)
        raise AssertionError("it circulates")

    def rest(self, seconds: float = 20.0) -> None:
        """Time passes, and what can wait is told."""
        end = self.now + seconds
        self.settle()
        while self._agenda and self._agenda[0][0] <= end:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
            self.settle()
        self.now = end

    # -- what is right --

    def component(self, name: str) -> set[str]:
        found, edge = {name}, [name]
        while edge:
            here = edge.pop()
            for one, other in self.wires:
                if one == here and other not in found:
                    found.add(other)
                    edge.append(other)
        return found

    def wrong(self) -> list[str]:
        """Why the tables are not right, once it is quiet."""
        found = []
        for name, rover in self.rovers.items():
            if not rover.up:
                continue
            near = self.component(name)
            for other in self.rovers:
                if other == name:
                    continue
                way = self._way(name, other)
                if other in near and way[-1] != other:
                    found.append(f"{name} reaches {other} by {way}")
                if other not in near and rover.via(other) is not None:
                    found.append(f"{name} thinks that it reaches {other} by {way}")
                if other in near and rover.wants(other) != set(self.rovers[other].routing._local):
                    found.append(f"{name} thinks that {other} wants {rover.wants(other)}")
        return found

    def _way(self, source: str, target: str) -> list[str]:
        way = [source]
        while way[-1] != target and (via := self.rovers[way[-1]].via(target)) is not None and via not in way:
            way.append(via)
        return way

    def table_frames(self) -> list[tuple[str, str, MobileFrame]]:
        return [sent for sent in self.sent if isinstance(sent[2], TABLE_FRAMES)]
