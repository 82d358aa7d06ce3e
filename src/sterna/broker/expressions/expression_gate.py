"""Holds messages back from an expression whose state comes from another node, with a session that moves here.

Until the state is here, messages are held, in order.  The state comes with the vector of the messages that are already
in it: these are skipped, whether held or read later, and all others are taken as if they had come now.
"""

from __future__ import annotations

from typing import Final

from sterna.mqtt.message import Message
from sterna.vocabulary.identity import Stamp, VersionVector

#: Messages held before one expression, and their bytes.  With one more it does not wait for its memory any longer.
HELD_MAX: Final = 20_000
HELD_BYTES_MAX: Final = 16 * 1024 * 1024


class ExpressionGate:
    __slots__ = ("_bytes", "barrier", "ended", "held", "is_awaited")

    def __init__(self, barrier: VersionVector | None = None) -> None:
        #: The memory has yet to come.
        self.is_awaited = barrier is None
        #: Messages of other nodes that are in it: up to these, by origin.
        self.barrier: VersionVector = {} if barrier is None else barrier
        self.held: list[Message] = []
        self._bytes = 0
        #: Windows that other nodes had parts of and that have ended meanwhile: when, and with which result.
        self.ended: list[tuple[int, bytes]] = []

    @property
    def is_full(self) -> bool:
        return len(self.held) > HELD_MAX or self._bytes > HELD_BYTES_MAX

    def admits(self, message: Message) -> bool:
        """Is it to be taken now?  Of QoS 0 nobody could tell whether it is in the memory, and nothing counts twice."""
        if self.is_awaited:
            if message.qos:
                self.held.append(message)
                self._bytes += len(message.topic) + len(message.payload)
            return False
        identity = message.identity
        upto = self.barrier.get(identity.origin) if identity is not None else None
        if identity is None or upto is None or identity.sequence < 0:
            return True
        if Stamp(identity.epoch, identity.sequence) <= upto:
            return False
        del self.barrier[identity.origin]  # messages of one origin come in order
        return True
