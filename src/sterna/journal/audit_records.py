"""The records that an audit is made from: what became of each message and each session.

They stand in the journal beside the messages, in frames of their own that recovery steps over.  A record is numbered
by its place: the byte its frame begins at, counted over all segments, and its row, so places grow in the order of
writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sterna.vocabulary.identity import Stamp

_BYTE_BITS = 40
"""A segment has fewer bytes than 2 to this."""


class SessionRecord(NamedTuple):
    """Something that happened to a session, or to the node: then `client` is empty."""

    what: str
    """started | opened | closed | ended | moved | subscribed | stands | carried | arrived | began | unsubscribed; see
    `broker/delivery/delivery_audit.py`."""
    at: float
    client: bytes = b""
    session: int = 0
    """Which of the client's sessions."""
    topic_filter: bytes | None = None
    qos: int = 0
    no_local: bool = False
    rules: str | None = None
    """The part of its filter that the client may read, if not everything: see `Permissions.reading`."""
    vector: Mapping[str, Stamp] | None = None
    number: int | None = None
    """Of one that moved, arrived or began: under which number another node came to own it."""


class DeliveryRecord(NamedTuple):
    """A message that a client has, or will not get."""

    at: float
    client: bytes
    """Empty if it was dropped for a shared subscription as a whole."""
    session: int
    share: bytes | None
    origin: str | None
    epoch: int | None
    sequence: int | None
    """Null, as origin and epoch, of messages of which only the number is known."""
    qos: int
    resent: bool = False
    retained: bool = False
    """It was sent because of a new subscription, not because it was published."""
    dropped: str | None = None
    """Why the client will not get it."""
    messages: int = 1


def place_of(serial: int, byte: int) -> int:
    return serial << _BYTE_BITS | byte


def serial_and_byte(place: int) -> tuple[int, int]:
    return place >> _BYTE_BITS, place & (1 << _BYTE_BITS) - 1
