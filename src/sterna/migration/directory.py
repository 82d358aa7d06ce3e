"""The owners of sessions: one table on every node, of which the newest word about a client counts.

An entry names a node and a number that grows whenever the owner changes; the higher number wins, then the later name.
Numbers are taken from the clock where it is ahead, so that nodes that could not hear each other agree that the later
one counts.  News goes from neighbour to neighbour as far as it is news; two that meet compare digests and tell each
other what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from sterna.migration.messages import BUCKETS, OWNERS_A_FRAME, OwnerEntry
from sterna.vocabulary.bounds import OWNER_CLOCK_MAX, can_own

#: Sessions that have ended and are kept in mind, so that old news does not bring them back.
ENDED_MAX = 10_000

Owner = tuple[str, int]

#: Nobody owns it, as far as is known.
NOBODY: Owner = ("", 0)


class Whose(NamedTuple):
    """Whose client it is: a user other than this one does not get the identifier while somebody owns a session."""

    user: str | None
    since: int
    """The number under which that user came to have it: of two users, the one with the lower is the first."""
    stands: bool
    """It has been said against another user's claim, which has to go."""

    def was_before(self, other: Whose) -> bool:
        return (self.since, self.user or "") < (other.since, other.user or "")


NO_USER = Whose(None, 0, False)


class Directory:
    def __init__(
        self, node: str, owners: dict[bytes, Owner], whose: dict[bytes, Whose], note: Callable[[OwnerEntry], None]
    ) -> None:
        """`whose`: only of those that have a user."""
        self._node = node
        self._owners = owners
        self._whose = whose
        self._note = note
        self._ended: dict[bytes, None] = {client: None for client, (node, _) in owners.items() if not node}
        self._buckets: list[dict[bytes, None]] = [{} for _ in range(BUCKETS)]
        self._digests = [0] * BUCKETS
        #: Parts of the table that differ from the last checkpoint.
        self.changed: set[int] = set()
        for client, (owner, number) in owners.items():
            bucket = bucket_of(client)
            self._buckets[bucket][client] = None
            self.changed.add(bucket)  # as the journal may tell of it after the last checkpoint
            if owner:
                self._digests[bucket] ^= _digest(client, owner, number)

    def __len__(self) -> int:
        return len(self._owners) - len(self._ended)

    def get(self, client: bytes) -> Owner:
        return self._owners.get(client, NOBODY)

    def whose(self, client: bytes) -> Whose:
        return self._whose.get(client, NO_USER)

    def entry(self, client: bytes) -> OwnerEntry:
        return (client, *self.get(client), *self.whose(client))

    def can_be(self, client: bytes, number: int) -> bool:
        """Can this client's session be owned under this number?"""
        return can_own(number, self.get(client)[1])

    def next_number(self, client: bytes, wall: float) -> int:
        return max(self.get(client)[1] + 1, min(int(wall * 1000), OWNER_CLOCK_MAX))

    def learn(
        self,
        client: bytes,
        node: str,
        number: int,
        user: str | None = None,
        since: int = 0,
        stands: bool = False,
        *,
        noted: bool = False,
    ) -> bool:
        """True if that was news.  `since`: 0 if the user has had it before, or has it from now on.  `noted`: the
        journal tells of it already."""
        before = self._owners.get(client, NOBODY)
        if (number, node) <= (before[1], before[0]):
            return False
        if user is None:
            self._whose.pop(client, None)
        else:
            known = self.whose(client)
            since = since or (known.since if known.user == user and before[0] else number)
            self._whose[client] = Whose(user, since, stands)
        bucket = bucket_of(client)
        if before[0]:
            self._digests[bucket] ^= _digest(client, *before)
        self._ended.pop(client, None)
        self._owners[client] = (node, number)
        self._buckets[bucket][client] = None
        self.changed.add(bucket)
        if node:
            self._digests[bucket] ^= _digest(client, node, number)
        else:
            self._ended[client] = None
            if len(self._ended) > ENDED_MAX:
                self._forget(next(iter(self._ended)))
        if not noted:
            self._note(self.entry(client))
        return True

    def _forget(self, client: bytes) -> None:
        del self._ended[client]
        del self._owners[client]
        self._whose.pop(client, None)
        bucket = bucket_of(client)
        del self._buckets[bucket][client]
        self.changed.add(bucket)

    def digests(self) -> list[int]:
        """Empty if there is nothing to tell."""
        return list(self._digests) if len(self) else []

    def entries(self, bucket: int) -> list[OwnerEntry]:
        return [self.entry(client) for client in self._buckets[bucket]]

    def differing(self, digests: list[int]) -> Iterator[list[OwnerEntry]]:
        """Our entries of the parts that differ at another node, frame by frame."""
        page: list[OwnerEntry] = []
        for bucket, (ours, theirs) in enumerate(zip(self._digests, digests or [0] * BUCKETS, strict=False)):
            if ours != theirs:
                page += self.entries(bucket)
            while len(page) >= OWNERS_A_FRAME:
                yield page[:OWNERS_A_FRAME]
                page = page[OWNERS_A_FRAME:]
        if page:
            yield page


def bucket_of(client: bytes) -> int:
    return blake2b(client, digest_size=1).digest()[0]


def _digest(client: bytes, node: str, number: int) -> int:
    data = b"%d/%s/%s" % (number, node.encode(), client)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
