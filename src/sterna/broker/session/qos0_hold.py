"""Holds messages at QoS 0 for a session that is on its way to this node.

They are held in memory, within bounds, and not promised.  Only messages with an identity are held: of others nobody
could tell whether the old node had served them, and nothing may come twice.  For results that wait for the session in
the journal, the hold remembers their causes.
"""

from __future__ import annotations

from typing import Final

from sterna.broker.session.subscriptions import Grant
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import Identity

HELD_MAX: Final = 1000
HELD_BYTES_MAX: Final = 1024 * 1024


class Qos0Hold:
    __slots__ = ("_bytes", "is_full", "made_of", "messages")

    def __init__(self) -> None:
        self.messages: list[tuple[Message, Grant]] = []
        self._bytes = 0
        #: There was no room for one.
        self.is_full = False
        #: Journal offset -> what a result is made of.
        self.made_of: dict[int, Identity] = {}

    def note_result(self, result: Message) -> None:
        if result.made_of is not None and result.offset >= 0:
            self.made_of[result.offset] = result.made_of

    def hold_first(self, messages: list[tuple[Message, Grant]]) -> None:
        """They come before all others; those there is no room for are dropped."""
        later, self.messages, self._bytes = self.messages, [], 0
        for message, grant in [*messages, *later]:
            self.hold(message, grant)

    def hold(self, message: Message, grant: Grant) -> bool:
        """False if there is no room for it, or it may not be held."""
        size = len(message.topic) + len(message.payload)
        # Of another node's some are taken at QoS 0 because nobody here wants them at more; they have one all the same.
        identity = message.identity
        has_identity = message.qos > 0 or message.made_of is not None
        has_identity = has_identity or (identity is not None and identity.sequence >= 0)
        if not has_identity:
            return False
        if len(self.messages) >= HELD_MAX or self._bytes + size > HELD_BYTES_MAX:
            self.is_full = True
            return False
        self._bytes += size
        self.messages.append((message, grant))
        return True
