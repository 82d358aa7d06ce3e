"""A broker on its journal: how it starts from what was left, and what a checkpoint of it holds.

A node without neighbours is an ordinary broker.  The stores belong to the world and are handed in; nothing here opens
a file or waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import msgspec

from sterna import __version__
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList
from sterna.broker.beginning import FENCED
from sterna.broker.broker import Broker, World
from sterna.broker.broker_state import BrokerState
from sterna.broker.delivery.queue_retention import Sweep
from sterna.broker.limits import Limits
from sterna.broker.recovery import ACCESS, CAME, CLOCK, EVACUATION, KEPT, OWNERS, RUNNING, VECTOR, Replay
from sterna.broker.session import stored_session
from sterna.broker.session.shares import SharedSubscription
from sterna.broker.session.snapshots import (
    owners_snapshot,
    retained_snapshot,
    share_snapshot,
    vector_snapshot,
)
from sterna.broker.sys_tree import SysTree
from sterna.journal.journal import Journal
from sterna.journal.reader_cursors import HeldOffsets
from sterna.journal.recovery import Cut, Damage, RecoveredEvents, Recovery, recover
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Position, Store
from sterna.node.network import Network
from sterna.node.network_settings import NetworkSettings, NetworkWorld
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.settings import OperatorSettings as OperatorSettings

#: A wall clock that is this far from steady time was set, and did not just drift.
CLOCK_JUMP_S = 60.0

#: How often the running clock is noted while sessions wait; and how much of the time between two starts counts for
#: them, at most.  Nothing tells a node that was off for a day from one whose clock was set by a day.
RUNNING_NOTED_S = 60.0

SESSIONS_RECORDED_A_TURN = 100


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as it is read back: everything the journal holds before `position` is in it."""

    position: Position = BEGINNING
    sessions: Mapping[str, bytes] = field(default_factory=dict)
    retained: Mapping[bytes, bytes] = field(default_factory=dict)
    epoch: int = 0
    """Of the last start, though it may have written nothing to the journal; 0: there was none."""


@dataclass(frozen=True, slots=True)
class Changes:
    """A checkpoint as it is written: what differs from the one before."""

    position: Position
    """As of where; final only if `events` is 0."""
    events: int
    """How many session events in it were not yet written when it was taken: see `begun_at`."""
    sessions: dict[str, bytes]
    sessions_gone: list[str]
    retained: dict[bytes, bytes]
    retained_gone: list[bytes]

    def begun_at(self, group: Position | None) -> Changes:
        """The group that was open when it was taken has been written from here on (None: there was nothing to write).

        The events of that group are in the checkpoint already, its messages are not.
        """
        if group is None:
            return self
        return replace(self, position=group._replace(offset=self.position.offset, events=self.events))


@dataclass(frozen=True, slots=True)
class StartReport:
    """The findings of start-up; the world tells the operator."""

    sessions: int
    retained: int
    next_offset: int
    away_s: float
    """Since it ran last, by the wall's clock."""
    cuts: tuple[Cut, ...]
    damage: tuple[Damage, ...]
    behind_checkpoint: bool
    impossible: tuple[str, ...]
    """Entries of checkpoint and journal that were passed over because they cannot be: what the first of them were."""
    impossible_count: int


