"""The states of an attachment, as a table.  docs/interworking.md is drawn from it."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    WAITING = "waiting"
    ASKING = "asking"
    JOINING = "joining"
    SETTLING = "settling"
    ATTACHED = "attached"
    STANDING_BY = "standing by"
    STOPPED = "stopped"


class Event(StrEnum):
    PAUSE_OVER = "the pause is over"
    ABLE = "the broker's abilities are known"
    ACCEPTED = "both sessions are open"
    SETTLED = "the broker's retained messages are read"
    LOST = "the connection failed or ended"
    OTHER_FENCE = "a fence of a node with a smaller name came"
    ALONE = "no such fence came for three intervals"
    STOP = "the node stops"


MEANING: dict[State, str] = {
    State.WAITING: "not connected; a pause that grows passes before the next try",
    State.ASKING: "finds out on a connection of its own which level the broker speaks and what it does",
    State.JOINING: "CONNECT is sent; then the session at our own node opens",
    State.SETTLING: "subscribes at the broker; its retained messages are read and compared, and ours wait",
    State.ATTACHED: "messages flow both ways",
    State.STANDING_BY: "another node of this network is attached to the same broker; watches whether it still is",
    State.STOPPED: "the end",
}

TABLE: dict[State, dict[Event, State]] = {
    State.WAITING: {Event.PAUSE_OVER: State.ASKING, Event.STOP: State.STOPPED},
    State.ASKING: {Event.ABLE: State.JOINING, Event.LOST: State.WAITING, Event.STOP: State.STOPPED},
    State.JOINING: {Event.ACCEPTED: State.SETTLING, Event.LOST: State.WAITING, Event.STOP: State.STOPPED},
    State.SETTLING: {
        Event.SETTLED: State.ATTACHED,
        Event.LOST: State.WAITING,
        Event.OTHER_FENCE: State.STANDING_BY,
        Event.STOP: State.STOPPED,
    },
    State.ATTACHED: {
        Event.LOST: State.WAITING,
        Event.OTHER_FENCE: State.STANDING_BY,
        Event.STOP: State.STOPPED,
    },
    State.STANDING_BY: {Event.ALONE: State.WAITING, Event.LOST: State.WAITING, Event.STOP: State.STOPPED},
    State.STOPPED: {},
}


def after(state: State, event: Event) -> State:
    """The state that follows; KeyError if the event cannot happen there."""
    return TABLE[state][event]


def drawing() -> str:
    """The table, as the documentation shows it."""
    lines = ["| state | meaning | then |", "|---|---|---|"]
    for state, meaning in MEANING.items():
        ways = "; ".join(f"{event}: *{next_state}*" for event, next_state in TABLE[state].items())
        lines.append(f"| *{state}* | {meaning} | {ways or '-'} |")
    return "\n".join(lines)
