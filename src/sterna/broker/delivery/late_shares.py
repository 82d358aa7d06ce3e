"""Messages of this node that were decided late: their groups were unknown here when the messages entered.

A node that reads such a message asks for it, naming the group.  This node gives it all of its messages from there on
that do not name the group, and keeps a note of the range.  The first range that holds a message counts, so a message
is given to one node, however often and by whom it is asked for.
"""

from __future__ import annotations

from functools import lru_cache

from sterna.broker.delivery.share_targets import decode_decision, encode_decision, is_decided
from sterna.mqtt.message import Message
from sterna.mqtt.topics import levels_of, matches, split_share

#: Of all groups together.
RANGES_MAX = 10_000
#: Of a decision: it has to fit into a frame with its message.
DECISION_BYTES_MAX = 12 * 1024

#: Offsets from, up to but without, and the node that the messages were given to.
Range = tuple[int, int, str]


class LateShares:
    __slots__ = ("_count", "_ranges")

    def __init__(self) -> None:
        self._ranges: dict[bytes, list[Range]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def ranges(self) -> list[tuple[bytes, int, int, str]]:
        """In an order in which they can be given again."""
        return [(key, *one) for key, ranges in sorted(self._ranges.items()) for one in ranges]

    def give(self, key: bytes, start: int, stop: int, node: str) -> bool:
        """False if nothing changes: it is given already, or there are too many to remember one more."""
        ranges = self._ranges.get(key, [])
        if any(first <= start and stop <= end for first, end, _ in ranges):
            return False
        if ranges and ranges[-1][2] == node and ranges[-1][0] <= start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], stop, node)
            return True
        if self._count >= RANGES_MAX:
            return False
        self._ranges.setdefault(key, ranges).append((start, stop, node))
        self._count += 1
        return True

    def forget_before(self, offset: int) -> None:
        """Older messages are not kept any more."""
        for key, ranges in list(self._ranges.items()):
            kept = [one for one in ranges if one[1] > offset]
            self._count -= len(ranges) - len(kept)
            if kept:
                self._ranges[key] = kept
            else:
                del self._ranges[key]

    def decision_of(self, message: Message) -> bytes:
        """A message's decision, with the groups it was given to later."""
        found = {key: node for key in self._ranges if (node := self._given_to(key, message)) is not None}
        if not found:
            return message.shares
        only, decision = decode_decision(message.shares) if message.shares else (False, {})
        shares = encode_decision({**decision, **found}, only=only)
        return shares if len(shares) <= DECISION_BYTES_MAX else message.shares

    def _given_to(self, key: bytes, message: Message) -> str | None:
        for start, stop, node in self._ranges[key]:
            if start <= message.offset < stop:
                return None if is_decided(message, key) or not _wants(key, message.topic) else node
        return None


@lru_cache(1024)
def _wants(key: bytes, topic: bytes) -> bool:
    shared = split_share(key)
    return shared is not None and matches(levels_of(shared[1]), levels_of(topic))
