"""A link session: frames to one neighbour, each exactly once and in order, over as many connections as it takes.

Frames gather during a turn and leave as one batch; both sides count batches.  A batch is kept until the neighbour has
acknowledged it and sent again when a connection is lost before that.  When too much is kept, or nobody connects in
time, the session is over: nothing more is delivered in it, and both sides know that they must agree again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sterna.overlay.batches import HEAD_BYTES, LOW, BrokenBatch, Opener, Sealer, frame_head
from sterna.overlay.link_settings import LinkSettings

#: Times `resend_bytes`: what may wait of frames that are needed.
NEEDED_MAX: Final = 8


class LinkTransport(Protocol):
    """One connection to the other end, as the world gives it to us."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None:
        """Send what was written, then close."""

    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


@dataclass(slots=True)
class LinkCounters:
    """Of all sessions with one peer together."""

    messages: int = 0
    """Frames given to `send`."""
    bytes_sent: int = 0
    """Every byte written to connections, handshakes included."""
    bytes_received: int = 0
    control_bytes: int = 0
    """Those of `bytes_sent` that carry no message: handshakes, heads of batches, acknowledgements, keep-alives, and
    what frames named to `note_control` took on the way."""
    resends: int = 0
    """Frames written again because a connection was lost before they were acknowledged."""
    resumptions: int = 0
    """Connections that carried on a session."""
    sessions: int = 0


class Line:
    """One authenticated connection that carries a session."""

    __slots__ = ("_sealer", "_transport", "blocked", "counters", "heard", "opener", "sent")

    def __init__(
        self,
        transport: LinkTransport,
        sealer: Sealer,
        opener: Opener,
        counters: LinkCounters,
        now: float,
        blocked: bool,
    ) -> None:
        self._transport = transport
        self._sealer = sealer
        self.opener = opener
        self.counters = counters
        #: The transport has enough to do: batches wait here instead of there.
        self.blocked = blocked
        self.heard = now
        self.sent = now

    def write(self, ack: int, payload: bytes, control: int = 0, like: bytes = b"", farewell: bool = False) -> None:
        """`control` bytes of the payload are no messages; what is `like` it was sent before it, if anything was."""
        data, head = self._sealer.seal(ack, payload, like, farewell)
        self.counters.bytes_sent += len(data)
        if farewell:
            head = len(data)
        elif control:
            head += (len(data) - head) * control // len(payload)  # of what is deflated, its share
        self.counters.control_bytes += head
        self._transport.write(data)


class _Kept:
    """A batch that is not acknowledged yet."""

    __slots__ = ("control", "frames", "like", "number", "payload")

    def __init__(self, number: int, payload: bytes, frames: int, control: int, like: bytes) -> None:
        self.number = number
        self.payload = payload
        self.frames = frames
        self.control = control
        self.like = like


