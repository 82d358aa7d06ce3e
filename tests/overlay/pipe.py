"""Two or more `Links` in virtual time, joined by pipes that can be cut, delayed, split, stalled and tampered with.

A pipe is FIFO and repeats nothing, like TCP.  After every event everybody is flushed, as the real world does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from sterna.overlay.channel import Channel
from sterna.overlay.link import Link
from sterna.overlay.link_settings import LinkSettings
from sterna.overlay.link_table import Links

KEY = b"the key of the network"
DELAY_S = 0.01

#: Given the position of some bytes in the stream and the bytes; what passes instead.
Tamper = Callable[[int, bytes], bytes]


def settings(node: object, **changes: object) -> LinkSettings:
    values: dict[str, object] = {
        "network": "n",
        "node": node,
        "epoch": 1,
        "strategy": "subscription-flooding",
        "key": KEY,
    }
    return LinkSettings(**(values | changes))  # type: ignore[arg-type]  # each test changes what it wants


class World:
    def __init__(self) -> None:
        self.time = 0.0
        self.sides: list[Side] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def now(self) -> float:
        return self.time

    def schedule(self, at: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, action))

    def run(self, seconds: float) -> None:
        end = self.time + seconds
        self.flush()
        while self._events and self._events[0][0] <= end:
            at, _, action = heapq.heappop(self._events)
            self.time = max(self.time, at)
            action()
            self.flush()
        self.time = end

    def flush(self) -> None:
        for side in self.sides:
            side.links.flush()


class Side:
    """A node as far as its links go; notes everything it is told."""

    def __init__(self, world: World, chosen: LinkSettings, seed: int = 0) -> None:
        self.world = world
        self.name = chosen.node
        self.rng = Random(f"{chosen.node}/{chosen.epoch}/{seed}")
        self.links = Links(chosen, self, now=world.now, schedule=world.schedule, rng=self.rng)
        self.told: list[tuple[str, int]] = []
        self.reasons: list[str] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        self.got: dict[int, list[tuple[int, bytes]]] = {}
        self.relieved = 0
        self.refused: dict[str, str] = {}
        self.interrupted: list[str] = []
        self.on_end: Callable[[Link], None] | None = None
        self.on_frames: Callable[[Link, list[tuple[int, bytes]]], None] | None = None
        world.sides.append(self)

    def session_started(self, link: Link) -> None:
        assert link.session_id not in self.got, "a session starts once"
        self.told.append(("started", link.session_id))
        self.got[link.session_id] = []

    def session_ended(self, link: Link, reason: str) -> None:
        assert ("started", link.session_id) in self.told, "only what started ends"
        assert ("ended", link.session_id) not in self.told, "a session ends once"
        self.told.append(("ended", link.session_id))
        self.reasons.append(reason)
        if self.on_end is not None:
            self.on_end(link)

    def frames(self, link: Link, frames: list[tuple[int, bytes]]) -> None:
        assert ("ended", link.session_id) not in self.told, "nothing is delivered after the end"
        assert frames
        self.got[link.session_id] += frames
        if self.on_frames is not None:
            self.on_frames(link, frames)

    def connection_lost(self, link: Link) -> None:
        assert not link.connected
        self.interrupted.append(link.peer)

    def link_relieved(self, link: Link) -> None:
        self.relieved += 1

    def accepts(self, peer: str) -> str | None:
        return self.refused.get(peer)

    def stands_by(self, peer: str) -> str | None:
        return None

    def report(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def link(self, peer: str) -> Link:
        return self.links.links[peer]

    def reported(self, event: str) -> list[str]:
        return [str(fields.get("reason")) for name, fields in self.events if name == event]


@dataclass
class End:
    """One end of a pipe: the transport given to `Links`, and what becomes of the bytes written to it."""

    pipe: Pipe
    channel: Channel | None = None
    other: End | None = None
    written: bytes = b""
    held: bytes = b""
    stalled: bool = False
    is_closed: bool = False
    tamper: Tamper | None = None
    passed: int = 0

    def write(self, data: bytes) -> None:
        if self.is_closed:
            return
        at = len(self.written)
        self.written += data
        if self.stalled:
            self.held += data
            if self.channel is not None:
                self.channel.congested()
            return
        self._send(at, data)

    def _send(self, at: int, data: bytes) -> None:
        if self.tamper is not None:
            data = self.tamper(at, data)
        for piece in self.pipe.pieces(data):
            self.pipe.world.schedule(self.pipe.world.time + self.pipe.delay_s, partial(self._arrive, piece))

    def _arrive(self, data: bytes) -> None:
        other = self.other
        if self.pipe.silent or other is None or other.channel is None:
            return
        room = self.pipe.cut_after - self.passed
        if room >= 0 and len(data) >= room:
            if room:
                other.channel.feed(data[:room])
            self.pipe.cut()
            return
        self.passed += len(data)
        other.channel.feed(data)

    def close(self) -> None:
        self._vanish()

    def abort(self) -> None:
        self._vanish()

    def _vanish(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.pipe.world.schedule(self.pipe.world.time + self.pipe.delay_s, self._other_hears)

    def _other_hears(self) -> None:
        if not self.pipe.silent and self.other is not None and self.other.channel is not None:
            self.other.is_closed = True
            self.other.channel.lost()

    def stall(self) -> None:
        self.stalled = True
        assert self.channel is not None
        self.channel.congested()

    def unstall(self) -> None:
        self.stalled = False
        held, self.held = self.held, b""
        self._send(len(self.written) - len(held), held)
        assert self.channel is not None
        self.channel.writable()

    def pause_reading(self) -> None:
        raise AssertionError("links do not pause")

    def resume_reading(self) -> None:
        raise AssertionError("links do not pause")

    def get_write_buffer_size(self) -> int:
        return len(self.held)


class Pipe:
    """A connection from a dialler to an acceptor.

    `cut_after` bytes in either direction it breaks, -1 for never; `near` and `far` change what each end writes.
    """

    def __init__(
        self,
        dialler: Side,
        acceptor: Side,
        *,
        delay_s: float = DELAY_S,
        piece: int = 0,
        cut_after: int = -1,
        near: Tamper | None = None,
        far: Tamper | None = None,
    ) -> None:
        self.world = dialler.world
        self.delay_s = delay_s
        self.piece = piece
        self.cut_after = cut_after
        self.silent = False
        self.near = End(self, tamper=near)
        self.far = End(self, tamper=far)
        self.near.other, self.far.other = self.far, self.near
        self.accepted = self.far.channel = acceptor.links.accept(self.far, dialler.name)
        self.dialled = self.near.channel = dialler.links.dialled(self.near, acceptor.name)

    def pieces(self, data: bytes) -> list[bytes]:
        size = self.piece or len(data) or 1
        return [data[at : at + size] for at in range(0, len(data), size)]

    def cut(self) -> None:
        """Both ends hear of it; what is under way is lost."""
        self.silent = True
        for end in (self.near, self.far):
            end.is_closed = True
            if end.channel is not None:
                end.channel.lost()


def pair(**changes: object) -> tuple[World, Side, Side]:
    world = World()
    return world, Side(world, settings("a", **changes)), Side(world, settings("b", **changes))


def linked(**changes: object) -> tuple[World, Side, Side, Pipe]:
    world, a, b = pair(**changes)
    pipe = Pipe(a, b)
    world.run(0.1)
    assert a.link("b").connected
    assert b.link("a").connected
    return world, a, b, pipe
