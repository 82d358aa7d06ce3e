"""Which node's members are to have a message of several shared subscriptions, and what waited for members who left."""

from __future__ import annotations

from collections import deque

from sterna.broker.broker import Broker
from sterna.broker.decisions import encode_decision
from sterna.node.shares import SharedElsewhere, copy_for
from sterna.vocabulary.errors import JournalError

#: What a shared subscription takes besides its name, with a node's name, in a decision.
DECIDED_OVERHEAD_BYTES = 80
#: Of the groups a message is decided for: it has to fit into a frame with them.
DECISION_BYTES_MAX = 12 * 1024
#: Messages that waited for a shared subscription's last member here, given to members elsewhere.
HANDED_OVER_A_TURN = 1000


def decide(broker: Broker, elsewhere: SharedElsewhere, keys: list[bytes]) -> bytes:
    """For a message of our own that these groups want."""
    decision: dict[bytes, str] = {}
    room = DECISION_BYTES_MAX
    for key in keys:
        share = broker.routes.share(key)
        room -= len(key) + DECIDED_OVERHEAD_BYTES
        if room < 0:
            # Not named, so it stays with our own members of the group, if there are any.
            if share is None:
                broker.counters.dropped("too-many-groups")
            continue
        decision[key] = elsewhere.decide(key, len(share.members) if share else 0)
    return encode_decision(decision)


def hand_over_waiting(broker: Broker, elsewhere: SharedElsewhere, key: bytes, offsets: deque[int]) -> bool:
    """Some of what waited for members here, on to whoever has members now; True if that was all."""
    for _ in range(min(len(offsets), HANDED_OVER_A_TURN)):
        offset = offsets.popleft()
        try:
            message = broker.journal.read(offset) or broker.retained.at_offset(offset)
        except JournalError:
            message = None
        if message is None or key not in elsewhere:
            broker.counters.dropped("no-member-left")
        else:
            broker.publish(copy_for({key: elsewhere.decide(key, 0)}, message))
    return not offsets
