"""Publishers that went from one node to another: what they published at the first comes before what they publish at the
second, for everybody.

Both nodes tell everybody how far the first had come.  A reader in step with it has had all of that by then, because
links keep the order.  One that is not reads the second node by asking for pages, and gets none that begins with a
publisher it is not ready for (`routing/origin_streams.py`).  The second node itself hears such a client when it has
read as far.
A client may go on to a third node before that: the second reads the third by asking for pages, too.

All this is bounded: what cannot be read for too long is not waited for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from functools import partial

from sterna.broker.session.session import Session
from sterna.migration.messages import OwnerEntry
from sterna.migration.move_host import MoveHost
from sterna.vocabulary.bounds import PUBLISHERS_MAX
from sterna.vocabulary.identity import BEFORE_ALL, Stamp, VersionVector


class PublisherOrder:
    def __init__(self, host: MoveHost, let_in: Callable[[bytes], None]) -> None:
        """`let_in`: a client that was held up may be heard."""
        self._host = host
        self._then = let_in
        #: Messages published here from this offset on, in order -> come after these of other nodes.
        self._offsets: list[int] = []
        self._before: list[VersionVector] = []
        #: Clients that wait to be heard: for what is to be read of which node.
        self._held_up: dict[bytes, tuple[str, Stamp]] = {}
        #: Stamps that go to everybody with the next news.
        self._untold: VersionVector = {}

    # -- publishers come and go --

    def went(self, to: str) -> None:
        """A client, from here: all it published has been given to the links."""
        node, stamp = self._host.node, self._host.frontier()
        self._untold[node] = stamp
        self._host.router.streams.needed(node, stamp, [to])

    def recover(self, came: Iterable[tuple[int, str, int, int]]) -> None:
        """After a restart: those that have left since, too, because what they published here is still read."""
        for one in sorted(came):
            self._note(*one)

    def _note(self, offset: int, node: str, epoch: int, sequence: int) -> None:
        if len(self._offsets) >= PUBLISHERS_MAX:
            del self._offsets[: PUBLISHERS_MAX // 10]
            del self._before[: PUBLISHERS_MAX // 10]
        if self._offsets[-1:] != [offset]:  # else they came at the same moment, as far as readers can tell
            self._offsets.append(offset)
            self._before.append({})
        before = self._before[-1]
        before[node] = max(Stamp(epoch, sequence), before.get(node, BEFORE_ALL))

    def came(self, session: Session) -> None:
        """A client, to stay here; over there everything up to the stamp was published before."""
        if session.came is None:
            return
        self._note(*session.came)
        _, node, epoch, sequence = session.came
        stamp = Stamp(epoch, sequence)
        self._untold[node] = max(stamp, self._untold.get(node, BEFORE_ALL))
        # A node's word about a session comes by the way of its messages, behind them.
        self._host.has_read(node, stamp)

    def holds_up(self, client: bytes) -> bool:
        """Is it not to be heard yet, because here somebody else would get what it says now before what it said?"""
        session = self._host.sessions.get(client)
        if session is None or session.came is None:
            return False
        _, node, epoch, sequence = session.came
        stamp, streams = Stamp(epoch, sequence), self._host.router.streams
        if streams.is_read(node, stamp):
            return False
        if self._held_up.get(client) != (node, stamp):
            self._held_up[client] = node, stamp
            let_in = partial(self._let_in, client, node, stamp, self._host.now)
            self._host.once(partial(streams.is_read, node, stamp), let_in)
            self._host.later(self._host.settings.patience_s, let_in)
        return True

    def _let_in(self, client: bytes, node: str, stamp: Stamp, since: float) -> None:
        if self._held_up.get(client) != (node, stamp):
            return  # it has been heard, or has gone and come again
        del self._held_up[client]
        streams = self._host.router.streams
        if not streams.is_read(node, stamp):
            streams.give_up(self._host.node, node, stamp, self._host.now - since)
        self._then(client)

    # -- readers --

    def news(self) -> list[tuple[str, int, int]]:
        untold, self._untold = self._untold, {}
        return [(node, *stamp) for node, stamp in untold.items()]

    def told(self, after: list[tuple[str, int, int]], entries: list[OwnerEntry]) -> None:
        """Clients have gone from these nodes to those."""
        owners = sorted({owner for _, owner, *_ in entries if owner and owner != self._host.node})
        for node, epoch, sequence in after:
            self._host.router.streams.needed(node, Stamp(epoch, sequence), owners)

    def first_unread(self, start: int, have: VersionVector) -> tuple[int, str, Stamp] | None:
        """For somebody who reads on from `start` and has read that far of others: where to stop, and until when."""
        for place in range(bisect_left(self._offsets, start), len(self._offsets)):
            for node, stamp in self._before[place].items():
                if stamp > have.get(node, BEFORE_ALL):
                    return self._offsets[place], node, stamp
        return None

    def comes_after(self, offset: int) -> VersionVector:
        """Messages of other nodes that come before those published here up to this offset."""
        found: VersionVector = {}
        for before in self._before[: bisect_right(self._offsets, offset)]:
            for node, stamp in before.items():
                found[node] = max(stamp, found.get(node, BEFORE_ALL))
        return found
