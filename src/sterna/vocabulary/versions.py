"""Versions of what nodes say to each other and write to disk, and which of them this release understands.

Nodes of a network are upgraded one after the other, so a release speaks and reads what the release before it does.  A
change that the release before would not understand takes a new number, and goes only to nodes that know it.
"""

from __future__ import annotations

from typing import NamedTuple


class Versions(NamedTuple):
    """Those that somebody understands, the first and the last included."""

    oldest: int
    newest: int

    def common(self, others: Versions) -> int | None:
        """The newest version that both understand; None if there is none."""
        newest = min(self.newest, others.newest)
        return newest if newest >= max(self.oldest, others.oldest) else None

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


#: Of links between nodes.
#:   12: the last that names no range
#:   13: terms of a link and announcements of nodes say which versions are understood; questions of operators that are
#:       marked so in `node/management.py`; registers of users (`node/access_sharing.py`); moves in which nobody else is
#:       asked (`migration/arrival.py`), and clients that go before they are answered for (`migration/planned_moves.py`)
LINK = Versions(12, 13)

#: Nodes of which nothing is known speak this version.
LINK_UNTOLD = 12

#: Of the journal's segments.
JOURNAL = Versions(2, 2)

#: Of the file of sessions and retained messages.
#:   3: with a register of bans, users and access rules: a release that passed it over would let in those kept out
SESSIONS = Versions(2, 3)


def refusal(what: str, found: int, understood: Versions) -> str:
    """Why stored data cannot be used, and what to do about it."""
    if found > understood.newest:
        remedy = "a newer release wrote it: run that release, or restore the backup from before the upgrade"
    else:
        remedy = "upgrade by way of the releases between, or give the node another data directory"
    return f"{what} is of version {found}, this release understands {understood}; {remedy}"
