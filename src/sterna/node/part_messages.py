"""Messages of nodes to each other about parts of expressions.

Not among the compiled modules: msgspec reads the annotations of these records, and mypyc does not keep them as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

from sterna.vocabulary.bounds import INSTANT_MAX_US, Epoch, Number, Seconds, Text, Topic
from sterna.vocabulary.errors import LinkProtocolError

#: A microsecond; -1: before all.
Moment = Annotated[int, msgspec.Meta(ge=-1, le=INSTANT_MAX_US)]
Numbers = Annotated[list[Number], msgspec.Meta(max_length=1_000_000)]


class Want(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Tell me your part of this, all of it at first; to be called by this number between us."""

    number: Number
    name: Topic
    #: For how long I have wanted it.
    age_s: Seconds
    #: Topics that other nodes have, too.
    apart: list[Topic]


class Unwanted(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Of these numbers no more."""

    numbers: Numbers


class All(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Of no others than these."""

    numbers: Numbers


class Told(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """This is my part now."""

    number: Number
    #: How often it was told in this epoch, this time included.
    count: Number
    flags: Annotated[int, msgspec.Meta(ge=0, lt=16)]
    aggregate: Any
    #: Topics in it that were not told before (FULL: all of them).
    claims: list[Topic]
    #: Topics kept apart that were not told before (FULL: all of them).
    apart: list[tuple[Topic, Moment, float | None]]


#: Flags of `Told`: nothing that was told before counts; values expired, and nothing came; the next one belongs to it;
#: it began late, and has caught up.
FULL = 1
QUIET = 2
MORE = 4
CAUGHT_UP = 8


class Stopped(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """There will be no such part from me, and why."""

    number: Number
    reason: Text


class Apart(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """Other nodes have these topics, too: keep them apart."""

    number: Number
    topics: list[Topic]


class Heard(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """The newest I have: (number, epoch, count)."""

    counts: list[tuple[Number, Epoch, Number]]


class Windows(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """Contents of windows that are over: (end, whether this is the first of it, aggregates by topic)."""

    number: Number
    #: All windows that ended by then have been told with this, unless there is more to come.
    closed_us: Moment
    more: bool
    windows: list[tuple[Moment, bool, list[tuple[Topic, Any]]]]


class Done(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """The windows up to this one are closed."""

    number: Number
    closed_us: Moment


Word = Want | Unwanted | All | Told | Stopped | Apart | Heard | Windows | Done

#: Topics of one record; with the longest topics there are, it fits into a frame together with others.
TOPICS_BYTES_MAX = 64 * 1024
WORDS_MAX = 8

encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Annotated[list[Word], msgspec.Meta(max_length=WORDS_MAX)])


def decode(body: bytes) -> list[Word]:
    try:
        words: list[Word] = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LinkProtocolError(f"not a letter about parts of expressions: {error}") from error
    return words


def pages(topics: Iterable[bytes]) -> list[list[bytes]]:
    """As many as one record holds at a time; one empty list of nothing."""
    found: list[list[bytes]] = [[]]
    room = TOPICS_BYTES_MAX
    for topic in topics:
        room -= len(topic) + 8
        if room < 0:
            found.append([])
            room = TOPICS_BYTES_MAX - len(topic)
        found[-1].append(topic)
    return found


def window_pages(
    reports: Iterable[tuple[int, Sequence[tuple[bytes, Any]]]],
) -> list[list[tuple[int, bool, list[tuple[bytes, Any]]]]]:
    """Windows cut so that each page fits into a record; one empty page of nothing."""
    found: list[list[tuple[int, bool, list[tuple[bytes, Any]]]]] = [[]]
    room = TOPICS_BYTES_MAX
    for end_us, items in reports:
        found[-1].append((end_us, True, []))
        for item in items:
            room -= len(encode(item))
            if room < 0:
                room = TOPICS_BYTES_MAX
                found.append([(end_us, False, [])])
            found[-1][-1][2].append(item)
    return found


def letters(words: Sequence[Word]) -> Iterable[bytes]:
    for start in range(0, len(words), WORDS_MAX):
        yield encode(words[start : start + WORDS_MAX])
