"""From a topic to everybody who wants it, remembered until a subscription changes.

`Routes` holds the subscriptions of all sessions in one tree.  The first message on a topic walks the tree and builds
a `Route`; the next ones find it in a dict.  Whatever could change the answer (a subscription, a session's protocol
version, its permissions) forgets the routes concerned.
"""

from __future__ import annotations

from sterna.broker.outbox import Outbox
from sterna.broker.session import Session
from sterna.broker.shares import Share
from sterna.broker.subscriptions import Grant, Subscription, merge
from sterna.mqtt.packets import MQTT_3_1_1
from sterna.mqtt.topics import FilterTree, is_reserved, split_share

#: Routes remembered at once.  A stranger can publish to any number of topics; past this the memory starts anew.
REMEMBERED_MAX = 100_000

#: Subscription identifiers in a grant worth sharing: one with more is large, and rarely the same twice.
INTERNED_IDENTIFIERS_MAX = 4


class Route:
    """Who gets a message on one topic."""

    __slots__ = ("deliveries", "own", "plain_3_1_1", "plain_5", "shares", "special")

    def __init__(self) -> None:
        #: Every session, once, with its merged grant.
        self.deliveries: list[tuple[Session, Grant]] = []
        #: client id -> what it gets of its own messages (None: nothing), where "no local" makes that differ.
        self.own: dict[bytes, Grant | None] = {}
        #: One entry per shared subscription.
        self.shares: list[Share] = []
        # The same sessions again, sorted for QoS 0 without RETAIN: those that take the publisher's bytes as they are
        # (by protocol version), and those that need a packet of their own.
        self.plain_3_1_1: list[Outbox] = []
        self.plain_5: list[Outbox] = []
        self.special: list[tuple[Session, Grant]] = []

    def add(self, session: Session, grant: Grant) -> None:
        self.deliveries.append((session, grant))
        # Of its last connection: one that is still being let in may never be, and then changes nothing.
        version, limited, aliased = session.needs
        if limited or session.client_id in self.own:
            self.special.append((session, grant))
        elif version == MQTT_3_1_1:
            self.plain_3_1_1.append(session.outbox)
        elif grant.identifiers or aliased:
            self.special.append((session, grant))
        else:
            self.plain_5.append(session.outbox)

    @property
    def wanted(self) -> bool:
        return bool(self.deliveries or self.shares)


class Routes:
    __slots__ = ("_grants", "_shares", "_tree", "remembered", "shared_subscriptions")

    def __init__(self) -> None:
        # Keyed by client id, or by NUL and the share's key: no client id contains NUL.
        self._tree: FilterTree[bytes, tuple[Session, Subscription] | Share] = FilterTree()
        self._shares: dict[bytes, Share] = {}
        #: topic -> route.  Cleared in place, so that the hot path may hold on to the dict.
        self.remembered: dict[bytes, Route] = {}
        #: Grants are few and shared by many routes and queues.
        self._grants: dict[Grant, Grant] = {}
        self.shared_subscriptions = 0

    def subscribe(self, session: Session, subscription: Subscription) -> bool:
        """Add or replace; True if the session did not have this filter."""
        topic_filter = subscription.topic_filter
        new = topic_filter not in session.subscriptions
        session.subscriptions[topic_filter] = subscription
        shared = split_share(topic_filter) if topic_filter.startswith(b"$share/") else None
        if shared is None:
            self._tree.add(topic_filter, session.client_id, (session, subscription))
            self._forget(topic_filter)
            return new
        share = self._shares.get(topic_filter)
        if share is None:
            share = self._shares[topic_filter] = Share(topic_filter)
            self._tree.add(shared[1], b"\0" + topic_filter, share)
        share.join(session, merge([subscription], topic_filter))
        if new:
            session.shares.append(topic_filter)
            self.shared_subscriptions += 1
        self._forget(shared[1])
        return new

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """Remove; True if the session had this filter."""
        if session.subscriptions.pop(topic_filter, None) is None:
            return False
        share = self._shares.get(topic_filter)
        if share is None:
            self._tree.remove(topic_filter, session.client_id)
            self._forget(topic_filter)
            return True
        session.shares.remove(topic_filter)
        self.shared_subscriptions -= 1
        share.leave(session)
        if not share.members:
            del self._shares[topic_filter]
            split = split_share(topic_filter)
            assert split is not None
            self._tree.remove(split[1], b"\0" + topic_filter)
            self._forget(split[1])
        return True

    def share(self, key: bytes) -> Share | None:
        return self._shares.get(key)

    def shares(self) -> list[Share]:
        return list(self._shares.values())

    @property
    def size(self) -> int:
        """Subscriptions held, shared ones counted per member."""
        return self._tree.size - len(self._shares) + self.shared_subscriptions

    def forget_all(self) -> None:
        self.remembered.clear()

    def _forget(self, topic_filter: bytes) -> None:
        # A filter without wildcards concerns one topic; any other may concern all of them.
        if b"+" in topic_filter or b"#" in topic_filter:
            self.remembered.clear()
        else:
            self.remembered.pop(topic_filter, None)

    def route(self, topic: bytes) -> Route:
        """The route of a valid topic name, from memory or built now."""
        route = self.remembered.get(topic)
        if route is None:
            if is_reserved(topic):
                return self._build(topic)  # what is remembered, any client may publish to
            if len(self.remembered) >= REMEMBERED_MAX:
                self.remembered.clear()
            route = self.remembered[topic] = self._build(topic)
        return route

    def _build(self, topic: bytes) -> Route:
        matching: dict[bytes, tuple[Session, list[Subscription]]] = {}
        route = Route()
        for found in self._tree.match(topic):
            if isinstance(found, Share):
                route.shares.append(found)
                continue
            session, subscription = found
            known = matching.get(session.client_id)
            if known is None:
                matching[session.client_id] = (session, [subscription])
            else:
                known[1].append(subscription)
        for session, subscriptions in matching.values():
            # Denied topics inside an allowed filter are left out here, once, and never looked at again.
            if session.permissions.unrestricted or session.permissions.may_receive(topic):
                if any(subscription.no_local for subscription in subscriptions):
                    others = [subscription for subscription in subscriptions if not subscription.no_local]
                    route.own[session.client_id] = self._shared_grant(merge(others)) if others else None
                route.add(session, self._shared_grant(merge(subscriptions)))
        return route

    def _shared_grant(self, grant: Grant) -> Grant:
        if len(grant.identifiers) > INTERNED_IDENTIFIERS_MAX:
            return grant
        if len(self._grants) > REMEMBERED_MAX:
            self._grants.clear()
        return self._grants.setdefault(grant, grant)
