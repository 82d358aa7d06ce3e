"""Pages of a node's journal for a reader elsewhere: what entered here after a stamp, as far as one page goes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from sterna.broker.delivery.late_shares import LateShares
from sterna.broker.delivery.share_targets import is_decided_for, with_decision
from sterna.journal.group_encoding import message_weight
from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.mqtt.topics import FilterTree, is_reserved
from sterna.vocabulary.identity import Stamp

#: A page ends when it holds this much (or one message that is bigger), or when so many rows were looked at for it.
PAGE_BYTES = 256 * 1024
PAGE_ROWS = 4096
#: Of retained messages in one page.
RETAINED_PAGE = 1024


@dataclass(frozen=True, slots=True)
class Excerpt:
    messages: list[tuple[int, int, Message]]
    reached: Stamp
    complete: bool
    lost: int
    """Rows between the stamp and the oldest one kept; how many of them the reader wanted, nobody knows any more."""
    needs: tuple[str, Stamp] | None = None
    """Why it ends here: what the reader has to have read of another node first."""


class Wanted:
    """Does a reader want this topic?"""

    def __init__(self, filters: list[bytes] | None) -> None:
        self._tree: FilterTree[bytes, None] | None = None
        self._known: dict[bytes, bool] = {}
        if filters is not None:
            self._tree = FilterTree()
            for topic_filter in filters:
                self._tree.add(topic_filter, topic_filter, None)

    def __contains__(self, topic: bytes) -> bool:
        if self._tree is None:
            return True
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = bool(self._tree.match(topic))
        return known


def read_own(
    journal: Journal,
    after: Stamp,
    until: Stamp,
    filters: list[bytes] | None,
    reader: str = "",
    late: LateShares | None = None,
) -> Excerpt:
    """Messages of this node's own clients between two stamps, sequenced ones only; in any case those that are retained
    and those decided, then or late, to be for the reader's members of a shared subscription, who may have left it."""
    wanted = Wanted(filters)
    start = journal.offset_after(after)
    lost = max(0, min(journal.first_offset, until.sequence + 1) - start)
    offset = max(start, journal.first_offset)
    stop = min(until.sequence + 1, offset + PAGE_ROWS)
    found: list[tuple[int, int, Message]] = []
    size = 0
    while offset < stop:
        message = journal.read(offset)
        if message is not None and message.identity is None and late:
            message = with_decision(message, late.decision_of(message))
        if (
            message is not None
            and message.identity is None
            and (is_wanted(message, wanted) or (message.shares and is_decided_for(message, reader)))
        ):
            size += message_weight(message) + len(message.shares)
            if found and size > PAGE_BYTES:
                break
            found.append((journal.epoch_of(offset), offset, message))
        offset += 1
    if offset > until.sequence:
        return Excerpt(found, until, True, lost)
    return Excerpt(found, Stamp(journal.epoch_of(offset - 1), offset - 1), False, lost)


def is_wanted(message: Message, wanted: Wanted) -> bool:
    """Retained messages are wanted by everybody; others at QoS 0 are not sequenced, and not in the journal."""
    if is_reserved(message.topic):
        return False  # what expressions come to is this node's clients' alone
    return message.retain or (message.qos > 0 and message.topic in wanted)


def retained_page(
    retained: Iterable[Message], journal: Journal, node: str, after: bytes, upto: Stamp, *, of_others: bool
) -> tuple[list[tuple[str, int, int, Message]], bytes | None]:
    """(origin, epoch, sequence, message) of what is retained on the topics after this one, as far as a page goes; and
    the last of its topics, if there is more.  Our own after `upto` are left out: they are yet to come as messages."""
    kept = (
        message
        for message in retained
        if message.topic > after
        and message.offset >= 0
        and (of_others if message.identity is not None else message.offset <= upto.sequence)
    )
    page = heapq.nsmallest(RETAINED_PAGE, kept, key=lambda message: message.topic)
    found: list[tuple[str, int, int, Message]] = []
    size = 0
    for message in page:
        size += message_weight(message)
        if found and size > PAGE_BYTES:
            break
        identity = message.identity or (node, journal.epoch_of(message.offset), message.offset)
        found.append((*identity, message))
    is_last = len(found) == len(page) < RETAINED_PAGE
    return found, None if is_last else found[-1][3].topic
