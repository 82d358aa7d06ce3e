"""How many bytes of a journal a range has, asked of its node, and how far so many bytes go.

Sizes only decide how much a batch or a task holds.  A node that does not answer, or of an earlier release, leaves that
to the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from sterna.pipeline.feed.errors import FeedError
from sterna.pipeline.offsets import Offsets, Range, in_order
from sterna.pipeline.source.kept_feeds import KeptFeeds
from sterna.pipeline.source.nodes import Seen

FEW_ROWS = 128
"""So few are not worth a question: even messages of a megabyte are one task's."""
_NO_LIMIT = 1 << 40


class JournalSizes:
    def __init__(self, feeds: KeptFeeds) -> None:
        self._feeds = feeds

    def of(self, pieces: list[Range], nodes: Mapping[str, Seen], few: int = FEW_ROWS) -> dict[str, int]:
        """Journal -> bytes of its range, of those that are asked and answer; ranges of `few` rows are not asked for."""
        found = {piece.node: self._reach(piece, nodes, _NO_LIMIT) for piece in pieces if piece.rows > few}
        return {journal: answer[1] for journal, answer in found.items() if answer is not None}

    def capped(self, pieces: list[Range], end: Offsets, nodes: Mapping[str, Seen], bytes_max: int) -> Offsets:
        """Not further than about so many bytes: each journal gets its share of them, and a frame at least."""
        sizes = self.of(pieces, nodes, few=0)
        total = sum(sizes.values())
        if total <= bytes_max:
            return end
        reached = dict(end)
        for piece in pieces:
            share = sizes.get(piece.node, 0) * bytes_max // total
            answer = self._reach(piece, nodes, max(1, share)) if share else None
            if answer is not None:
                reached[piece.node] = min(piece.stop, max(piece.start + 1, answer[0]))
        return in_order(reached)

    def _reach(self, piece: Range, nodes: Mapping[str, Seen], bytes_max: int) -> tuple[int, int] | None:
        seen = nodes.get(piece.node)
        if seen is None:
            return None
        try:
            return self._feeds.at(seen.address).reach(piece.start, bytes_max, piece.stop)
        except FeedError:
            return None
