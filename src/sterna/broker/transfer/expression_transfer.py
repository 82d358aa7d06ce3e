"""Moves the state of expressions with a session that goes to another node.

The old node sends the state as of the moment up to which it has served the session, with the results that are in the
journal and not delivered yet.  The new node has held the messages that came since it listened (`expression_gate.py`);
it continues from the state it gets, and writes that down with the session.  If a client at the new node subscribes to
the same expression, the node computes it already: its state stays, because results are shared, and the session gets the
results that it has not had at the old node (`Results`, `result_identity.py`).

For an expression in parts (`parts.py`) the state is where the messages are, at all nodes, under the name of the part.
So the new node is told beforehand what the parts are called and for how long they have been wanted, and asks for them
before the old node stops asking.
"""

from __future__ import annotations

import msgspec

from sterna.broker.delivery.barriers import is_served
from sterna.broker.delivery.share_targets import FOR_NOBODY
from sterna.broker.expressions.computation import Computation
from sterna.broker.expressions.expression_gate import ExpressionGate
from sterna.broker.expressions.parts import read_name
from sterna.broker.expressions.result_identity import has_had, told
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant
from sterna.broker.transfer.broker_parts import BrokerParts
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import is_reserved
from sterna.operators.errors import ExpressionError, StateError
from sterna.operators.grammar import is_expression
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp, VersionVector

#: Bytes that the states of one session's expressions may take together.  One that does not fit in starts empty.
STATES_BYTES_MAX = 16 * 1024 * 1024

#: (name of a part, for how many microseconds it has been wanted: two nodes' clocks may differ)
PartName = tuple[bytes, int]

#: Among the memories: up to which windows those with windows have told, and of others over parts what they said last.
TOLD = b""
_Told = dict[bytes, tuple[int, bytes | None]]

#: Before the name of an expression: the messages whose numbers it waits for.
WAITING = b"\0"
#: Identity, topic, payload, microsecond it came.
_Waiting = tuple[tuple[str, int, int], bytes, bytes, int]


def _computations_of(broker: BrokerParts, session: Session) -> list[Computation]:
    found = (broker.routes.computations.get(text) for text in session.subscriptions if is_expression(text))
    return [computation for computation in found if computation is not None]


# -- leaving --


def parts_of(broker: BrokerParts, session: Session) -> list[PartName]:
    """Names for the parts of its expressions, and for how long a node that has not been asked yet has to look back
    for them."""
    parts = {one.part.name: one.part for one in _computations_of(broker, session) if one.part is not None}
    now_us = int(broker.wall * 1e6)
    return [(part.name, max(0, now_us - part.wanted_us) if part.wanted_us else 0) for part in parts.values()]


def states_of(broker: BrokerParts, session: Session) -> list[tuple[bytes, bytes]]:
    """States of the expressions of a session now; with those that have a function, the messages whose numbers they
    wait for."""
    states = told_of(broker, session)
    room = STATES_BYTES_MAX
    for computation in _computations_of(broker, session):
        gate = computation.gate
        if gate is not None and gate.is_awaited:
            continue
        text, state = computation.expression.text, computation.snapshot()
        if len(text) + len(state) > room:
            broker.routes.computations.tell_anew(computation, f"more than {STATES_BYTES_MAX} bytes to be sent along")
            continue
        room -= len(text) + len(state)
        states.append((text, state))
        waiting = _waiting_of(broker, computation, room)
        if waiting:
            states.append((WAITING + text, msgspec.msgpack.encode(waiting)))
            room -= sum(_size(one) for one in waiting)
    return states


def _waiting_of(broker: BrokerParts, computation: Computation, room: int) -> list[_Waiting]:
    """Messages that do not fit in are not computed, and counted."""
    calls = broker.routes.computations.calls
    found: list[_Waiting] = []
    for call, message in calls.under_way(computation):
        known = broker.identity_of(message)
        one = (known or ("", 0, -1), message.topic, message.payload, call.time_us)
        room -= _size(one)
        if known is None or room < 0:
            calls.count(call.function, "moved")
        else:
            found.append(one)
    return found


