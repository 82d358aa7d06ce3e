"""Messages that wait for a session: journal offsets, never copies.

Sixteen bytes a message: the offset, and a reference to the grant (shared by all messages that came the same way).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

Tag = TypeVar("Tag")


class OffsetQueue(Generic[Tag]):
    """First in, first out; `push_front` is for what comes back undelivered."""

    __slots__ = ("_head", "_offsets", "_tags")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._tags: list[Tag] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._tags) - self._head

    def __iter__(self) -> Iterator[tuple[int, Tag]]:
        return zip(self._offsets[self._head :], self._tags[self._head :], strict=True)

    def push(self, offset: int, tag: Tag) -> None:
        self._offsets.append(offset)
        self._tags.append(tag)

    def push_run(self, first: int, count: int, tag: Tag) -> None:
        """As many messages in a row, all with the same tag."""
        self._offsets.extend(range(first, first + count))
        self._tags.extend([tag] * count)

    def runs(self) -> Iterator[tuple[int, int, Tag]]:
        """What waits, as `push_run` takes it: offsets that follow each other with the same tag are told together."""
        first, count = 0, 0
        last: Tag | None = None
        for offset, tag in self:
            if count and offset == first + count and tag == last:
                count += 1
                continue
            if count:
                yield first, count, cast(Tag, last)
            first, count, last = offset, 1, tag
        if count:
            yield first, count, cast(Tag, last)

    def push_front(self, offset: int, tag: Tag) -> None:
        self._compact()
        self._offsets.insert(0, offset)
        self._tags.insert(0, tag)

    def pop(self) -> tuple[int, Tag]:
        head = self._head
        item = self._offsets[head], self._tags[head]
        self._head = head + 1
        if self._head > 1024 and self._head * 2 > len(self._tags):
            self._compact()
        return item

    def remove(self, offset: int) -> None:
        """Forget one message, wherever it waits; nothing if it does not."""
        try:
            place = self._offsets.index(offset, self._head)
        except ValueError:
            return
        if place == self._head:
            self._head += 1
        else:
            del self._offsets[place]
            del self._tags[place]

    def drop_below(self, first_offset: int, unless: Callable[[int], bool] = lambda _: False) -> int:
        """Forget what the journal no longer holds; how many that were.  `unless` says which are kept elsewhere."""
        kept = [(offset, tag) for offset, tag in self if offset >= first_offset or unless(offset)]
        dropped = len(self) - len(kept)
        if dropped:
            self._offsets = array("q", (offset for offset, _ in kept))
            self._tags = [tag for _, tag in kept]
            self._head = 0
        return dropped

    def _compact(self) -> None:
        del self._offsets[: self._head]
        del self._tags[: self._head]
        self._head = 0
