"""Routes: the recipients of each topic, remembered until a subscription changes.

`Routes` holds the subscriptions of all sessions in one tree.  A message on a topic that is not remembered walks the
tree.  Its recipients depend on the filters it finds and not on the topic, unless access rules say otherwise.  So each
filter keeps the `Route` of a message that matches no other, and each combination of filters that was met keeps its own.
The route of a topic that comes often is remembered by name.  Everything that could change the answer (a subscription, a
session's protocol version, its permissions) forgets the routes concerned, and seldom any other.
"""

from __future__ import annotations

from sterna.broker import work_budget
from sterna.broker.expressions.computation import Computation
from sterna.broker.expressions.computations import Computations
from sterna.broker.expressions.parts import ExpressionPart
from sterna.broker.limits import Limits
from sterna.broker.network import SubscriptionListener
from sterna.broker.session.outbox import Outbox
from sterna.broker.session.session import Session
from sterna.broker.session.shares import SharedSubscription, Waiting
from sterna.broker.session.subscriptions import Grant, Subscription, memory_of, merge
from sterna.broker.work_budget import WorkBudget
from sterna.journal.filter_set import FilterSet
from sterna.mqtt.packets import MQTT_3_1_1
from sterna.mqtt.topics import SHARE, LevelTree, TopicTree, is_control, is_plain_name, is_reserved, split_share
from sterna.operators.grammar import is_expression

#: Memory for the routes of topics, and for those of combinations of filters.  A stranger can publish to any number of
#: topics; past this the memory is cleared.
REMEMBERED_BYTES = 32 * 1024 * 1024

#: Of topics that were not remembered one in so many will be, so that a topic that is met once costs little, and one
#: that is met often is soon remembered.
REMEMBERED_ONE_IN = 64

#: About what it takes to remember a topic, besides its name; a route; and each recipient on it.
TOPIC_BYTES = 320
ROUTE_BYTES = 320
RECIPIENT_BYTES = 96

#: Routes kept for all filters of a session, one per grant.
SESSION_ROUTES_MAX = 64

#: Filters of a session up to which their routes are forgotten one by one.
SORTED_ONE_BY_ONE = 16

#: Grants kept to be shared.
GRANTS_MAX = 100_000

#: Subscription identifiers in a grant worth sharing: one with more is large, and rarely the same twice.
INTERNED_IDENTIFIERS_MAX = 4


#: In place of what a route has none of.  Nothing is ever added to them.
_NOBODY: list[tuple[Session, Grant]] = []
_NO_OUTBOX: list[Outbox] = []
_NO_SHARE: list[SharedSubscription] = []
_NOT_COMPUTED: list[Computation] = []
_NOT_COUNTED: list[ExpressionPart] = []
_NO_OWN: dict[bytes, Grant | None] = {}


class Route:
    """The receivers of a message on one topic."""

    __slots__ = (
        "computed",
        "counted",
        "deliveries",
        "edition",
        "is_for_one_topic",
        "own",
        "plain_3_1_1",
        "plain_5",
        "shares",
        "special",
    )

    def __init__(self) -> None:
        #: Every session, once, with its merged grant.
        self.deliveries = _NOBODY
        #: client id -> what it gets of its own messages (None: nothing), where "no local" makes that differ.
        self.own = _NO_OWN
        #: One entry per shared subscription.
        self.shares = _NO_SHARE
        #: Expressions that take messages of this topic.
        self.computed = _NOT_COMPUTED
        #: Parts of expressions, which take of them what enters here.
        self.counted = _NOT_COUNTED
        # The same sessions again, sorted for QoS 0 without RETAIN: those that take the publisher's bytes as they are
        # (by protocol version), and those that need a packet of their own.
        self.plain_3_1_1 = _NO_OUTBOX
        self.plain_5 = _NO_OUTBOX
        self.special = _NOBODY
        #: Access rules had a say in it.
        self.is_for_one_topic = False
        #: `Routes.edition` when it was made.
        self.edition = 0

    def add(self, session: Session, grant: Grant) -> None:
        pair = (session, grant)
        if self.deliveries:
            self.deliveries.append(pair)
        else:
            self.deliveries = [pair]
        # Of its last connection: one that is still being let in may never be, and then changes nothing.
        version, limited, aliased = session.needs
        is_special = limited or session.client_id in self.own
        if is_special or (version != MQTT_3_1_1 and (aliased or bool(grant.identifiers))):
            if self.special:
                self.special.append(pair)
            else:
                self.special = [pair]
        elif version == MQTT_3_1_1:
            if self.plain_3_1_1:
                self.plain_3_1_1.append(session.outbox)
            else:
                self.plain_3_1_1 = [session.outbox]
        elif self.plain_5:
            self.plain_5.append(session.outbox)
        else:
            self.plain_5 = [session.outbox]

    @property
    def bytes(self) -> int:
        """About what it takes to keep it."""
        return ROUTE_BYTES + RECIPIENT_BYTES * len(self.deliveries)

    @property
    def wanted(self) -> bool:
        return bool(self.deliveries or self.shares or self.computed)

    @property
    def keeps(self) -> bool:
        """May a QoS 1 or 2 message have to wait for somebody?"""
        return bool(self.shares) or bool(self.computed) or any(grant.qos for _, grant in self.deliveries)


