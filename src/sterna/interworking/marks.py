"""The mark on messages that we send to a foreign broker of MQTT 5: a user property with the network and the node.

A message that comes in with the mark of our network has been in the network, whichever way it came, and goes no
further.  The mark counts for the topic it was made for: a program that publishes the properties of one message on
another topic publishes another message.
"""

from __future__ import annotations

from zlib import crc32

from sterna.mqtt import wire
from sterna.mqtt.client_packets import user_property

_NAME = b"sterna-from"
_PREFIX = user_property(_NAME, b"")[:-2]


class Marks:
    def __init__(self, network: str, node: str) -> None:
        self._network = network.encode() + b"/"
        self._who = self._network + node.encode() + b"/"
        self.size = len(self.mark(b""))

    def mark(self, topic: bytes) -> bytes:
        """HOT.  The encoded property for a message on this topic; always of the same size."""
        return user_property(_NAME, b"%b%08x" % (self._who, crc32(topic)))

    def is_ours(self, topic: bytes, data: bytes, start: int, stop: int) -> bool:
        """HOT.  Do these encoded properties of a message on this topic hold a mark of our network?"""
        place = data.find(_PREFIX, start, stop)
        ending = b"/%08x" % crc32(topic)
        while place >= 0:
            value, after = wire.read_binary(data, place + len(_PREFIX), stop)
            if value.startswith(self._network) and value.endswith(ending):
                return True
            place = data.find(_PREFIX, after, stop)
        return False
