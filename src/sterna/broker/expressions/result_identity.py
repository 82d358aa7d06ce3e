"""Identity of expression results, so that a subscriber who moves gets each once, whichever node computed it.

A client may come to a node where others have subscribed to the same expression.  Both nodes have computed it, each in
its own time, and the new node has to continue where the old one stopped.  So a result is identified by its cause:

* by the message, if it answers a message.  The vector up to which the session was served at the old node then covers
  results as it covers messages.
* by the end of its window.  The old node says up to which window it has published.
* for an answer over parts, which is always the newest there is, by its number at this node.  The session gets the last
  one if it is not the one that the old node published last, and those behind it.

`Session.told` says which results a session has had, by the name of this node or by the text of an expression;
`Session.barrier` does so for other nodes' messages, and for results of these.
"""

from __future__ import annotations

from sterna.broker.expressions.computation import Computation, taken_us
from sterna.broker.session.session import Session
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import BEFORE_ALL, Identity, Stamp


def has_had(session: Session, message: Message) -> bool:
    """Has it been dealt with where the session came from?"""
    cause = message.made_of
    known = message.identity if cause is None else cause
    if known is None:
        return False
    stamp = Stamp(known.epoch, known.sequence)
    is_told = cause is not None and stamp <= session.told.get(known.origin, BEFORE_ALL)
    return is_told or stamp <= session.barrier.get(known.origin, BEFORE_ALL)


def told(computation: Computation, upto: int) -> tuple[str, Stamp]:
    """Results of an expression up to this one, as an entry of `Session.told`."""
    return computation.known_as.decode(), Stamp(0, upto)


def cause_of(computation: Computation, result: Message, number: int) -> Identity | None:
    """Of a result that is not made of one message; `number`: 0 if it has none."""
    upto = number if computation.is_merged or computation.outside else taken_us(result)
    return Identity(computation.known_as.decode(), 0, upto) if upto else None


def note_recent(computation: Computation, result: Message) -> None:
    """It is in the journal: somebody who comes from another node may have to have it."""
    if computation.is_timed and result.made_of is not None and result.offset >= 0:
        computation.recent.append((result.made_of.sequence, result.offset))
