"""Which node's members are to have a message of several shared subscriptions."""

from __future__ import annotations

from sterna.broker.broker import Broker
from sterna.broker.delivery.share_targets import encode_decision
from sterna.node.remote_shares import SharedElsewhere

#: What a shared subscription takes besides its name, with a node's name, in a decision.
DECIDED_OVERHEAD_BYTES = 80
#: Of the groups a message is decided for: it has to fit into a frame with them.
DECISION_BYTES_MAX = 12 * 1024


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
