"""Framing: keeps the bytes of one side until they are whole packets."""

from __future__ import annotations

from sterna.mqtt import wire
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError


class Incoming:
    """Bytes of a packet that is not whole yet, or has to wait."""

    __slots__ = ("_needed", "_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._needed = 0
        self.size = 0

    def with_more(self, data: bytes) -> bytes:
        """HOT.  Everything there is, if it is worth looking at; else nothing, and it is kept."""
        if not self._parts:
            return data
        self._parts.append(data)
        self.size += len(data)
        if self.size < self._needed:
            return b""
        return self.take()

    def keep(self, rest: bytes, needed: int) -> None:
        """These bytes are left; `needed` are worth looking at."""
        self._parts.append(rest)
        self.size = len(rest)
        self._needed = needed

    def add(self, data: bytes) -> None:
        """More that has to wait."""
        self._parts.append(data)
        self.size += len(data)

    def take(self) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        self._needed = 0
        return data


def packet_end(data: bytes, position: int, size_max: int) -> tuple[int, int]:
    """Where the body of the packet at `position` begins and ends.  (0, n): n bytes are needed to go on."""
    end = len(data)
    if end - position < 2:
        return 0, 2
    length = data[position + 1]
    body = position + 2
    if length >= 0x80:
        length, body = wire.remaining_length(data, position + 1, end)
        if body == 0:
            return 0, 5
    stop = body + length
    if stop - position > size_max:
        what = f"packet of {stop - position} bytes, {size_max} are allowed"
        setting = "limits.packet_bytes, for CONNECT limits.connect_bytes"
        raise ProtocolError(Reason.PACKET_TOO_LARGE, f"{what} ({setting})")
    return (body, stop) if stop <= end else (0, stop - position)
