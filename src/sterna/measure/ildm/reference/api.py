"""The API of Table 1: session manager, message listener, event listener, status listener; `messages` is the generator.

An algorithm is a `Cooperation`: it implements the three listeners and is given the session manager.  Names follow the
paper's, in the spelling of this language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sterna.measure.ildm.reference.messages import MessageType
from sterna.measure.ildm.reference.states import SessionStatus


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(eq=False, slots=True)
class SessionInfo:
    """A session with a local client, the local broker or a neighbour."""

    number: int
    peer: str
    """The other end, for people."""
    status: SessionStatus = SessionStatus.CLOSED


class SessionManager(Protocol):
    def create_session(self, address: Address) -> SessionInfo:
        """To a neighbour or the local broker; established later, or reported to the event listener."""

    def close_session(self, session: SessionInfo) -> None:
        """After everything sent; a second time does nothing.  Of a pair both are closed."""

    def send_message(self, session: SessionInfo, message: bytes) -> bool:
        """False if the session is not established, or cannot take it."""

    def get_paired_session(self, session: SessionInfo) -> SessionInfo | None:
        """The broker's session of a client's, the client's of a broker's; None if it has no pair."""


class MessageListener(Protocol):
    def mqtt_message_arrived(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        """Once for each packet, in order per session."""


class EventListener(Protocol):
    def on_tcp_down(self, session: SessionInfo) -> None:
        """The connection ended though nobody here closed it, or could not be made."""

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        """The bytes received are no MQTT packets, or an algorithm failed at one; the session ends."""


class StatusListener(Protocol):
    def on_session_established(self, session: SessionInfo) -> None: ...

    def on_session_closed(self, session: SessionInfo) -> None: ...

    def on_ildm_stop(self) -> None:
        """Just before the node ends."""

    def on_ildm_add(self, address: Address) -> None:
        """Add this neighbour."""

    def on_ildm_remove(self, address: Address) -> None:
        """Remove this neighbour."""


class Cooperation(MessageListener, EventListener, StatusListener, Protocol):
    """A cooperation algorithm."""
