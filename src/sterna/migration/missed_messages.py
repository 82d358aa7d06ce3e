"""A session that has stopped on one node and goes on at another which was not listening for it: what it would miss.

Nobody has to be asked before the session is sent.  Messages of our own clients lie in our journal.  Of a node that
we have not read further than the session was served, we read as after any interruption: from where we are, with what we
want now.  A node that we have read further, for others, we ask for what lies between, for this session alone.

If that cannot be, or might not keep a publisher's messages in order, the session goes on where it is until we have
found out from where on we hear everything.
"""

from __future__ import annotations

from sterna.broker.delivery.journal_pages import read_own
from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.migration.move_host import MoveHost
from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import BEFORE_ALL, Stamp, VersionVector

#: Filters of a session up to which nodes are asked for what it has missed.
FILTERS_MAX = 100


def of_our_own(host: MoveHost, vector: VersionVector, filters: list[bytes]) -> list[Message] | None:
    """Messages that our clients have published after it; None if we cannot tell.  A client that came here from another
    node had to wait until we had read what it published there, so all this comes after what others are asked for."""
    served = vector.get(host.node)
    if served is None:
        return None
    try:
        excerpt = read_own(host.broker.journal, served, host.frontier(), filters)
    except JournalError:
        return None
    if excerpt.lost or not excerpt.complete:
        return None
    return [message for _, _, message in excerpt.messages]


def gaps(host: MoveHost, vector: VersionVector, filters: list[bytes]) -> VersionVector | None:
    """Nodes that we have read further than the session was served, and how far; None if we cannot see to it that
    nothing is missed."""
    streams, reachable = host.router.streams, host.router.paths.origins
    read = {origin: stamp for origin, stamp in host.vector().items() if origin != host.node}
    if not all(streams.in_step(origin) and origin in read and origin in vector for origin in reachable):
        return None
    found = {origin: stamp for origin, stamp in read.items() if stamp > vector.get(origin, BEFORE_ALL)}
    if found and (len(filters) > FILTERS_MAX or not found.keys() <= set(reachable)):
        return None
    return found


def hear(host: MoveHost, session: Session, source: str, vector: VersionVector, missed: list[Message]) -> None:
    """It listens from now on: have it miss nothing that comes."""
    for message in missed:
        session_transfer.hear(session, host.broker, message)
    streams = host.router.streams
    streams.passed(source, vector.get(source, BEFORE_ALL))
    if not host.router.strategy.everything():
        for origin in host.router.paths.origins:
            streams.read_anew(origin)


def between(messages: list[Message], upto: Stamp) -> list[Message]:
    """Those that we had read when the session began to listen."""
    return [
        message
        for message in messages
        if message.identity is not None and Stamp(message.identity.epoch, message.identity.sequence) <= upto
    ]
