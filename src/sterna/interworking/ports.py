"""The services that the interworking core needs: of the world around it, and of the broker of its own node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from sterna.interworking.foreign_line import ForeignLine


class Output(Protocol):
    """One connection, as a transport."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None:
        """Send what was written, then close."""

    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class ForeignTimer(Protocol):
    def cancel(self) -> object: ...


class ForeignWorld(Protocol):
    @property
    def now(self) -> float:
        """Seconds of a steady clock, at the beginning of this piece of work."""

    def dial(self, line: ForeignLine) -> None:
        """Connect to the foreign broker: `line.connected`, or `line.lost` with the reason, never at once."""

    def later(self, seconds: float, act: Callable[[], None]) -> ForeignTimer: ...

    def report(self, event: str, fields: dict[str, Any]) -> None:
        """Something an operator may want to know; with a field `reason` it is a warning."""


class StoredValue(NamedTuple):
    """A retained message."""

    topic: bytes
    payload: bytes
    qos: int
    properties: bytes
    """Those that travel with the message, encoded, without their length."""
    expiry_s: int | None


class InFlight(NamedTuple):
    """Messages that were in flight when the foreign broker lost its session, by what became of them."""

    repeated: int
    dropped: int
    unknown: int
    received: int


class OwnConnection(Protocol):
    """The connection to our own broker that speaks for the foreign one."""

    def feed(self, data: bytes) -> None: ...
    def lost(self) -> None: ...
    def congested(self) -> None: ...
    def writable(self) -> None: ...


class OwnBroker(Protocol):
    """Our own broker: the session of the foreign broker there, and the retained messages of the network."""

    @property
    def client_id(self) -> bytes:
        """Of that session."""

    @property
    def packet_bytes(self) -> int:
        """The largest packet it takes."""

    @property
    def receive_maximum(self) -> int: ...

    def has_session(self) -> bool: ...

    def filters(self) -> dict[bytes, int]:
        """Topic filters that the session is subscribed to, with the QoS."""

    def open(self, output: Output) -> OwnConnection:
        """A connection to our own broker; packets go to `output`."""

    def forget_exchanges(self) -> InFlight:
        """The foreign broker has lost its session; it is not connected."""

    def in_flight(self) -> list[tuple[int, int, bytes, bytes]]:
        """Packet identifier, QoS, topic and payload of messages that were sent to the foreign broker and not
        completed."""

    def end_session(self) -> None: ...

    def retained(self, topic: bytes) -> bytes | None:
        """The network's value: empty if it was cleared, None if there never was one."""

    def came_from_there(self, topic: bytes) -> bool:
        """Is the network's value one that came from the foreign broker?"""

    def retained_topics(self) -> Iterator[bytes]: ...

    def stored(self, topic: bytes) -> StoredValue | None:
        """The network's value with everything that belongs to it; empty if it was cleared."""

    def may_wait(self, topic: bytes) -> bool:
        """May the network's value be among the messages that wait for the foreign broker?"""

    def retain(self, value: StoredValue, *, silently: bool) -> None:
        """A value of the foreign broker becomes the network's; an empty one clears the topic.  `silently`: for later
        subscribers only, as present ones have had it."""

    def takes(self, topic: bytes) -> bool:
        """Would it take a message on this topic?"""

    def is_client_here(self, client_id: bytes) -> bool:
        """Is a client of this name connected to this very node?"""
