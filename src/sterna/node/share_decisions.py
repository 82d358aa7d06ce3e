"""Which node's members are to have a message of several shared subscriptions."""

from __future__ import annotations

from sterna.broker.broker import Broker
from sterna.broker.delivery.late_shares import DECISION_BYTES_MAX
from sterna.broker.delivery.share_targets import EVERY_OTHER, encode_decision
from sterna.node.remote_shares import SharedElsewhere

#: Size of a shared subscription besides its name, with a node's name, in a decision.
DECIDED_OVERHEAD_BYTES = 80


def decide(broker: Broker, elsewhere: SharedElsewhere, keys: list[bytes], node: str) -> bytes:
    """For a message that entered here, at `node`, and that these groups want."""
    decision: dict[bytes, str] = {}
    room = DECISION_BYTES_MAX
    for key in keys:
        share = broker.routes.share(key)
        room -= len(key) + DECIDED_OVERHEAD_BYTES
        if room < 0:
            decision[EVERY_OTHER] = node
            if share is None:
                broker.counters.dropped("too-many-groups")
        elif key in elsewhere:
            decision[key] = elsewhere.decide(key, len(share.members) if share else 0)
        else:
            decision[key] = node
    return encode_decision(decision)
