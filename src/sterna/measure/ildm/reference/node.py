"""The node below the algorithms: sessions, their pairs, and who hears of what.  No sockets: a `World` has them.

A client that connects gets a session with the local broker of its own; the two are a pair until one of them ends.  The
client's bytes wait until the broker's session is established.  A client whose broker cannot be reached is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sterna.measure.ildm.reference.api import Address, Cooperation, SessionInfo
from sterna.measure.ildm.reference.messages import PACKET_BYTES_MAX, MessageType, PacketStream, create_mqtt_message
from sterna.measure.ildm.reference.states import NODE_STEPS, SESSION_STEPS, NodeStatus, SessionStatus, step

SERVER_UNAVAILABLE = 3


class NodeTransport(Protocol):
    """One TCP connection."""

    def write(self, data: bytes) -> bool:
        """False if it takes no more."""

    def hold(self, *, held: bool) -> None:
        """Read no further, or again."""

    def close(self) -> None:
        """After everything written."""


Dial = Callable[[Address, SessionInfo], None]
"""Connect, and call `established` or `lost`."""


@dataclass(slots=True)
class _NodeConnection:
    transport: NodeTransport | None
    stream: PacketStream
    pair: SessionInfo | None = None
    early: bytes = b""
    """Of a client whose broker is not there yet."""


class IldmNode:
    """A `SessionManager` that an algorithm is started on."""

    def __init__(self, broker: Address, dial: Dial, algorithm: Callable[[IldmNode], Cooperation]) -> None:
        self.broker = broker
        self.status = NodeStatus.STOPPED
        self._dial = dial
        self._connections: dict[SessionInfo, _NodeConnection] = {}
        self._numbers = 0
        self._algorithm = algorithm(self)

    # --- the session manager --------------------------------------------------------------------------------------

    def create_session(self, address: Address) -> SessionInfo:
        session = self._new(str(address))
        self._connections[session] = _NodeConnection(None, PacketStream())
        self._dial(address, session)
        return session

    def close_session(self, session: SessionInfo) -> None:
        connection = self._connections.get(session)
        if connection is None:
            return
        if session.status is SessionStatus.ESTABLISHED:
            self._step(session, "termination begins")
        self._end(session)

    def send_message(self, session: SessionInfo, message: bytes) -> bool:
        """HOT."""
        connection = self._connections.get(session)
        if connection is None or connection.transport is None or session.status is not SessionStatus.ESTABLISHED:
            return False
        return connection.transport.write(message)

    def get_paired_session(self, session: SessionInfo) -> SessionInfo | None:
        connection = self._connections.get(session)
        return connection.pair if connection else None

    # --- the world ------------------------------------------------------------------------------------------------

    def accepted(self, transport: NodeTransport, peer: str) -> SessionInfo:
        """Somebody connected: a client, or a neighbour, which its CONNECT will tell."""
        client = self._new(peer)
        own = _NodeConnection(transport, PacketStream())
        self._connections[client] = own
        transport.hold(held=True)
        own.pair = broker = self._new(f"broker {self.broker}")
        self._connections[broker] = _NodeConnection(None, PacketStream(), pair=client)
        self._step(client, "TCP connection established")
        self._algorithm.on_session_established(client)
        self._dial(self.broker, broker)
        return client

    def established(self, session: SessionInfo, transport: NodeTransport) -> bool:
        """False if it is wanted no more."""
        connection = self._connections.get(session)
        if connection is None:
            return False
        connection.transport = transport
        self._step(session, "TCP connection established")
        self._algorithm.on_session_established(session)
        if connection.pair is not None:
            self._release(connection.pair)
        return True

    def _release(self, client: SessionInfo) -> None:
        """Its broker is there: hear what it said meanwhile."""
        connection = self._connections[client]
        if connection.transport is not None:
            connection.transport.hold(held=False)
        early, connection.early = connection.early, b""
        if early:
            self.received(client, early)

    def received(self, session: SessionInfo, data: bytes) -> None:
        """HOT."""
        connection = self._connections.get(session)
        if connection is None:
            return
        if connection.pair is not None and connection.pair.status is not SessionStatus.ESTABLISHED:
            self._keep(session, connection, data)
            return
        try:
            arrived = self._algorithm.mqtt_message_arrived
            for kind, message in connection.stream.feed(data):
                arrived(session, kind, message)
                if session not in self._connections:
                    return
        except Exception as error:
            if session in self._connections:
                self._algorithm.on_recv_failure(session, error)
                self.close_session(session)

    def _keep(self, session: SessionInfo, connection: _NodeConnection, data: bytes) -> None:
        """A transport that is held may still hand over what it had read."""
        connection.early += data
        if len(connection.early) > PACKET_BYTES_MAX:
            self.close_session(session)

    def lost(self, session: SessionInfo) -> None:
        """The connection ended by itself, or could not be made."""
        connection = self._connections.get(session)
        if connection is None:
            return
        if session.status is SessionStatus.ESTABLISHED:
            self._step(session, "termination begins")
        elif connection.pair is not None:
            # The client would wait for an answer of a broker that nobody reached.
            refusal = create_mqtt_message(MessageType.CONNACK, code=SERVER_UNAVAILABLE)
            self.send_message(connection.pair, refusal)
        self._algorithm.on_tcp_down(session)
        self._end(session)

    # --- the operator ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.status = step(NODE_STEPS, self.status, "start")

    def add(self, address: Address) -> None:
        self.status = step(NODE_STEPS, self.status, "add a neighbour")
        self._algorithm.on_ildm_add(address)
        self.status = step(NODE_STEPS, self.status, "added")

    def remove(self, address: Address) -> None:
        self.status = step(NODE_STEPS, self.status, "remove a neighbour")
        self._algorithm.on_ildm_remove(address)
        self.status = step(NODE_STEPS, self.status, "removed")

    def stop(self) -> None:
        self.status = step(NODE_STEPS, self.status, "stop")
        self._algorithm.on_ildm_stop()
        for session in list(self._connections):
            self.close_session(session)

    # --- inside ---------------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> list[SessionInfo]:
        return list(self._connections)

    def _new(self, peer: str) -> SessionInfo:
        self._numbers += 1
        return SessionInfo(self._numbers, peer)

    def _end(self, session: SessionInfo) -> None:
        connection = self._connections.pop(session)
        if session.status is SessionStatus.TERMINATING:
            self._step(session, "termination is finished")
            self._algorithm.on_session_closed(session)
        if connection.transport is not None:
            connection.transport.close()
        if connection.pair is not None and connection.pair in self._connections:
            self.close_session(connection.pair)

    def _step(self, session: SessionInfo, event: str) -> None:
        session.status = step(SESSION_STEPS, session.status, event)
