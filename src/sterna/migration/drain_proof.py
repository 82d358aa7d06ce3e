"""Whether this node owes anything to anybody: the proof that it may be stopped.

A probe goes to every node that can be reached, behind all that this node has sent, and each says when it passes the
probe whether its stream of this node is synced.  Comparing version vectors would prove nothing: a node's vector stands
still while messages pass that it does not want.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sterna.broker.inspection import is_control_line
from sterna.migration.move_manager import MoveManager
from sterna.routing.probes import Answers

#: Names of nodes that an answer lists.
NODES_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class DrainProof:
    node: str
    closed: bool
    """It is being emptied: no client is sent here."""
    sessions: int
    """Those of clients, connected or not; sessions on control topics are not counted."""
    remains: int
    """Sessions that went on elsewhere and have something to hand over."""
    moves: int
    """Sessions on their way out or in."""
    control: int
    readers_behind: int
    """Messages that the slowest named reader of the feed has not committed."""
    unanswered: list[str]
    """Nodes that can be reached and did not answer the probe in time."""
    unsynced: list[str]
    """Nodes that answered and may lack messages of this one."""
    absent: list[str]
    """Nodes that have belonged to the network and cannot be reached: something may be owed to them."""

    @property
    def is_empty(self) -> bool:
        return self.closed and not (self.sessions or self.remains or self.moves)

    @property
    def is_drained(self) -> bool:
        """Empty, and nothing is owed to anybody that can be reached."""
        return self.is_empty and not (self.unanswered or self.unsynced or self.readers_behind)


def prove_drain(moving: MoveManager, readers_behind: Callable[[], int], told: Callable[[DrainProof], None]) -> None:
    """In a turn of the node; `told` hears of it when all have answered, or some of them too late."""

    def heard(answers: Answers) -> None:
        told(_proof(moving, answers, readers_behind()))

    # Messages that are taken in and not written yet would be sent behind the probe.
    moving.broker.between_groups(lambda: moving.router.when_answered(heard))


def _proof(moving: MoveManager, answers: Answers, readers_behind: int) -> DrainProof:
    reachable = set(moving.router.paths.origins) - {moving.node}
    known = set(moving.router.streams.vector) - {moving.node}
    sessions = moving.broker.sessions.values()
    control = sum(map(is_control_line, sessions))
    remains = sum(session.is_fenced for session in sessions)
    return DrainProof(
        node=moving.node,
        closed=moving.plans.evacuation is not None,
        sessions=len(sessions) - control - remains,
        remains=remains,
        moves=len(moving.departures) + len(moving.arrivals),
        control=control,
        readers_behind=readers_behind,
        unanswered=sorted(reachable - answers.frontiers.keys())[:NODES_SHOWN],
        unsynced=sorted((reachable & answers.frontiers.keys()) - answers.readers)[:NODES_SHOWN],
        absent=sorted(known - reachable)[:NODES_SHOWN],
    )
