"""Byte streams as TCP gives them: in order, late, in pieces, with back-pressure, and ended in every unpleasant way.

An End is the transport that a broker, a link or a client writes to.  Bytes written wait behind a window of bytes
under way; a reader that pauses fills the window, then the writer's buffer.  Streams end politely (`close`), by a reset
(`abort`), by a break that both ends hear of, or silently: then an end learns of it only if it writes, and late.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

if TYPE_CHECKING:
    from sterna.simulation.network import SimulatedNetwork

REPEAT_S = 1.0
"""How often a system repeats bytes that nobody confirms."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    window_bytes: int = 64 * 1024
    """Bytes under way or unread by the other side; more waits with the writer."""
    buffer_bytes: int = 1024 * 1024
    """Bytes that may wait with the writer before it is told that it is congested; at a quarter it may go on."""
    timeout_s: float = 12.0
    """How long a system repeats bytes nobody confirms before it gives the stream up."""
    connect_s: float = 3.0
    """How long a host is dialled that does not answer."""
    split: float = 0.05
    """Share of writes that arrive in two pieces."""


class StreamUser(Protocol):
    """The holder of an end."""

    def received(self, data: bytes) -> None: ...
    def lost(self) -> None: ...
    def congested(self) -> None: ...
    def writable(self) -> None: ...


def join(network: SimulatedNetwork, source: str, target: str, made_at: float) -> tuple[End, End]:
    """A new stream: the end of who dialled, and of who was dialled."""
    ours, theirs = End(network, source), End(network, target)
    ours.peer, theirs.peer = theirs, ours
    ours.peer_host, theirs.peer_host = theirs.host, ours.host
    theirs.last_arrival = made_at  # nothing arrives before the dialler knows that it has a stream
    return ours, theirs


