"""Reads only acknowledgements from a client whose session has stopped and leaves this node.

This node sends nothing any more, so PUBREC is put aside until it is known which node is to send PUBREL.  Everything
else that the client sends, and all bytes behind that, wait for the node that has the session in the end.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.broker.packets.acknowledgements import Acknowledgements
from sterna.broker.session.connection import Connection
from sterna.mqtt import packets

_HEARD = frozenset((packets.PUBACK, packets.PUBREC, packets.PUBCOMP, packets.PINGREQ))


class AckOnlyReader:
    def __init__(self, acknowledgements: Acknowledgements, acknowledged: Callable[[], None]) -> None:
        self._acknowledgements = acknowledgements
        self._acknowledged = acknowledged
        self.is_over = False
        """It has said something else."""
        self.put_aside: dict[int, bytes] = {}
        """PUBREC packets, by packet identifier."""

    def hear(self, connection: Connection, data: bytes) -> bytes:
        """The rest of it.  May raise ProtocolError."""
        position = 0
        while len(data) - position >= 2 and not self.is_over:
            first, length = data[position], data[position + 1]
            body = position + 2
            if first & 0x0F or first >> 4 not in _HEARD or length >= 0x80:
                self.is_over = True
                break
            if body + length > len(data):
                break
            self._take(connection, first >> 4, data, body, body + length)
            position = body + length
        self._acknowledged()
        return data[position:]

    def _take(self, connection: Connection, kind: int, data: bytes, body: int, stop: int) -> None:
        if kind == packets.PUBACK:
            self._acknowledgements.puback(connection, data, body, stop)
        elif kind == packets.PUBCOMP:
            self._acknowledgements.pubcomp(connection, data, body, stop)
        elif kind == packets.PUBREC:
            packet_id, code = self._acknowledgements.read(connection, data, body, stop)
            if code < 0x80:
                self.put_aside[packet_id] = data[body - 2 : stop]
            else:
                self._acknowledgements.pubrec(connection, data, body, stop)
        else:
            connection.send(packets.PINGRESP_BYTES)
