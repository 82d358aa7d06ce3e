"""The client's requests that no node has answered yet, in order: publications, releases, subscriptions.

Every entry can be sent again, to another node, as often as it takes.  While there is no node the client's packets
gather here, those at QoS 0 too; they leave in the order they came.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from sterna.mqtt.packets import PUBLISH

#: In the place of a packet: the node has the publication (PUBREC), and the client is to release it.
AWAITING_RELEASE: Final = b""


class Ledger:
    __slots__ = ("_loose", "bytes_held", "entries", "unsent")

    def __init__(self) -> None:
        #: packet identifier -> the packet to say again; below 0 stand packets that have none.
        self.entries: dict[int, bytes] = {}
        #: Packet identifiers of entries that this node has not been told yet.
        self.unsent: deque[int] = deque()
        self.bytes_held = 0
        self._loose = 0

    def add(self, packet_id: int, packet: bytes) -> None:
        """HOT.  A request with an identifier, which its answer will carry."""
        held = self.entries.get(packet_id)
        if held is not None:
            self.bytes_held -= len(held)
        self.entries[packet_id] = packet
        self.bytes_held += len(packet)

    def add_unsent(self, packet_id: int, packet: bytes) -> None:
        """The same, while there is nobody to send it to.  0: it has no identifier, and no answer will come."""
        if not packet_id:
            self._loose -= 1
            packet_id = self._loose
        if packet_id not in self.entries or packet_id not in self.unsent:
            self.unsent.append(packet_id)
        self.add(packet_id, packet)

    def answered(self, packet_id: int) -> bytes | None:
        """HOT.  The exchange is over: its packet, or None if there was no such exchange."""
        packet = self.entries.pop(packet_id, None)
        if packet is not None:
            self.bytes_held -= len(packet)
        return packet

    def received(self, packet_id: int) -> bool:
        """PUBREC: the node has it.  False if nobody asked."""
        packet = self.entries.get(packet_id)
        if packet is None:
            return False
        if packet and packet[0] >> 4 == PUBLISH:
            self.bytes_held -= len(packet)
            self.entries[packet_id] = AWAITING_RELEASE
        return True

    def interrupted(self) -> int:
        """The node is gone: everything must be sent again, publications marked as such.  Returns how many they are."""
        never_sent = set(self.unsent)
        self.unsent.clear()
        repeated = 0
        for key, packet in self.entries.items():
            if packet == AWAITING_RELEASE:
                continue
            self.unsent.append(key)
            if packet[0] >> 4 == PUBLISH and packet[0] & 0x06 and key not in never_sent:
                repeated += 1
                self.entries[key] = bytes((packet[0] | 0x08,)) + packet[1:]
        return repeated

    @property
    def is_in_doubt(self) -> bool:
        """Is there a publication at QoS 2 of which only the session of the last node knows whether it was taken?"""
        return any(packet and packet[0] & 0xFE == 0x3C for packet in self.entries.values())

    def to_send(self, most: int) -> list[bytes]:
        """The packets to send next, as far as the node's window allows."""
        found: list[bytes] = []
        unsent, entries = self.unsent, self.entries
        while unsent:
            key = unsent[0]
            packet = entries.get(key)
            if packet and packet[0] >> 4 == PUBLISH and packet[0] & 0x06 and len(entries) - len(unsent) >= most:
                break
            unsent.popleft()
            if not packet:
                continue  # answered meanwhile
            found.append(packet)
            if key < 0:
                self.answered(key)
        return found

    def identifier_beside(self, packet_id: int, taken: set[int]) -> int:
        """A free one for a packet that the client knew by another: the same for every attempt, if it is free, so that
        the other side knows it again."""
        beside = (packet_id + 0x7FFF) % 0xFFFF + 1
        return self.free_identifier(taken) if beside in self.entries or beside in taken else beside

    def free_identifier(self, taken: set[int]) -> int:
        """One that neither the client uses nor `taken` holds, from where clients seldom count."""
        return next(number for number in range(65535, 0, -1) if number not in self.entries and number not in taken)
