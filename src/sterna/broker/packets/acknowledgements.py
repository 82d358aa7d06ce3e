"""Takes a client's acknowledgements of the messages it was sent: PUBACK, PUBREC, PUBCOMP."""

from __future__ import annotations

from sterna.broker.delivery.delivery import Delivery
from sterna.broker.limits import Limits
from sterna.broker.session.connection import Connection
from sterna.mqtt import packets
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError


def read_acknowledgement(
    connection: Connection, data: bytes, body: int, stop: int, user_properties_max: int
) -> tuple[int, int]:
    """HOT.  Packet identifier and reason code; nearly always it is two bytes and success."""
    if stop - body == 2:
        packet_id = data[body] << 8 | data[body + 1]
        if packet_id:
            return packet_id, 0
    return packets.decode_acknowledgement(data, body, stop, connection.version, user_properties_max)


class Acknowledgements:
    __slots__ = ("_delivery", "_user_properties_max")

    def __init__(self, limits: Limits, delivery: Delivery) -> None:
        self._user_properties_max = limits.user_properties
        self._delivery = delivery

    def read(self, connection: Connection, data: bytes, body: int, stop: int) -> tuple[int, int]:
        """Packet identifier and reason code."""
        return read_acknowledgement(connection, data, body, stop, self._user_properties_max)

    def puback(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        packet_id, _ = read_acknowledgement(connection, data, body, stop, self._user_properties_max)
        session = connection.session
        assert session is not None
        entry = session.inflight.get(packet_id)
        if entry is not None and min(entry[0].qos, entry[1].qos) == 2:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "PUBACK for a QoS 2 message")
        if entry is not None:
            self._delivery.acknowledged(session, packet_id)
        elif packet_id in session.taken_back:
            session.taken_back.discard(packet_id)
            self._delivery.pump(session)

    def pubrec(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        packet_id, code = read_acknowledgement(connection, data, body, stop, self._user_properties_max)
        session = connection.session
        assert session is not None
        entry = session.inflight.get(packet_id)
        if entry is not None and min(entry[0].qos, entry[1].qos) == 1:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "PUBREC for a QoS 1 message")
        if code >= 0x80:
            self._delivery.acknowledged(session, packet_id)
        else:
            self._delivery.received(session, packet_id)

    def pubcomp(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        packet_id, _ = read_acknowledgement(connection, data, body, stop, self._user_properties_max)
        session = connection.session
        assert session is not None
        if session.inflight.get(packet_id, False) is None:
            self._delivery.acknowledged(session, packet_id)
