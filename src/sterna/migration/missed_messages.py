"""A session that has stopped on one node and goes on at another which was not listening for it: what it would miss.

Where there are only the two of them nobody has to be asked.  What our own clients published lies in our journal.  What
the other node's did we read as after any interruption: from where we are, with what we want now.
"""

from __future__ import annotations

from sterna.broker.delivery.journal_pages import read_own
from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.migration.node_move_host import NodeMoveHost
from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import BEFORE_ALL, VersionVector


def of_our_own(host: NodeMoveHost, source: str, vector: VersionVector, filters: list[bytes]) -> list[Message] | None:
    """What our clients have published after it; None if we cannot see to it that nothing at all is missed."""
    router, node = host.router, host.node
    read = host.vector()
    if not set(router.paths.origins) <= {source} or source not in read or node not in vector:
        return None
    if any(stamp > vector.get(origin, BEFORE_ALL) for origin, stamp in read.items() if origin != node):
        return None  # we have read on, for others, past what it would have wanted
    try:
        excerpt = read_own(host.broker.journal, vector[node], host.frontier(), filters)
    except JournalError:
        return None
    if excerpt.lost or not excerpt.complete:
        return None
    return [message for _, _, message in excerpt.messages]


def hear(host: NodeMoveHost, session: Session, source: str, vector: VersionVector, missed: list[Message]) -> None:
    """It listens from now on: have it miss nothing."""
    for message in missed:
        session_transfer.hear(session, host.broker, message)
    streams = host.router.streams
    streams.passed(source, vector[source])
    if not host.router.strategy.everything():
        streams.read_anew(source)