def _size(waiting: _Waiting) -> int:
    return len(waiting[1]) + len(waiting[2]) + 64


def told_of(broker: BrokerParts, session: Session) -> list[tuple[bytes, bytes]]:
    """Results that the session has had and that have no message's identity."""
    found: _Told = {}
    for computation in _computations_of(broker, session):
        text = computation.expression.text
        if computation.is_merged:
            found[text] = (0, computation.said)
        elif computation.is_timed and not computation.is_awaited:
            had = session.told.get(computation.known_as.decode(), BEFORE_ALL)
            found[text] = (max(computation.told_us, had.sequence), None)
    return [(TOLD, msgspec.msgpack.encode(found))] if found else []


def results_of(broker: BrokerParts, session: Session) -> list[tuple[int, Grant]]:
    """Results for a session that have been made and not delivered: they wait to be safe, or for their turn."""
    journal = broker.journal
    found: list[tuple[int, Grant]] = []
    if _computations_of(broker, session):
        for offset in range(broker.delivered_upto + 1, journal.next_offset):
            message = journal.read(offset)
            if message is None or message.identity is not None or not is_reserved(message.topic):
                continue
            if has_had(session, message):
                continue
            deliveries = broker.routes.route(message.topic).deliveries
            found += [(offset, grant) for one, grant in deliveries if one is session and grant.qos]
    return found


# -- arriving --


def check(broker: BrokerParts, filters: list[bytes]) -> None:
    """ExpressionError if one is of a release that knows more operators than we do."""
    for text in filters:
        if is_expression(text):
            broker.routes.computations.comes_in_parts(text)


def expect(broker: BrokerParts, parts: list[PartName]) -> None:
    """These parts are meant by the subscriptions that follow."""
    recovery = broker.routes.computations.recovery
    recovery.forget_parts()
    now_us = int(broker.wall * 1e6)
    for name, age_us in parts:
        try:
            read_name(name)
        except ExpressionError:
            continue  # of another release: it starts again
        recovery.remember_part(name, max(1, now_us - age_us))


class Results:
    """Of an expression that is computed here already, when a session comes that has had results of it elsewhere."""

    def __init__(
        self, broker: BrokerParts, session: Session, states: dict[bytes, bytes], vector: VersionVector, node: str
    ) -> None:
        self._broker = broker
        self._session = session
        self._vector = vector
        self._node = node
        #: For `Session.told`.
        self.told: VersionVector = {node: vector[node]} if node in vector else {}
        self._missed: list[tuple[int, Grant]] = []
        said = _told_in(states)
        for computation in _computations_of(broker, session):
            upto, last = said.get(computation.expression.text, (-1, None))
            if computation.is_timed and upto >= 0:
                if not computation.is_merged:
                    self._go_on_from(computation, upto)
                elif not computation.is_awaited:
                    self._go_on_after(computation, last)

    def _go_on_from(self, computation: Computation, upto: int) -> None:
        """Windows: those that ended here before we listened, and there not before we stopped."""
        self.told.update([told(computation, upto)])
        heard = self._session.held.made_of if self._session.held is not None else {}
        for number, offset in computation.recent:
            if number > upto and offset <= self._broker.delivered_upto and offset not in heard:
                self._miss(computation, offset)

    def _go_on_after(self, computation: Computation, last: bytes | None) -> None:
        """The newest there is: once, unless it was the newest there, too."""
        self.told.update([told(computation, computation.made)])
        if not computation.said or computation.said == last:
            return
        if computation.recent and computation.recent[-1][0] == computation.made:
            self._miss(computation, computation.recent[-1][1])
        elif self._session.held is not None:
            topic = computation.expression.result_topic
            result = Message(topic, computation.said, 0, False, b"", NEVER, computation.expression.text)
            # One more than it has had.
            result.made_of = Identity(computation.expression.text.decode(), 0, computation.made + 1)
            for grant in self._grants(topic):
                self._session.held.hold(result, grant)

    def _miss(self, computation: Computation, offset: int) -> None:
        self._missed += [(offset, grant) for grant in self._grants(computation.expression.result_topic)]

    def _grants(self, topic: bytes) -> list[Grant]:
        return [grant for one, grant in self._broker.routes.route(topic).deliveries if one is self._session]

    def is_served(self, message: Message | None, made_of: dict[int, Identity]) -> bool:
        """Has it had this where it came from, so far as that can be known?"""
        if message is None or message.identity is not None or not is_reserved(message.topic):
            return is_served(self._broker.journal, self._node, message, self._vector)
        cause = message.made_of or made_of.get(message.offset)
        if cause is None:
            return True  # of a message at QoS 0: rather not than twice
        stamp = Stamp(cause.epoch, cause.sequence)
        return any(stamp <= had.get(cause.origin, BEFORE_ALL) for had in (self._vector, self.told))

    def waiting(self, heard: list[tuple[int, Grant]]) -> list[tuple[int, Grant]]:
        """With those it missed, in their order.  Those wanted at QoS 0 stay missed."""
        missed = [one for one in self._missed if one[1].qos]
        return sorted((*heard, *missed), key=lambda one: one[0]) if missed else heard


