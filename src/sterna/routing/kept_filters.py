"""For which filters a carrier has kept messages: of each origin, after which stamp, and up to which.

A question is answered if each of its filters has been kept since the reader's stamp: else the reader would take for
complete what is not.
"""

from __future__ import annotations

from sterna.routing.covering import FilterTable, canonical
from sterna.vocabulary.identity import BEFORE_ALL, Stamp, VersionVector

#: Each node speaks of itself on these topics: they do not travel.
SPOKEN_LOCALLY = b"$SYS/"


class _Span:
    __slots__ = ("after", "until")

    def __init__(self, after: VersionVector) -> None:
        #: Everything after these stamps has been kept ...
        self.after = after
        #: ... up to these; None: and is being kept.
        self.until: VersionVector | None = None


class KeptFilters:
    def __init__(self) -> None:
        self._spans: FilterTable[_Span] = FilterTable()

    def begin(self, filters: list[bytes], vector: VersionVector) -> bool:
        """From now on messages are kept for these; True if they were not before."""
        read = dict(vector)
        is_wider = False
        for topic_filter in map(canonical, filters):
            span = self._spans.get(topic_filter)
            if span is None:
                self._spans.put(topic_filter, _Span(read))
            elif span.until is not None:
                span.after = _resumed(span.after, span.until, read)
                span.until = None
            else:
                continue
            is_wider = True
        return is_wider

    def end(self, topic_filter: bytes, vector: VersionVector) -> None:
        """No longer; what has been kept is still here."""
        span = self._spans.get(canonical(topic_filter))
        if span is not None and span.until is None:
            span.until = dict(vector)

    def clear(self) -> None:
        self._spans = FilterTable()

    def reached(self, origin: str, after: Stamp | None, last: Stamp, filters: list[bytes]) -> Stamp | None:
        """Up to which stamp, `last` at most, everything has been kept that these match and a reader lacks who has read
        so far; None: something is missing."""
        for topic_filter in map(canonical, filters):
            if topic_filter.startswith(SPOKEN_LOCALLY):
                continue
            ends = [
                last if span.until is None else min(last, span.until.get(origin, BEFORE_ALL))
                for span in self._spans_of(topic_filter)
                if span.after.get(origin, BEFORE_ALL) <= (after or BEFORE_ALL)
            ]
            if not ends:
                return None
            last = max(ends)
        return last

    def _spans_of(self, topic_filter: bytes) -> list[_Span]:
        exact = self._spans.get(topic_filter)
        wider = [self._spans[one] for one in self._spans.coverers(topic_filter)]
        return wider if exact is None else [exact, *wider]


def _resumed(after: VersionVector, until: VersionVector, read: VersionVector) -> VersionVector:
    """Where keeping stopped and begins again: it has a gap unless nothing has been read in between."""
    return {
        origin: after.get(origin, BEFORE_ALL) if until.get(origin) == stamp else stamp for origin, stamp in read.items()
    }
