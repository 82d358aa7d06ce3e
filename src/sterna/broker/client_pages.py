"""Pages of the list of clients, in the order of their identifiers, so that a network of many can be read through.

Each node gives its clients after the last identifier of the page before; whoever gathers takes the first of all.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from itertools import islice
from typing import Literal

import msgspec

from sterna.broker.broker import Broker
from sterna.broker.inspection import LOOKED_AT_MAX, Findings, client_row, is_control_line, own_sessions
from sterna.broker.session.session import Session

ClientState = Literal["all", "connected", "away", "waiting", "moving", "control"]


class ClientPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The argument of the question, as JSON."""

    text: str = ""
    """Part of the identifier or user name."""
    after: str | None = None
    """Identifiers after this one; None: from the first."""
    state: ClientState = "all"
    """Control lines of coordinators, workers and gateways are in a state of their own: they are nobody's clients."""
    node: str = ""
    """Of this node only."""


_STATES: dict[ClientState, Callable[[Session], bool] | None] = {
    "all": None,
    "connected": lambda session: session.connection is not None,
    "away": lambda session: session.connection is None,
    "waiting": lambda session: bool(len(session.queue)),
    "moving": lambda session: session.is_moving,
    "control": None,
}


def client_page(broker: Broker, node: str, argument: str, most: int) -> Findings:
    """ValueError if the argument is none."""
    page = msgspec.json.decode(argument, type=ClientPage)
    if page.node and page.node != node:
        return Findings([], is_cut=False)
    fits, part = _STATES[page.state], page.text
    after = page.after.encode() if page.after is not None else None
    found = (  # bytes: UTF-8 is in the order of its characters
        session.client_id
        for session in islice(own_sessions(broker), LOOKED_AT_MAX)
        if (after is None or session.client_id > after)
        and (not part or part in session.name() or part in (session.user or ""))
        and is_control_line(session) == (page.state == "control")
        and (fits is None or fits(session))
    )
    first = nsmallest(most + 1, found)
    rows = [client_row(broker.sessions[client], node) for client in first[:most]]
    return Findings(rows, is_cut=len(first) > most or len(broker.sessions) > LOOKED_AT_MAX)
