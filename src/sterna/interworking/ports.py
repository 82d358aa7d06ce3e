"""The services that the interworking core needs: of the world around it, and of the broker of its own node."""

from __future__ import annotations

from collections.abc import Callable
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


class Timer(Protocol):
    def cancel(self) -> object: ...


class World(Protocol):
    @property
    def now(self) -> float:
        """Seconds of a steady clock, at the beginning of this piece of work."""

    def dial(self, line: ForeignLine) -> None:
        """Connect to the foreign broker: `line.connected`, or `line.lost` with the reason, never at once."""

    def later(self, seconds: float, act: Callable[[], None]) -> Timer: ...

    def report(self, event: str, fields: dict[str, Any]) -> None:
        """Something an operator may want to know; with a field `reason` it is a warning."""


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

    def in_doubt(self) -> list[tuple[int, bytes, bytes]]:
        """Packet identifier, topic and payload of messages at QoS 2 that the foreign broker has received and not
        completed."""

    def end_session(self) -> None: ...

    def retained(self, topic: bytes) -> bytes | None:
        """The network's value: empty if it was cleared, None if there never was one."""

    def takes(self, topic: bytes) -> bool:
        """Would it take a message on this topic?"""

    def is_client_here(self, client_id: bytes) -> bool:
        """Is a client of this name connected to this very node?"""
