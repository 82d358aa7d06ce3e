"""From a topic to everybody who wants it, remembered until a subscription changes.

`Routes` holds the subscriptions of all sessions in one tree.  The first message on a topic walks the tree and builds
a `Route`; the next ones find it in a dict.  Whatever could change the answer (a subscription, a session's protocol
version, its permissions) forgets the routes concerned, and seldom any other.
"""

from __future__ import annotations

from sterna.broker import effort
from sterna.broker.computation import Computation
from sterna.broker.computing import Computations
from sterna.broker.effort import Effort
from sterna.broker.names import Names
from sterna.broker.network import Interest
from sterna.broker.outbox import Outbox
from sterna.broker.parts import Part
from sterna.broker.session import Session
from sterna.broker.shares import Share, Waiting
from sterna.broker.subscriptions import Grant, Subscription, merge
from sterna.journal.interest import Interest as TopicInterest
from sterna.mqtt.packets import MQTT_3_1_1
from sterna.mqtt.topics import SHARE, FilterTree, is_reserved, split_share
from sterna.operators.grammar import is_expression

#: Routes remembered at once.  A stranger can publish to any number of topics; past this the memory starts anew.
REMEMBERED_MAX = 100_000

#: Subscription identifiers in a grant worth sharing: one with more is large, and rarely the same twice.
INTERNED_IDENTIFIERS_MAX = 4


class Route:
    """Who gets a message on one topic."""

    __slots__ = ("computed", "counted", "deliveries", "own", "plain_3_1_1", "plain_5", "shares", "special")

    def __init__(self) -> None:
        #: Every session, once, with its merged grant.
        self.deliveries: list[tuple[Session, Grant]] = []
        #: client id -> what it gets of its own messages (None: nothing), where "no local" makes that differ.
        self.own: dict[bytes, Grant | None] = {}
        #: One entry per shared subscription.
        self.shares: list[Share] = []
        #: Expressions that take messages of this topic.
        self.computed: list[Computation] = []
        #: Parts of expressions, which take of them what enters here.
        self.counted: list[Part] = []
        # The same sessions again, sorted for QoS 0 without RETAIN: those that take the publisher's bytes as they are
        # (by protocol version), and those that need a packet of their own.
        self.plain_3_1_1: list[Outbox] = []
        self.plain_5: list[Outbox] = []
        self.special: list[tuple[Session, Grant]] = []

    def add(self, session: Session, grant: Grant) -> None:
        self.deliveries.append((session, grant))
        # Of its last connection: one that is still being let in may never be, and then changes nothing.
        version, limited, aliased = session.needs
        if limited or session.client_id in self.own or (session.inheritance and session.inheritance.rivals):
            self.special.append((session, grant))
        elif version == MQTT_3_1_1:
            self.plain_3_1_1.append(session.outbox)
        elif grant.identifiers or aliased:
            self.special.append((session, grant))
        else:
            self.plain_5.append(session.outbox)

    @property
    def wanted(self) -> bool:
        return bool(self.deliveries or self.shares or self.computed)

    @property
    def keeps(self) -> bool:
        """May a QoS 1 or 2 message have to wait for somebody?"""
        return bool(self.shares) or bool(self.computed) or any(grant.qos for _, grant in self.deliveries)


