"""Promises that wait for the journal: publications to deliver and answers to send once their group is safe.

Publications and answers wait here, in order, while the group that holds them is written.  When the world reports the
group committed, publications are delivered and their senders acknowledged, and answers go out.  If the group could
not be written nobody is told anything: the connections concerned are closed, and their clients will send again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sterna.broker.network import BrokerNetwork
from sterna.journal.journal import Journal
from sterna.journal.store import Group, Position
from sterna.mqtt.message import Message

if TYPE_CHECKING:
    from sterna.broker.session.connection import Connection

#: Deliver this message, then acknowledge this packet identifier to its publisher (None: nobody waits, as for a will).
Publication = tuple[Message, "Connection | None", int]

#: Instead of a packet identifier: marks a message derived from another one in the same group.  If the group fails, the
#: other one is taken in again and this one derived again, so it is not published again.
MADE_OF_ANOTHER = -1

#: Send this connection these bytes.
Answer = tuple[None, "Connection", bytes]

#: Do this for a connection; or for nobody who waits, and then even if the journal fails: it is only to keep its turn.
Action = tuple[None, "Connection | None", Callable[[], object]]

#: Tuples, told apart by what is in them, because one is made per message: a class for each kind costs some 3 % of the
#: CPU of a QoS 1 message, compiled or not.
Promise = Publication | Answer | Action


class Commit:
    """One group on its way to the disk, and what it releases."""

    __slots__ = ("group", "promises")

    def __init__(self, group: Group | None, promises: list[Promise]) -> None:
        self.group = group
        self.promises = promises


class Commitments:
    __slots__ = ("_journal", "_open", "network", "unavailable", "under_way")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.network: BrokerNetwork | None = None
        self._open: list[Promise] = []
        #: Why nothing can be promised at the moment; empty if it can.
        self.unavailable = ""
        #: Commits handed to the world and not yet reported back.
        self.under_way = 0

    @property
    def pending(self) -> bool:
        """Is there anything for `close` to hand over?"""
        return bool(self._open) or self._journal.pending

    def publication(self, message: Message, connection: Connection | None, packet_id: int) -> None:
        if self.network is not None and message.identity is None and not message.shares:
            self.network.decide_shares(message)
        self._journal.append(message)
        self._open.append((message, connection, packet_id))

    # -- later: what each of these promises stands in ARCHITECTURE.md --

    def answer(self, connection: Connection, data: bytes) -> None:
        """Send `data` once everything noted so far is safe: now, if everything is.  Never, if it cannot be kept: then
        the connection is closed."""
        if self._open or self.under_way or self._journal.pending:
            self._open.append((None, connection, data))
        else:
            connection.send(data)

    def answer_by(self, connection: Connection, action: Callable[[], None]) -> None:
        """The same for an answer that is still to be made."""
        if self._open or self.under_way or self._journal.pending:
            self._open.append((None, connection, action))
        else:
            action()

    @property
    def waiting(self) -> bool:
        """Is anything promised that is not kept yet?"""
        return bool(self._open or self.under_way)

    def in_turn(self, action: Callable[[], object]) -> None:
        """Do something after everything promised so far, whether or not that can be kept: now, if nothing is."""
        if self._open or self.under_way:
            self.promise(action)
        else:
            action()

    def when_safe(self, action: Callable[[bool], None]) -> None:
        """Do this when everything noted so far is safe (True), or could not be written and has to be tried again."""
        if self._open or self.under_way or self._journal.pending:
            self.promise(lambda: action(not self.unavailable))
        else:
            action(True)

    def promise(self, action: Callable[[], object]) -> None:
        """Do this with the open group, also if that cannot be written."""
        self._open.append((None, None, action))

    def close(self) -> Commit:
        """Close the open group; the world writes it and reports back."""
        promises, self._open = self._open, []
        self.under_way += 1
        return Commit(self._journal.close_group(), promises)

    def committed(self, commit: Commit, at: Position | None) -> list[Promise]:
        """The store keeps the group from `at` on (None: there was nothing to write)."""
        self.unavailable = ""
        self.under_way -= 1
        if commit.group is not None:
            assert at is not None
            self._journal.committed(commit.group, at)
        return commit.promises

    def failed(self, commit: Commit) -> list[Connection]:
        """Forget the group; the connections that were promised something by it, each once."""
        self.under_way -= 1
        if commit.group is not None:
            self._journal.failed(commit.group)
        return list(dict.fromkeys(connection for _, connection, _ in commit.promises if connection is not None))
