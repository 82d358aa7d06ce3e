"""The life of a worker's node, from its start to a stop that loses nothing: one table, drawn into the documentation.

A worker goes by it.  A stop is ordered by a coordinator, but every step on the way rests on what the worker itself sees
of its node *now*: `Facts`.  The node is ended only when nobody is left on it, a probe came back from every node that
can be reached, all of them have read its messages to the end, and so have the named readers of its feed.  A comparison
of version vectors would not do: a node's vector does not move for messages it does not want.

If the coordinator is lost on the way, the node serves on.  A node that ended by itself after it had served is started
again, coordinator or not: sessions wait for it.  A worker never kills its node and never deletes its data.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from sterna.adaptation.picture import WorkerNodeState
from sterna.vocabulary.settings import Allowed


class DrainEvent(StrEnum):
    START_ORDERED = "a start is ordered"
    READY = "it is linked, synced and open"
    LATE = "it is not ready in time"
    DIED = "it ended by itself"
    WANTED = "it is wanted, and its pause is over"
    STOP_ORDERED = "a stop is ordered"
    RESUME_ORDERED = "the stop is taken back"
    COORDINATOR_LOST = "no coordinator is heard"
    STALLED = "somebody cannot leave"
    OTHERS_LEFT = "clients are left that no gateway can move"
    EMPTY = "no session, remains or move is left"
    OCCUPIED = "somebody came after all"
    DRAINED = "all have what it owes"
    EXITED = "it has ended"
    NO_EXIT = "it does not end"
    OWED = "a node it owes something is back"


class DrainAction(StrEnum):
    START = "start it"
    START_CLOSED = "start it, closed"
    OPEN = "open it"
    CLOSE = "close it"
    EVACUATE = "evacuate the rest"
    PROBE = "send a probe, ask its readers"
    TERMINATE = "send SIGTERM"
    REPORT = "report"
    BAR = "bar it for a while"


class DrainRow(NamedTuple):
    does: tuple[DrainAction, ...]
    then: WorkerNodeState


Table = dict[tuple[WorkerNodeState, DrainEvent], DrainRow]

_S = WorkerNodeState

LIFE: Final[Table] = {
    (_S.OFF, DrainEvent.START_ORDERED): DrainRow((DrainAction.START,), _S.STARTING),
    (_S.OFF, DrainEvent.WANTED): DrainRow((DrainAction.START,), _S.STARTING),
    (_S.OFF, DrainEvent.OWED): DrainRow((DrainAction.START_CLOSED,), _S.DRAINING),
    (_S.STARTING, DrainEvent.READY): DrainRow((DrainAction.OPEN, DrainAction.REPORT), _S.SERVING),
    (_S.STARTING, DrainEvent.DIED): DrainRow((DrainAction.BAR, DrainAction.REPORT), _S.OFF),
    (_S.STARTING, DrainEvent.LATE): DrainRow((DrainAction.REPORT,), _S.STUCK),
    (_S.SERVING, DrainEvent.STOP_ORDERED): DrainRow((DrainAction.CLOSE, DrainAction.REPORT), _S.LEAVING),
    (_S.SERVING, DrainEvent.DIED): DrainRow((DrainAction.REPORT, DrainAction.START), _S.STARTING),
    (_S.LEAVING, DrainEvent.RESUME_ORDERED): DrainRow((DrainAction.OPEN, DrainAction.REPORT), _S.SERVING),
    (_S.LEAVING, DrainEvent.COORDINATOR_LOST): DrainRow((DrainAction.OPEN, DrainAction.REPORT), _S.SERVING),
    (_S.LEAVING, DrainEvent.STALLED): DrainRow((DrainAction.OPEN, DrainAction.REPORT), _S.SERVING),
    (_S.LEAVING, DrainEvent.DIED): DrainRow((DrainAction.REPORT, DrainAction.START), _S.STARTING),
    (_S.LEAVING, DrainEvent.OTHERS_LEFT): DrainRow((DrainAction.EVACUATE,), _S.LEAVING),
    (_S.LEAVING, DrainEvent.EMPTY): DrainRow((DrainAction.PROBE, DrainAction.REPORT), _S.DRAINING),
    (_S.DRAINING, DrainEvent.RESUME_ORDERED): DrainRow((DrainAction.OPEN, DrainAction.REPORT), _S.SERVING),
    (_S.DRAINING, DrainEvent.COORDINATOR_LOST): DrainRow((DrainAction.OPEN, DrainAction.REPORT), _S.SERVING),
    (_S.DRAINING, DrainEvent.DIED): DrainRow((DrainAction.REPORT, DrainAction.START), _S.STARTING),
    (_S.DRAINING, DrainEvent.OCCUPIED): DrainRow((DrainAction.EVACUATE, DrainAction.REPORT), _S.LEAVING),
    (_S.DRAINING, DrainEvent.DRAINED): DrainRow((DrainAction.TERMINATE, DrainAction.REPORT), _S.STOPPING),
    (_S.STOPPING, DrainEvent.EXITED): DrainRow((DrainAction.REPORT,), _S.OFF),
    (_S.STOPPING, DrainEvent.NO_EXIT): DrainRow((DrainAction.REPORT,), _S.STUCK),
    (_S.STUCK, DrainEvent.READY): DrainRow((DrainAction.OPEN, DrainAction.REPORT), _S.SERVING),
    (_S.STUCK, DrainEvent.EXITED): DrainRow((DrainAction.BAR, DrainAction.REPORT), _S.OFF),
}


def drawing(table: Table = LIFE) -> str:
    """The table as the documentation shows it."""
    lines = ["| in | on | does | then |", "|---|---|---|---|"]
    for (state, event), row in table.items():
        then = "the same" if row.then is state else row.then
        lines.append(f"| {state} | {event} | {', '.join(row.does)} | {then} |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainingTuning:
    ready_s: Annotated[float, Allowed(1, 3600)] = 60.0
    """A node that is not linked, synced and open so long after its start is stuck, until it is."""
    leave_s: Annotated[float, Allowed(1, 86_400)] = 60.0
    """Gateways get so long to be moved before the rest is evacuated."""
    stalled_s: Annotated[float, Allowed(1, 86_400)] = 600.0
    """A node that is not empty so long after its stop was ordered serves on."""
    reader_patience_s: Annotated[float, Allowed(0, 864_000)] = 600.0
    """A named reader of the feed gets so long to read to the end.  After that the stop goes on, and is counted."""
    stop_s: Annotated[float, Allowed(1, 3600)] = 60.0
    """A node that has not ended so long after SIGTERM is stuck, and an operator's."""
    coordinator_s: Annotated[float, Allowed(1, 3600)] = 30.0
    """A coordinator not heard for so long is lost."""
    bar_s: Annotated[float, Allowed(1, 86_400)] = 30.0
    """A node that ended before it was ready is not tried again for so long; twice as long each further time, ..."""
    bar_most_s: Annotated[float, Allowed(1, 864_000)] = 3600.0
    """... up to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A worker's view of its node at one moment."""

    alive: bool = False
    """The process runs."""
    ready: bool = False
    """It is linked, has the streams of all nodes, and takes clients if it is open."""
    sessions: int = 0
    """Sessions of clients, offline ones included; those of the control line are not counted."""
    movable: int = 0
    """Sessions of them that a gateway holds and a coordinator can move."""
    remains: int = 0
    moves: int = 0
    """Of sessions that moved away, and under way."""
    probe_back: bool = False
    """A probe that was sent when the node was empty came back from every node that can be reached."""
    synced: bool = False
    """Every node that can be reached has read its stream to the end."""
    absent: frozenset[str] = frozenset()
    """Nodes that cannot be reached and may want something of it."""
    back: frozenset[str] = frozenset()
    """Nodes that can be reached, as far as it matters while this one is off: other workers say so."""
    readers_behind: int = 0
    """Named readers of its feed that are not at its end."""
    coordinator_heard_at: float = 0.0

    @property
    def is_empty(self) -> bool:
        return self.sessions == self.remains == self.moves == 0


