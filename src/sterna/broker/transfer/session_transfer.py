"""Transfers a session: stops it before it goes to another node, and puts it together when it comes from one.

A session that leaves first sends nothing new (`drain`), then sends nothing at all and hears only its client's
acknowledgements (`freeze`); messages for it wait meanwhile, so that it can continue as if nothing had happened
(`thaw`).  A session that arrives listens from the first moment on, and is put together (`complete`) from the messages
it heard itself and the pages that were sent after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from sterna.broker.beginning import Beginning, beginning_from
from sterna.broker.delivery.barriers import Barriers
from sterna.broker.delivery.share_targets import FOR_NOBODY, is_for_shares_only
from sterna.broker.packets.ack_only_reader import AckOnlyReader
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.outbox import MOVING, NOT_COUNTED, Outbox, WaitingRoom, packet_ends
from sterna.broker.session.qos0_hold import Qos0Hold
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant, Subscription, SubscriptionFields
from sterna.broker.transfer import expression_transfer
from sterna.broker.transfer.broker_parts import BrokerParts
from sterna.journal.session_state import SessionState
from sterna.mqtt.message import Message
from sterna.mqtt.topics import SHARE
from sterna.vocabulary.identity import BEFORE_ALL, Identity, VersionVector


class Staged(NamedTuple):
    """A message of a session that arrives, in our own journal."""

    packet_id: int
    """0: it waits."""
    offset: int
    grant: Grant | None
    """None after PUBREC, when only the identifier matters."""


class Transferred(NamedTuple):
    """A session that has come from another node, in the parts it came in."""

    source: str
    number: int
    """Under which it is owned here."""
    subscriptions: list[SubscriptionFields]
    messages: list[Staged]
    state: SessionState
    gone_s: float
    """For how long it has had no connection; negative: for how long its client is waited for."""
    vector: VersionVector
    """The point up to which it has been served."""
    expressions: dict[bytes, bytes]
    """States of its expressions."""
    unsaid: bytes | None
    """Packets at QoS 0 that came for its client when that had been sent here."""
    missed: VersionVector
    """Up to where it has been told here what was published elsewhere after that."""
    loose: VersionVector
    """Up to which body of messages at QoS 0 it has been served."""


# -- leaving --


def call(broker: BrokerParts, session: Session, farewell: bytes, seconds: float) -> None:
    """Send its client to another node, where the session is to follow it.  Until then it is here: if the client comes
    back, it is served as if nothing had happened, and has what came at QoS 0 meanwhile too."""
    session.is_called = True
    if session.connection is not None:
        broker.lifecycle.end(session.connection, farewell, graceful=False)
        _await_client(broker, session, seconds)


def may_be_greeted(session: Session) -> bool:
    """May its client be told at another node that its session is there before it is?  Not if it might still hear that
    the session is new, nor if somebody is to learn of its end."""
    beginning = session.beginning
    return session.will is None and (beginning is None or beginning.has_heard_of_it)


def unsaid(session: Session, most: int) -> bytes | None:
    """Packets at QoS 0 for a client that was sent on; those that do not fit in are dropped and counted.  None: it was
    not sent on."""
    room = session.outbox.transport
    if not isinstance(room, WaitingRoom):
        return None
    kept = room.kept()
    if len(kept) <= most:
        return kept
    ends = packet_ends(kept)
    fitting = [end for end in ends if end <= most]
    session.outbox.drop(len(ends) - len(fitting))
    return kept[: fitting[-1] if fitting else 0]


def drain(session: Session) -> int:
    """Send nothing new at QoS 1 and 2; the window it had."""
    window, session.window = session.window, 0
    return window


def freeze(broker: BrokerParts, session: Session, acknowledged: Callable[[], None]) -> bool:
    """Whether its client had kept up till then."""
    kept_up = not session.outbox.congested
    session.outbox.congested = True
    _hold(broker, session)
    if session.outbox.transport is not None:
        session.outbox.instead = MOVING
    if session.connection is not None:
        session.connection.freeze(AckOnlyReader(broker.acknowledgements, acknowledged))
    # Unacknowledged messages of a shared subscription go back there, as when a connection ends.
    broker.delivery.disconnected(session)
    return kept_up


def stopped(
    broker: BrokerParts, session: Session, *, kept_up: bool, is_heard_elsewhere: bool, unsent: Collection[bytes]
) -> None:
    """Everything that this node has to serve has come: messages at QoS 0 among it have waited for this.

    From here on the node it goes to counts what is lost at QoS 0, if it has been listening.  That node will hear
    messages on `unsent`, topics that other nodes are just being told of.
    """
    left = session.held.leave(unsent) if session.held is not None else []
    if session.outbox.transport is not None and kept_up:
        session.outbox.congested = False
        broker.delivery.let_go(session)
        session.outbox.congested = True
    if is_heard_elsewhere:
        session.outbox.instead = NOT_COUNTED
    # Loose ones that the other node may never hear of are lost, and counted.
    session.held = Qos0Hold(broker.network if is_heard_elsewhere else None)
    session.held.messages += left  # they are for its client if it stays


def thaw(broker: BrokerParts, session: Session, window: int | None, *, was_frozen: bool) -> None:
    """It stays.  `window`: the one it had, if it was to send nothing new."""
    was_called, session.is_called = session.is_called, False
    if window is None and session.leaving is None and not was_called:
        return
    session.leaving = None
    if window is not None and not was_called:
        session.window = window
    session.outbox.instead = None
    if was_frozen:
        broker.log.leaving(session)
    connection = session.connection
    if connection is None and isinstance(session.outbox.transport, WaitingRoom):
        session.outbox.congested = False
        broker.delivery.let_go(session)
        broker.lifecycle.left(session)
        return
    if connection is None:
        session.held = None
        broker.delivery.disconnected(session)
        broker.lifecycle.left(session)
        return
    if was_frozen:
        session.outbox.congested = False
        broker.delivery.let_go(session)
        session.needs = (session.version, session.packet_bytes_max > 0, session.aliases is not None)
        broker.routes.sort_anew(session)
        connection.thaw()
    broker.delivery.pump(session)


def is_served_elsewhere(session: Session) -> None:
    """The other node has it."""
    session.outbox.instead = NOT_COUNTED


def count_missed(session: Session) -> None:
    """It has stopped at the node it leaves, and nobody serves it: what comes at QoS 0 now is lost."""
    session.outbox.instead = MOVING


def part_from(broker: BrokerParts, session: Session, farewell: bytes) -> None:
    """Send its client away.  Its will is not published: the session lives on elsewhere."""
    session.will = None
    if session.connection is not None:
        broker.lifecycle.end(session.connection, farewell, graceful=False)


def end_moved(broker: BrokerParts, session: Session, node: str, number: int) -> None:
    if broker.sessions.get(session.client_id) is session:
        if broker.records is not None:
            broker.records.moved(session, number)
        _end_here(broker, session, node, number)


def end_fenced(broker: BrokerParts, session: Session, kept: Session, node: str, number: int) -> None:
    """Its client is another node's; what it had goes on under another name, and in the records as before."""
    kept.life = session.life
    _end_here(broker, session, node, number)