def _told_in(states: dict[bytes, bytes]) -> _Told:
    try:
        found: _Told = msgspec.msgpack.decode(states.get(TOLD, b"\x80"), type=_Told)
    except msgspec.DecodeError:
        return {}
    return found


def settle(broker: BrokerParts, session: Session, states: dict[bytes, bytes], vector: VersionVector, node: str) -> None:
    """The session is here: its expressions go on, from what they remembered where it came from."""
    computations = broker.routes.computations
    held: dict[int, tuple[Message, list[Computation]]] = {}
    arrived: list[tuple[Computation, ExpressionGate]] = []
    for computation in _computations_of(broker, session):
        gate = computation.gate
        if gate is None or not gate.is_awaited:
            continue
        _adopt(broker, computation, states.get(computation.expression.text))
        if computation.function:
            _wait_on(broker, computation, states.get(WAITING + computation.expression.text))
        computation.gate = ExpressionGate({origin: stamp for origin, stamp in vector.items() if origin != node})
        arrived.append((computation, gate))
        for message in gate.held:
            if not is_served(broker.journal, node, message, vector):
                held.setdefault(message.offset, (message, []))[1].append(computation)
    for _, (message, takers) in sorted(held.items()):
        computations.take(takers, message)
    for computation, gate in arrived:
        computations.settled_down(computation, [result for result in gate.ended if result[0] > computation.closed_us])
        if session.expiry_s:
            broker.log.state(computation.expression.text, computation.snapshot())


def _wait_on(broker: BrokerParts, computation: Computation, waiting: bytes | None) -> None:
    """For the numbers of messages that are in the other node's journal."""
    try:
        found = msgspec.msgpack.decode(waiting or b"\x90", type=list[_Waiting])
    except msgspec.DecodeError:
        return
    for identity, topic, payload, time_us in found[: broker.limits.function_calls]:
        message = Message(topic, payload, 1, False, b"", NEVER, b"", time_us / 1e6)
        message.identity = Identity(*identity)
        message.shares = FOR_NOBODY
        broker.journal.append(message)
        broker.routes.computations.calls.take([computation], message, time_us)


def _adopt(broker: BrokerParts, computation: Computation, state: bytes | None) -> None:
    computations = broker.routes.computations
    if state is None:
        computations.tell_anew(computation, "what it remembered did not come along")
        return
    try:
        computation.adopt(state)
        if computation.part is not None:
            computations.parts.has_moved(computation.part)
    except StateError as error:
        computation.engine = computations.engine_of(computation)
        computations.tell_anew(computation, str(error))
