"""Holds messages at QoS 0 for a session that has stopped at this node, or is on its way to it.

They are held in memory, within bounds, and not promised.  Each is held with what tells whether the old node has served
it, for nothing may come twice: the identity it has in a journal or, if it was published at QoS 0, the number of the
body that its origin sent it in.  For results that wait for the session in the journal, the hold remembers their causes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

from sterna.broker.session.subscriptions import Grant
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import Identity

HELD_MAX: Final = 1000
HELD_BYTES_MAX: Final = 1024 * 1024


class LooseNumbers(Protocol):
    def loose_mark(self, origin: str) -> Identity | None:
        """The body of messages at QoS 0 which is being taken in from that node, or gathered here (""); None: there are
        no other nodes."""


class Held(NamedTuple):
    message: Message
    grant: Grant
    loose: Identity | None
    """The origin, its epoch and the number of the body, of a message that has no identity of its own."""

    @property
    def is_own_loose(self) -> bool:
        """Did one of our own clients publish it at QoS 0?"""
        return self.loose is not None and self.message.identity is None


class Qos0Hold:
    __slots__ = ("_bytes", "_numbers", "is_full", "made_of", "messages")

    def __init__(self, numbers: LooseNumbers | None = None) -> None:
        self._numbers = numbers
        self.messages: list[Held] = []
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
        for message, grant, loose in [*[Held(*one, None) for one in messages], *later]:
            self._keep(message, grant, loose)

    def hold(self, message: Message, grant: Grant) -> bool:
        """False if there is no room for it, or it may not be held."""
        if _is_sequenced(message):
            return self._keep(message, grant, None)
        if message.retain or self._numbers is None:
            return False  # it has not gone through a journal, and to no other node
        loose = self._numbers.loose_mark("" if message.identity is None else message.identity.origin)
        return loose is not None and self._keep(message, grant, loose)

    def leave(self, topics: Collection[bytes]) -> list[Held]:
        """Messages of our own clients on these topics are held no longer: here they are."""
        left = [one for one in self.messages if one.message.topic in topics and one.is_own_loose]
        self.messages = [one for one in self.messages if one not in left]
        return left

    def _keep(self, message: Message, grant: Grant, loose: Identity | None) -> bool:
        size = len(message.topic) + len(message.payload)
        if len(self.messages) >= HELD_MAX or self._bytes + size > HELD_BYTES_MAX:
            self.is_full = True
            return False
        self._bytes += size
        self.messages.append(Held(message, grant, loose))
        return True


def _is_sequenced(message: Message) -> bool:
    """Has it an identity in a journal?  Of another node's some are taken at QoS 0 because nobody here wants them at
    more; of our own those at QoS 0 are written down that are retained."""
    if message.qos > 0 or message.made_of is not None:
        return True
    if message.identity is not None:
        return message.identity.sequence >= 0
    return message.retain and message.offset >= 0