class Recipients:
    """Everybody with one filter."""

    __slots__ = ("is_combined", "members", "route")

    def __init__(self) -> None:
        # By client id, or by NUL and the share's key: no client id contains NUL.
        self.members: dict[bytes, tuple[Session, Subscription] | SharedSubscription] = {}
        #: The route of a message that matches no other filter, if one came.
        self.route: Route | None = None
        #: There are routes of this filter together with others.
        self.is_combined = False


class Routes:
    __slots__ = (
        "_alone",
        "_bytes",
        "_charged",
        "_combined",
        "_combined_bytes",
        "_grants",
        "_limits",
        "_missed",
        "_names",
        "_nobody",
        "_shapes",
        "_shares",
        "_slow",
        "_slow_bytes",
        "_subscriptions",
        "_tree",
        "_work_budget",
        "computations",
        "edition",
        "interest",
        "kept",
        "remembered",
        "shared_subscriptions",
        "subscription_bytes",
        "waiting",
    )

    def __init__(self, spent: WorkBudget, computations: Computations, limits: Limits) -> None:
        self._work_budget = spent
        self.computations = computations
        self._limits = limits
        self._tree: LevelTree[Recipients] = LevelTree()
        #: Entries of all of them.
        self._subscriptions = 0
        self._shares: dict[bytes, SharedSubscription] = {}
        self.waiting = Waiting()
        #: topic -> route.  Cleared in place, so that the hot path may hold on to the dict.
        self.remembered: dict[bytes, Route] = {}
        #: The same topics, to be found by a filter, and about what both take.
        self._names: TopicTree[bytes] = TopicTree()
        self._bytes = 0
        #: Messages on topics that were not remembered.
        self._missed = 0
        #: The routes of messages that match several filters, by these, and about what they take.
        self._combined: dict[tuple[Recipients, ...], Route] = {}
        self._combined_bytes = 0
        self._nobody = Route()
        #: client id -> grant -> the route of messages that go to this session alone.
        self._alone: dict[bytes, dict[Grant, Route]] = {}
        #: Routes of an earlier one count no more.
        self.edition = 1
        #: client id -> shape -> how many of its filters have it, see `shape_of`.
        self._shapes: dict[bytes, dict[bytes, int]] = {}
        #: Grants are few and shared by many routes and queues.
        self._grants: dict[Grant, Grant] = {}
        self.shared_subscriptions = 0
        #: Bytes charged for all subscriptions, see `Limits.subscription_bytes`; and by client id.
        self.subscription_bytes = 0
        self._charged: dict[bytes, int] = {}
        #: Topics of which QoS 0 messages are kept, if any are: they may not take the quick way, so their routes are
        #: remembered apart.
        self.kept: FilterSet | None = None
        self._slow: dict[bytes, Route] = {}
        self._slow_bytes = 0
        #: Told of every subscription that begins or ends.
        self.interest: SubscriptionListener | None = None

    def subscribe(self, session: Session, subscription: Subscription) -> bool:
        """Add or replace; True if the session did not have this filter."""
        topic_filter = subscription.topic_filter
        new = topic_filter not in session.subscriptions
        session.subscriptions[topic_filter] = subscription
        self._work_budget.spent += work_budget.FILTER
        if new:
            self._charge(session, memory_of(topic_filter))
            self._count_shape(session.client_id, shape_of(topic_filter), 1)
            if self.interest is not None and not self.is_sparks(topic_filter):
                self.interest.gained(topic_filter)
        if is_expression(topic_filter):
            self._compute(session, subscription, new=new)
            return new
        shared = split_share(topic_filter) if topic_filter.startswith(b"$share/") else None
        if shared is None:
            self._add(topic_filter, session.client_id, (session, subscription))
            return new
        share = self._shares.get(topic_filter)
        if share is None:
            share = self._shares[topic_filter] = SharedSubscription(topic_filter, self.waiting)
            self._add(shared[1], b"\0" + topic_filter, share)
        share.join(session, merge([subscription], topic_filter))
        if new:
            session.shares.append(topic_filter)
            self.shared_subscriptions += 1
        return new

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """Remove; True if the session had this filter."""
        if session.subscriptions.pop(topic_filter, None) is None:
            return False
        if not session.subscriptions:
            self._alone.pop(session.client_id, None)
        self._work_budget.spent += work_budget.FILTER
        self._charge(session, -memory_of(topic_filter))
        self._count_shape(session.client_id, shape_of(topic_filter), -1)
        if self.interest is not None and not self.is_sparks(topic_filter):
            self.interest.lost_interest(topic_filter)
        if is_expression(topic_filter):
            self._compute_no_more(session, topic_filter)
            return True
        share = self._shares.get(topic_filter)
        if share is None:
            self._remove(topic_filter, session.client_id)
            return True
        session.shares.remove(topic_filter)
        self.shared_subscriptions -= 1
        share.leave(session)
        if not share.members:
            del self._shares[topic_filter]
            share.close()
            split = split_share(topic_filter)
            assert split is not None
            self._remove(split[1], b"\0" + topic_filter)
        return True

    def _add(self, topic_filter: bytes, key: bytes, member: tuple[Session, Subscription] | SharedSubscription) -> None:
        recipients = self._tree.get(topic_filter)
        if recipients is None:
            recipients = Recipients()
            self._tree.put(topic_filter, recipients)
        if key not in recipients.members:
            self._subscriptions += 1
        recipients.members[key] = member
        self._changed(recipients)
        self._forget(topic_filter)

    def _remove(self, topic_filter: bytes, key: bytes) -> None:
        recipients = self._tree.get(topic_filter)
        assert recipients is not None
        del recipients.members[key]
        self._subscriptions -= 1
        if not recipients.members:
            self._tree.remove(topic_filter)
        self._changed(recipients)
        self._forget(topic_filter)

    def _changed(self, recipients: Recipients) -> None:
        recipients.route = None
        if recipients.is_combined:
            self._combined.clear()
            self._combined_bytes = 0

    def _charge(self, session: Session, size: int) -> None:
        charged = self.charged(session) + size
        if charged:
            self._charged[session.client_id] = charged
        else:
            del self._charged[session.client_id]
        self.subscription_bytes += size

    def charged(self, session: Session) -> int:
        """Bytes charged for the subscriptions of a session, see `Limits.subscription_bytes_per_client`."""
        return self._charged.get(session.client_id, 0)

    def is_sparks(self, topic_filter: bytes) -> bool:
        """An expression that no message need come here for: Spark reads the journals themselves."""
        return is_expression(topic_filter) and self.computations.is_sparks(topic_filter)

    def _compute(self, session: Session, subscription: Subscription, *, new: bool) -> None:
        """Subscribe to the results, by a filter that matches no other expression's, and take what they are made of."""
        text = subscription.topic_filter
        computation = self.computations.gained(text, session) if new else self.computations.get(text)
        assert computation is not None
        self._add(computation.results, session.client_id, (session, subscription))
        self._forget(computation.expression.topic_filter)

    def _compute_no_more(self, session: Session, text: bytes) -> None:
        computation = self.computations.lost(text)
        session.told.pop(text.decode(), None)
        self._remove(computation.results, session.client_id)
        self._forget(computation.expression.topic_filter)

    def hold_part(self, name: bytes, holder: str, since_us: int) -> ExpressionPart:
        """Another node wants this part, and has for so long; ExpressionError if there can be none."""
        part = self.computations.hold_part(name, holder, since_us)
        self._forget(part.expression.topic_filter)
        return part

    def release_part(self, name: bytes, holder: str) -> None:
        part = self.computations.release_part(name, holder)
        if part is not None:
            self._forget(part.expression.topic_filter)

    def filters(self) -> list[bytes]:
        """Every filter anybody here has subscribed to; those of shared subscriptions without their group, and instead
        of expressions what they are made of."""
        plain = [topic_filter for topic_filter, _ in self._tree.items() if not is_expression(topic_filter)]
        return plain + self.computations.sources()

    def share(self, key: bytes) -> SharedSubscription | None:
        return self._shares.get(key)

    @property
    def has_shares(self) -> bool:
        return bool(self._shares)

    def shares(self) -> list[SharedSubscription]:
        return list(self._shares.values())

    @property
    def size(self) -> int:
        """Subscriptions held, shared ones counted per member."""
        return self._subscriptions - len(self._shares) + self.shared_subscriptions

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

    def sort_anew(self, session: Session) -> None:
        """How it takes messages has changed, and routes are sorted by that."""
        filters = session.subscriptions
        if len(filters) > SORTED_ONE_BY_ONE or any(map(is_expression, filters)):
            self.forget_all()
            return
        self._alone.pop(session.client_id, None)
        for topic_filter in filters:
            recipients = self._tree.get(topic_filter)
            if recipients is not None:  # of a shared subscription there is none
                self._changed(recipients)
                self._forget(topic_filter)

    def forget_all(self) -> None:
        self.edition += 1
        self._combined.clear()
        self._combined_bytes = 0
        self._alone.clear()
        self._forget_slow()
        self._forget_topics()

    def _forget_slow(self) -> None:
        self._slow.clear()
        self._slow_bytes = 0

    def _forget_topics(self) -> None:
        self.remembered.clear()
        self._names.clear()
        self._bytes = 0

    def _forget_topic(self, topic: bytes) -> None:
        route = self.remembered.pop(topic, None)
        if route is not None:
            self._names.remove(topic)
            self._bytes -= _remembered_bytes(topic, route)

    def _forget(self, topic_filter: bytes) -> None:
        """Forget the routes of all topics that the filter matches; of all topics, if finding those takes long."""
        self._forget_slow()
        if b"+" not in topic_filter and b"#" not in topic_filter:
            self._forget_topic(topic_filter)
            return
        # To forget one by one costs several times what looking costs, and to forget all very little per topic.  Twice
        # a turn, because a session that ends unsubscribes from everything in one.
        most = (2 * work_budget.TURN - self._work_budget.spent) // 4
        looked_at = 0
        found: list[bytes] = []
        for topic in self._names.walk(topic_filter):
            looked_at += 1
            if looked_at > most:
                self._forget_topics()
                break
            if topic is not None:
                found.append(topic)
        else:
            self._work_budget.spent += work_budget.RECIPIENT * len(found)
            for topic in found:
                self._forget_topic(topic)
        self._work_budget.spent += looked_at

    def route(self, topic: bytes) -> Route:
        """The route of a valid topic name, from memory or found now."""
        route = self.remembered.get(topic)
        if route is None:
            route = self._slow.get(topic)
            if route is None:
                route = self._slow_route(topic) if self._is_slow(topic) else self._found(topic)
        return route

    def quick_route(self, topic: bytes) -> Route | None:
        """HOT.  The route of a topic that is not remembered, for a message at QoS 0; None if it may not take the quick
        way, or not before somebody has had a closer look at the topic."""
        if not is_plain_name(topic, self._limits.topic_levels, self._limits.topic_bytes):
            return None
        if (self.kept is not None or not self.computations.is_idle) and (topic in self._slow or self._is_slow(topic)):
            return None
        return self._found(topic)

    def highest_qos(self, topic: bytes) -> int:
        """That anybody wants messages of this topic at."""
        return max((grant.qos for _, grant in self.route(topic).deliveries), default=0)

    def _is_slow(self, topic: bytes) -> bool:
        """Any client may publish by the quick way to a topic that is remembered with the others."""
        if is_reserved(topic) or is_control(topic):
            return True
        return (self.kept is not None and topic in self.kept) or self.computations.takes(topic)

    def _slow_route(self, topic: bytes) -> Route:
        route = self._build(topic, self._match(topic))
        route.computed = self.computations.matching(topic)
        route.counted = self.computations.parts.matching(topic)
        self._slow_bytes += len(topic) + TOPIC_BYTES + route.bytes
        if self._slow_bytes > REMEMBERED_BYTES:
            self._forget_slow()
        self._slow[topic] = route
        return route

    def _match(self, topic: bytes) -> list[Recipients]:
        before = self._tree.looked_at
        found = self._tree.matching(topic)
        self._work_budget.spent += self._tree.looked_at - before
        return found

    def _found(self, topic: bytes) -> Route:
        """HOT.  Through the tree."""
        tree = self._tree
        before = tree.looked_at
        tree.search(topic)
        self._work_budget.spent += tree.looked_at - before
        route = self._nobody
        one = tree.one
        if one is not None:
            several = tree.several
            known = one.route if several is None else self._combined.get(tuple(several))
            if known is None or known.edition != self.edition:
                known = self._made(topic, [one] if several is None else several)
            route = known
        self._missed += 1
        if self._missed >= REMEMBERED_ONE_IN or route.is_for_one_topic:
            self._missed = 0
            self._remember(topic, route)
        return route

    def _remember(self, topic: bytes, route: Route) -> None:
        if self._bytes + _remembered_bytes(topic, route) > REMEMBERED_BYTES:
            self._forget_topics()
        self._bytes += _remembered_bytes(topic, route)
        self.remembered[topic] = route
        self._names.put(topic, topic)

    def _made(self, topic: bytes, found: list[Recipients]) -> Route:
        """The route of messages that match these filters, kept with them if it is not for this topic alone."""
        self._work_budget.spent += work_budget.ROUTE
        route = self._build(topic, found)
        if route.is_for_one_topic:
            return route
        if len(found) == 1:
            found[0].route = route = self._one_for_all(route)
            return route
        if self._combined_bytes > REMEMBERED_BYTES:
            self._combined.clear()
            self._combined_bytes = 0
        self._combined[tuple(found)] = route
        self._combined_bytes += route.bytes + RECIPIENT_BYTES * len(found)
        for recipients in found:
            recipients.is_combined = True
        return route

    def _one_for_all(self, route: Route) -> Route:
        """The same for all filters of a session: most have one recipient, and a session may have many filters."""
        if len(route.deliveries) != 1 or route.shares or route.own:
            return route
        session, grant = route.deliveries[0]
        alone = self._alone.setdefault(session.client_id, {})
        known = alone.get(grant)
        if known is not None and known.edition == route.edition and known.deliveries[0][0] is session:
            return known
        if len(alone) >= SESSION_ROUTES_MAX:
            alone.clear()
        alone[grant] = route
        return route

    def _build(self, topic: bytes, found: list[Recipients]) -> Route:
        matching: dict[bytes, tuple[Session, list[Subscription]]] = {}
        route = Route()
        route.edition = self.edition
        for recipients in found:
            self._work_budget.spent += work_budget.RECIPIENT * len(recipients.members)
            for member in recipients.members.values():
                if isinstance(member, SharedSubscription):
                    route.shares = [*route.shares, member]
                    continue
                session, subscription = member
                known = matching.get(session.client_id)
                if known is None:
                    matching[session.client_id] = (session, [subscription])
                else:
                    known[1].append(subscription)
        for session, subscriptions in matching.values():
            if not session.permissions.unrestricted or is_control(topic):
                # Denied topics inside an allowed filter are left out here, once, and never looked at again.
                route.is_for_one_topic = True
                if not session.permissions.may_receive(topic):
                    continue
            if any(subscription.no_local for subscription in subscriptions):
                others = [subscription for subscription in subscriptions if not subscription.no_local]
                own = self._shared_grant(merge(others)) if others else None
                route.own = {**route.own, session.client_id: own}
            route.add(session, self._shared_grant(merge(subscriptions)))
        return route

    def _shared_grant(self, grant: Grant) -> Grant:
        if len(grant.identifiers) > INTERNED_IDENTIFIERS_MAX:
            return grant
        if len(self._grants) > GRANTS_MAX:
            self._grants.clear()
        return self._grants.setdefault(grant, grant)


def _remembered_bytes(topic: bytes, route: Route) -> int:
    """About what it takes to remember it."""
    size = TOPIC_BYTES + len(topic)
    return size + route.bytes if route.is_for_one_topic else size


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
