"""One connection to a neighbour, from its first byte to its last: the handshake, then batches for the link it carries.

A channel checks what can be checked on its own (order, proofs, MACs, sizes, time) and asks its host, `Links`, about
everything that concerns more than one connection.  Once closed it ignores all further input.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from sterna.overlay import handshake
from sterna.overlay.batches import FRAME_HEAD_BYTES_MAX, BrokenBatch, Opener, Sealer
from sterna.overlay.handshake import (
    CHALLENGE,
    HELLO,
    PROOF,
    REFUSAL,
    WELCOME,
    HandshakeClaim,
    HandshakeError,
    LinkHandshake,
    Terms,
)
from sterna.overlay.link import Line, Link, LinkCounters, LinkTransport
from sterna.overlay.link_settings import GATHER_BYTES_MAX

if TYPE_CHECKING:
    from sterna.overlay.link_table import Links


class ChannelState(Enum):
    AWAITING_HELLO = "awaiting hello"
    AWAITING_CHALLENGE = "awaiting challenge"
    AWAITING_PROOF = "awaiting proof"
    AWAITING_WELCOME = "awaiting welcome"
    OPEN = "open"
    CLOSED = "closed"


OPEN: Final = ChannelState.OPEN
CLOSED: Final = ChannelState.CLOSED

#: The one message each state of the handshake goes on with; a refusal may come in any of them.
EXPECTED: dict[ChannelState, int] = {
    ChannelState.AWAITING_HELLO: HELLO,
    ChannelState.AWAITING_CHALLENGE: CHALLENGE,
    ChannelState.AWAITING_PROOF: PROOF,
    ChannelState.AWAITING_WELCOME: WELCOME,
}


class Channel:
    __slots__ = (
        "_blocked",
        "_buffer",
        "_handshake",
        "_host",
        "_received",
        "_sent",
        "_transport",
        "address",
        "certified",
        "claimed",
        "line",
        "link",
        "redundant",
        "refusal",
        "state",
        "terms",
    )

    def __init__(self, host: Links, transport: LinkTransport, address: str, *, is_dialler: bool) -> None:
        self._host = host
        self._transport = transport
        self.address = address
        #: Names in the certificate that the other side has shown.
        self.certified: frozenset[str] = frozenset()
        #: The other side's terms; believed only once it has proved itself.
        self.terms: Terms | None = None
        #: The session we said we hold.
        self.claimed = 0
        self.line: Line | None = None
        self.link: Link | None = None
        #: Why this connection was refused, by whichever side.
        self.refusal: str | None = None
        #: Nothing is wrong, but another connection to the same node goes before this one.
        self.redundant = False
        self._handshake = LinkHandshake(host.settings.key, is_dialler=is_dialler, speaks=host.settings.speaks)
        self._blocked = False
        self._buffer = b""
        self._sent = 0
        self._received = 0
        self.state = ChannelState.AWAITING_HELLO
        if is_dialler:
            self.state = ChannelState.AWAITING_CHALLENGE
            self._say(HELLO, host.terms())

    @property
    def peer(self) -> str | None:
        """Name of the node at the other end, as soon as it has said one."""
        return self.terms.node if self.terms is not None else None

    @property
    def version(self) -> int:
        """Of the link protocol, as both sides have agreed on."""
        return self._handshake.version

    @property
    def is_dialled(self) -> bool:
        """We made the connection."""
        return self._handshake.is_dialler

    @property
    def is_open(self) -> bool:
        return self.state is OPEN

    @property
    def is_closed(self) -> bool:
        return self.state is CLOSED

    # -- the world's side --

    def feed(self, data: bytes) -> None:
        if self.state is OPEN:
            self._open_batches(data)
        elif self.state is not CLOSED:
            self._received += len(data)
            self._buffer += data
            self._read_handshake()

    def lost(self) -> None:
        """The connection is gone."""
        self._close("link lost", "the connection was closed")

    def congested(self) -> None:
        """The transport has enough to do."""
        self._blocked = True
        if self.line is not None:
            self.line.blocked = True

    def writable(self) -> None:
        self._blocked = False
        line, link = self.line, self.link
        if line is not None:
            line.blocked = False
            if link is not None and link.line is line:
                link.pump()

    # -- the handshake --

    def _read_handshake(self) -> None:
        try:
            while self.state in EXPECTED:
                found = handshake.first_message(self._buffer)
                if found is None:
                    # Every message is far smaller, so this is somebody who sends on without waiting for us.
                    if len(self._buffer) > handshake.UNAUTHENTICATED_BYTES_MAX:
                        raise HandshakeError("no link of ours", answer=False)
                    return
                kind, body = found
                self._buffer = self._buffer[handshake.HEAD_BYTES + len(body) :]
                self._hear(kind, body)
        except HandshakeError as error:
            self.refuse(error.reason, answer=error.answer, told=error.told)
            return
        if self.state is OPEN and self._buffer:
            rest, self._buffer = self._buffer, b""
            self._open_batches(rest)

    def _hear(self, kind: int, body: bytes) -> None:
        if kind == REFUSAL:
            self.refusal, self.redundant = handshake.read_refusal(body)
            self._close("" if self.redundant else "link refused by peer", self.refusal)
            return
        if kind != EXPECTED[self.state]:
            raise HandshakeError("a handshake out of order", answer=False)
        if kind in (HELLO, CHALLENGE):
            self._hear_terms(kind, body)
        elif kind == PROOF:
            self._host.proved(self, self._handshake.hear_claim(kind, body))
        else:
            self._host.welcomed(self, self._handshake.hear_claim(kind, body))

    def _hear_terms(self, kind: int, body: bytes) -> None:
        self.terms = self._handshake.hear_terms(kind, body)
        objection = self._host.objection(self.terms)
        if objection is not None:
            raise HandshakeError(objection[0], told=objection[1])
        self._handshake.check(kind, body)
        if kind == CHALLENGE:
            self._host.challenged(self)
        else:
            self.state = ChannelState.AWAITING_PROOF
            self._say(CHALLENGE, self._host.terms())

    def prove(self, claim: HandshakeClaim) -> None:
        self.claimed = claim.session
        self.state = ChannelState.AWAITING_WELCOME
        self._say(PROOF, claim)

    def welcome(self, claim: HandshakeClaim) -> None:
        self._say(WELCOME, claim)

    def refuse(self, reason: str, *, answer: bool = True, is_redundant: bool = False, told: str = "") -> None:
        """End the handshake; tell the peer why if it can understand it, or as much of it as it may know."""
        self.refusal = reason
        self.redundant = is_redundant
        if answer:
            self._transport.write(handshake.refusal(told or reason, is_redundant=is_redundant))
        self._close("" if is_redundant else "link refused", reason, farewell=answer)

    def _say(self, kind: int, message: Terms | HandshakeClaim) -> None:
        data = self._handshake.say(kind, message)
        self._sent += len(data)
        self._transport.write(data)

    # -- batches --

    def open(self, counters: LinkCounters) -> Line:
        """The handshake is done: from here on every byte is part of a batch."""
        sending, receiving = self._handshake.keys()
        limit = GATHER_BYTES_MAX + self._host.settings.frame_bytes + FRAME_HEAD_BYTES_MAX
        counters.bytes_sent += self._sent
        counters.control_bytes += self._sent
        counters.bytes_received += self._received - len(self._buffer)
        self.state = OPEN
        sealer, opener = Sealer(sending, compress=self._host.settings.compress), Opener(receiving, limit)
        self.line = Line(self._transport, sealer, opener, counters, self._host.now(), self._blocked)
        return self.line

    def _open_batches(self, data: bytes) -> None:
        """HOT."""
        line, link = self.line, self.link
        if line is None or link is None:
            return
        line.counters.bytes_received += len(data)
        opener = line.opener
        opener.feed(data)
        try:
            # The receiver of frames may end the session over them.
            while self.state is OPEN and link.given_up is None:
                batch = opener.next()
                if batch is None:
                    if opener.progressed():
                        line.heard = self._host.now()
                    return
                line.heard = self._host.now()
                link.acknowledged(batch.ack)
                if batch.farewell:
                    self._host.farewell(self, handshake.legible(batch.farewell))
                elif batch.size:
                    link.take(batch.size)
                    self._host.deliver(link, batch.frames)
        except BrokenBatch as error:
            self._close("link broken", str(error))

    def say_farewell(self, reason: str) -> None:
        """The last word of a session that is given up."""
        line, link = self.line, self.link
        is_heard = line is not None and link is not None and not line.blocked
        if line is not None and link is not None and is_heard:
            line.write(link.received, reason[: handshake.REASON_CHARACTERS_MAX].encode() or b"?", farewell=True)
        self._close("", reason, farewell=is_heard)

    # -- the end --

    def pause_reading(self) -> None:
        if self.state is OPEN:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.state is OPEN:
            self._transport.resume_reading()

    def leave(self, reason: str) -> None:
        """The connection is not wanted any more, nor is the session it carries; the peer is told why."""
        if self.state is OPEN and self.link is not None:
            self._host.close(self.link.peer, reason)
        else:
            self.abandon()

    def abandon(self, event: str = "", reason: str = "") -> None:
        """Drop the connection without a word to the peer."""
        self._close(event, reason)

    def _close(self, event: str, reason: str, *, farewell: bool = False) -> None:
        if self.state is CLOSED:
            return
        self.state = CLOSED
        self._buffer = b""
        if farewell:
            self._transport.close()
        else:
            self._transport.abort()
        self._host.closed(self, event, reason)
