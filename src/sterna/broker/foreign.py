"""The session of a foreign broker that this node is attached to: what becomes of it when that broker has lost its half.

While the foreign broker keeps its session, packet identifiers mean the same on both sides, and a message at QoS 2 goes
over once.  When it does not (Session Present 0), the identifiers of the old session mean nothing any more.  Messages in
flight are in doubt then: the foreign broker may have passed them on.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sterna.broker.access.identity import FOREIGN_PREFIX, RELAYED_PREFIX
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.mqtt.message import Message

#: The treatment of messages at QoS 2 that are in doubt: they may come twice, or not at all.
InDoubt = Literal["repeat", "drop"]


class Forgotten(NamedTuple):
    """Messages that were in flight, by what became of them."""

    repeated: int
    """Sent again as new: QoS 1, and QoS 2 with "repeat"."""
    dropped: int
    """QoS 2 with "drop": given up."""
    unknown: int
    """QoS 2 after PUBREC from before this node was restarted too: the messages are no longer known."""
    received: int
    """Identifiers of messages that the foreign broker had sent at QoS 2 and not released."""


def is_foreign(session: Session) -> bool:
    """Is it of a foreign broker, or of a client of one?  Then no other node can serve it."""
    return session.client_id.startswith((FOREIGN_PREFIX.encode(), RELAYED_PREFIX.encode()))


def forget_exchanges(session: Session, log: SessionLog, in_doubt: InDoubt) -> Forgotten:
    """The foreign broker has lost its session, and is not connected.  From here on no identifier means anything.

    Each change is an event of its own.  A copy of the session would lack messages that wait for the journal now: after
    a crash the copy would take the place of the queue that they are found in."""
    kept = session.in_doubt or {}
    repeated = dropped = unknown = 0
    for packet_id, entry in list(session.inflight.items()):
        again = entry or kept.get(packet_id)
        is_repeated = again is not None and (_qos(again[0], again[1].qos) == 1 or in_doubt == "repeat")
        if again is None:
            unknown += 1
        elif is_repeated:
            repeated += 1
            if entry is None:
                session.put_in_flight(packet_id, *again)
                if session.expiry_s:
                    log.assigned(session, packet_id, again[0].offset, again[1])
            continue
        else:
            dropped += 1
        session.out_of_flight(packet_id)
        log.acknowledged(session, packet_id)
    received = sorted(session.received)
    session.received.clear()
    for packet_id in received if session.expiry_s else ():
        log.released(session, packet_id)
    session.in_doubt = {}
    return Forgotten(repeated, dropped, unknown, len(received))


def _qos(message: Message, granted: int) -> int:
    return min(message.qos, granted)
