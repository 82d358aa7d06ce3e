"""The outbox of one client: bytes on their way to its transport.

An outbox belongs to a session and outlives its connections.  It gathers the packets of the current turn of the loop
and hands them to the transport in one piece; it knows whether the client keeps up.  While the client is away or too
slow the outbox is `congested`: the sender then drops QoS 0, and QoS 1 and 2 stay in the journal.
"""

from __future__ import annotations

from typing import Final, Protocol

from sterna.broker.counters import Counters
from sterna.vocabulary.drop_reasons import DropReason

#: Gathered bytes that are handed over at once instead of at the end of the turn, so that one turn cannot pile up.
FLUSH_BYTES = 256 * 1024

#: Kept for a client that is on its way here.
WAITING_BYTES_MAX = 256 * 1024


#: Why a session that has stopped takes nothing: it goes to another node, which may be too late for it.
MOVING: Final[DropReason] = "moving"
#: Why nothing is said about a message: another node gives it to the client, or counts it.
NOT_COUNTED: Final[DropReason] = ""


class Transport(Protocol):
    """The way to one client, given by the world."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None:
        """Send what was written, then close."""

    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class Outbox:
    __slots__ = ("_counters", "_dirty", "chunks", "congested", "delivered", "gathered", "instead", "sent", "transport")

    def __init__(self, dirty: list[Outbox], counters: Counters) -> None:
        self.chunks: list[bytes] = []
        self.gathered = 0
        #: True while nothing but control packets may be added: the client is away, or its socket is full.
        self.congested = True
        #: Why it takes nothing, if that is not its client's doing; NOT_COUNTED: none of our business.
        self.instead: DropReason | None = None
        #: PUBLISH packets it took, and bytes it handed over, since its client connected.
        self.delivered = self.sent = 0
        self.transport: Transport | None = None
        #: All outboxes with something to flush, shared by the whole broker.
        self._dirty = dirty
        self._counters = counters

    def send(self, data: bytes) -> None:
        """Add a packet.  The caller has looked at `congested` unless this is an answer the client waits for."""
        if not self.chunks:
            self._dirty.append(self)
        self.chunks.append(data)
        self.gathered += len(data)
        if self.gathered > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over what was gathered.  Safe to call when there is nothing."""
        chunks = self.chunks
        if not chunks:
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks = []
        self.gathered = 0
        if self.transport is not None:
            self._counters.bytes_sent += len(data)
            self.sent += len(data)
            self.transport.write(data)

    def why_not(self) -> DropReason:
        """The reason for which it did not take a message at QoS 0."""
        if self.instead is not None:
            return self.instead
        return "offline" if self.transport is None else "slow-consumer"

    def drop(self, count: int) -> None:
        """Messages at QoS 0 that it took and cannot give to anybody."""
        if count:
            self._counters.dropped("offline", count)

    def attach(self, transport: Transport) -> None:
        self.chunks = []
        self.gathered = self.delivered = self.sent = 0
        self.transport = transport
        self.congested = False

    def detach(self) -> None:
        """The connection is gone; what it had not taken is dropped here and kept, where promised, in the session."""
        self.flush()
        self.transport = None
        self.congested = True


class WaitingRoom:
    """In place of a transport while a client is on its way here from another node: keeps what it is given, within
    bounds, for the client to have after CONNACK."""

    def __init__(self, outbox: Outbox, version: int) -> None:
        self.version = version
        self._outbox = outbox
        self._kept: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        self._kept.append(data)
        self._size += len(data)
        if self._size > WAITING_BYTES_MAX:
            self._outbox.congested = True

    def kept(self) -> bytes:
        self._outbox.flush()
        return b"".join(self._kept)

    def taken(self) -> bytes:
        kept, self._kept = self.kept(), []
        return kept

    def give_up(self) -> None:
        """The client has not come, or takes other packets than these."""
        self._outbox.drop(packets_in(self.taken()))

    def get_write_buffer_size(self) -> int:
        return self._size

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def packets_in(data: bytes) -> int:
    """How many whole packets these are."""
    return len(packet_ends(data))


def packet_ends(data: bytes) -> list[int]:
    """Where each of these packets ends, as far as they are whole."""
    ends: list[int] = []
    place = 0
    while True:
        length = shift = 0
        place += 1
        while place < len(data) and shift <= 21:
            byte = data[place]
            length |= (byte & 0x7F) << shift
            shift += 7
            place += 1
            if byte < 0x80:
                break
        else:
            return ends
        place += length
        if place > len(data):
            return ends
        ends.append(place)


def send_to_all(outboxes: list[Outbox], data: bytes, packets: int, dirty: list[Outbox]) -> int:
    """HOT.  One piece of bytes, of so many packets, to many clients; how many of them did not take it.

    `Outbox.send` written out: the call alone would cost as much as the work.
    """
    size = len(data)
    missed = 0
    for outbox in outboxes:
        if outbox.congested:
            missed += 1
            continue
        chunks = outbox.chunks
        if not chunks:
            dirty.append(outbox)
        chunks.append(data)
        outbox.delivered += packets
        outbox.gathered += size
        if outbox.gathered > FLUSH_BYTES:
            outbox.flush()
    return missed
