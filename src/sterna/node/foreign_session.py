"""The session of a foreign broker at this node's own broker, as `interworking` asks for it."""

from __future__ import annotations

from typing import cast

from sterna.broker.access.identity import FOREIGN_PREFIX
from sterna.broker.broker import Broker
from sterna.broker.foreign import InDoubt, forget_exchanges
from sterna.broker.session.connection import ClientPeer, Connection
from sterna.interworking.ports import InFlight, Output
from sterna.mqtt.topics import is_control, is_reserved, is_topic_name


class ForeignSession:
    def __init__(self, broker: Broker, node: str, in_doubt: str) -> None:
        self._broker = broker
        self._in_doubt = cast(InDoubt, in_doubt)
        self._peer = ClientPeer("foreign broker", is_foreign_broker=True)
        self.client_id = f"{FOREIGN_PREFIX}{node}".encode()

    @property
    def packet_bytes(self) -> int:
        return self._broker.limits.packet_bytes

    @property
    def receive_maximum(self) -> int:
        return self._broker.limits.receive_maximum

    def has_session(self) -> bool:
        return self.client_id in self._broker.sessions

    def filters(self) -> dict[bytes, int]:
        session = self._broker.sessions.get(self.client_id)
        return {} if session is None else {one: held.qos for one, held in session.subscriptions.items()}

    def open(self, output: Output) -> Connection:
        return self._broker.accept(output, self._peer)

    def forget_exchanges(self) -> InFlight:
        session = self._broker.sessions[self.client_id]
        return InFlight(*forget_exchanges(session, self._broker.log, self._in_doubt))

    def in_doubt(self) -> list[tuple[int, bytes, bytes]]:
        session = self._broker.sessions.get(self.client_id)
        kept = session.in_doubt if session is not None else None
        return [(packet_id, message.topic, message.payload) for packet_id, (message, _) in (kept or {}).items()]

    def end_session(self) -> None:
        session = self._broker.sessions.get(self.client_id)
        if session is not None:
            self._broker.lifecycle.end_session(session)

    def retained(self, topic: bytes) -> bytes | None:
        message = self._broker.retained.get(topic) or self._broker.retained.cleared(topic)
        return None if message is None else message.payload

    def takes(self, topic: bytes) -> bool:
        """HOT."""
        broker = self._broker
        if topic in broker.routes.remembered:
            return True
        if b"+" in topic or b"#" in topic or b"\0" in topic or is_reserved(topic) or is_control(topic):
            return False
        return is_topic_name(topic, broker.limits.topic_levels, broker.limits.topic_bytes) and _is_text(topic)

    def is_client_here(self, client_id: bytes) -> bool:
        session = self._broker.sessions.get(client_id)
        return session is not None and session.connection is not None


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