@dataclass(slots=True)
class NodeLife:
    """A worker's node, and where it stands in the table.  Orders and facts in, deeds out."""

    settings: DrainingTuning
    state: WorkerNodeState = WorkerNodeState.OFF
    since: float = 0.0
    wait_for_absent: bool = False
    """Nodes that are away hold up a stop.  If not, they are owed, and the node starts again when one is back."""
    owed: set[str] = field(default_factory=set)
    """Nodes that were away when it was ended; empty while it serves."""
    owed_again_at: float = 0.0
    """It was started for them and reached none: not before this is it tried again."""
    fruitless: int = 0
    wanted: bool = False
    """It has served and was not stopped since, or is fixed: it is started again, whatever ended it."""
    terminated: bool = False
    """SIGTERM was sent: should it hang, it is not opened again."""
    failures: int = 0
    barred_until: float = 0.0
    readers_left_behind: int = 0
    """Stops that went on though a named reader had not read to the end."""

    def ordered(self, event: DrainEvent, now: float) -> tuple[DrainAction, ...] | None:
        """An order of the coordinator.  None: it makes no sense in this state, and changes nothing."""
        if event is DrainEvent.START_ORDERED and now < self.barred_until:
            return None
        return self._take(event, now) if (self.state, event) in LIFE else None

    def look(self, facts: Facts, now: float) -> tuple[DrainAction, ...]:
        """Do as the facts ask."""
        event = _SEEN[self.state](self, facts, now)
        if event is None:
            return ()
        if event is DrainEvent.DRAINED:
            self._ends_owing(facts.absent, now)
            self.readers_left_behind += facts.readers_behind > 0
        return self._take(event, now)

    def _ends_owing(self, absent: Set[str], now: float) -> None:
        self.fruitless = self.fruitless + 1 if self.owed and self.owed <= absent else 0
        if self.fruitless:
            pause = min(self.settings.bar_s * 2 ** (self.fruitless - 1), self.settings.bar_most_s)
            self.owed_again_at = now + pause
        self.owed = set(absent)

    def _take(self, event: DrainEvent, now: float) -> tuple[DrainAction, ...]:
        row = LIFE[self.state, event]
        if row.then is not self.state:
            self.state, self.since = row.then, now
        if DrainAction.TERMINATE in row.does:
            self.wanted, self.terminated = False, True
        if DrainAction.START in row.does or DrainAction.START_CLOSED in row.does:
            self.terminated = False
        if DrainAction.BAR in row.does:
            pause = min(self.settings.bar_s * 2**self.failures, self.settings.bar_most_s)
            self.failures, self.barred_until = self.failures + 1, now + pause
        if event is DrainEvent.READY:
            self.failures, self.wanted = 0, True
        if row.then is WorkerNodeState.SERVING:
            self.owed, self.fruitless = set(), 0
        return row.does

    def _off(self, facts: Facts, now: float) -> DrainEvent | None:
        if self.wanted and now >= self.barred_until:
            return DrainEvent.WANTED
        return DrainEvent.OWED if self.owed & facts.back and now >= self.owed_again_at else None

    def _starting(self, facts: Facts, now: float) -> DrainEvent | None:
        if not facts.alive:
            return DrainEvent.DIED
        if facts.ready:
            return DrainEvent.READY
        return DrainEvent.LATE if now - self.since > self.settings.ready_s else None

    def _serving(self, facts: Facts, now: float) -> DrainEvent | None:
        return None if facts.alive else DrainEvent.DIED

    def _leaving(self, facts: Facts, now: float) -> DrainEvent | None:
        for_s = now - self.since
        if not facts.alive:
            return DrainEvent.DIED
        if now - facts.coordinator_heard_at > self.settings.coordinator_s:
            return DrainEvent.COORDINATOR_LOST
        if facts.is_empty:
            return DrainEvent.EMPTY
        if for_s > self.settings.stalled_s:
            return DrainEvent.STALLED
        rest = facts.sessions > 0 and facts.movable == 0
        return DrainEvent.OTHERS_LEFT if rest or for_s > self.settings.leave_s else None

    def _draining(self, facts: Facts, now: float) -> DrainEvent | None:
        if not facts.alive:
            return DrainEvent.DIED
        if now - facts.coordinator_heard_at > self.settings.coordinator_s:
            return DrainEvent.COORDINATOR_LOST
        if not facts.is_empty:
            return DrainEvent.OCCUPIED
        if self.owed & facts.absent and now - self.since <= self.settings.ready_s:
            return None  # it was started for them, and is not linked yet: nobody to ask is no proof
        patient = now - self.since <= self.settings.reader_patience_s
        if (facts.readers_behind and patient) or (facts.absent and self.wait_for_absent):
            return None
        return DrainEvent.DRAINED if facts.probe_back and facts.synced else None

    def _stopping(self, facts: Facts, now: float) -> DrainEvent | None:
        if not facts.alive:
            return DrainEvent.EXITED
        return DrainEvent.NO_EXIT if now - self.since > self.settings.stop_s else None

    def _stuck(self, facts: Facts, now: float) -> DrainEvent | None:
        if not facts.alive:
            return DrainEvent.EXITED
        return DrainEvent.READY if facts.ready and not self.terminated else None


_SEEN: Final = {
    WorkerNodeState.OFF: NodeLife._off,
    WorkerNodeState.STARTING: NodeLife._starting,
    WorkerNodeState.SERVING: NodeLife._serving,
    WorkerNodeState.LEAVING: NodeLife._leaving,
    WorkerNodeState.DRAINING: NodeLife._draining,
    WorkerNodeState.STOPPING: NodeLife._stopping,
    WorkerNodeState.STUCK: NodeLife._stuck,
}
