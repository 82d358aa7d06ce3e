"""Answers nodes that ask for messages of shared subscriptions which this node had not heard of.

A decision is in the journal before the node that asked hears of it: a crash gives the message to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.broker.broker import Broker
from sterna.vocabulary.identity import Stamp


def give(
    broker: Broker, reader: str, keys: list[bytes], after: Stamp, frontier: Stamp, then: Callable[[], None]
) -> None:
    """All messages of our own between these stamps that do not name these groups; `then` once that is safe."""
    late, journal = broker.state.late_shares, broker.journal
    start, stop = journal.offset_after(after), frontier.sequence + 1
    late.forget_before(journal.first_offset)
    given = [key for key in keys if start < stop and late.give(key, start, stop, reader)]

    def note() -> None:
        for key in given:
            broker.log.given(key, start, stop, reader)

    note()
    # If that could not be written it is written with the next group, and the reader will ask again.
    broker.commitments.when_safe(lambda is_safe: then() if is_safe else note())