def _end_here(broker: BrokerParts, session: Session, node: str, number: int) -> None:
    broker.state.forget_session(session)
    broker.lifecycle.take_apart(session)
    broker.log.moved(session, node, number)


# -- arriving --


def begin_arrival(
    broker: BrokerParts,
    client_id: bytes,
    user: str | None,
    version: int,
    subscriptions: list[SubscriptionFields],
    windows: list[expression_transfer.PartName],
) -> Session:
    """A session that is here to listen.  It counts for nothing yet: a crash is its end.  May raise ExpressionError."""
    expression_transfer.check(broker, [fields[0] for fields in subscriptions])
    expression_transfer.expect(broker, windows)
    permissions = broker.access.permissions(user, client_id.decode(), None)
    session = broker.state.new_session(client_id, user, permissions)
    session.is_arriving = True
    session.outbox.instead = NOT_COUNTED
    barriers_of(broker)
    session.version = version
    session.needs = (version, False, False)
    _hold(broker, session)
    session.disconnected_at = broker.running_clock
    for fields in subscriptions:
        if not fields[0].startswith(SHARE):  # what is for a member is decided once, so it joins when it is to stay
            broker.routes.subscribe(session, Subscription(*fields))
    expression_transfer.expect(broker, [])
    return session


def hear(session: Session, broker: BrokerParts, message: Message) -> None:
    """One of our own clients' messages that was delivered before it listened."""
    if message.shares and is_for_shares_only(message):
        return
    for one, grant in broker.routes.route(message.topic).deliveries:
        if one is not session:
            continue
        if grant.qos:
            broker.delivery.enqueue(session, message.offset, grant)
        elif session.held is not None:
            session.held.hold(message, grant)


