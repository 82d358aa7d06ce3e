"""Link sessions on the radio, as the overlay `mobile` asks for them: in order, nothing twice, and all or an end.

A station that is to dial opens a session with its peer; both count it from then on.  All that is said within a turn
goes as one batch, in frames of at most `PART_BYTES`, one after the other.  A frame that is not acknowledged goes again
for `PATIENCE_S`, after pauses that double, as TCP would do; then the session ends, or before, when the overlay says so.
The peer learns it from the next session, or from the answer to what it says in the old one.  The one that dialled says
something at least every `KEEP_ALIVE_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

import msgspec

from sterna.overlay.mobile import MobileOverlay
from sterna.simulation.papers.messages import Name
from sterna.simulation.papers.overlay_tree import HelloDatagram
from sterna.simulation.radio.port import RadioPort

PART_BYTES = 100
"""A CC2420 sends frames of at most 127 bytes, headers included."""
HEADER_BYTES = 18
"""Of the network (10), and of a batch with its MAC (8)."""
GATHER_S = 0.002
KEEP_ALIVE_S = 10.0
PATIENCE_S = 3.0
RESEND_S = 0.3
AGAIN_S, AGAIN_MAX_S = 0.5, 4.0
"""Until a peer that did not answer is dialled again, at first and at most."""
INTERRUPTED_TRIES = 2
"""The overlay hears of a link on which a frame has not been acknowledged so often."""


class LinkOpen(msgspec.Struct, frozen=True):
    session: int

    @property
    def size(self) -> int:
        return HEADER_BYTES + 24


class LinkOpened(LinkOpen, frozen=True):
    """The answer."""


class LinkReset(LinkOpen, frozen=True):
    """There is no such session."""


class LinkPart(msgspec.Struct, frozen=True):
    """A part of a batch that is too long for one frame; the last has all of it."""

    session: int
    number: int

    @property
    def size(self) -> int:
        return HEADER_BYTES + PART_BYTES


class LinkBatch(msgspec.Struct, frozen=True):
    """Routing frames and others that say where messages are to go."""

    session: int
    number: int
    bodies: tuple[Any, ...]
    content_bytes: int
    """Of this last part."""

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.content_bytes


class EventBatch(LinkBatch, frozen=True):
    """A batch with events in it, counted apart."""


class PaperLinkUser:
    """The node above the links."""

    def link_started(self, peer: Name) -> None: ...
    def link_ended(self, peer: Name) -> None: ...
    def received(self, peer: Name, body: Any) -> None: ...


class RadioSession:
    """One end of a link."""

    __slots__ = ("failing_since", "got", "heard_at", "identity", "is_busy", "queue", "said", "said_at", "tries")

    def __init__(self, identity: int, now: float) -> None:
        self.identity = identity
        self.queue: deque[LinkPart | LinkBatch] = deque()
        self.is_busy = False
        """Whether the first of the queue is under way."""
        self.said = 0
        self.said_at = now
        self.got = 0
        self.heard_at = now
        self.failing_since: float | None = None
        self.tries = 0
        """Of the first of the queue, after the radio's own."""


