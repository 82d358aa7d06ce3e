"""What nodes write to each other about parts of expressions.

Not among the compiled modules: msgspec reads the annotations of these records, and mypyc does not keep them as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from sterna.vocabulary.errors import LinkProtocolError


class Want(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Tell me your part of this, all of it at first; to be called by this number between us."""

    number: int
    name: bytes
    #: For how long I have wanted it.
    age_s: float
    #: Topics that other nodes have, too.
    apart: list[bytes]


class Unwanted(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Of these numbers no more."""

    numbers: list[int]


class All(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Of no others than these."""

    numbers: list[int]


class Told(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """This is my part now."""

    number: int
    #: How often it was told in this epoch, this time included.
    count: int
    flags: int
    aggregate: Any
    #: Topics in it that were not told before (FULL: all of them).
    claims: list[bytes]
    #: What is kept apart and was not told before (FULL: all of it).
    apart: list[tuple[bytes, int, float | None]]


#: Flags of `Told`: nothing that was told before counts; values expired, and nothing came; the next one belongs to it;
#: it began late, and has caught up.
FULL = 1
QUIET = 2
MORE = 4
CAUGHT_UP = 8


class Stopped(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """There will be no such part from me, and why."""

    number: int
    reason: str


class Apart(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """Other nodes have these topics, too: keep them apart."""

    number: int
    topics: list[bytes]


class Heard(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """The newest I have: (number, epoch, count)."""

    counts: list[tuple[int, int, int]]


class Windows(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """What there was in windows that are over: (end, whether this is the first of it, aggregates by topic)."""

    number: int
    #: All windows that ended by then have been told with this, unless there is more to come.
    closed_us: int
    more: bool
    windows: list[tuple[int, bool, list[tuple[bytes, Any]]]]


class Done(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """The windows up to this one are closed."""

    number: int
    closed_us: int


Word = Want | Unwanted | All | Told | Stopped | Apart | Heard | Windows | Done

#: Topics of one record; with the longest topics there are, it fits into a frame together with others.
TOPICS_BYTES_MAX = 64 * 1024
WORDS_MAX = 8

encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Word])


def decode(body: bytes) -> list[Word]:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise LinkProtocolError(f"not a letter about parts of expressions: {error}") from error


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
