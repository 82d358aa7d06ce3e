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


class Leaving(StrEnum):
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


class Arriving(StrEnum):
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


_BACK = _row(Leaving.STAYING, Do.SEND_MIGABORT, Do.THAW, Do.END)
_REFUSED = _row(Leaving.STAYING, Do.THAW, Do.END)
_AHEAD = _row(Leaving.OFFERED, Do.THAW, Do.OFFER_ANEW)

LEAVING: Table = {
    (Leaving.OFFERED, On.MIGTOACK): _row(Leaving.CATCHING_UP, Do.CATCH_UP),
    (Leaving.OFFERED, On.HEARD): _row(Leaving.DRAINING, Do.DRAIN),
    (Leaving.OFFERED, On.RETRY): _row(Leaving.OFFERED, Do.SEND_MIGTO),
    (Leaving.OFFERED, On.MIGREFUSE): _REFUSED,
    (Leaving.OFFERED, On.GIVE_UP): _BACK,
    (Leaving.OFFERED, On.TROUBLE): _BACK,
    (Leaving.CATCHING_UP, On.CAUGHT_UP): _row(Leaving.DRAINING, Do.DRAIN),
    (Leaving.CATCHING_UP, On.CAUGHT_UP_FIRST): _row(Leaving.SETTLING, Do.SETTLE),
    (Leaving.CATCHING_UP, On.PULL): _row(Leaving.OFFERED, Do.SEND_MIGTO),
    (Leaving.CATCHING_UP, On.MIGREFUSE): _REFUSED,
    (Leaving.CATCHING_UP, On.GIVE_UP): _BACK,
    (Leaving.CATCHING_UP, On.TROUBLE): _BACK,
    (Leaving.SETTLING, On.SETTLED): _row(Leaving.CALLED, Do.CALL),
    (Leaving.SETTLING, On.MIGTOACK): _row(Leaving.CATCHING_UP, Do.CATCH_UP),
    (Leaving.SETTLING, On.PULL): _row(Leaving.OFFERED, Do.SEND_MIGTO),
    (Leaving.SETTLING, On.MIGREFUSE): _REFUSED,
    (Leaving.SETTLING, On.GIVE_UP): _BACK,
    (Leaving.SETTLING, On.TROUBLE): _BACK,
    (Leaving.CALLED, On.MIGTOACK): _row(Leaving.CATCHING_UP, Do.CATCH_UP),
    (Leaving.CALLED, On.PULL): _row(Leaving.OFFERED, Do.SEND_MIGTO),
    (Leaving.CALLED, On.MIGREFUSE): _REFUSED,
    (Leaving.CALLED, On.GIVE_UP): _BACK,
    (Leaving.CALLED, On.TROUBLE): _BACK,
    (Leaving.DRAINING, On.DRAINED): _row(Leaving.FREEZING, Do.FREEZE),
    (Leaving.DRAINING, On.MIGREFUSE): _REFUSED,
    (Leaving.DRAINING, On.GIVE_UP): _BACK,
    (Leaving.DRAINING, On.TROUBLE): _BACK,
    (Leaving.FREEZING, On.FROZEN): _row(Leaving.SENDING, Do.NEXT_PAGE),
    (Leaving.FREEZING, On.MIGREFUSE): _REFUSED,
    (Leaving.FREEZING, On.GIVE_UP): _BACK,
    (Leaving.FREEZING, On.TROUBLE): _BACK,
    (Leaving.SENDING, On.MIGSYNCACK): _row(Leaving.SENDING, Do.NEXT_PAGE),
    (Leaving.SENDING, On.LAST): _row(Leaving.IN_DOUBT, Do.SEND_PAGE),
    (Leaving.SENDING, On.RETRY): _row(Leaving.SENDING, Do.SEND_PAGE),
    (Leaving.SENDING, On.MIGREFUSE): _REFUSED,
    (Leaving.SENDING, On.AHEAD): _AHEAD,
    (Leaving.SENDING, On.GIVE_UP): _BACK,
    (Leaving.SENDING, On.TROUBLE): _BACK,
    (Leaving.IN_DOUBT, On.MIGSYNCACK_WHOLE): _row(Leaving.PARTING, Do.PART),
    (Leaving.IN_DOUBT, On.MIGREFUSE): _REFUSED,
    (Leaving.IN_DOUBT, On.AHEAD): _AHEAD,
    (Leaving.IN_DOUBT, On.RETRY): _row(Leaving.IN_DOUBT, Do.SEND_PAGE),
    (Leaving.IN_DOUBT, On.GIVE_UP): _row(Leaving.IN_DOUBT, Do.SEND_MIGABORT),
    (Leaving.PARTING, On.PARTED): _row(Leaving.FORGETTING, Do.SEND_AWAY, Do.NOTE_MOVED),
    (Leaving.FORGETTING, On.SAFE): _row(Leaving.GONE, Do.SEND_MIGACK, Do.END),
}