class RadioLinks:
    """The overlay's world: its links, and its hellos."""

    def __init__(self, port: RadioPort, user: PaperLinkUser, carries_events: Callable[[Any], bool]) -> None:
        self.sessions: dict[Name, RadioSession] = {}
        self.overlay: MobileOverlay
        self.changes = 0
        self.hops = 0
        self._port = port
        self._user = user
        self._carries_events = carries_events
        self._number = 0
        self._dial: dict[Name, None] = {}
        self._opening: dict[Name, int] = {}
        self._again_s: dict[Name, float] = {}
        """Until it is dialled again."""
        self._pending: dict[Name, list[tuple[Any, int]]] = {}
        self._last_parent: Name | None = None
        port.when_delivered(self._delivered)

    def send(self, peer: Name, body: Any, size: int) -> None:
        """With what else is said to this neighbour in the turn."""
        if peer in self.sessions:
            if not self._pending:
                self._port.after(GATHER_S, self._flush)
            self._pending.setdefault(peer, []).append((body, size))

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for peer, said in pending.items():
            session = self.sessions.get(peer)
            if session is not None:
                self._send_batch(peer, session, said)

    def _send_batch(self, peer: Name, session: RadioSession, said: list[tuple[Any, int]]) -> None:
        session.said_at = self._port.now
        total = sum(size for _, size in said)
        while total > PART_BYTES:
            session.said += 1
            session.queue.append(LinkPart(session.identity, session.said))
            total -= PART_BYTES
        session.said += 1
        bodies = tuple(body for body, _ in said)
        batch = EventBatch if any(map(self._carries_events, bodies)) else LinkBatch
        session.queue.append(batch(session.identity, session.said, bodies, total))
        self._push(peer, session)

    def _push(self, peer: Name, session: RadioSession) -> None:
        if session.queue and not session.is_busy and self.sessions.get(peer) is session:
            session.is_busy = True
            self._port.send(session.queue[0], peer)

    def _delivered(self, message: Any, to: Name) -> None:
        session = self.sessions.get(to)
        if session is not None and session.queue and session.queue[0] is message:
            session.queue.popleft()
            session.heard_at = self._port.now
            session.is_busy, session.failing_since, session.tries = False, None, 0
            self._push(to, session)

    def undelivered(self, message: Any, to: Name) -> None:
        if isinstance(message, LinkOpen):
            self._opening.pop(to, None)
            self._again_s[to] = min(AGAIN_MAX_S, 2 * self._again_s.get(to, AGAIN_S / 2))
            self._port.after(self._again_s[to], self._open, to)
            return
        session = self.sessions.get(to)
        if session is None or not session.queue or session.queue[0] is not message:
            return
        now = self._port.now
        session.failing_since = session.failing_since or now
        if now - session.failing_since > PATIENCE_S:
            self._end(to)
        else:
            pause_s = RESEND_S * 2**session.tries
            session.tries += 1
            if session.tries == INTERRUPTED_TRIES:
                self.overlay.link_interrupted(to)
            self._port.after(pause_s * (0.5 + self._port.random()), self._push_again, to, session)

    def _push_again(self, peer: Name, session: RadioSession) -> None:
        session.is_busy = False
        self._push(peer, session)

    def heard(self, message: Any, sender: Name) -> None:
        match message:
            case HelloDatagram(data=data):
                self.overlay.datagram(sender, data)
            case LinkOpened(session=session):
                if self._opening.get(sender) == session:
                    del self._opening[sender]
                    self._start(sender, session)
            case LinkReset(session=session):
                if sender in self.sessions and self.sessions[sender].identity == session:
                    self._end(sender)
            case LinkOpen(session=session):
                self._end(sender)
                self._port.send(LinkOpened(session), sender)
                self._start(sender, session)
            case LinkPart() | LinkBatch():
                self._said(sender, message)

    def _said(self, sender: Name, message: LinkPart | LinkBatch) -> None:
        session = self.sessions.get(sender)
        if session is None or session.identity != message.session:
            if sender not in self._opening:
                self._port.send(LinkReset(message.session), sender)
            return
        session.heard_at = self._port.now
        if message.number <= session.got:
            return  # its acknowledgement was lost
        session.got = message.number
        for body in message.bodies if isinstance(message, LinkBatch) else ():
            if self.sessions.get(sender) is session:
                self._user.received(sender, body)

    def _open(self, peer: Name) -> None:
        if peer in self._dial and peer not in self.sessions and peer not in self._opening:
            self._number += 1
            session = hash((self._number, int(self._port.now * 1e6))) & 0xFFFF_FFFF
            self._opening[peer] = session
            self._port.send(LinkOpen(session), peer)

    def _start(self, peer: Name, identity: int) -> None:
        self._end(peer)
        self._again_s.pop(peer, None)
        session = self.sessions[peer] = RadioSession(identity, self._port.now)
        if peer in self._dial:
            self._port.after(KEEP_ALIVE_S, self._keep_alive, peer, session)
        self.overlay.link_started(peer)
        self._user.link_started(peer)

    def _keep_alive(self, peer: Name, session: RadioSession) -> None:
        if self.sessions.get(peer) is not session:
            return
        if self._port.now - session.said_at >= KEEP_ALIVE_S:
            self._send_batch(peer, session, [])
        self._port.after(KEEP_ALIVE_S, self._keep_alive, peer, session)

    def _end(self, peer: Name) -> None:
        if self.sessions.pop(peer, None) is None:
            return
        self._pending.pop(peer, None)
        self.overlay.link_ended(peer)
        self._user.link_ended(peer)
        self._port.after(AGAIN_S, self._open, peer)

    # The overlay's world.

    def send_datagram(self, address: str, data: bytes) -> None:
        """Nobody is spoken to alone."""

    def send_discovery(self, data: bytes) -> None:
        self._port.broadcast(HelloDatagram(data))

    def hold_links(self, dial: dict[str, str]) -> None:
        gone = [peer for peer in self._dial if peer not in dial]
        self._dial = dict.fromkeys(dial)
        for peer in gone:
            self.drop_link(peer, "")
        for peer in dial:
            self._open(peer)

    def drop_link(self, peer: str, reason: str) -> None:
        self._opening.pop(peer, None)
        if (session := self.sessions.get(peer)) is not None:
            self._end(peer)
            self._port.send(LinkReset(session.identity), peer)

    def silent_s(self, peer: str) -> float:
        session = self.sessions.get(peer)
        return inf if session is None else self._port.now - session.heard_at

    def report(self, event: str, **fields: object) -> None:
        if event == "parent-changed":
            parent, hops = fields["parent"], fields["hops"]
            assert isinstance(hops, int)
            self.hops = hops if parent else 0
            if parent and parent != self._last_parent:
                self.changes += self._last_parent is not None
                self._last_parent = str(parent)
