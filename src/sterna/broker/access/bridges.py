"""The state topics of bridges: Mosquitto's `$SYS/broker/connection/<name>/state`, 1 or 0.

A bridge publishes 1 when it connects, and leaves 0 as its will (its setting `notifications`, on by default).  This is
the one place under `$SYS` that a client may write to.  The node keeps the values beside its own `$SYS` values, so they
end with the node, and other nodes have their own.
"""

from __future__ import annotations

from typing import Final

from sterna.broker.access.authorization import Permissions
from sterna.mqtt.topics import is_reserved

_BEFORE: Final = b"$SYS/broker/connection/"
_BEHIND: Final = b"/state"

#: States kept at once; one more is refused.
BRIDGES_MAX: Final = 1000

#: There, gone, and forget it.
_STATES: Final = (b"1", b"0", b"")


def is_bridge_state(topic: bytes) -> bool:
    """The name of the bridge is one level, as Mosquitto has it."""
    return topic.startswith(_BEFORE) and topic.endswith(_BEHIND) and bool(name := _name(topic)) and b"/" not in name


def _name(topic: bytes) -> bytes:
    return topic[len(_BEFORE) : -len(_BEHIND)]


def may_publish(permissions: Permissions, client_id: bytes, topic: bytes, payload: bytes) -> bool:
    """May this client publish this?  Its own state a bridge may, whatever the rules; Mosquitto's has the client
    identifier of the bridge for a name unless it is told otherwise."""
    if not is_reserved(topic):
        return permissions.may_publish(topic)
    if not is_bridge_state(topic) or payload not in _STATES:
        return False
    return _name(topic) == client_id or permissions.may_publish(topic)