class Routes:
    __slots__ = (
        "_effort",
        "_grants",
        "_names",
        "_shapes",
        "_shares",
        "_slow",
        "_tree",
        "computations",
        "interest",
        "kept",
        "remembered",
        "shared_subscriptions",
        "waiting",
    )

    def __init__(self, spent: Effort, computations: Computations) -> None:
        self._effort = spent
        self.computations = computations
        # Keyed by client id, or by NUL and the share's key: no client id contains NUL.
        self._tree: FilterTree[bytes, tuple[Session, Subscription] | Share] = FilterTree()
        self._shares: dict[bytes, Share] = {}
        self.waiting = Waiting()
        #: topic -> route.  Cleared in place, so that the hot path may hold on to the dict.
        self.remembered: dict[bytes, Route] = {}
        #: The same topics, to be found by a filter.
        self._names = Names()
        #: client id -> shape -> how many of its filters have it, see `shape_of`.
        self._shapes: dict[bytes, dict[bytes, int]] = {}
        #: Grants are few and shared by many routes and queues.
        self._grants: dict[Grant, Grant] = {}
        self.shared_subscriptions = 0
        #: Topics of which QoS 0 messages are kept, if any are: they may not take the quick way, so their routes are
        #: remembered apart.
        self.kept: TopicInterest | None = None
        self._slow: dict[bytes, Route] = {}
        #: Told of every subscription that begins or ends.
        self.interest: Interest | None = None

    def subscribe(self, session: Session, subscription: Subscription) -> bool:
        """Add or replace; True if the session did not have this filter."""
        topic_filter = subscription.topic_filter
        new = topic_filter not in session.subscriptions
        session.subscriptions[topic_filter] = subscription
        self._effort.spent += effort.FILTER
        if new:
            self._count_shape(session.client_id, shape_of(topic_filter), 1)
            if self.interest is not None and not self.is_sparks(topic_filter):
                self.interest.gained(topic_filter)
        if is_expression(topic_filter):
            self._compute(session, subscription, new=new)
            return new
        shared = split_share(topic_filter) if topic_filter.startswith(b"$share/") else None
        if shared is None:
            self._tree.add(topic_filter, session.client_id, (session, subscription))
            self._forget(topic_filter)
            return new
        share = self._shares.get(topic_filter)
        if share is None:
            share = self._shares[topic_filter] = Share(topic_filter, self.waiting)
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
        self._effort.spent += effort.FILTER
        self._count_shape(session.client_id, shape_of(topic_filter), -1)
        if self.interest is not None and not self.is_sparks(topic_filter):
            self.interest.lost_interest(topic_filter)
        if is_expression(topic_filter):
            self._compute_no_more(session, topic_filter)
            return True
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
            share.close()
            split = split_share(topic_filter)
            assert split is not None
            self._tree.remove(split[1], b"\0" + topic_filter)
            self._forget(split[1])
        return True

    def is_sparks(self, topic_filter: bytes) -> bool:
        """An expression that no message need come here for: Spark reads the journals themselves."""
        return is_expression(topic_filter) and self.computations.is_sparks(topic_filter)

    def _compute(self, session: Session, subscription: Subscription, *, new: bool) -> None:
        """Subscribe to the results, by a filter that matches no other expression's, and take what they are made of."""
        text = subscription.topic_filter
        computation = self.computations.gained(text, session) if new else self.computations.get(text)
        assert computation is not None
        self._tree.add(computation.results, session.client_id, (session, subscription))
        self._forget(computation.expression.topic_filter)

    def _compute_no_more(self, session: Session, text: bytes) -> None:
        computation = self.computations.lost(text)
        session.told.pop(text.decode(), None)
        self._tree.remove(computation.results, session.client_id)
        self._forget(computation.expression.topic_filter)

    def hold_part(self, name: bytes, holder: str, since_us: int) -> Part:
        """Another node wants this part, and has for so long; ExpressionError if there can be none."""
        part = self.computations.hold_part(name, holder, since_us)
        self._forget(part.expression.topic_filter)
        return part

    def release_part(self, name: bytes, holder: str) -> None:
        part = self.computations.parts.release(name, holder)
        if part is not None:
            self._forget(part.expression.topic_filter)

    def filters(self) -> list[bytes]:
        """Every filter anybody here has subscribed to; those of shared subscriptions without their group, and instead
        of expressions what they are made of."""
        plain = [topic_filter for topic_filter in self._tree.filters() if not is_expression(topic_filter)]
        return plain + self.computations.sources()

    def share(self, key: bytes) -> Share | None:
        return self._shares.get(key)

    def shares(self) -> list[Share]:
        return list(self._shares.values())

    @property
    def size(self) -> int:
        """Subscriptions held, shared ones counted per member."""
        return self._tree.size - len(self._shares) + self.shared_subscriptions

    def overlapping(self, session: Session, topic_filter: bytes) -> int:
        """How many of a session's filters one topic might match with this one; 0 if it makes no difference."""
        shapes = self._shapes.get(session.client_id, {})
        shape = shape_of(topic_filter)
        return len(shapes) + 1 if shape and shape not in shapes else 0

    def _count_shape(self, client_id: bytes, shape: bytes, by: int) -> None:
        if not shape:
            return
        shapes = self._shapes.setdefault(client_id, {})
        shapes[shape] = shapes.get(shape, 0) + by
        if not shapes[shape]:
            del shapes[shape]
            if not shapes:
                del self._shapes[client_id]

    def forget_all(self) -> None:
        self._slow.clear()
        self.remembered.clear()
        self._names.clear()

    def _forget(self, topic_filter: bytes) -> None:
        """Forget the routes of all topics that the filter matches; of all topics, if finding those takes long."""
        self._slow.clear()
        if b"+" not in topic_filter and b"#" not in topic_filter:
            if self.remembered.pop(topic_filter, None) is not None:
                self._names.remove(topic_filter)
            return
        # To forget one by one costs several times what looking costs, and to forget all very little per topic.  Twice
        # a turn, because a session that ends unsubscribes from everything in one.
        found, looked_at = self._names.match(topic_filter, (2 * effort.TURN - self._effort.spent) // 4)
        self._effort.spent += looked_at
        if found is None:
            self.forget_all()
            return
        self._effort.spent += effort.RECIPIENT * len(found)
        for topic in found:
            del self.remembered[topic]
            self._names.remove(topic)

    def route(self, topic: bytes) -> Route:
        """The route of a valid topic name, from memory or built now."""
        route = self.remembered.get(topic) or self._slow.get(topic)
        if route is None:
            if self._is_slow(topic):
                return self._slow_route(topic)
            if len(self.remembered) >= REMEMBERED_MAX:
                self.forget_all()
            route = self.remembered[topic] = self._build(topic)
            self._names.add(topic)
        return route

    def highest_qos(self, topic: bytes) -> int:
        """That anybody wants messages of this topic at."""
        return max((grant.qos for _, grant in self.route(topic).deliveries), default=0)

    def _is_slow(self, topic: bytes) -> bool:
        """What is remembered with the others, any client may publish to by the quick way."""
        return is_reserved(topic) or (self.kept is not None and topic in self.kept) or self.computations.takes(topic)

    def _slow_route(self, topic: bytes) -> Route:
        if len(self._slow) >= REMEMBERED_MAX:
            self._slow.clear()
        route = self._slow[topic] = self._build(topic)
        return route

    def _build(self, topic: bytes) -> Route:
        matching: dict[bytes, tuple[Session, list[Subscription]]] = {}
        route = Route()
        route.computed = self.computations.matching(topic)
        route.counted = self.computations.parts.matching(topic)
        before = self._tree.looked_at
        everything = self._tree.match(topic)
        looked_at = self._tree.looked_at - before
        self._effort.spent += effort.ROUTE + looked_at + effort.RECIPIENT * len(everything)
        for found in everything:
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


def shape_of(topic_filter: bytes) -> bytes:
    """Where a filter's wildcards stand, and the group it is shared in; empty if it has neither.

    Two different filters of the same shape never match the same topic.  So the shapes of a session bound how many of
    its filters a topic can match, and how many branches of the tree they make it look at.
    """
    group = b""
    if b"+" not in topic_filter and b"#" not in topic_filter and not topic_filter.startswith(SHARE):
        return group
    if topic_filter.startswith(SHARE):
        _, group, topic_filter = topic_filter.split(b"/", 2)
        group = SHARE + group + b"/"
    levels = [level if level in (b"+", b"#") else b"" for level in topic_filter.split(b"/")]
    return group + b"/".join(levels).rstrip(b"/")
