"""The common half of PF and SF (section 4): relays clients, knows the neighbours, transfers publications.

Neighbours are told from clients by a mark in the client identifier of their CONNECT, as in the paper: a client that
uses the mark passes for a neighbour.  Both sides send a CONNECT, so both know the other's name.  The connections to one
neighbour are used in turn, so messages may overtake each other when there is more than one.  Transfers are QoS 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sterna.measure.ildm.reference.api import Address, SessionInfo, SessionManager
from sterna.measure.ildm.reference.messages import (
    ConnectFields,
    MessageType,
    create_mqtt_message,
    read_connect,
    read_publish,
)
from sterna.measure.ildm.reference.states import SessionStatus

MARK = "ILDM:"
LEVEL = 4
UNACCEPTABLE_LEVEL = 1


@dataclass(slots=True)
class Neighbour:
    name: str
    sessions: list[SessionInfo] = field(default_factory=list)
    turn: int = 0


@dataclass(slots=True)
class LocalClient:
    connect: ConnectFields
    is_connected: bool = False
    """The broker took its CONNECT."""
    said_goodbye: bool = False


Take = Callable[[SessionInfo, MessageType, bytes], None]


class Neighbourhood:
    """Subclasses decide which neighbours a publication goes to (`targets`), and follow clients' subscriptions."""

    def __init__(self, manager: SessionManager, name: str, broker: Address, connections: int = 1) -> None:
        self._manager = manager
        self.name = name
        self._broker = broker
        self._connections = connections
        self.neighbours: dict[str, Neighbour] = {}
        self.transferred = 0
        self._clients: dict[SessionInfo, LocalClient] = {}
        self._take: dict[SessionInfo, Take] = {}
        self._names: dict[SessionInfo, str] = {}
        self._injectors: dict[SessionInfo, SessionInfo] = {}
        """A session of a neighbour -> the broker's session that its publications go into."""
        self._dialled: dict[SessionInfo, Address] = {}

    # --- what an algorithm decides --------------------------------------------------------------------------------

    def targets(self, message: bytes, source: str | None) -> Iterable[Neighbour]:
        """The neighbours a publication goes to, never back to `source`."""
        raise NotImplementedError

    def will_targets(self, message: bytes) -> Iterable[Neighbour]:
        return self.targets(message, None)

    def neighbour_joined(self, name: str) -> None:
        """Its first connection is there."""

    def neighbour_left(self, name: str) -> None:
        """Its last connection is gone, or it is being removed."""

    def neighbour_said(self, name: str, kind: MessageType, message: bytes) -> None:
        """A control message of a neighbour."""

    def client_asked(self, client: SessionInfo, kind: MessageType, message: bytes) -> None:
        """A client's SUBSCRIBE or UNSUBSCRIBE was relayed."""

    def broker_granted(self, client: SessionInfo, kind: MessageType, message: bytes) -> None:
        """The broker's answer was relayed."""

    def client_came(self, client: LocalClient) -> None:
        """The broker took its CONNECT."""

    def client_left(self, client: LocalClient) -> None: ...

    # --- message listener -----------------------------------------------------------------------------------------

    def mqtt_message_arrived(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        """HOT."""
        self._take[session](session, kind, message)

    def _first_words(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        """Of a connection that was accepted: a client or a neighbour."""
        connect = read_connect(message) if kind is MessageType.CONNECT else None
        if connect is None or connect.level != LEVEL:
            self._manager.send_message(session, create_mqtt_message(MessageType.CONNACK, code=UNACCEPTABLE_LEVEL))
            self._manager.close_session(session)
            return
        broker = self._manager.get_paired_session(session)
        assert broker is not None, "its bytes wait until the broker's session is there"
        if connect.client_id.startswith(MARK):
            self._take[broker] = _ignore
            self._greet_broker(broker)
            self._injectors[session] = broker
            self._manager.send_message(session, create_mqtt_message(MessageType.CONNACK))
            self._introduce(session)
            self._join(session, connect)
            return
        self._clients[session] = LocalClient(connect)
        self._take[session] = self._from_client
        self._manager.send_message(broker, message)

    def _from_client(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        """HOT."""
        manager = self._manager
        broker = manager.get_paired_session(session)
        assert broker is not None, "a client without its broker is closed"
        manager.send_message(broker, message)
        if kind is MessageType.PUBLISH:
            self._transfer(self.targets(message, None), message)
        elif kind in (MessageType.SUBSCRIBE, MessageType.UNSUBSCRIBE):
            self.client_asked(session, kind, message)
        elif kind is MessageType.DISCONNECT:
            self._clients[session].said_goodbye = True

    def _from_broker(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        """HOT.  A session of the broker that is the pair of a client's."""
        client = self._manager.get_paired_session(session)
        assert client is not None, "a broker's session without its client is closed"
        self._manager.send_message(client, message)
        if kind in (MessageType.SUBACK, MessageType.UNSUBACK):
            self.broker_granted(client, kind, message)
        elif kind is MessageType.CONNACK and message[3] == 0:
            self._clients[client].is_connected = True
            self.client_came(self._clients[client])

    def _from_neighbour(self, session: SessionInfo, kind: MessageType, message: bytes) -> None:
        """HOT."""
        name = self._names.get(session)
        if kind is MessageType.PUBLISH and name is not None:
            self._manager.send_message(self._injectors[session], message)
            self._transfer(self.targets(message, name), message)
        elif kind is MessageType.CONNECT:
            self._manager.send_message(session, create_mqtt_message(MessageType.CONNACK))
            self._join(session, read_connect(message))
        elif kind is MessageType.PINGREQ:
            self._manager.send_message(session, create_mqtt_message(MessageType.PINGRESP))
        elif kind is MessageType.DISCONNECT:
            self._manager.close_session(session)
        elif name is not None and kind is not MessageType.CONNACK:
            self.neighbour_said(name, kind, message)

    # --- status and event listener --------------------------------------------------------------------------------

    def on_session_established(self, session: SessionInfo) -> None:
        if session in self._dialled:
            self._take[session] = self._from_neighbour
            self._introduce(session)
        elif (pair := self._manager.get_paired_session(session)) is None:
            self._take[session] = _ignore
            self._greet_broker(session)
        else:
            # Of a pair the client is there first.
            self._take[session] = self._from_broker if pair in self._take else self._first_words

    def on_session_closed(self, session: SessionInfo) -> None:
        self._take.pop(session, None)
        self._dialled.pop(session, None)
        client = self._clients.pop(session, None)
        if client is not None:
            self._leave(client)
        self._part(session)
        if (injector := self._injectors.pop(session, None)) is not None:
            self._manager.close_session(injector)
        for one in [one for one, injector in self._injectors.items() if injector is session]:
            self._manager.close_session(one)

    def on_tcp_down(self, session: SessionInfo) -> None:
        """The removal is done when the session is closed; one that was never established does not get there."""
        if session.status is SessionStatus.CLOSED:
            self.on_session_closed(session)

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        """The session is closed next, and `on_session_closed` does what there is to do."""

    def on_ildm_stop(self) -> None:
        for name in list(self.neighbours):
            self._remove(name)

    def on_ildm_add(self, address: Address) -> None:
        for _ in range(self._connections):
            session = self._manager.create_session(address)
            self._dialled[session] = address
            self._injectors[session] = self._manager.create_session(self._broker)

    def on_ildm_remove(self, address: Address) -> None:
        for session, dialled in list(self._dialled.items()):
            if dialled == address and (name := self._names.get(session)) is not None:
                self._remove(name)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _introduce(self, session: SessionInfo) -> None:
        self._take[session] = self._from_neighbour
        self._manager.send_message(session, create_mqtt_message(MessageType.CONNECT, client_id=f"{MARK}{self.name}"))

    def _greet_broker(self, session: SessionInfo) -> None:
        """A session of our own, to inject by."""
        client_id = f"ildm-{self.name}-{session.number}"
        self._manager.send_message(session, create_mqtt_message(MessageType.CONNECT, client_id=client_id))

    def _join(self, session: SessionInfo, connect: ConnectFields) -> None:
        name = connect.client_id.removeprefix(MARK)
        self._names[session] = name
        neighbour = self.neighbours.setdefault(name, Neighbour(name))
        neighbour.sessions.append(session)
        if len(neighbour.sessions) == 1:
            self.neighbour_joined(name)

    def _part(self, session: SessionInfo) -> None:
        name = self._names.pop(session, None)
        neighbour = self.neighbours.get(name) if name is not None else None
        if neighbour is None or session not in neighbour.sessions:
            return
        neighbour.sessions.remove(session)
        if not neighbour.sessions:
            del self.neighbours[neighbour.name]
            self.neighbour_left(neighbour.name)

    def _remove(self, name: str) -> None:
        sessions = list(self.neighbours[name].sessions)
        self.neighbour_left(name)
        for session in sessions:
            self._manager.send_message(session, create_mqtt_message(MessageType.DISCONNECT))
            self._manager.close_session(session)

    def _leave(self, client: LocalClient) -> None:
        will = client.connect.will
        if will is not None and client.is_connected and not client.said_goodbye:
            topic, payload, retain = will
            message = create_mqtt_message(MessageType.PUBLISH, topic=topic.encode(), payload=payload, retain=retain)
            self._transfer(self.will_targets(message), message)
        self.client_left(client)

    def _transfer(self, targets: Iterable[Neighbour], message: bytes) -> None:
        """HOT."""
        plain = message if not message[0] & 0x0E else _at_qos_0(message)
        for neighbour in targets:
            neighbour.turn = (neighbour.turn + 1) % len(neighbour.sessions)
            self._manager.send_message(neighbour.sessions[neighbour.turn], plain)
            self.transferred += 1

    def tell(self, name: str, message: bytes) -> None:
        """Control messages take the first connection, so that they keep their order."""
        self._manager.send_message(self.neighbours[name].sessions[0], message)


def _at_qos_0(message: bytes) -> bytes:
    topic, payload = read_publish(message)
    return create_mqtt_message(MessageType.PUBLISH, topic=topic, payload=payload, retain=bool(message[0] & 0x01))


def _ignore(session: SessionInfo, kind: MessageType, message: bytes) -> None:
    """The broker has nothing to tell to who only injects."""
