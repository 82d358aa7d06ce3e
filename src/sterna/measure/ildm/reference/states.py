"""States of sessions and of the node (Fig. 5 of the paper) as tables.  A step that is not in the table raises.

The paper lets the node end in CLOSED, a state that it does not have; here it ends in STOPPED.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class SessionStatus(StrEnum):
    CLOSED = "CLOSED"
    ESTABLISHED = "ESTABLISHED"
    TERMINATING = "TERMINATING"


class NodeStatus(StrEnum):
    STOPPED = "STOPPED"
    RUNNING = "RUNNING"
    ILDM_ADDING = "ILDM_ADDING"
    ILDM_REMOVING = "ILDM_REMOVING"


SESSION_STEPS: Mapping[tuple[SessionStatus, str], SessionStatus] = {
    (SessionStatus.CLOSED, "TCP connection established"): SessionStatus.ESTABLISHED,
    (SessionStatus.ESTABLISHED, "termination begins"): SessionStatus.TERMINATING,
    (SessionStatus.TERMINATING, "termination is finished"): SessionStatus.CLOSED,
}
NODE_STEPS: Mapping[tuple[NodeStatus, str], NodeStatus] = {
    (NodeStatus.STOPPED, "start"): NodeStatus.RUNNING,
    (NodeStatus.RUNNING, "add a neighbour"): NodeStatus.ILDM_ADDING,
    (NodeStatus.ILDM_ADDING, "added"): NodeStatus.RUNNING,
    (NodeStatus.RUNNING, "remove a neighbour"): NodeStatus.ILDM_REMOVING,
    (NodeStatus.ILDM_REMOVING, "removed"): NodeStatus.RUNNING,
    (NodeStatus.RUNNING, "stop"): NodeStatus.STOPPED,
}

_Status = TypeVar("_Status", SessionStatus, NodeStatus)


class IllegalStep(AssertionError):
    """A step that the table does not have: a fault of the node, never of a peer."""


def step(table: Mapping[tuple[_Status, str], _Status], status: _Status, event: str) -> _Status:
    try:
        return table[status, event]
    except KeyError:
        raise IllegalStep(f"{event!r} in state {status}") from None


def as_markdown(
    table: Mapping[tuple[SessionStatus, str], SessionStatus] | Mapping[tuple[NodeStatus, str], NodeStatus],
) -> str:
    """The table as the documentation shows it."""
    rows = [f"| {before} | {event} | {after} |" for (before, event), after in table.items()]
    return "\n".join(["| from | event | to |", "|---|---|---|", *rows])
