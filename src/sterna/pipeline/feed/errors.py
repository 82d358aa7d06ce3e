"""Errors between a reader and a node's feed, each said in one line.

FeedError
├── FeedRefused     the node refuses, or does not understand: asking again does not help
│   └── Trimmed     the node no longer keeps this range; `first` is the oldest offset it has
└── Unreachable     the node does not answer, or stopped answering: asking again may help
    └── Busy        the node has as many readers as it takes
"""

from __future__ import annotations

from sterna.vocabulary.errors import SternaError


class FeedError(SternaError):
    """Everything `FeedClient` raises on purpose."""


class FeedRefused(FeedError):
    """The node said no; the text says which node, and why.  `code` is the reason for programs."""

    def __init__(self, text: str, code: str = "refused") -> None:
        super().__init__(text)
        self.code = code


class Trimmed(FeedRefused):
    """The journal begins at `first` by now; what lies before it is gone."""

    def __init__(self, text: str, first: int) -> None:
        super().__init__(text, "trimmed")
        self.first = first


class Unreachable(FeedError):
    """The node does not answer (any more)."""

    def __init__(self, text: str, *, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class Busy(Unreachable):
    """Too many readers are connected; some will go."""