class End:
    __slots__ = (
        "_backlog",
        "_closing",
        "_full",
        "_held",
        "_line_free",
        "_network",
        "_over",
        "_paused",
        "_severed",
        "_silent",
        "_stall",
        "_under_way",
        "_unread",
        "_void",
        "_waiting_bytes",
        "address",
        "buffer_bytes",
        "host",
        "last_arrival",
        "peer",
        "peer_host",
        "user",
    )

    peer: End
    peer_host: str

    def __init__(self, network: SimulatedNetwork, address: str) -> None:
        self._network = network
        self.address = address
        self.host = address.rpartition(":")[0]
        self.user: StreamUser | None = None
        #: Bytes that may wait with us before our user is told that it is congested.
        self.buffer_bytes = network.streams.buffer_bytes
        #: When the last bytes we sent arrive: nothing overtakes.
        self.last_arrival = 0.0
        self._line_free = 0.0
        self._backlog: deque[bytes | None] = deque()  # None: the end
        self._waiting_bytes = 0
        self._under_way = 0
        self._unread: deque[bytes | None] = deque()
        #: Bytes that a cut keeps from arriving, and how many such times there were.
        self._held: list[bytes | None] = []
        self._stall = 0
        self._full = False
        self._paused = False
        self._closing = False
        #: The user hears nothing more, and what it writes goes nowhere.
        self._over = False
        #: Our bytes do not arrive.
        self._void = False
        #: The stream broke somewhere in between: not even a reset arrives.
        self._severed = False
        #: Set when we have begun to wait for an answer that will not come.
        self._silent = False
        network.host(self.host).ends[self] = None

    # -- the transport --

    def write(self, data: bytes) -> None:
        if self._over or self._closing or not data:
            return
        network = self._network
        pieces = [data]
        if len(data) > 1 and network.dice.random() < network.streams.split:
            place = network.dice.randrange(1, len(data))
            pieces = [data[:place], data[place:]]
        for piece in pieces:
            for start in range(0, len(piece), network.streams.window_bytes):
                self._backlog.append(piece[start : start + network.streams.window_bytes])
        self._waiting_bytes += len(data)
        self._push()
        if self._waiting_bytes > self.buffer_bytes and not self._full:
            self._full = True
            if self.user is not None:
                self.user.congested()

    def close(self) -> None:
        """Send what was written, then the end; what still comes in is not looked at."""
        if not (self._over or self._closing):
            self._closing = True
            self._unread.clear()
            self._paused = False
            self._backlog.append(None)
            self._push()

    def abort(self) -> None:
        if self._over:
            return
        network = self._network
        if network.dice.random() < 0.5:
            self._void = True  # the reset overtakes, or the other side throws away what it has not read
        self._send_reset()
        self._end_soon()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._network.kernel.after(0.0, self._read_on)

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    # -- sending --

    def _latency(self) -> float:
        return self._network.latency(self.host, self.peer_host)

    def _push(self) -> None:
        """Send as much as the window takes."""
        window = self._network.streams.window_bytes
        while self._backlog:
            piece = self._backlog[0]
            size = 0 if piece is None else len(piece)
            if self._void or self.peer._over:
                self._nobody_answers()
                return
            if self._under_way and self._under_way + size > window:
                return
            self._backlog.popleft()
            self._under_way += size
            self._waiting_bytes -= size
            self._send(piece, size)

    def _send(self, piece: bytes | None, size: int) -> None:
        network = self._network
        now = network.kernel.now
        self._line_free = max(now, self._line_free) + size / network.path(self.host, self.peer_host).bytes_per_s
        self.last_arrival = max(self._line_free + self._latency(), self.last_arrival)
        network.kernel.at(self.last_arrival, self.peer.arrive, piece)
        if piece is None:
            self._end_soon()

    @property
    def expects_an_answer(self) -> bool:
        """Has anything been written that the other side has not confirmed?"""
        return bool(self._under_way or self._backlog)

    def _nobody_answers(self) -> None:
        """The stream is gone and we do not know: we repeat until somebody over there says so, or we lose patience."""
        if not self._silent:
            self._silent = True
            self._repeat(self._network.kernel.now + self._network.streams.timeout_s)

    def _repeat(self, patience_ends: float) -> None:
        network = self._network
        here, there = self.host, self.peer_host
        reaches = network.host(there).up and not network.is_cut(here, there) and not network.is_cut(there, here)
        if reaches and not self._void:
            network.kernel.after(2 * self._latency(), self.reset)
        elif network.kernel.now >= patience_ends:
            self.reset()
        elif not self._over:
            network.kernel.after(REPEAT_S, self._repeat, patience_ends)

    def _room(self, size: int) -> None:
        """The other side has read `size` bytes."""
        self._under_way -= size
        if self._backlog:
            self._push()
        if self._full and self._waiting_bytes <= self.buffer_bytes // 4:
            self._full = False
            if self.user is not None and not (self._over or self._closing):
                self.user.writable()

    # -- receiving --

    def arrive(self, piece: bytes | None) -> None:
        if self._over or self.peer._void:
            return
        if self._held or self._network.is_cut(self.peer_host, self.host):
            if not self._held:
                self._stall += 1
                self._network.stalled[self] = None
                self._network.kernel.after(self._network.streams.timeout_s, self._give_up, self._stall)
            self._held.append(piece)
            return
        self._take(piece)

    def release(self) -> None:
        """Bytes that a cut held back get through."""
        if self._network.is_cut(self.peer_host, self.host):
            return  # cut again meanwhile
        self._network.stalled.pop(self, None)
        held, self._held = self._held, []
        for piece in held:
            if not self._over:
                self._take(piece)

    def _give_up(self, stall: int) -> None:
        if self._held and self._stall == stall and not self._over:
            self.sever(silently=False)

    def _take(self, piece: bytes | None) -> None:
        if self._paused or self._unread:
            self._unread.append(piece)
        else:
            self._hand_over(piece)

    def _read_on(self) -> None:
        while self._unread and not self._paused and not self._over:
            self._hand_over(self._unread.popleft())

    def _hand_over(self, piece: bytes | None) -> None:
        if piece is None:
            self.reset()
            return
        if not self._closing and self.user is not None:
            self._network.kernel.tell(f"{self.address} < {self.peer.address} {len(piece)} {crc32(piece):08x}")
            self.user.received(piece)
        self.peer._room(len(piece))

    # -- the end --

    def _end_soon(self) -> None:
        """We ended it ourselves: our user hears of it in the next turn, as asyncio does it."""
        self._over = True
        self._forget()
        self._network.kernel.after(0.0, self._tell_lost)

    def _tell_lost(self) -> None:
        user, self.user = self.user, None
        if user is not None:
            user.lost()

    def reset(self) -> None:
        """The other side ended it, or the system gave it up."""
        if not self._over:
            self._over = True
            self._forget()
            self._tell_lost()

    @property
    def reaches(self) -> bool:
        """Would the other side hear of it if we broke the stream now?"""
        return not (self._over or self._severed or self._network.is_cut(self.host, self.peer_host))

    @property
    def was_left(self) -> bool:
        """Has its user closed it, before it heard of anything the other did?"""
        return self._closing

    @property
    def is_half_open(self) -> bool:
        return not self._over and (self._severed or (self.peer._over and not self.peer._closing))

    def _send_reset(self) -> None:
        if self._severed:
            return
        kernel = self._network.kernel
        kernel.at(max(self.last_arrival, kernel.now + self._latency()), self.peer._reset_arrives)

    def _reset_arrives(self) -> None:
        if not self._network.is_cut(self.peer_host, self.host):
            self.reset()

    def _forget(self) -> None:
        self._backlog.clear()
        self._unread.clear()
        self._held.clear()
        self._network.stalled.pop(self, None)
        self._network.host(self.host).ends.pop(self, None)

    def sever(self, *, silently: bool) -> None:
        """The stream breaks somewhere in between."""
        for end in (self, self.peer):
            end._void = end._severed = True
            if silently:
                if end.expects_an_answer:
                    end._nobody_answers()
            else:
                self._network.kernel.after(end._latency(), end.reset)

    def vanish(self, *, reset: bool) -> None:
        """Our process is gone; `reset`: its system tells the other side."""
        if self._over:
            return
        self._over = True
        self.user = None
        if reset:
            self._void = self._network.dice.random() < 0.5
            self._send_reset()
        else:
            self._void = True
            if self.peer.expects_an_answer:
                self.peer._nobody_answers()
        self._backlog.clear()
        self._unread.clear()
        self._held.clear()
        self._network.stalled.pop(self, None)