class Link:
    """The session.  A fresh session with the same peer is another Link; one that has ended swallows what it is sent."""

    __slots__ = (
        "_ack_bytes",
        "_acked",
        "_allowance",
        "_batch_bytes",
        "_congested_at",
        "_control",
        "_dirty",
        "_frames",
        "_gathered",
        "_is_dirty",
        "_kept_bytes",
        "_like",
        "_now",
        "_parts",
        "_relieved",
        "_resend_bytes",
        "_sent",
        "_to_acknowledge",
        "_unacknowledged",
        "_unsent",
        "_unwritten",
        "congested",
        "counters",
        "ended",
        "frame_bytes",
        "given_up",
        "line",
        "losses",
        "number",
        "peer",
        "peer_attachments",
        "peer_epoch",
        "peer_incarnation",
        "received",
        "session_id",
        "version",
    )

    def __init__(
        self,
        peer: str,
        session_id: int,
        settings: LinkSettings,
        counters: LinkCounters,
        *,
        dirty: list[Link],
        now: Callable[[], float],
        relieved: Callable[[Link], None],
    ) -> None:
        self.peer = peer
        self.session_id = session_id
        self.peer_epoch = 0
        self.peer_incarnation = b""
        #: Of the link protocol: the newest that both sides speak.
        self.version = settings.speaks.oldest
        #: The newest count of connections the peer has told; a claim with a smaller one was made before that.
        self.peer_attachments = 0
        #: Largest body `send` takes; a larger one ends the session, for it would be missing in it.
        self.frame_bytes = settings.frame_bytes
        #: Half of what may wait for acknowledgement does, or the session is given up: whoever can drop or hold back
        #: frames should.
        self.congested = False
        self.counters = counters
        #: Why the session is given up, as soon as it is; it ends at the next flush.
        self.given_up: str | None = None
        self.ended = False
        self.line: Line | None = None
        #: Connections lost so far: a timer can tell whether its loss was the last.
        self.losses = 0
        #: Of the last batch made and the last batch received.
        self.number = 0
        self.received = 0
        self._acked = 0
        self._parts: list[bytes] = []
        self._frames = 0
        self._gathered = 0
        #: Of what is gathered, the bytes that are no messages.
        self._control = 0
        #: `like` of the frame that is gathered, if it is alone.
        self._like = b""
        self._unsent: deque[_Kept] = deque()
        self._sent: deque[_Kept] = deque()
        #: Their contents when the session was given up.
        self._unwritten: list[tuple[int, bytes]] = []
        self._unacknowledged: list[tuple[int, bytes]] = []
        self._kept_bytes = 0
        #: Bytes beyond `resend_bytes` that are no reason to give the session up.
        self._allowance = 0
        self._to_acknowledge = 0
        #: All links with something to flush, shared by all of the node's.
        self._dirty = dirty
        self._is_dirty = False
        self._now = now
        self._relieved = relieved
        self._batch_bytes = settings.batch_bytes
        self._ack_bytes = settings.ack_bytes
        self._resend_bytes = settings.resend_bytes
        self._congested_at = settings.resend_bytes // 2

    @property
    def connected(self) -> bool:
        """A connection carries the session right now; otherwise it waits for one."""
        return self.line is not None

    @property
    def unacknowledged_bytes(self) -> int:
        return self._kept_bytes + self._gathered

    # -- sending --

    def send(self, kind: int, body: bytes, like: bytes = b"") -> None:
        """HOT.  Add a frame to what goes out at the end of this turn.  Those with the same `like` differ in little."""
        if self.given_up is not None:
            return
        size = len(body)
        if size > self.frame_bytes:
            self.restart(f"a frame of {size} bytes; {self.frame_bytes} is the most both sides take")
            return
        head = frame_head(kind, size)
        self._parts.append(head)
        self._parts.append(body)
        self._like = b"" if self._frames else like
        self._frames += 1
        self._gathered += len(head) + size
        self.counters.messages += 1
        if not self._is_dirty:
            self._is_dirty = True
            self._dirty.append(self)
        waiting = self._kept_bytes + self._gathered
        if waiting > self._congested_at:
            self._press(waiting)
        if self._gathered >= self._batch_bytes:
            self._close_batch()
            self.pump()

    def send_needed(self, kind: int, body: bytes) -> None:
        """A frame that would come again in the next session: that there are many is no reason to give this one up."""
        self._allowance = min(self._allowance + len(body) + HEAD_BYTES, NEEDED_MAX * self._resend_bytes)
        self.send(kind, body)

    def note_control(self, size: int) -> None:
        """So many bytes of the frame that is sent next, head included, are no messages."""
        self._control += size

    def restart(self, reason: str) -> None:
        """Give this session up: at the next flush it ends on both sides, and the next connection starts a fresh one."""
        if self.given_up is None:
            self.given_up = reason
            self.congested = True
            self._forget()
            self._mark()

    def flush(self) -> None:
        """Hand over what was gathered and acknowledge what is due."""
        self._is_dirty = False
        if self._parts:
            self._close_batch()
        self.pump()
        line = self.line
        if line is not None and not line.blocked and self._to_acknowledge >= self._ack_bytes:
            self._write(line, b"", 0, b"")

    def pump(self) -> None:
        """Write what waits, as long as the connection takes it."""
        line = self.line
        while line is not None and not line.blocked and self._unsent:
            kept = self._unsent.popleft()
            self._sent.append(kept)
            self._write(line, kept.payload, kept.control, kept.like)
            line = self.line

    def keep_alive(self, line: Line) -> None:
        if line.blocked:
            line.sent = self._now()  # Bytes that the transport still holds keep the connection alive.
        else:
            self._write(line, b"", 0, b"")

    def _write(self, line: Line, payload: bytes, control: int, like: bytes) -> None:
        self._to_acknowledge = 0
        line.sent = self._now()
        line.write(self.received, payload, control, like)

    def _close_batch(self) -> None:
        payload = b"".join(self._parts)
        self.number += 1
        self._unsent.append(_Kept(self.number, payload, self._frames, self._control, self._like))
        self._kept_bytes += len(payload)
        self._parts = []
        self._frames = 0
        self._gathered = 0
        self._control = 0

    def _press(self, waiting: int) -> None:
        self.congested = True
        if waiting > self._resend_bytes + self._allowance:
            self.restart(f"{waiting} bytes were not acknowledged in time")

    def _mark(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._dirty.append(self)

    # -- receiving --

    def acknowledged(self, low: int) -> None:
        """The peer has every batch up to the number with these lowest bits."""
        news = (low - self._acked) & LOW
        if not news:
            return
        last_sent = self._sent[-1].number if self._sent else self._acked
        if news > last_sent - self._acked:
            raise BrokenBatch("an acknowledgement of what was never sent")
        self._acked += news
        self._drop_acknowledged(self._sent)
        self._allowance = min(self._allowance, self.unacknowledged_bytes)
        self._relieve()

    def take(self, size: int) -> None:
        """A batch with frames came in; they may be delivered if this returns."""
        self.received += 1
        self._to_acknowledge += size + HEAD_BYTES
        if self._to_acknowledge >= self._ack_bytes:
            self._mark()

    def _drop_acknowledged(self, batches: deque[_Kept]) -> None:
        while batches and batches[0].number <= self._acked:
            self._kept_bytes -= len(batches.popleft().payload)

    def _relieve(self) -> None:
        # Room for as much again as was too much: no flutter around the mark.
        if self.congested and self.given_up is None and self.unacknowledged_bytes <= self._congested_at // 2:
            self.congested = False
            self._relieved(self)

    # -- connections --

    def can_resume(self, received: int) -> bool:
        """Whether a peer that has our batches up to this one can be sent the rest."""
        return self.given_up is None and self._acked <= received <= self.number

    def attach(self, line: Line, received: int) -> None:
        """Go on over this connection, from the batch after the one the peer has."""
        again = self._sent
        self._acked = received
        self._drop_acknowledged(again)
        self.counters.resends += sum(kept.frames for kept in again)
        again.extend(self._unsent)
        self._unsent = again
        self._drop_acknowledged(self._unsent)
        self._sent = deque()
        self.line = line
        self._relieve()
        self.pump()

    def detach(self) -> None:
        self.line = None
        self.losses += 1

    def end(self) -> None:
        self.ended = True
        self.line = None
        if self.given_up is None:
            self.given_up = "the session has ended"
        self._forget()

    def leftovers(self) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """When the session was given up, the batches that were not written, and those that were not acknowledged, by
        their numbers: what may have been lost with it.  Told once."""
        unwritten, self._unwritten = self._unwritten, []
        unacknowledged, self._unacknowledged = self._unacknowledged, []
        return unwritten, unacknowledged

    def _forget(self) -> None:
        if self._parts:
            self._close_batch()
        self._unwritten += [(kept.number, kept.payload) for kept in self._unsent]
        self._unacknowledged += [(kept.number, kept.payload) for kept in self._sent]
        self._unsent.clear()
        self._sent.clear()
        self._kept_bytes = 0
