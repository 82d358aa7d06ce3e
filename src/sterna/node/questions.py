"""Rivals of our sessions are asked what they have, as soon as they can be reached, and until they have said it.

After a long partition all sessions have the same question at once.  So a few are asked at a time, those first whose
clients are connected, and a few are looked at: nobody else is kept waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from sterna.broker.inheritance import Inheritance
from sterna.broker.transfer import session_transfer
from sterna.migration.messages import Rivals

if TYPE_CHECKING:
    from sterna.node.moving import Moving

#: How often something that is waited for is looked at.
LOOK_S: Final = 0.02
#: Questions that leave in one turn: some two milliseconds.
ASKED_A_TURN: Final = 200
#: Clients that are looked at in one turn.
LOOKED_AT_A_TURN: Final = 1000


class Questions:
    def __init__(self, moving: Moving, is_coming: Callable[[bytes, str], bool]) -> None:
        """`is_coming`: is what a rival has of a client on its way?"""
        self._moving = moving
        self._broker = moving.broker
        self._is_coming = is_coming
        #: Clients whose sessions have rivals -> the rivals that can be reached, and since when they are waited for.
        self._waiting: dict[bytes, dict[str, float]] = {}
        #: Rivals that have said all they have -> when.
        self._spoken: dict[tuple[bytes, str], float] = {}
        #: What is to be asked.
        self._to_ask: dict[tuple[bytes, str], None] = {}
        #: Those that this round has not come to.
        self._to_look_at: list[bytes] = []
        self._is_asking = self._ticking = False
        #: How many were asked in the turn of that instant.
        self._turn, self._asked = 0.0, 0

    @property
    def is_waiting(self) -> bool:
        return bool(self._to_ask) or any(self._waiting.values())

    def watch(self, client: bytes) -> None:
        self._waiting.setdefault(client, {})
        if not self._ticking:
            self._ticking = True
            self._moving.later(self._moving.settings.retry_s, self._tick)

    def begin(self, client: bytes, nodes: Iterable[str]) -> None:
        """Its session has come here: what was said about one that was here before counts no more."""
        self._waiting.pop(client, None)
        self.open_again(client, nodes)

    def open_again(self, client: bytes, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._spoken.pop((client, node), None)

    def node_found(self, node: str) -> None:
        sessions = self._broker.sessions
        later: list[bytes] = []
        for client in list(self._waiting):
            inheritance = self._inheritance(client)
            if inheritance is None or node not in inheritance.rivals:
                continue
            if sessions[client].connection is None:
                later.append(client)
            else:
                self.ask(client, node)
        for client in later:
            self.ask(client, node)

    def has_spoken(self, client: bytes, node: str) -> bool:
        return (client, node) in self._spoken

    def answered(self, client: bytes, node: str) -> None:
        inheritance = self._inheritance(client)
        if inheritance is not None and node in inheritance.rivals:
            self._spoken[client, node] = self._broker.now
            self._look_at(client, inheritance)

    def ask(self, client: bytes, node: str) -> None:
        """Now, if not many were asked in this turn; whoever is asked is waited for from then on."""
        if self._turn != self._broker.now:
            self._turn, self._asked = self._broker.now, 0
        if self._asked < ASKED_A_TURN and not self._is_asking:
            self._asked += 1
            self._waiting.setdefault(client, {}).setdefault(node, self._broker.now)
            self._moving.send(node, Rivals(client, self._moving.directory.get(client)[1]))
            return
        self._to_ask[client, node] = None
        if not self._is_asking:
            self._is_asking = True
            self._moving.later(LOOK_S, self._ask_some)

    def ask_for_more(self, client: bytes, node: str) -> None:
        """It has said something; whether that was all, and from now on there is as much time for it as before."""
        self._waiting.get(client, {}).pop(node, None)
        self.ask(client, node)

    def _ask_some(self) -> None:
        self._is_asking = False
        some = [pair for pair, _ in zip(self._to_ask, range(ASKED_A_TURN), strict=False)]
        for client, node in some:
            del self._to_ask[client, node]
            inheritance = self._inheritance(client)
            if inheritance is not None and node in inheritance.rivals:
                self.ask(client, node)
        if self._to_ask and not self._is_asking:
            self._is_asking = True
            self._moving.later(LOOK_S, self._ask_some)

    def _inheritance(self, client: bytes) -> Inheritance | None:
        session = self._broker.sessions.get(client)
        if session is None or session.inheritance is None or not session.inheritance.rivals:
            self._waiting.pop(client, None)
            return None
        return session.inheritance

    def _tick(self) -> None:
        if not self._to_look_at:
            self._to_look_at = list(self._waiting)
        some, self._to_look_at = self._to_look_at[:LOOKED_AT_A_TURN], self._to_look_at[LOOKED_AT_A_TURN:]
        for client in some:
            inheritance = self._inheritance(client)
            if inheritance is not None:
                self._look_at(client, inheritance)
        self._ticking = bool(self._waiting)
        if self._ticking:
            self._moving.later(LOOK_S if self._to_look_at else self._moving.settings.retry_s, self._tick)

    def _look_at(self, client: bytes, inheritance: Inheritance) -> None:
        now, patience_s = self._broker.now, self._moving.settings.patience_s
        waiting = self._waiting.setdefault(client, {})
        silent = 0
        for node in list(inheritance.rivals):
            is_here = self._moving.router.link_to(node) is not None or node == self._moving.node
            if (client, node) in self._spoken:
                continue
            silent += 1
            if not is_here:
                waiting.pop(node, None)
            elif self._is_coming(client, node):
                continue
            elif node in waiting and now - waiting[node] > patience_s:
                self._spoken[client, node] = now
            else:
                self.ask(client, node)
        heard = [node for node in inheritance.rivals if (client, node) in self._spoken]
        # What a rival has served may have come from any node; if one cannot be asked, the others' wait has an end.
        done = [node for node in heard if not silent or now - self._spoken[client, node] > patience_s]
        self._release(client, done)

    def _release(self, client: bytes, nodes: list[str]) -> None:
        session = self._broker.sessions.get(client)
        if not nodes or session is None or session.inheritance is None or session.is_moving:
            return
        for node in nodes:
            self._spoken.pop((client, node), None)
        session_transfer.let_go(self._broker, session, nodes)
