"""Where a node's broker meets the other nodes: the overlay says who the neighbours are, links carry frames, the
router decides what goes where, and this file gives it the node's own broker and journal.

To the broker the network is somebody who wants messages and brings some; to the router the broker is one more place
where messages are wanted.  Neither knows the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from random import Random

from sterna.broker.broker import Broker
from sterna.broker.delivery.journal_pages import Excerpt, read_own, retained_page
from sterna.broker.delivery.routes import Route
from sterna.broker.delivery.share_targets import is_decided
from sterna.broker.session.outbox import send_to_all
from sterna.migration.move_manager import MoveManager
from sterna.mqtt.message import Message
from sterna.mqtt.packets import publish_head
from sterna.mqtt.topics import split_share
from sterna.node.carrying import Carrying
from sterna.node.late_decisions import give
from sterna.node.management import Management
from sterna.node.membership import Membership
from sterna.node.network_settings import NetworkSettings, NetworkWorld
from sterna.node.node_move_host import NodeMoveHost
from sterna.node.part_exchange import PartExchange
from sterna.node.remote_shares import HandingOver, SharedElsewhere, SharesLeft
from sterna.node.share_decisions import decide
from sterna.operators.grammar import is_expression
from sterna.overlay.channel import Channel
from sterna.overlay.link import Link, LinkTransport
from sterna.overlay.link_table import Links
from sterna.overlay.neighbours import Member, Overlay
from sterna.overlay.quarantine import Quarantine
from sterna.overlay.static import static
from sterna.routing.carried import CarriedPage
from sterna.routing.link_frames import About, Fetch, Letter
from sterna.routing.message_frames import LooseRecord
from sterna.routing.router import Router
from sterna.routing.strategies import make_strategy
from sterna.routing.strategy import RoutingOutput, Strategy
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector

#: Size of a shared subscription besides its name, in an announcement.
SHARE_OVERHEAD_BYTES = 16
#: No group is undecided.
NOTHING: list[bytes] = []
#: At most so often an operator is told of what was left out.
SPOILT_TOLD_S = 60.0


class _ByLetter:
    """The other nodes, for operators' questions."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def reachable(self) -> list[str]:
        return self._router.paths.origins

    def version_of(self, node: str) -> int:
        return self._router.paths.version_of(node)

    def send(self, to: str, body: bytes) -> bool:
        return self._router.post(to, About.MANAGEMENT, body)


