"""What expressions remember, when a session that subscribed to them goes to another node.

The old node sends it along as of the moment up to which it has served the session, with the results that stand in the
journal and have not been delivered yet.  The new node has held the messages that came since it listened (`gates.py`);
it goes on from there, and has that written down with the session.  If somebody at the new node subscribes to the same
expression it is computed there already: results are shared, so what is there stays, and what comes is not used.

In parts (`parts.py`) the memory is where the messages are, at all nodes, for whoever calls a part by its name; so the
new node is told the names of those with windows beforehand, and asks for them before the old one stops asking.
"""

from __future__ import annotations

from sterna.broker.barriers import is_served
from sterna.broker.broker import Broker
from sterna.broker.computation import Computation
from sterna.broker.gates import Gate
from sterna.broker.parts import read_name
from sterna.broker.session import Session
from sterna.broker.subscriptions import Grant
from sterna.mqtt.message import Message
from sterna.mqtt.topics import is_reserved
from sterna.operators.errors import ExpressionError, StateError
from sterna.operators.grammar import is_expression
from sterna.vocabulary.stamps import VersionVector

#: What the memories of one session's expressions may take together.  One that does not fit in begins anew.
STATES_BYTES_MAX = 16 * 1024 * 1024

#: (name of a part, since when it is wanted)
PartName = tuple[bytes, int]


def _computations_of(broker: Broker, session: Session) -> list[Computation]:
    found = (broker.routes.computations.get(text) for text in session.subscriptions if is_expression(text))
    return [computation for computation in found if computation is not None]


# -- leaving --


def windows_of(broker: Broker, session: Session) -> list[PartName]:
    """What to call the parts whose windows begin with a subscription."""
    parts = {one.part.name: one.part for one in _computations_of(broker, session) if one.part is not None}
    return [(part.name, part.wanted_us) for part in parts.values() if part.naming.has_windows]


def states_of(broker: Broker, session: Session) -> list[tuple[bytes, bytes]]:
    """What the expressions of a session remember now.  Those with a function wait for numbers of messages that are in
    our journal: they begin anew."""
    states: list[tuple[bytes, bytes]] = []
    room = STATES_BYTES_MAX
    for computation in _computations_of(broker, session):
        gate = computation.gate
        if computation.function or (gate is not None and gate.is_awaited):
            continue
        text, state = computation.expression.text, computation.snapshot()
        if len(text) + len(state) > room:
            broker.routes.computations.tell_anew(computation, f"more than {STATES_BYTES_MAX} bytes to be sent along")
            continue
        room -= len(text) + len(state)
        states.append((text, state))
    return states


def results_of(broker: Broker, session: Session) -> list[tuple[int, Grant]]:
    """Results for a session that have been made and not delivered: they wait to be safe, or for their turn."""
    journal = broker.journal
    found: list[tuple[int, Grant]] = []
    if _computations_of(broker, session):
        for offset in range(broker.delivered_upto + 1, journal.next_offset):
            message = journal.read(offset)
            if message is None or message.identity is not None or not is_reserved(message.topic):
                continue
            deliveries = broker.routes.route(message.topic).deliveries
            found += [(offset, grant) for one, grant in deliveries if one is session and grant.qos]
    return found


# -- arriving --


def expect(broker: Broker, windows: list[PartName]) -> None:
    """These parts are meant by the subscriptions that follow."""
    recollection = broker.routes.computations.recollection
    recollection.forget_parts()
    for name, wanted_us in windows:
        try:
            read_name(name)
        except ExpressionError:
            continue  # of another release: its windows begin anew
        recollection.remember_part(name, wanted_us)


def settle(broker: Broker, session: Session, states: dict[bytes, bytes], vector: VersionVector, node: str) -> None:
    """The session is here: its expressions go on, from what they remembered where it came from."""
    computations = broker.routes.computations
    held: dict[int, tuple[Message, list[Computation]]] = {}
    arrived: list[tuple[Computation, Gate]] = []
    for computation in _computations_of(broker, session):
        gate = computation.gate
        if gate is None or not gate.is_awaited:
            continue
        _adopt(broker, computation, states.get(computation.expression.text))
        computation.gate = Gate({origin: stamp for origin, stamp in vector.items() if origin != node})
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


def _adopt(broker: Broker, computation: Computation, state: bytes | None) -> None:
    computations = broker.routes.computations
    if state is None:
        computations.tell_anew(computation, "what it remembered did not come along")
        return
    try:
        computation.adopt(state)
    except StateError as error:
        computation.engine = computations.engine_of(computation)
        computations.tell_anew(computation, str(error))
