"""The identity of a message in the network, and version vectors: how far a reader has come.

A message is named by the node it entered (its origin), that node's start (its epoch: the seconds of its clock, or the
last epoch and 1) and a sequence that only grows.  Stamps of one origin compare in the order the messages were taken
in, across restarts too.
"""

from __future__ import annotations

from typing import NamedTuple


class Stamp(NamedTuple):
    epoch: int
    sequence: int


#: Before everything an origin can have sent.
BEFORE_ALL = Stamp(0, -1)


class Identity(NamedTuple):
    """A message that entered elsewhere."""

    origin: str
    epoch: int
    sequence: int

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.epoch, self.sequence)


#: origin -> the last of its messages that a reader has seen, or knows it does not want.
VersionVector = dict[str, Stamp]
