"""Subscriptions of a session, and the grants that they give it for a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter of one session, with its MQTT 5 options."""

    topic_filter: bytes
    """As the client wrote it, `$share/group/` included."""
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


#: A subscription as it is written down and told to other nodes.
SubscriptionFields = tuple[bytes, int, bool, bool, int]

#: About what a subscription takes besides its filter, with everything that is kept so that it is found.
SUBSCRIPTION_BYTES = 1024


def memory_of(topic_filter: bytes) -> int:
    """Bytes charged for a subscription; the filter may have been kept where others branch off from it, too."""
    return SUBSCRIPTION_BYTES + 2 * len(topic_filter)


class Grant(NamedTuple):
    """How one message goes to one session: all its matching subscriptions, merged.

    Overlapping subscriptions deliver once, at the highest QoS, with every subscription identifier.
    """

    qos: int
    #: Keep the RETAIN flag as the publisher set it.
    retain_as_published: bool = False
    identifiers: tuple[int, ...] = ()
    #: Sent because of a new subscription: the RETAIN flag is set, no matter what the options say.
    retained: bool = False
    #: `$share/group/filter` if it came through a shared subscription, else empty.
    share: bytes = b""


def merge(subscriptions: list[Subscription], share: bytes = b"") -> Grant:
    """One grant for all subscriptions of one session that match the same topic."""
    identifiers = tuple(s.identifier for s in subscriptions if s.identifier)
    return Grant(
        max(s.qos for s in subscriptions),
        any(s.retain_as_published for s in subscriptions),
        identifiers,
        False,
        share,
    )


def subscription_fields(subscription: Subscription) -> SubscriptionFields:
    s = subscription
    return s.topic_filter, s.qos, s.no_local, s.retain_as_published, s.identifier


def grant_from(fields: Sequence[Any]) -> Grant:
    qos, retain_as_published, identifiers, retained, share = fields
    return Grant(qos, retain_as_published, tuple(identifiers), retained, share)
