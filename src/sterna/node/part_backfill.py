"""A part that begins late: what entered here since its expression was subscribed to elsewhere counts all the same.

That happens when a node could not be reached at that moment.  Messages at QoS 1 and 2 are in the journal; those that
have been delivered are read again, in their order, before any other is taken.
"""

from __future__ import annotations

from sterna.broker.broker import Broker
from sterna.broker.expressions.parts import ExpressionPart
from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.mqtt.topics import FilterTree
from sterna.node.membership import first_since
from sterna.vocabulary.errors import JournalError

#: Rows of the journal that are looked at for it, the newest; nobody is served meanwhile.
ROWS_MAX = 20_000


def catch_up(broker: Broker, part: ExpressionPart, frontier: int) -> None:
    """From `part.since_us` to the last message that has been delivered."""
    journal = broker.journal
    stop = frontier + 1
    try:
        start = first_since(journal.read, journal.first_offset, stop, part.since_us / 1e6)
        if stop - start > ROWS_MAX:
            start = stop - ROWS_MAX
            fields = {"expression": part.expression.text.decode(), "messages_at_most": stop - start}
            broker.tell("a part begins later than its expression", fields)
        for message in _own(journal, part, start, stop):
            part.take(message.topic, message.payload, int(message.received_at * 1e6 + 0.5))
    except JournalError as error:
        broker.tell("a part begins later than its expression", {"reason": str(error)})
    part.since_us, part.caught_up = 0, True
    broker.routes.computations.parts.has_moved(part)


def _own(journal: Journal, part: ExpressionPart, start: int, stop: int) -> list[Message]:
    wanted: FilterTree[bytes, None] = FilterTree()
    wanted.add(part.expression.topic_filter, b"", None)
    found = (journal.read(offset) for offset in range(start, stop))
    return [
        message
        for message in found
        if message is not None and message.identity is None and message.qos and wanted.match(message.topic)
    ]