def bar(broker: BrokerParts, session: Session, vector: VersionVector) -> None:
    """Messages read up to here that are still being written are not for it: it gets them in another way."""
    session.barrier = dict(vector)
    raise_barrier(broker, session)


def hear_first(session: Session, broker: BrokerParts, messages: list[Message]) -> None:
    """Other nodes' messages that were delivered here before it listened: they come before all that it has heard."""
    loose: list[tuple[Message, Grant]] = []
    waiting: list[tuple[int, Grant]] = []
    for message in messages:
        if message.shares and is_for_shares_only(message):
            continue
        for one, grant in broker.routes.route(message.topic).deliveries:
            if one is session and grant.qos:
                message.shares = FOR_NOBODY
                waiting.append((broker.journal.append(message), grant))
            elif one is session:
                loose.append((message, grant))
    for offset, grant in reversed(waiting):
        session.queue.push_front(offset, grant)
    if session.held is not None:
        session.held.hold_first(loose)


def drop_arrival(broker: BrokerParts, session: Session) -> None:
    if broker.sessions.get(session.client_id) is session:
        broker.state.forget_session(session)
        broker.lifecycle.take_apart(session)


def complete(broker: BrokerParts, session: Session, came: Transferred, node: str) -> None:
    """Put it together: what it was owed where it came from, then what it heard here and was not served there.

    Only to be called between two groups: what is delivered and what is not must be the same after a crash.  May raise
    JournalError; then nothing has changed.
    """
    read = broker.journal.read
    staged, vector = came.messages, came.vector
    inflight = [(one, read(one.offset) if one.grant is not None else None) for one in staged if one.packet_id]
    held = session.held or Qos0Hold()
    results = expression_transfer.Results(broker, session, came.expressions, vector, node)
    beginning = None if came.state.beginning is None else beginning_from(came.state.beginning)
    if beginning is not None:
        beginning.began_at = max(0.0, broker.running_clock - beginning.began_at)  # its age came along
    heard = results.waiting(
        [
            (offset, grant)
            for offset, grant in session.queue
            if not results.is_served(message := read(offset), held.made_of)
            and not (beginning is not None and _is_left_to_old(broker, beginning, message, grant, node))
        ]
    )
    waiting = [(one.offset, one.grant) for one in staged if not one.packet_id and one.grant is not None] + heard
    session.queue = OffsetQueue()
    for offset, grant in waiting:
        session.queue.push(offset, grant)
    held.messages = [
        one
        for one in held.messages
        if not (results.is_served(one.message, held.made_of) if one.loose is None else _is_said(one.loose, came.loose))
    ]
    for one, message in inflight:
        if one.grant is None:
            session.inflight[one.packet_id] = None
        elif message is not None:
            session.put_in_flight(one.packet_id, message, one.grant)
    session.restore(came.state)
    session.beginning = beginning  # it has noted what it leaves to another session
    session.number = came.number
    session.disconnected_at = broker.running_clock - came.gone_s
    watch(broker, session)
    session.barrier = {origin: stamp for origin, stamp in {**vector, **came.missed}.items() if origin != node}
    session.told = results.told
    source = came.source
    session.came = (broker.journal.next_offset, source, *vector[source]) if source in vector else None
    if session.came is not None:
        broker.state.publisher_came(session.came)
    for fields in came.subscriptions:
        if fields[0].startswith(SHARE):
            broker.routes.subscribe(session, Subscription(*fields))
    raise_barrier(broker, session)
    if broker.records is not None:
        broker.records.arrived(session, vector)
    expression_transfer.settle(broker, session, came.expressions, vector, node)
    if session.expiry_s:
        broker.log.imported(session)
    session.outbox.instead = None
    if came.gone_s < 0:
        _await_client(broker, session, -came.gone_s, came.unsaid or b"")
        broker.delivery.let_go(session)