class Network:
    def __init__(
        self, broker: Broker, settings: NetworkSettings, world: NetworkWorld, vector: VersionVector, rng: Random
    ) -> None:
        self._broker = broker
        self._world = world
        self._settings = settings
        self.node = settings.link.node
        self._epoch = settings.link.epoch
        schedule = broker.deadlines.at
        now = self._now
        self._membership = Membership(vector.pop(self.node, None), broker.journal, broker.now, broker.wall)
        self._elsewhere = SharedElsewhere(self.node)
        self._left = SharesLeft()
        #: Groups of ours for which the announcement has no room.
        self._untold: frozenset[bytes] = frozenset()
        self._handing_over = HandingOver(self.node, broker, self._elsewhere)
        for origin, shares in broker.state.shared.items():
            self._elsewhere.announced(origin, shares)
            self._elsewhere.announced(origin, None)  # known, and not reached yet
        self.router = Router(
            self.node,
            self._epoch,
            self,
            self._strategy,
            vector,
            settle_s=settings.settle_s,
            feed=settings.feed,
            clients=settings.clients,
            now=now,
            schedule=schedule,
        )
        self.carrying = Carrying(settings.routing, self.router, now, lambda: broker.wall, schedule, self.age)
        self.links = Links(settings.link, self, now=now, schedule=schedule, rng=rng)
        make_overlay = settings.overlay or static(Member(settings.link.network, self.node, settings.link.key))
        self.overlay: Overlay = make_overlay(self, now=now, schedule=schedule, rng=rng)
        #: The last of our own messages that was given to the router; what the journal held at the start is past.
        self._frontier = broker.journal.next_offset - 1
        self._sessions_ended = False
        #: Nothing is read from links until the journal has caught up.
        self._paused = False
        self._quarantine = Quarantine()
        self._spoilt_told_at = -SPOILT_TOLD_S
        #: Messages that could not be kept have to be read again from here, and with them those that came after.
        self._taken_back: VersionVector = {}
        #: As of the last note in the journal.
        self._noted: VersionVector = dict(vector)
        if self._membership.is_new:
            broker.log.seen(self.node, self._membership.first)
        self._look_at_parts = False
        self._partials = PartExchange(broker, self.node, self._epoch, self.router, list(vector), lambda: self._frontier)
        self._watch_interest()
        #: Sessions that come from other nodes, and go to them.
        self.moving = MoveManager(NodeMoveHost(self.node, broker, self.router, self.links, self, settings.migration))
        #: Questions of operators, to this node and to all others.
        self.management = Management(self.node, broker, _ByLetter(self.router))

    def _strategy(self, output: RoutingOutput) -> Strategy:
        settings = self._settings
        return make_strategy(
            settings.link.strategy,
            self.node,
            output,
            now=self._now,
            schedule=self._broker.deadlines.at,
            settings=settings.routing,
        )

    def _now(self) -> float:
        return self._broker.now

    def _watch_interest(self) -> None:
        for session in self._broker.sessions.values():
            for topic_filter in session.subscriptions:
                if not self._broker.routes.is_sparks(topic_filter):
                    self.gained(topic_filter)
        self._broker.routes.interest = self
        self._broker.attach(self, self.node)

    def start(self) -> None:
        self.overlay.start()

    def stop(self) -> None:
        self.overlay.stop()
        for peer in list(self.links.links):
            self.links.close(peer, "the node is stopping")
        self.links.flush()

    # -- the world calls --

    def accept(self, transport: LinkTransport, address: str) -> Channel:
        return self.links.accept(transport, address)

    def dialled(self, transport: LinkTransport, address: str) -> Channel:
        return self.links.dialled(transport, address)

    def datagram(self, sender: str, data: bytes) -> None:
        self.overlay.datagram(sender, data)

    def flush(self) -> None:
        """The end of a turn."""
        self._look_again()
        self._partials.flush()
        self.moving.flush()
        self.router.flush()
        self.links.flush()
        if self._sessions_ended:  # by flushing: what the router says to that goes out too
            self._sessions_ended = False
            self.router.flush()
            self.links.flush()

    # -- the overlay asks --

    def hold_links(self, dial: dict[str, str]) -> None:
        self._world.hold_links(dial)

    def drop_link(self, peer: str, reason: str) -> None:
        self.links.close(peer, reason)

    def silent_s(self, peer: str) -> float:
        return self.links.silent_s(peer)

    def send_datagram(self, address: str, data: bytes) -> None:
        self._world.send_datagram(address, data)

    def send_discovery(self, data: bytes) -> None:
        self._world.send_discovery(data)

    def report(self, event: str, **fields: object) -> None:
        self._broker.tell(event, fields)

    # -- links tell --

    def session_started(self, link: Link) -> None:
        self.report("link up", peer=link.peer)
        self.overlay.link_started(link.peer)
        self.router.session_started(link)
        self.moving.link_started(link.peer)

    def connection_lost(self, link: Link) -> None:
        self.overlay.link_interrupted(link.peer)

    def session_ended(self, link: Link, reason: str) -> None:
        self.report("link down", peer=link.peer, reason=reason)
        self._sessions_ended = True
        self.router.session_ended(link)
        self.overlay.link_ended(link.peer)

    def frames(self, link: Link, frames: list[tuple[int, bytes]]) -> None:
        self.router.frames(link, frames)
        if self._broker.overloaded() and not self._paused:
            self._paused = True
            self.links.pause_reading()

    def caught_up(self) -> None:
        """The journal keeps up again, or has failed and whoever was concerned has been told."""
        self._taken_back.clear()
        if self._paused:
            self._paused = False
            self.links.resume_reading()

    def link_relieved(self, link: Link) -> None:
        """Nothing was held back: what a congested link did not take was dropped and counted, or is fetched later."""

    def accepts(self, peer: str) -> str | None:
        return self.overlay.accepts(peer)

    def stands_by(self, peer: str) -> str | None:
        """The link that would close a ring stands by until it is needed."""
        if self._quarantine.left_s(peer, self._broker.now):
            # The same words each time: whoever dials asks often, and tells when they change.
            return f"node {peer} said what makes no sense: this link waits for its pause to end"
        way = self.router.link_to(peer)
        if way is not None and way != peer and self.overlay.may_form_rings:
            return f"node {peer} is reached through node {way}: this link stands by"
        return None

    def upward(self) -> tuple[str, ...] | None:
        return self.overlay.upward

    def ring_found(self, one: str, other: str) -> None:
        """Two links lead to the same node: links made at the same moment have closed a ring."""
        if self.overlay.may_form_rings:
            links = self.links.links
            later = max((one, other), key=lambda peer: links[peer].session_id)
            self.links.close(later, f"the links to {one} and {other} form a ring: this one stands by")

    def nonsense(self, link: str, reason: str) -> None:
        pause_s = self._quarantine.offended(link, self._broker.now)
        self.report("a neighbour said what makes no sense: its link ends", peer=link, reason=reason, pause_s=pause_s)

    def spoilt(self, source: str, reason: str) -> None:
        """Told once a minute at most: whoever does this can do it often."""
        if self._broker.now >= self._spoilt_told_at + SPOILT_TOLD_S:
            self._spoilt_told_at = self._broker.now
            left_out = self.router.counters.spoilt
            self.report("what a node said makes no sense and was left out", node=source, reason=reason, so_far=left_out)

    def namesake_found(self, link: str) -> None:
        reason = "what one of them says is taken for old by the others; rename one, or this one if it lost its data"
        self.report("another node in the network has the name of this one", node=self.node, peer=link, reason=reason)

    # -- the broker tells: interest --

    def gained(self, topic_filter: bytes) -> None:
        """A session has a new subscription."""
        if topic_filter.startswith(b"$SYS/"):
            return  # every node speaks of itself
        if is_expression(topic_filter):
            if self._comes_in_parts(topic_filter):
                return
            topic_filter = topic_filter.partition(b"/")[2]  # and computes for its own clients
        shared = split_share(topic_filter) if topic_filter.startswith(b"$share/") else None
        self.router.want(shared[1] if shared else topic_filter)
        if shared:
            self.router.shares_changed()

    def lost_interest(self, topic_filter: bytes) -> None:
        if topic_filter.startswith(b"$SYS/"):
            return
        if is_expression(topic_filter):
            if self._comes_in_parts(topic_filter):
                return
            topic_filter = topic_filter.partition(b"/")[2]
        shared = split_share(topic_filter) if topic_filter.startswith(b"$share/") else None
        if shared is None:
            self.router.unwant(topic_filter)
            return
        self.router.shares_changed()
        share = self._broker.routes.share(topic_filter)
        if share is not None and len(share.members) > 1:
            self.router.unwant(shared[1])
            return
        waiting = deque(offset for offset, _ in share.queue) if share is not None else deque()
        if waiting and topic_filter in self._elsewhere and not self._handing_over.waiting(topic_filter, waiting):
            self._broker.turns.ask(partial(self._handing_over.waiting, topic_filter, waiting))
        # Messages for the members we had are on their way until everybody has heard that they left.
        self._left.add(shared[1])
        self.router.when_known(partial(self._unwant_left, shared[1]))

    def _unwant_left(self, topic_filter: bytes) -> None:
        self._left.remove(topic_filter)
        self.router.unwant(topic_filter)

    def _comes_in_parts(self, text: bytes) -> bool:
        """Then the others are asked for these, at the end of the turn, and not for messages."""
        self._look_at_parts = True
        return self._broker.routes.computations.comes_in_parts(text)

    def when_known(self, action: Callable[[], None], *, heard: bool) -> None:
        self._look_again()
        if heard or self._partials.untold:
            self.router.when_heard(action, of_interest=True)
        else:
            self.router.when_known(action)

    def _look_again(self) -> None:
        if self._look_at_parts:
            self._look_at_parts = False
            self._partials.subscriptions_changed()

    def note_vector(self) -> None:
        """Write down how far we have read: a subscription made now must not get, after a crash, what was before it."""
        vector = self.settled_vector()
        for origin, stamp in vector.items():
            if self._noted.get(origin) != stamp:
                self._noted[origin] = stamp
                self._broker.log.seen(origin, stamp)

    def settled_vector(self) -> VersionVector:
        """How far reading has come, of the origins whose reading has properly begun; and our own beginning."""
        streams = self.router.streams
        begun = {origin: stamp for origin, stamp in streams.vector.items() if not streams.is_new(origin)}
        begun[self.node] = self._membership.first
        return begun

    # -- the broker tells: messages --

    def publish(self, message: Message) -> None:
        """HOT.  A sequenced message of our own, safe in the journal."""
        self._frontier = max(self._frontier, message.offset)
        self.router.paths.entered(message.topic)
        self.router.own.publish(message)
        if message.shares:
            self._handing_over.hand_over_late(message)

    def delivered(self, message: Message) -> None:
        """A message of another node, with a decision about members of shares."""
        self._handing_over.hand_over_late(message)

    def publish_loose(self, message: Message) -> None:
        self.router.own.publish_loose(
            message.topic, [message.payload], message.properties, message.expires_at, message.shares
        )

    def publish_run(self, topic: bytes, payloads: list[bytes]) -> None:
        """HOT.  QoS 0 messages of one topic that nobody shares."""
        self.router.own.publish_loose(topic, payloads, b"", 0.0, b"")

    def loose_mark(self, origin: str) -> Identity | None:
        return self.router.loose_mark(origin)

    def wants_elsewhere(self, topic: bytes) -> bool:
        return self.router.own.wants_elsewhere(topic)

    def is_shared(self, topic: bytes) -> bool:
        """Does a group with members elsewhere want this topic?"""
        return bool(self._elsewhere) and bool(self._elsewhere.matching(topic))

    def decide_shares(self, message: Message) -> None:
        """Before a message of our own is written down: which nodes' members are to have it."""
        routes = self._broker.routes
        keys = self._elsewhere.matching(message.topic) if self._elsewhere else []
        if message.qos and routes.has_shares:  # at QoS 0 nobody asks later
            keys = [*keys, *(share.key for share in routes.route(message.topic).shares if share.key not in keys)]
        if keys:
            message.shares = decide(self._broker, self._elsewhere, keys, self.node)

    def not_kept(self, message: Message) -> None:
        """A message from elsewhere could not be written down: it will have to be read again."""
        assert message.identity is not None
        origin, epoch, sequence = message.identity
        before = Stamp(epoch, sequence - 1)
        if origin not in self._taken_back:  # the first of a group is the oldest
            self._taken_back[origin] = before
            self.router.streams.taken_back({origin: before})
            # A note of having read it may go with the next group.
            self._noted[origin] = before
            self._broker.log.seen(origin, before)

    # -- the router asks --

    def in_turn(self, action: Callable[[], None]) -> None:
        self._broker.commitments.in_turn(action)

    def overloaded(self) -> bool:
        return self._broker.overloaded()

    def wants(self, topic: bytes) -> bool:
        if self._broker.routes.route(topic).wanted or (bool(self._left) and self._left.matches(topic)):
            return True
        return self.carrying.is_on and self.carrying.wants(topic)

    def is_ours_to_hand_over(self, message: Message) -> bool:
        """Is it for members of ours, who have left?"""
        return bool(self._handing_over.orphaned(message))

    def take(self, message: Message, asked: Collection[bytes] = ()) -> list[bytes]:
        """A sequenced message from elsewhere.  It is journalled if a queue may have to point to it."""
        broker = self._broker
        route = broker.routes.route(message.topic)
        if route.shares and message.qos and (undecided := self._undecided(message, route, asked)):
            return undecided
        broker.heard_clock(message.received_at)
        if self.carrying.is_on:
            self.carrying.take(message)
        # A result that is handed over is written in one group with its messages: both are kept, or neither.
        is_handed_over = bool(message.shares) and self._handing_over.hand_over(message)
        if is_handed_over or message.retain or (message.qos and _keeps(route)):
            broker.commitments.publication(message, None, 0)
        elif message.identity is not None and self.router.streams.may_repeat(message.identity.origin):
            broker.counters.dropped("offline")  # at QoS 0 rather not than twice
        else:
            # A client that comes to want it at a higher QoS while it waits its turn came after it.
            message.qos = 0
            broker.commitments.in_turn(partial(self._deliver_in_turn, message))
        return NOTHING

    def _undecided(self, message: Message, route: Route, asked: Collection[bytes]) -> list[bytes]:
        """Groups here that the origin had not heard of, and was not asked about.  Nobody has heard of those that found
        no room in our announcement."""
        found = [share.key for share in route.shares if not is_decided(message, share.key)]
        to_ask = [key for key in found if key not in asked and key not in self._untold]
        for _ in range(len(found) if not to_ask else 0):
            self._broker.counters.dropped("too-many-groups")
        return to_ask

    def _deliver_in_turn(self, message: Message) -> None:
        assert message.identity is not None
        back = self._taken_back.get(message.identity.origin) if self._taken_back else None
        if back is None or message.identity.stamp <= back:
            self._broker.ingress.deliver(message, None)

    def take_loose(self, origin: str, record: LooseRecord, body: bytes) -> None:
        """HOT."""
        broker = self._broker
        payloads = record.payloads(body)
        route = broker.routes.route(record.topic)
        # Groups need no look: a record without a decision about them is for none of ours.
        if record.is_plain and not route.special and not route.computed:
            self._forward(route, record.topic, payloads)
            return
        identity = Identity(origin, 0, -1)
        for payload in payloads:
            message = Message(record.topic, payload, 0, False, record.properties, record.expires_at)
            message.shares = record.shares
            message.identity = identity
            broker.ingress.deliver(message, None)

    def _forward(self, route: Route, topic: bytes, payloads: list[bytes]) -> None:
        """HOT.  Payloads of one size to subscribers without wishes of their own: the same packets for all of them."""
        broker = self._broker
        count, size = len(payloads), len(payloads[0])
        if broker.counters.flows is not None:
            broker.counters.flows.saw(topic, "", count)
        missed = 0
        if route.plain_3_1_1:
            head = publish_head(0x30, topic, size)
            missed = send_to_all(route.plain_3_1_1, head + head.join(payloads), count, broker.state.dirty)
        if route.plain_5:
            head = publish_head(0x30, topic, size + 1) + b"\x00"
            missed += send_to_all(route.plain_5, head + head.join(payloads), count, broker.state.dirty)
        outboxes = route.plain_3_1_1 + route.plain_5
        broker.counters.publish_sent += (len(outboxes) - missed) * count
        broker.counters.publish_bytes_sent += (len(outboxes) - missed) * count * size
        if missed:
            for outbox in outboxes:
                if outbox.congested:
                    broker.counters.dropped(outbox.why_not(), count)

    def remember(self, message: Message) -> None:
        self._broker.ingress.remember(message)

    def filters(self, carrier: str = "") -> list[bytes] | None:
        """The filters of our clients, for a FETCH; None: everything."""
        if self.router.strategy.everything():
            return None
        return self.carrying.filters([*self._broker.routes.filters(), *self._left.filters()], carrier)

    def carried_page(self, fetch: Fetch) -> CarriedPage | None:
        return self.carrying.page(fetch) if self.carrying.is_on else None

    def read_from_carrier(self, origin: str, reached: Stamp) -> None:
        self.carrying.read_from_carrier(origin, reached)

    def read_own(self, after: Stamp, filters: list[bytes] | None, reader: str, have: VersionVector) -> Excerpt:
        journal, until, late = self._broker.journal, self.frontier(), self._broker.state.late_shares
        unread = self.moving.publisher_order.first_unread(journal.offset_after(after), have)
        if unread is None:
            return read_own(journal, after, until, filters, reader, late)
        offset, origin, stamp = unread
        last = min(until, self._stamp_before(offset))
        excerpt = read_own(journal, after, max(after, last), filters, reader, late)
        return replace(excerpt, complete=False, needs=(origin, stamp) if excerpt.complete else None)

    def decide_late(self, reader: str, groups: list[bytes], after: Stamp, then: Callable[[], None]) -> None:
        give(self._broker, reader, groups, after, self.frontier(), then)

    def frontier(self) -> Stamp:
        return Stamp(self._epoch, self._frontier)

    def in_turn_up_to(self, have: VersionVector) -> Stamp:
        unread = self.moving.publisher_order.first_unread(0, have)
        if unread is None or unread[0] > self._frontier:
            return self.frontier()
        return self._stamp_before(unread[0])

    def comes_after(self, stamp: Stamp) -> VersionVector:
        return self.moving.publisher_order.comes_after(stamp.sequence)

    def _stamp_before(self, offset: int) -> Stamp:
        return Stamp(self._broker.journal.epoch_of(offset - 1), offset - 1) if offset else BEFORE_ALL

    def age(self) -> float:
        return self._membership.age(self._broker.now, self._broker.wall)

    def reading_begins(self, reader_age: float) -> Stamp:
        return self._membership.reading_begins(reader_age, self._broker.now, self._broker.wall, self.frontier())

    def retained_after(
        self, topic: bytes, upto: Stamp, *, of_others: bool
    ) -> tuple[list[tuple[str, int, int, Message]], bytes | None]:
        broker = self._broker
        return retained_page(broker.retained, broker.journal, self.node, topic, upto, of_others=of_others)

    def first_seen(self, origin: str, stamp: Stamp) -> None:
        self.carrying.first_seen(origin, stamp)
        self._noted[origin] = stamp
        self._broker.log.seen(origin, stamp)

    def lost(self, origin: str, messages: int) -> None:
        self._broker.counters.dropped("origin-retention", messages)
        self.carrying.lost(origin)
        self.report("what was missed is no longer kept", origin=origin, messages_at_most=messages, reason="retention")

    def read_out_of_turn(self, origin: str, before: str, read: Stamp, upto: Stamp, waited_s: float) -> None:
        self.moving.counters.out_of_turn += 1
        self.report(
            "a node is read out of turn",
            origin=origin,
            before=before,
            first=read.sequence + 1,
            last=upto.sequence,
            waited_s=round(waited_s, 3),
            reason="a publisher went there, and what it published before cannot be read",
        )

    def origin_found(self, origin: str) -> None:
        self.management.sharing.found(origin)
        self.carrying.origin_found(origin)
        self._partials.found(origin)
        self.moving.path_changed(origin)

    def origin_lost(self, origin: str) -> None:
        self.carrying.origin_lost(origin)
        self._partials.lost(origin)
        self.moving.origin_lost(origin)

    def letter(self, letter: Letter) -> None:
        if letter.about == About.PARTS:
            self._partials.letter(letter.sender, letter.epoch, letter.body)
        elif letter.about == About.MANAGEMENT:
            self.management.letter(letter.sender, letter.body)
        else:
            self.moving.directed_came(letter.sender, letter.body)

    def news_came(self, link: str, body: bytes) -> None:
        self.moving.news_came(link, body)

    def shares(self) -> list[tuple[bytes, int]]:
        """As many as an announcement holds; what is beyond is told to the operator, and served by this node alone."""
        found = sorted((share.key, len(share.members)) for share in self._broker.routes.shares() if share.members)
        room = self._settings.link.frame_bytes // 2
        self._untold = frozenset()
        for number, (key, _) in enumerate(found):
            room -= len(key) + SHARE_OVERHEAD_BYTES
            if room < 0:
                self.report("too many shared subscriptions", told_to_others=number, of=len(found), reason="frame_bytes")
                self._untold = frozenset(key for key, _ in found[number:])
                return found[:number]
        return found

    def shares_elsewhere(self, origin: str, shares: list[tuple[bytes, int]] | None) -> None:
        self._elsewhere.announced(origin, shares)
        known = self._broker.state.shared
        if shares is not None and shares != known.get(origin, []):
            known[origin] = shares
            self._broker.log.shared(origin, shares)


def _keeps(route: Route) -> bool:
    """`Route.keeps` without the generator, which would cost more than the answer: nearly always the first one says."""
    if route.shares or route.computed:
        return True
    for _, grant in route.deliveries:  # noqa: SIM110
        if grant.qos:
            return True
    return False