_GIVEN_UP = _row(Arriving.DROPPED, Do.DROP, Do.SEND_MIGREFUSE, Do.END, Do.TELL_CLIENT)

ARRIVING: Table = {
    (Arriving.AWAITING, On.MIGTO): _row(Arriving.LISTENING, Do.CREATE),
    (Arriving.AWAITING, On.ABSENT): _row(Arriving.DROPPED, Do.END, Do.TELL_CLIENT),
    (Arriving.AWAITING, On.MIGREFUSE): _row(Arriving.DROPPED, Do.END, Do.TELL_CLIENT),
    (Arriving.AWAITING, On.MIGSYNC): _row(Arriving.AWAITING, Do.SEND_MIGREFUSE),
    (Arriving.AWAITING, On.MIGSYNC_LAST): _row(Arriving.AWAITING, Do.SEND_MIGREFUSE),
    (Arriving.AWAITING, On.MIGABORT): _row(Arriving.DROPPED, Do.SEND_MIGREFUSE, Do.END, Do.TELL_CLIENT),
    (Arriving.AWAITING, On.RETRY): _row(Arriving.AWAITING, Do.SEND_PULL),
    (Arriving.AWAITING, On.TROUBLE): _row(Arriving.DROPPED, Do.END, Do.TELL_CLIENT),
    (Arriving.AWAITING, On.GIVE_UP): _row(Arriving.DROPPED, Do.END, Do.TELL_CLIENT),
    (Arriving.LISTENING, On.HEARD): _row(Arriving.EXPECTING, Do.SEND_MIGTOACK),
    (Arriving.LISTENING, On.HEARD_FIRST): _row(Arriving.PREPARED, Do.SEND_MIGTOACK),
    (Arriving.LISTENING, On.MIGABORT): _GIVEN_UP,
    (Arriving.LISTENING, On.TROUBLE): _GIVEN_UP,
    (Arriving.LISTENING, On.GIVE_UP): _GIVEN_UP,
    (Arriving.PREPARED, On.CAME): _row(Arriving.EXPECTING, Do.SEND_MIGTOACK),
    (Arriving.PREPARED, On.MIGTO): _row(Arriving.PREPARED, Do.SEND_MIGTOACK),
    (Arriving.PREPARED, On.RETRY): _row(Arriving.PREPARED, Do.SEND_MIGTOACK),
    (Arriving.PREPARED, On.MIGABORT): _GIVEN_UP,
    (Arriving.PREPARED, On.TROUBLE): _GIVEN_UP,
    (Arriving.PREPARED, On.GIVE_UP): _GIVEN_UP,
    (Arriving.EXPECTING, On.MIGTO): _row(Arriving.EXPECTING, Do.SEND_MIGTOACK),
    (Arriving.EXPECTING, On.RETRY): _row(Arriving.EXPECTING, Do.SEND_MIGTOACK),
    (Arriving.EXPECTING, On.MIGSYNC): _row(Arriving.EXPECTING, Do.STAGE),
    (Arriving.EXPECTING, On.MIGSYNC_LAST): _row(Arriving.EXPECTING, Do.STAGE),
    (Arriving.EXPECTING, On.STAGED): _row(Arriving.IMPORTING, Do.IMPORT),
    (Arriving.EXPECTING, On.MIGABORT): _GIVEN_UP,
    (Arriving.EXPECTING, On.TROUBLE): _GIVEN_UP,
    (Arriving.EXPECTING, On.GIVE_UP): _GIVEN_UP,
    (Arriving.IMPORTING, On.SAFE): _row(Arriving.SERVING, Do.ANNOUNCE, Do.SEND_WHOLE, Do.TELL_CLIENT),
    (Arriving.SERVING, On.MIGSYNC_LAST): _row(Arriving.SERVING, Do.SEND_WHOLE),
    (Arriving.SERVING, On.MIGABORT): _row(Arriving.SERVING, Do.SEND_WHOLE),
    (Arriving.SERVING, On.RETRY): _row(Arriving.SERVING, Do.SEND_WHOLE, Do.TELL_CLIENT),
    (Arriving.SERVING, On.MIGACK): _row(Arriving.DONE, Do.END, Do.TELL_CLIENT),
    (Arriving.SERVING, On.GIVE_UP): _row(Arriving.DONE, Do.END, Do.TELL_CLIENT),
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