def _is_left_to_old(
    broker: BrokerParts, beginning: Beginning, message: Message | None, grant: Grant, node: str
) -> bool:
    """Is another session of the client in charge of what was heard here meanwhile?"""
    if message is None or min(message.qos, grant.qos) < 2:
        return False
    identity = message.identity or Identity(node, broker.journal.epoch_of(message.offset), message.offset)
    is_left = beginning.leaves_to_old(identity)
    if is_left:
        beginning.note_left(identity)
    return is_left


def acknowledged_before(broker: BrokerParts, session: Session, acknowledged: list[int], received: list[int]) -> None:
    """The client's acknowledgements at the node it came from.  There PUBACK was taken at once, and PUBREC put aside, so
    they count, and are noted for an audit, only here."""
    for packet_id in acknowledged:
        broker.delivery.acknowledged(session, packet_id, is_noted=True)
    for packet_id in received:
        broker.delivery.passed_on(session, packet_id)


def settle_down(broker: BrokerParts, session: Session) -> None:
    """All of it is safe: it is here."""
    session.is_arriving = False
    broker.lifecycle.schedule_session(session)


def _hold(broker: BrokerParts, session: Session) -> None:
    """Keep what comes for it at QoS 0, message by message."""
    session.held = Qos0Hold(broker.network)
    version, _, aliased = session.needs
    session.needs = (version, True, aliased)
    broker.routes.sort_anew(session)


def _is_said(loose: Identity, vector: VersionVector) -> bool:
    return loose.stamp <= vector.get(loose.origin, BEFORE_ALL)


def _await_client(broker: BrokerParts, session: Session, seconds: float, unsaid: bytes = b"") -> None:
    """It is on its way: what comes at QoS 0 meanwhile is kept for it, after what came already."""
    room = WaitingRoom(session.outbox, session.version)
    session.window = 0
    session.outbox.attach(room)
    if unsaid:
        room.write(unsaid)
    broker.deadlines.at(broker.now + seconds, partial(_no_longer_await, session.outbox, room))


def _no_longer_await(outbox: Outbox, room: WaitingRoom) -> None:
    if outbox.transport is room:
        outbox.detach()
        room.give_up()


def raise_barrier(broker: BrokerParts, session: Session) -> None:
    if session.barrier:
        barriers_of(broker).raise_for(session)


def watch(broker: BrokerParts, session: Session) -> None:
    """Its messages at QoS 2 are looked at, if an old session that is known of may be in charge of them."""
    if session.beginning is not None and (session.beginning.after or session.beginning.left_to_old):
        barriers_of(broker).watch(session)


def barriers_of(broker: BrokerParts) -> Barriers:
    if broker.delivery.barriers is None:
        barriers = broker.delivery.barriers = Barriers()
        barriers.node, barriers.epoch = broker.delivery.node, broker.journal.epoch
        barriers.dropped = broker.counters.dropped
    return broker.delivery.barriers
