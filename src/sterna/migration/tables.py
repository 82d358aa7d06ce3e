"""The state machines of both sides of a move: two tables, from which the documentation is drawn too.

A row says: in this state, on this event, do that, and be in that state.  An event that has no row in a state is old, or
forged, or none of the other side's business there: it is counted and changes nothing.

`departure.py` and `arrival.py` do what a row says, in order.  One row changes the owner of a session: the one in which
the new owner has all of it safe (IMPORTING to SERVING).  Before that the new owner holds nothing that counts; from the
moment it might, until it has said so, the old one serves nobody.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class DepartureState(StrEnum):
    """Where a session stands on the node it leaves."""

    OFFERED = "offered"
    CATCHING_UP = "catching up"
    SETTLING = "settling"
    CALLED = "called"
    DRAINING = "draining"
    FREEZING = "freezing"
    SENDING = "sending"
    IN_DOUBT = "in doubt"
    PARTING = "parting"
    FORGETTING = "forgetting"
    GONE = "gone"
    STAYING = "staying"


class ArrivalState(StrEnum):
    """Where it stands on the node it goes to."""

    AWAITING = "awaiting"
    LISTENING = "listening"
    PREPARED = "prepared"
    EXPECTING = "expecting"
    IMPORTING = "importing"
    SERVING = "serving"
    DONE = "done"
    DROPPED = "dropped"


class On(StrEnum):
    PULL = "PULL"
    MIGTO = "MIGTO"
    MIGTOACK = "MIGTOACK"
    MIGSYNC = "MIGSYNC"
    MIGSYNC_LAST = "MIGSYNC, last page"
    MIGSYNCACK = "MIGSYNCACK of a page"
    MIGSYNCACK_WHOLE = "MIGSYNCACK of the whole"
    MIGACK = "MIGACK"
    MIGABORT = "MIGABORT"
    MIGREFUSE = "MIGREFUSE"
    AHEAD = "MIGREFUSE, it is ahead"
    ABSENT = "ABSENT"
    HEARD = "everybody has heard"
    HEARD_FIRST = "everybody has heard, and its client is to come"
    HEARD_CALLED = "everybody has heard, and its client is coming"
    CAME = "the client is here"
    SETTLED = "settled"
    CAUGHT_UP = "caught up"
    CAUGHT_UP_FIRST = "caught up, and its client is to go"
    DRAINED = "drained"
    FROZEN = "frozen"
    SAFE = "safe"
    STAGED = "all pages safe"
    LAST = "that was the last page"
    PARTED = "it has acknowledged all, or had its time"
    RETRY = "no answer yet"
    GIVE_UP = "out of patience"
    TROUBLE = "something is wrong here"


class Do(StrEnum):
    SEND_PULL = "send PULL"
    SEND_MIGTO = "send MIGTO"
    SEND_MIGTOACK = "send MIGTOACK"
    SEND_PAGE = "send a page of MIGSYNC"
    SEND_MIGSYNCACK = "send MIGSYNCACK of the page"
    SEND_WHOLE = "send MIGSYNCACK of the whole"
    SEND_MIGACK = "send MIGACK"
    SEND_MIGABORT = "send MIGABORT"
    SEND_MIGREFUSE = "send MIGREFUSE"
    CATCH_UP = "read on to its vector"
    SETTLE = "let the client acknowledge"
    CALL = "send the client there, and keep the session"
    DRAIN = "send nothing new"
    OFFER_ANEW = "offer it anew"
    PART = "hear what it acknowledges"
    FREEZE = "stop, and note where"
    NEXT_PAGE = "make the next page"
    THAW = "go on serving"
    NOTE_MOVED = "note that it has moved"
    SEND_AWAY = "send the client on"
    CREATE = "create it, and listen"
    STAGE = "write the page down"
    IMPORT = "put it together, and note it"
    ANNOUNCE = "tell everybody, and serve"
    DROP = "forget it"
    TELL_CLIENT = "let the client know"
    END = "done"


class Row(NamedTuple):
    does: tuple[Do, ...]
    then: StrEnum


Table = dict[tuple[StrEnum, On], Row]


def _row(then: StrEnum, *does: Do) -> Row:
    return Row(does, then)


_BACK = _row(DepartureState.STAYING, Do.SEND_MIGABORT, Do.THAW, Do.END)
_REFUSED = _row(DepartureState.STAYING, Do.THAW, Do.END)
_AHEAD = _row(DepartureState.OFFERED, Do.THAW, Do.OFFER_ANEW)

LEAVING: Table = {
    (DepartureState.OFFERED, On.MIGTOACK): _row(DepartureState.CATCHING_UP, Do.CATCH_UP),
    (DepartureState.OFFERED, On.HEARD): _row(DepartureState.DRAINING, Do.DRAIN),
    (DepartureState.OFFERED, On.RETRY): _row(DepartureState.OFFERED, Do.SEND_MIGTO),
    (DepartureState.OFFERED, On.MIGREFUSE): _REFUSED,
    (DepartureState.OFFERED, On.GIVE_UP): _BACK,
    (DepartureState.OFFERED, On.TROUBLE): _BACK,
    (DepartureState.CATCHING_UP, On.CAUGHT_UP): _row(DepartureState.DRAINING, Do.DRAIN),
    (DepartureState.CATCHING_UP, On.CAUGHT_UP_FIRST): _row(DepartureState.SETTLING, Do.SETTLE),
    (DepartureState.CATCHING_UP, On.PULL): _row(DepartureState.OFFERED, Do.SEND_MIGTO),
    (DepartureState.CATCHING_UP, On.MIGREFUSE): _REFUSED,
    (DepartureState.CATCHING_UP, On.GIVE_UP): _BACK,
    (DepartureState.CATCHING_UP, On.TROUBLE): _BACK,
    (DepartureState.SETTLING, On.SETTLED): _row(DepartureState.CALLED, Do.CALL),
    (DepartureState.SETTLING, On.MIGTOACK): _row(DepartureState.CATCHING_UP, Do.CATCH_UP),
    (DepartureState.SETTLING, On.PULL): _row(DepartureState.OFFERED, Do.SEND_MIGTO),
    (DepartureState.SETTLING, On.MIGREFUSE): _REFUSED,
    (DepartureState.SETTLING, On.GIVE_UP): _BACK,
    (DepartureState.SETTLING, On.TROUBLE): _BACK,
    (DepartureState.CALLED, On.MIGTOACK): _row(DepartureState.CATCHING_UP, Do.CATCH_UP),
    (DepartureState.CALLED, On.PULL): _row(DepartureState.OFFERED, Do.SEND_MIGTO),
    (DepartureState.CALLED, On.MIGREFUSE): _REFUSED,
    (DepartureState.CALLED, On.GIVE_UP): _BACK,
    (DepartureState.CALLED, On.TROUBLE): _BACK,
    (DepartureState.DRAINING, On.DRAINED): _row(DepartureState.FREEZING, Do.FREEZE),
    (DepartureState.DRAINING, On.MIGREFUSE): _REFUSED,
    (DepartureState.DRAINING, On.GIVE_UP): _BACK,
    (DepartureState.DRAINING, On.TROUBLE): _BACK,
    (DepartureState.FREEZING, On.FROZEN): _row(DepartureState.SENDING, Do.NEXT_PAGE),
    (DepartureState.FREEZING, On.MIGREFUSE): _REFUSED,
    (DepartureState.FREEZING, On.GIVE_UP): _BACK,
    (DepartureState.FREEZING, On.TROUBLE): _BACK,
    (DepartureState.SENDING, On.MIGSYNCACK): _row(DepartureState.SENDING, Do.NEXT_PAGE),
    (DepartureState.SENDING, On.LAST): _row(DepartureState.IN_DOUBT, Do.SEND_PAGE),
    (DepartureState.SENDING, On.RETRY): _row(DepartureState.SENDING, Do.SEND_PAGE),
    (DepartureState.SENDING, On.MIGREFUSE): _REFUSED,
    (DepartureState.SENDING, On.AHEAD): _AHEAD,
    (DepartureState.SENDING, On.GIVE_UP): _BACK,
    (DepartureState.SENDING, On.TROUBLE): _BACK,
    (DepartureState.IN_DOUBT, On.MIGSYNCACK_WHOLE): _row(DepartureState.PARTING, Do.PART),
    (DepartureState.IN_DOUBT, On.MIGREFUSE): _REFUSED,
    (DepartureState.IN_DOUBT, On.AHEAD): _AHEAD,
    (DepartureState.IN_DOUBT, On.RETRY): _row(DepartureState.IN_DOUBT, Do.SEND_PAGE),
    (DepartureState.IN_DOUBT, On.GIVE_UP): _row(DepartureState.IN_DOUBT, Do.SEND_MIGABORT),
    (DepartureState.PARTING, On.PARTED): _row(DepartureState.FORGETTING, Do.SEND_AWAY, Do.NOTE_MOVED),
    (DepartureState.FORGETTING, On.SAFE): _row(DepartureState.GONE, Do.SEND_MIGACK, Do.END),
}

_GIVEN_UP = _row(ArrivalState.DROPPED, Do.DROP, Do.SEND_MIGREFUSE, Do.END, Do.TELL_CLIENT)

ARRIVING: Table = {
    (ArrivalState.AWAITING, On.MIGTO): _row(ArrivalState.LISTENING, Do.CREATE),
    (ArrivalState.AWAITING, On.ABSENT): _row(ArrivalState.DROPPED, Do.END, Do.TELL_CLIENT),
    (ArrivalState.AWAITING, On.MIGREFUSE): _row(ArrivalState.DROPPED, Do.END, Do.TELL_CLIENT),
    (ArrivalState.AWAITING, On.MIGSYNC): _row(ArrivalState.AWAITING, Do.SEND_MIGREFUSE),
    (ArrivalState.AWAITING, On.MIGSYNC_LAST): _row(ArrivalState.AWAITING, Do.SEND_MIGREFUSE),
    (ArrivalState.AWAITING, On.MIGABORT): _row(ArrivalState.DROPPED, Do.SEND_MIGREFUSE, Do.END, Do.TELL_CLIENT),
    (ArrivalState.AWAITING, On.RETRY): _row(ArrivalState.AWAITING, Do.SEND_PULL),
    (ArrivalState.AWAITING, On.TROUBLE): _row(ArrivalState.DROPPED, Do.END, Do.TELL_CLIENT),
    (ArrivalState.AWAITING, On.GIVE_UP): _row(ArrivalState.DROPPED, Do.END, Do.TELL_CLIENT),
    (ArrivalState.LISTENING, On.HEARD): _row(ArrivalState.EXPECTING, Do.SEND_MIGTOACK),
    (ArrivalState.LISTENING, On.HEARD_FIRST): _row(ArrivalState.PREPARED, Do.SEND_MIGTOACK),
    (ArrivalState.LISTENING, On.HEARD_CALLED): _row(ArrivalState.PREPARED),
    (ArrivalState.LISTENING, On.MIGABORT): _GIVEN_UP,
    (ArrivalState.LISTENING, On.TROUBLE): _GIVEN_UP,
    (ArrivalState.LISTENING, On.GIVE_UP): _GIVEN_UP,
    (ArrivalState.PREPARED, On.CAME): _row(ArrivalState.EXPECTING, Do.SEND_MIGTOACK),
    (ArrivalState.PREPARED, On.MIGTO): _row(ArrivalState.PREPARED, Do.SEND_MIGTOACK),
    (ArrivalState.PREPARED, On.RETRY): _row(ArrivalState.PREPARED, Do.SEND_MIGTOACK),
    (ArrivalState.PREPARED, On.MIGABORT): _GIVEN_UP,
    (ArrivalState.PREPARED, On.TROUBLE): _GIVEN_UP,
    (ArrivalState.PREPARED, On.GIVE_UP): _GIVEN_UP,
    (ArrivalState.EXPECTING, On.MIGTO): _row(ArrivalState.EXPECTING, Do.SEND_MIGTOACK),
    (ArrivalState.EXPECTING, On.RETRY): _row(ArrivalState.EXPECTING, Do.SEND_MIGTOACK),
    (ArrivalState.EXPECTING, On.MIGSYNC): _row(ArrivalState.EXPECTING, Do.STAGE),
    (ArrivalState.EXPECTING, On.MIGSYNC_LAST): _row(ArrivalState.EXPECTING, Do.STAGE),
    (ArrivalState.EXPECTING, On.STAGED): _row(ArrivalState.IMPORTING, Do.IMPORT),
    (ArrivalState.EXPECTING, On.MIGABORT): _GIVEN_UP,
    (ArrivalState.EXPECTING, On.TROUBLE): _GIVEN_UP,
    (ArrivalState.EXPECTING, On.GIVE_UP): _GIVEN_UP,
    (ArrivalState.IMPORTING, On.SAFE): _row(ArrivalState.SERVING, Do.ANNOUNCE, Do.SEND_WHOLE, Do.TELL_CLIENT),
    (ArrivalState.SERVING, On.MIGSYNC_LAST): _row(ArrivalState.SERVING, Do.SEND_WHOLE),
    (ArrivalState.SERVING, On.MIGABORT): _row(ArrivalState.SERVING, Do.SEND_WHOLE),
    (ArrivalState.SERVING, On.RETRY): _row(ArrivalState.SERVING, Do.SEND_WHOLE, Do.TELL_CLIENT),
    (ArrivalState.SERVING, On.MIGACK): _row(ArrivalState.DONE, Do.END, Do.TELL_CLIENT),
    (ArrivalState.SERVING, On.GIVE_UP): _row(ArrivalState.DONE, Do.END, Do.TELL_CLIENT),
}


class Machine:
    """One side of one move, as far as the table goes."""

    def __init__(self, table: Table, state: StrEnum) -> None:
        self._table = table
        self.state = state

    def on(self, event: On) -> tuple[Do, ...] | None:
        """The actions; None if the event means nothing here."""
        row = self._table.get((self.state, event))
        if row is None:
            return None
        self.state = row.then
        return row.does


def drawing(table: Table) -> str:
    """The table as the documentation shows it."""
    lines = ["| in | on | does | then |", "|---|---|---|---|"]
    for (state, event), row in table.items():
        does = ", ".join(row.does) or "nothing"
        then = "the same" if row.then is state else row.then
        lines.append(f"| {state} | {event} | {does} | {then} |")
    return "\n".join(lines)
