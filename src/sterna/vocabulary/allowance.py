"""A number of bytes that many holders share.

Each holder says how much it holds now; the allowance knows the sum and whether there is still room.
"""

from __future__ import annotations


class Allowance:
    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def has_room(self, wanted: int, before: int = 0) -> bool:
        """May a holder of `before` bytes come to hold `wanted`?"""
        return wanted <= before or self.held + wanted - before <= self.most

    def change(self, before: int, after: int) -> bool:
        """A holder of `before` bytes holds `after` now.  False: that is more than all may hold together."""
        fits = self.has_room(after, before)
        self.held += after - before
        return fits