def epoch_before(last: int, wall: float) -> int:
    """A start gets an epoch above this: greater than any before, even if the disk that counted them is gone, because
    other nodes would take messages of an earlier epoch for old."""
    return max(last, int(wall) - 1)


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
        name: str = "",
        held: Callable[[], HeldOffsets | None] = lambda: None,
        alone: bool = True,
        operators: OperatorSettings | None = None,
        functions: Functions = NO_FUNCTIONS,
    ) -> None:
        """`alone`: it joins no others.  Else wills of a node that was killed wait: others may share them."""
        self._world = world
        self._rng = rng
        operators = operators or OperatorSettings()
        state = BrokerState(limits, replace(operators, partials=operators.partials and not alone), functions)
        replay, recovery = _replayed(Replay(state, access, name), store, saved)
        durable = settings.durability != "memory"
        #: Queues hold nothing below it, but for what is retained.
        self._swept_to = 0
        self.journal = Journal(store, settings, epoch=0, recovered=recovery, tell_damage=self._tell_damage)
        # Before the first write: if the disk is full, this may be what makes room for it.
        self._held = held
        self.journal.enforce_retention(now=wall, checkpoint=saved.position if durable else None, held=held())
        is_first = durable and not max(saved.epoch, recovery.last_epoch)
        self.journal.begin_epoch(next_epoch(recovery.last_epoch), is_first=is_first)
        replay.resolve(self.journal.read, self.journal.epoch_of)
        recorded = settings.deliveries and durable
        self.broker = Broker(
            limits, self.journal, authenticator, access, world, durable=durable, rng=rng, state=state, recorded=recorded
        )
        if settings.keep:
            self.broker.ingress.keep([topic_filter.encode() for topic_filter in settings.keep])
        self.broker.tell_time(now, wall)
        self.broker.heard_clock(wall + state.clock_ahead_s)
        self.broker.renewal.recovered(access)
        self.broker.started_at = now
        away_s = self._run_from(state, now, wall)
        self._sweep = Sweep(self.broker.state, self.broker.delivery, self.broker.log, self.broker.reports)
        #: The other nodes, once this one has joined them.
        self.network: Network | None = None
        self.sys_tree = SysTree(__version__, self.broker.ingress.publish_sys, functions)
        self._settings = settings
        self._durable = durable
        self._checkpointed = saved.position
        #: Share queues in the checkpoint, by the name they have there, and what it holds of them if that is known: of
        #: which share (another one may get the same name), which edition of its queue, and what it had lent.
        self._share_queues: dict[str, tuple[SharedSubscription, int, list[int]] | None] = {
            name: None for name in saved.sessions if name.startswith("\0$share/")
        }
        self._differ_from(saved)
        #: The segment in which all subscriptions were recorded last.
        self._recorded_in = recovery.position.serial
        if recorded:
            self.broker.record(name)
        if alone:
            self.broker.lifecycle.recovered()
        self._alone = alone
        self.started = StartReport(
            len(state.sessions), len(state.retained), self.journal.next_offset, away_s, *_found(recovery, replay)
        )

    def _run_from(self, state: BrokerState, now: float, wall: float) -> float:
        """Go on with the running clock where it stood; for how long nobody was here, by the wall's."""
        self._boot = (now, wall)
        self._clock_set_s = 0.0
        ran, read = state.ran_until
        if not read:  # nothing before, or an earlier release, which went by the wall's clock
            ran = read = state.left_at or wall
        away_s = wall - read
        ran = max(ran + min(max(away_s, 0.0), RUNNING_NOTED_S), state.left_at)
        self.broker.clock.run_from(ran)
        self._running_noted = self.broker.now
        if state.sessions:
            self._note_running()
        if away_s < -CLOCK_JUMP_S:
            self.broker.report(
                "the clock was set back",
                seconds=round(-away_s),
                reason="it is behind where it was when the node ran last; sessions grow old by the time the node runs",
            )
        return away_s

    def _note_running(self) -> None:
        self._running_noted = self.broker.now
        self.broker.log.running(self.broker.running_clock, self.broker.wall)

    def _differ_from(self, saved: Saved) -> None:
        """Sessions that the replay touched differ from the checkpoint it began with."""
        log, sessions = self.broker.log, self.broker.sessions
        for session in sessions.values():
            log.changed[session.client_id] = session
        for name in sorted(saved.sessions):
            if not name.startswith("\0") and name.encode() not in sessions:
                log.ended[name.encode()] = None

    def join(self, settings: Callable[[int], NetworkSettings], world: NetworkWorld) -> Network:
        """Become one of several nodes; `settings` is told this node's epoch."""
        vector = dict(self.broker.state.vector)
        self.network = Network(self.broker, settings(self.journal.epoch), world, vector, self._rng)
        if not self._alone:
            self.broker.lifecycle.recovered()
        return self.network

    def flush(self) -> int:
        """Send what the last piece of work gave rise to; how many clients there was something for."""
        if self.network is not None:
            self.network.flush()
        return self.broker.flush()

    def send_clients_away(self) -> None:
        """The node is stopping."""
        self.broker.lifecycle.shut_down()
        self.flush()
        self.journal.let_records_be_written()

    # -- checkpoints --

    def checkpoint_due(self) -> bool:
        """Has the journal grown by so much that replaying it would take noticeable time?"""
        here, there = self.journal.position, self._checkpointed
        grown = here.serial != there.serial or here.byte - there.byte > self._settings.segment_bytes // 2
        return self._durable and grown

    def changes(self) -> Changes:
        """Everything that differs from the last checkpoint.  Only to be called when no group is being written.

        The open group must be closed before anything else happens, and be safe before the changes are saved: a
        snapshot must not know of a QoS 2 message that a crash could still take away.  See `Changes.begun_at`.
        """
        assert not self.broker.commitments.under_way
        log, retained = self.broker.log, self.broker.retained
        sessions = {
            session.name(): stored_session.encode(session) for session in log.changed.values() if session.expiry_s
        }
        gone = [client_id.decode() for client_id in log.ended]
        # Once to be kept, now to end with its connection: a crash is the end of that.
        gone += [session.name() for session in log.changed.values() if not session.expiry_s]
        sessions[RUNNING] = msgspec.msgpack.encode((self.broker.running_clock, self.broker.wall))
        if self.broker.state.access_register.is_changed:
            sessions[ACCESS] = self.broker.state.access_register.snapshot()
            self.broker.state.access_register.is_changed = False
        if self.broker.state.kept_values.is_changed:
            sessions[KEPT] = self.broker.state.kept_values.snapshot()
            self.broker.state.kept_values.is_changed = False
        self._share_changes(sessions, gone)
        computed, ended = self.broker.routes.computations.saved()
        sessions |= computed
        gone += ended
        if self.network is not None:
            state = self.broker.state
            sessions[VECTOR] = vector_snapshot(self.network.settled_vector(), state.shared, state.late_shares.ranges())
            sessions[EVACUATION] = msgspec.msgpack.encode(self.broker.state.evacuated_at)
            sessions[CLOCK] = msgspec.msgpack.encode(self.broker.state.clock_ahead_s)
            sessions[CAME] = msgspec.msgpack.encode([one for one in state.came if one[0] >= self.journal.first_offset])
            directory = self.network.moving.directory
            for part in sorted(directory.changed):
                sessions[f"{OWNERS}{part}"] = owners_snapshot(directory.entries(part))
            directory.changed.clear()
        kept: dict[bytes, bytes] = {}
        forgotten: list[bytes] = []
        for topic in retained.changed:
            message = retained.get(topic)
            if message is None and self.network is not None:
                message = retained.cleared(topic)  # an older one may still come from elsewhere
            if message is None:
                forgotten.append(topic)
            else:
                kept[topic] = retained_snapshot(message)
        log.changed.clear()
        log.ended.clear()
        retained.changed.clear()
        return Changes(self.journal.position, self.journal.pending_events, sessions, gone, kept, forgotten)

    def _share_changes(self, changed: dict[str, bytes], gone: list[str]) -> None:
        held: dict[str, tuple[SharedSubscription, int, list[int]] | None] = {}
        for share in self.broker.routes.shares():
            lent = share.lent() if share.lasting else []
            if share.queue or lent:
                name = f"\0{share.key.decode()}"
                held[name] = (share, share.queue.edition, lent)
                if self._share_queues.get(name) != held[name]:
                    changed[name] = share_snapshot(share, lent)
        gone += sorted(self._share_queues.keys() - held.keys())
        self._share_queues = held

    def checkpointed(self, changes: Changes) -> None:
        """The changes are on disk: what the journal holds before them is no longer needed to start again."""
        self._checkpointed = changes.position

    def checkpoint_failed(self, changes: Changes) -> None:
        """They are not: the next checkpoint has to write them too."""
        log = self.broker.log
        for name in (*changes.sessions, *changes.sessions_gone):
            if name in (VECTOR, RUNNING, CAME):
                continue
            if name == ACCESS:
                self.broker.state.access_register.is_changed = True
                continue
            if name == KEPT:
                self.broker.state.kept_values.is_changed = True
                continue
            if name.startswith(OWNERS):
                if self.network is not None:
                    self.network.moving.directory.changed.add(int(name[len(OWNERS) :]))
                continue
            if name.startswith("\0$share/"):
                self._share_queues[name] = None  # as the checkpoint has it, or does not
                continue
            if name.startswith("\0") and not name.startswith(FENCED.decode()):
                self.broker.routes.computations.not_saved(name[1:].encode())
                continue
            session = self.broker.sessions.get(name.encode())
            if session is not None:
                log.changed.setdefault(session.client_id, session)
            else:
                log.ended[name.encode()] = None
        for topic in (*changes.retained, *changes.retained_gone):
            self.broker.retained.changed[topic] = None

    # -- retention --

    def tidy(self) -> bool:
        """One step of keeping the journal and the queues as small as they are to be; True if there is more to do."""
        self.broker.report_losses()
        waiting = len(self.broker.sessions) > self.broker.lifecycle.clients_connected
        if waiting and self.broker.now - self._running_noted >= RUNNING_NOTED_S:
            self._note_running()
        before = self.journal.first_offset
        checkpoint = self._checkpointed if self._durable else None
        now, held = self._age_clock(), self._held()
        after = self.journal.enforce_retention(now=now, checkpoint=checkpoint, most=1, held=held)
        if after > before:
            return True
        if after > self._swept_to:
            self._swept_to = after
            self._sweep.begin(after)
        if self.broker.records is not None:
            self._record_subscriptions()
        return self._sweep.step()

    def _record_subscriptions(self) -> None:
        """See that what is kept of the journal tells of all subscriptions, however old they are."""
        serials = [segment.serial for segment in self.journal.segments()]
        recorded = bisect_right(serials, self._recorded_in)
        if recorded < len(serials) and 2 * (recorded - 1) < len(serials):
            self._recorded_in = serials[-1]
            self.broker.turns.ask(partial(self._record_some, list(self.broker.sessions)))

    def _record_some(self, left: list[bytes]) -> bool:
        records = self.broker.records
        assert records is not None
        for client_id in left[-SESSIONS_RECORDED_A_TURN:]:
            session = self.broker.sessions.get(client_id)
            if session is not None:
                records.carried(session)
        del left[-SESSIONS_RECORDED_A_TURN:]
        return not left

    def _age_clock(self) -> float:
        """The time by which messages grow old: what the clock said at the start, and steady time since.

        An operator who sets the clock forward, or has a time server set it, does not mean to drop a week of messages
        at once.  A clock that was set back makes messages live longer.
        """
        now, wall = self._boot
        steady = wall + self.broker.now - now
        ahead_s = self.broker.wall - steady
        if abs(ahead_s - self._clock_set_s) > CLOCK_JUMP_S:
            set_s, self._clock_set_s = ahead_s - self._clock_set_s, ahead_s
            self.broker.report(
                "the clock was set forward" if set_s > 0 else "the clock was set back",
                seconds=round(abs(set_s)),
                reason="retention by age goes on by the earlier time until the node is started again; "
                "sessions grow old by the time the node runs",
            )
        return min(self.broker.wall, steady)

    def _tell_damage(self, damage: Damage) -> None:
        """Found while running; what recovery found is in `started`."""
        fields = {"reason": damage.what, "file": damage.file, "byte": damage.byte}
        self._world.report(
            "the journal is damaged",
            {**fields, "first_offset": damage.first_offset, "stop_offset": damage.stop_offset},
        )


def _found(
    recovery: Recovery, replay: Replay
) -> tuple[tuple[Cut, ...], tuple[Damage, ...], bool, tuple[str, ...], int]:
    impossible = tuple(replay.impossible), replay.impossible_count
    return tuple(recovery.cuts), tuple(recovery.damage), recovery.behind_checkpoint, *impossible


def _replayed(replay: Replay, store: Store, saved: Saved) -> tuple[Replay, Recovery]:
    """The checkpoint, and everything that happened after it."""
    replay.load(saved.sessions, saved.retained)
    recovery = recover(store, saved.position)
    for piece in recovery:
        replay.begin_group(piece.group)
        if isinstance(piece, RecoveredEvents):
            replay.events(piece.events)
        else:
            replay.messages(piece.messages, piece.epoch)
    return replay, recovery
