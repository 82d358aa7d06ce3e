"""A broker on its journal: how it starts from what was left, and what a checkpoint of it holds.

A node without neighbours is an ordinary broker.  The stores belong to the world and are handed in; nothing here opens
a file or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from sterna import __version__
from sterna.broker.authentication import Authenticator
from sterna.broker.authorization import AccessList
from sterna.broker.broker import Broker, BrokerState, World
from sterna.broker.limits import Limits
from sterna.broker.recovery import Replay
from sterna.broker.snapshots import retained_snapshot, share_snapshot, snapshot
from sterna.broker.sys_tree import SysTree
from sterna.journal.journal import Journal
from sterna.journal.recovery import Cut, Damage, RecoveredEvents, recover
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Position, Store


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as it is read back: everything the journal holds before `position` is in it."""

    position: Position = BEGINNING
    sessions: Mapping[str, bytes] = field(default_factory=dict)
    retained: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changes:
    """A checkpoint as it is written: what differs from the one before."""

    position: Position
    sessions: dict[str, bytes]
    sessions_gone: list[str]
    retained: dict[bytes, bytes]
    retained_gone: list[bytes]


@dataclass(frozen=True, slots=True)
class StartReport:
    """What start-up found; the world tells the operator."""

    sessions: int
    retained: int
    next_offset: int
    cuts: tuple[Cut, ...]
    damage: tuple[Damage, ...]
    behind_checkpoint: bool


class Node:
    def __init__(
        self,
        *,
        limits: Limits,
        settings: JournalSettings,
        store: Store,
        saved: Saved,
        next_epoch: Callable[[int], int],
        authenticator: Authenticator,
        access: AccessList,
        world: World,
        rng: Random,
        now: float,
        wall: float,
    ) -> None:
        state = BrokerState(limits)
        replay = Replay(state, access)
        replay.load(saved.sessions, saved.retained)
        recovery = recover(store, saved.position)
        for piece in recovery:
            if isinstance(piece, RecoveredEvents):
                replay.events(piece.events)
            else:
                replay.messages(piece.messages)
        self.journal = Journal(store, settings, epoch=next_epoch(recovery.last_epoch), recovered=recovery)
        replay.resolve(self.journal.read)
        durable = settings.durability != "memory"
        self.broker = Broker(limits, self.journal, authenticator, access, world, durable=durable, rng=rng, state=state)
        self.broker.tell_time(now, wall)
        self.broker.started_at = now
        self.sys_tree = SysTree(__version__, self.broker.publish_sys)
        self._settings = settings
        self._durable = durable
        self._checkpointed = saved.position
        self._share_queues: set[str] = {name for name in saved.sessions if name.startswith("\0")}
        # What the replay touched differs from the checkpoint it began with.
        for session in state.sessions.values():
            self.broker.log.changed[session.client_id] = session
        for name in saved.sessions.keys() - self._share_queues:
            if name.encode() not in state.sessions:
                self.broker.log.ended[name.encode()] = None
        self.broker.lifecycle.recovered()
        self.started = StartReport(
            len(state.sessions),
            len(state.retained),
            self.journal.next_offset,
            tuple(recovery.cuts),
            tuple(recovery.damage),
            recovery.behind_checkpoint,
        )

    # -- checkpoints --

    def checkpoint_due(self) -> bool:
        """Has the journal grown by so much that replaying it would take noticeable time?"""
        here, there = self.journal.position, self._checkpointed
        grown = here.serial > there.serial + 1 or here.byte - there.byte > self._settings.segment_bytes // 2
        return self._durable and (grown or here.serial != there.serial)

    def changes(self) -> Changes:
        """Everything that differs from the last checkpoint.

        Only to be called when nothing waits to be written: a snapshot must not know of a QoS 2 message that a crash
        could still take away, nor may its events be replayed on top of it.
        """
        assert not self.broker.commitments.pending
        assert not self.broker.commitments.under_way
        log, retained = self.broker.log, self.broker.retained
        sessions = {session.name(): snapshot(session) for session in log.changed.values() if session.expiry_s}
        gone = [client_id.decode() for client_id in log.ended]
        # Once to be kept, now to end with its connection: a crash is the end of that.
        gone += [session.name() for session in log.changed.values() if not session.expiry_s]
        queues = {
            f"\0{share.key.decode()}": share_snapshot(share) for share in self.broker.routes.shares() if share.queue
        }
        sessions.update(queues)
        gone += sorted(self._share_queues - queues.keys())
        self._share_queues = set(queues)
        kept: dict[bytes, bytes] = {}
        forgotten: list[bytes] = []
        for topic in retained.changed:
            message = retained.get(topic)
            if message is None:
                forgotten.append(topic)
            else:
                kept[topic] = retained_snapshot(message)
        log.changed.clear()
        log.ended.clear()
        retained.changed.clear()
        return Changes(self.journal.position, sessions, gone, kept, forgotten)

    def checkpointed(self, changes: Changes) -> None:
        """The changes are on disk: what the journal holds before them is no longer needed to start again."""
        self._checkpointed = changes.position

    def checkpoint_failed(self, changes: Changes) -> None:
        """They are not: the next checkpoint has to write them too."""
        log = self.broker.log
        for name in (*changes.sessions, *changes.sessions_gone):
            session = self.broker.sessions.get(name.encode())
            if session is not None:
                log.changed.setdefault(session.client_id, session)
            elif not name.startswith("\0"):
                log.ended[name.encode()] = None
        self._share_queues.update(name for name in changes.sessions_gone if name.startswith("\0"))
        for topic in (*changes.retained, *changes.retained_gone):
            self.broker.retained.changed[topic] = None

    # -- retention --

    def enforce_retention(self) -> None:
        before = self.journal.first_offset
        checkpoint = self._checkpointed if self._durable else None
        after = self.journal.enforce_retention(now=self.broker.wall, checkpoint=checkpoint)
        if after > before:
            self.broker.retention_moved(after)
