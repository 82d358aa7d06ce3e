"""Publications at QoS 2 that a client was told of, and that the foreign broker has lost with its session: they are said
again in the client's place, under packet identifiers that it does not use, and released.

The client has no part in it.  It may have forgotten them: CONNACK told it that there is no session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sterna.mqtt import wire
from sterna.mqtt.packets import MQTT_5, PUBREC, PUBREL

if TYPE_CHECKING:
    from sterna.gateway.watched_client import Ticket

_SENT: Final = 0
_RECEIVED: Final = 1
_ANSWERED: Final = 2
_DUP: Final = 0x08


class _Attempt:
    __slots__ = ("packet", "packet_id", "stage", "ticket")

    def __init__(self, packet_id: int, packet: bytes, ticket: Ticket | None) -> None:
        """`packet_id`: as the client knew it."""
        self.packet_id = packet_id
        self.packet = packet
        self.ticket = ticket
        self.stage = _SENT


class Republishing:
    """Of one client."""

    __slots__ = ("_attempts", "_done")

    def __init__(self, done: Callable[[int], None]) -> None:
        """`done`: the publication that the client knew by this identifier has arrived, or was refused."""
        self._done = done
        self._attempts: dict[int, _Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def identifiers(self) -> set[int]:
        return set(self._attempts)

    def is_under_way(self, packet_id: int) -> bool:
        """By the identifier that the client knew."""
        return any(one.packet_id == packet_id for one in self._attempts.values())

    def add(self, identifier: int, packet_id: int, packet: bytes, ticket: Ticket | None) -> None:
        """`packet`: as the client sent it."""
        self._attempts[identifier] = _Attempt(packet_id, with_identifier(packet, identifier), ticket)

    def say(self, *, is_new: bool) -> bytes:
        """Packets for the foreign broker that is there again; `is_new`: it knows of none of them."""
        found = []
        for identifier, one in list(self._attempts.items()):
            if is_new:
                if one.ticket is not None and one.ticket.was_seen:
                    self._finish(identifier, one)
                    continue
                one.stage = _SENT
            if one.stage == _SENT:
                found.append(one.packet if is_new else bytes((one.packet[0] | _DUP,)) + one.packet[1:])
            elif one.stage == _RECEIVED:
                found.append(_release(identifier))
        return b"".join(found)

    def answered(self, kind: int, identifier: int, *, refused: bool) -> bytes | None:
        """HOT.  The foreign broker's answer, and what to say to it; None: it is about something else."""
        one = self._attempts.get(identifier)
        if one is None:
            return None
        if kind == PUBREC and not refused:
            one.stage = _RECEIVED
            if one.ticket is not None:
                one.ticket.released()
            return _release(identifier)
        if one.ticket is None or refused:
            if one.ticket is not None:
                one.ticket.withdraw()
            self._finish(identifier, one)
        else:
            one.stage = _ANSWERED
            one.ticket.answered()
            self.settled()
        return b""

    def settled(self) -> None:
        for identifier, one in list(self._attempts.items()):
            if one.stage == _ANSWERED and one.ticket is not None and one.ticket.is_settled:
                self._finish(identifier, one)

    def interrupted(self) -> None:
        for one in self._attempts.values():
            if one.ticket is not None and one.stage != _ANSWERED:
                one.ticket.interrupted()

    def end(self) -> None:
        for one in self._attempts.values():
            if one.ticket is not None:
                one.ticket.withdraw()
        self._attempts.clear()

    def _finish(self, identifier: int, one: _Attempt) -> None:
        del self._attempts[identifier]
        self._done(one.packet_id)


def publication_of(packet: bytes, version: int) -> tuple[bytes, bytes]:
    """Topic and payload of a PUBLISH with an identifier."""
    end = len(packet)
    _, body = wire.remaining_length(packet, 1, end)
    topic, place = wire.read_binary(packet, body, end)
    place += 2
    if version == MQTT_5:
        length, place = wire.read_variable(packet, place, end)
        place += length
    return topic, packet[place:]


def with_identifier(packet: bytes, identifier: int) -> bytes:
    """The PUBLISH under another packet identifier, as if for the first time."""
    _, body = wire.remaining_length(packet, 1, len(packet))
    at = body + 2 + (packet[body] << 8) + packet[body + 1]
    return bytes((packet[0] & ~_DUP,)) + packet[1:at] + wire.two(identifier) + packet[at + 2 :]


def _release(identifier: int) -> bytes:
    return bytes((PUBREL << 4 | 2, 2)) + wire.two(identifier)
