"""A queue of messages that wait for a session: journal offsets, never copies.

Nine bytes a message: the offset, and a number that stands for its tag (the grant it came by).  A queue is a list of
pieces of bounded size, and nothing but iterating looks at more than one of them message by message.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Tag = TypeVar("Tag")

PIECE_MESSAGES = 1024

#: Different tags in one piece; a further one begins the next piece.
PIECE_TAGS = 16

#: Places kept free when something is put in front, for what else comes back.
_ROOM_IN_FRONT = 64

#: (first offset, how many follow each other, tag), or (offsets as 8 bytes each, a byte per message, tags they number).
Part = tuple[int, int, Tag] | tuple[bytes, bytes, list[Tag]]


class QueuePiece(Generic[Tag]):
    """Messages in a row; those before `start` have been taken."""

    __slots__ = ("codes", "following", "is_kept", "is_run", "offsets", "start", "tags")

    def __init__(self, offsets: array[int], codes: bytearray, tags: list[Tag], *, is_run: bool) -> None:
        self.offsets = offsets
        #: For each message the number of its tag.
        self.codes = codes
        self.tags = tags
        self.start = 0
        #: Each offset is one more than the one before; and what the next one would be.
        self.is_run = is_run
        self.following = offsets[-1] + 1 if offsets else -1
        #: Looked at by `drop_below` before, and found to be kept elsewhere.
        self.is_kept = False

    def __len__(self) -> int:
        return len(self.codes) - self.start

    def code(self, tag: Tag) -> int:
        """The number of a tag, a new one if there is room; -1 if there is none."""
        tags = self.tags
        if tag in tags:
            return tags.index(tag)
        if len(tags) == PIECE_TAGS:
            return -1
        tags.append(tag)
        return len(tags) - 1

    def add(self, offset: int, code: int) -> None:
        if offset != self.following and self.codes:
            self.is_run = False
        self.following = offset + 1
        self.offsets.append(offset)
        self.codes.append(code)

    def part(self) -> Part[Tag]:
        if self.is_run and len(self.tags) == 1:
            return self.offsets[self.start], len(self), self.tags[0]
        return _little_endian(self.offsets[self.start :]).tobytes(), bytes(self.codes[self.start :]), self.tags


class OffsetQueue(Generic[Tag]):
    """First in, first out; `push_front` is for what comes back undelivered."""

    __slots__ = ("_in", "_out", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[QueuePiece[Tag]] = []
        # How many ever came and went.
        self._in = 0
        self._out = 0

    def __len__(self) -> int:
        return self._in - self._out

    def __iter__(self) -> Iterator[tuple[int, Tag]]:
        for piece in self._pieces:
            for place in range(piece.start, len(piece.codes)):
                yield piece.offsets[place], piece.tags[piece.codes[place]]

    @property
    def edition(self) -> int:
        """Another number whenever something has changed."""
        return self._in + self._out

    @property
    def pieces(self) -> int:
        return len(self._pieces)

    def push(self, offset: int, tag: Tag) -> None:
        code = -1
        if self._pieces:
            piece = self._pieces[-1]
            if len(piece.codes) < PIECE_MESSAGES and not piece.is_kept:
                code = piece.code(tag)
        if code < 0:
            piece = QueuePiece(array("q"), bytearray(), [tag], is_run=True)
            self._pieces.append(piece)
            code = 0
        piece.add(offset, code)
        self._in += 1

    def push_run(self, first: int, count: int, tag: Tag) -> None:
        """As many messages in a row, all with the same tag."""
        for start in range(first, first + count, PIECE_MESSAGES):
            stop = min(start + PIECE_MESSAGES, first + count)
            self._pieces.append(QueuePiece(array("q", range(start, stop)), bytearray(stop - start), [tag], is_run=True))
        self._in += count

    def push_block(self, offsets: bytes, codes: bytes, tags: list[Tag]) -> None:
        """A piece as `parts` told it."""
        numbers = array("q")
        numbers.frombytes(offsets)
        self._pieces.append(QueuePiece(_little_endian(numbers), bytearray(codes), tags, is_run=False))
        self._in += len(codes)

    def parts(self) -> list[Part[Tag]]:
        """Waiting messages, as `push_run` and `push_block` take it: a part for each piece, or fewer."""
        parts: list[Part[Tag]] = []
        for piece in self._pieces:
            part = piece.part()
            if parts and (joined := _joined(parts[-1], part)):
                parts[-1] = joined
            else:
                parts.append(part)
        return parts

    def push_front(self, offset: int, tag: Tag) -> None:
        code = -1
        if self._pieces:
            piece = self._pieces[0]
            if piece.start and not piece.is_kept:
                code = piece.code(tag)
        if code < 0:
            room = array("q", [offset]) * _ROOM_IN_FRONT
            piece = QueuePiece(room, bytearray(_ROOM_IN_FRONT), [tag], is_run=True)
            piece.start = _ROOM_IN_FRONT
            self._pieces.insert(0, piece)
            code = 0
        elif offset + 1 != piece.offsets[piece.start]:
            piece.is_run = False
        piece.start -= 1
        piece.offsets[piece.start] = offset
        piece.codes[piece.start] = code
        self._in += 1

    def pop(self) -> tuple[int, Tag]:
        piece = self._pieces[0]
        place = piece.start
        item = piece.offsets[place], piece.tags[piece.codes[place]]
        piece.start = place + 1
        if piece.start == len(piece.codes):
            del self._pieces[0]
        self._out += 1
        return item

    def remove(self, offset: int) -> None:
        """Forget one message, wherever it waits; nothing if it does not."""
        for number, piece in enumerate(self._pieces):
            try:
                place = piece.offsets.index(offset, piece.start)
            except ValueError:
                continue
            if place == piece.start:
                piece.start += 1
            else:
                del piece.offsets[place]
                del piece.codes[place]
                piece.is_run = False
            if not len(piece):
                del self._pieces[number]
            self._out += 1
            return

    def clear(self) -> None:
        self._pieces = []
        self._out = self._in

    def drop_below(self, first_offset: int, unless: Callable[[int], object] = lambda _: False) -> tuple[int, bool]:
        """Look at one piece, and forget what the journal no longer holds; how many that were, and if there is more.

        Queues tend to be in order, so it ends at the first message that is still there; should there be older
        ones behind it, their turn comes.  `unless` says which are kept elsewhere; nobody is asked about those twice.
        """
        for number, piece in enumerate(self._pieces):
            if piece.is_kept:
                continue
            return self._drop_from(number, piece, first_offset, unless)
        return 0, False

    def _drop_from(
        self, number: int, piece: QueuePiece[Tag], first_offset: int, unless: Callable[[int], object]
    ) -> tuple[int, bool]:
        start = cut = piece.start
        while cut < len(piece.codes) and piece.offsets[cut] < first_offset:
            cut += 1
        dropped = cut - start
        for place, kept in enumerate(map(unless, piece.offsets[start:cut]), start):
            if kept:
                number += self._set_aside(number, piece.offsets[place], piece.tags[piece.codes[place]])
                dropped -= 1
        piece.start = cut
        self._out += dropped
        if cut < len(piece.codes):
            return dropped, False
        del self._pieces[number]
        return dropped, number < len(self._pieces)

    def _set_aside(self, number: int, offset: int, tag: Tag) -> int:
        """Put a message that is kept elsewhere before the piece it was in; how many pieces that added."""
        code = -1
        if number:
            aside = self._pieces[number - 1]
            if aside.is_kept and len(aside.codes) < PIECE_MESSAGES:
                code = aside.code(tag)
        added = 0
        if code < 0:
            aside = QueuePiece(array("q"), bytearray(), [tag], is_run=True)
            aside.is_kept = True
            self._pieces.insert(number, aside)
            code, added = 0, 1
        aside.add(offset, code)
        return added


def _joined(one: Part[Tag], other: Part[Tag]) -> Part[Tag] | None:
    """Both as one run, if they are runs and one follows the other."""
    if not isinstance(one[0], int) or not isinstance(other[0], int):
        return None
    first, count, tag = one
    following, more, its_tag = other
    if first + count != following or tag != its_tag:
        return None
    return first, count + more, tag


def _little_endian(offsets: array[int]) -> array[int]:
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets
