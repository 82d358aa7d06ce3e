"""The session of a foreign broker at this node's own broker, as `interworking` asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import cast

from sterna.broker.access.identity import FOREIGN_PREFIX
from sterna.broker.broker import Broker
from sterna.broker.foreign import InDoubt, forget_exchanges
from sterna.broker.session.connection import ClientPeer, Connection
from sterna.interworking.ports import InFlight, Output, StoredValue
from sterna.mqtt.message import NEVER, Message
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

    def in_flight(self) -> list[tuple[int, int, bytes, bytes]]:
        session = self._broker.sessions.get(self.client_id)
        if session is None:
            return []
        sent = {packet_id: entry for packet_id, entry in session.inflight.items() if entry is not None}
        return [
            (packet_id, min(message.qos, grant.qos), message.topic, message.payload)
            for packet_id, (message, grant) in (sent | (session.in_doubt or {})).items()
        ]

    def end_session(self) -> None:
        session = self._broker.sessions.get(self.client_id)
        if session is not None:
            self._broker.lifecycle.end_session(session)

    def retained(self, topic: bytes) -> bytes | None:
        message = self._broker.retained.get(topic) or self._broker.retained.cleared(topic)
        return None if message is None else message.payload

    def came_from_there(self, topic: bytes) -> bool:
        message = self._broker.retained.get(topic)
        return message is not None and message.publisher == self.client_id

    def retained_topics(self) -> Iterator[bytes]:
        return (message.topic for message in self._broker.retained if not is_reserved(message.topic))

    def stored(self, topic: bytes) -> StoredValue | None:
        message = self._broker.retained.get(topic) or self._broker.retained.cleared(topic)
        if message is None or (message.payload and not self._broker.retained.alive(message, self._broker.clock.wall)):
            return None
        left_s = None if message.expires_at == NEVER else max(1, int(message.expires_at - self._broker.clock.wall))
        return StoredValue(topic, message.payload, message.qos, message.properties, left_s)

    def may_wait(self, topic: bytes) -> bool:
        session, message = self._broker.sessions.get(self.client_id), self._broker.retained.get(topic)
        if session is None or not (session.inflight or session.queue):
            return False
        in_flight = [entry[0].offset for entry in session.inflight.values() if entry is not None]
        first = min([*in_flight, *(offset for offset, _ in islice(session.queue, 1))], default=-1)
        return message is None or message.offset >= first

    def retain(self, value: StoredValue, *, silently: bool) -> None:
        session = self._broker.sessions.get(self.client_id)
        if session is None:
            return
        wall, expiry_s = self._broker.clock.wall, value.expiry_s
        expires_at = NEVER if expiry_s is None else wall + expiry_s
        message = Message(
            value.topic, value.payload, value.qos, True, value.properties, expires_at, self.client_id,
            self._broker.ingress.retained_stamp(value.topic, session),
        )  # fmt: skip
        if not self._broker.retained.has_room(message):
            self._broker.counters.dropped("retained-full")
        elif silently:
            self._broker.ingress.retain_only(message)
        elif message.qos:
            self._broker.ingress.publish(message)
        else:
            self._broker.ingress.publish_qos0(message, session)

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
