"""Questions of operators to all nodes: asked at any node, answered by each, gathered there.

A question goes to every node that can be reached, and its answers come back by the same letters that moves use.  The
asker has an answer after `ANSWER_S` at the latest; it says which nodes were silent.  A node of an earlier release is
not asked a question that it does not know, and counts as silent.  A new question is a function of
`broker/inspection.py` or `broker/administration.py`, and a row of `QUESTIONS`; or one that the process around the node
answers (`provide`).

Nodes also measure how long a letter to a neighbour and back takes (`ping`), where the overlay does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from sterna.broker import administration, inspection
from sterna.broker.broker import Broker
from sterna.broker.inspection import Findings, Row
from sterna.node.access_sharing import AccessSharing, OtherNodes, RegisterDigest, RegisterPage
from sterna.overlay.round_trips import RoundTrips
from sterna.vocabulary import versions
from sterna.vocabulary.errors import LinkProtocolError

ANSWER_S = 3.0
"""How long a node waits for the others."""
ROWS_MAX = 1000
ANSWER_BYTES_MAX = 256 * 1024
"""Of the rows of one node."""
ASKED_MAX = 64
"""Questions that wait for answers; of a further one only this node's own answer comes."""
PINGS_SINCE = 13
"""The version of links from which on nodes answer pings."""
ARGUMENT_BYTES_MAX = 65535 + 64
"""The longest client identifier or filter."""


class Question(NamedTuple):
    answer: Callable[[Broker, str, str, int], Findings]
    """Told the broker, the node's name, the argument, and how many rows are wanted."""
    everywhere: bool = True
    """Other nodes are asked too."""
    since: int = 13
    """The version of links from which on nodes know it."""


QUESTIONS: dict[str, Question] = {
    "client": Question(inspection.client, since=12),
    "clients": Question(inspection.clients, since=12),
    "subscriptions": Question(inspection.subscriptions, since=12),
    "expressions": Question(inspection.expressions),
    "retained": Question(inspection.retained, everywhere=False),  # every node has them
    "kick": Question(inspection.kick, since=12),
    "trace": Question(inspection.trace),
    "change": Question(administration.change),
    "bans": Question(administration.bans, everywhere=False),
    "users": Question(administration.users, everywhere=False),
    "access": Question(administration.access_rules, everywhere=False),
    "check": Question(administration.check_access, everywhere=False),
}


class _Ask(msgspec.Struct, tag=1, array_like=True, frozen=True):
    number: Annotated[int, msgspec.Meta(ge=0)]
    kind: str
    argument: Annotated[str, msgspec.Meta(max_length=ARGUMENT_BYTES_MAX)]
    most: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]


class _Ping(msgspec.Struct, tag=5, array_like=True, frozen=True):
    nonce: int


class _Pong(msgspec.Struct, tag=6, array_like=True, frozen=True):
    nonce: int


class _Answer(msgspec.Struct, tag=2, array_like=True, frozen=True):
    number: int
    rows: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=ROWS_MAX)]
    is_cut: bool


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Ask | _Answer | RegisterDigest | RegisterPage | _Ping | _Pong)


@dataclass(slots=True)
class Gathered:
    """The answers of all nodes."""

    rows: list[Row]
    is_cut: bool
    """Some node has more than it told."""
    silent: list[str] = field(default_factory=list)
    """Nodes that could be reached and did not answer in time, or do not know the question."""


class _Waiting(NamedTuple):
    gathered: Gathered
    missing: dict[str, None]
    answered: Callable[[Gathered], None]


class NoOtherNodes:
    """Those of a lone node."""

    def reachable(self) -> list[str]:
        return []

    def version_of(self, node: str) -> int:
        return versions.LINK_UNTOLD

    def send(self, to: str, body: bytes) -> bool:
        return False


class Management:
    def __init__(self, node: str, broker: Broker, others: OtherNodes) -> None:
        self._node = node
        self._broker = broker
        self._others = others
        self._asked = 0
        self._waiting: dict[int, _Waiting] = {}
        #: Keeps bans, users and access rules the same at all nodes.
        self.sharing = AccessSharing(broker, others)
        self._provided: dict[str, Question] = {}
        self._pings = 0
        #: Node -> the last ping that is out, and when it was sent.
        self._pinged: dict[str, tuple[int, float]] = {}
        self._round_trips: dict[str, RoundTrips] = {}

    def provide(self, kind: str, answer: Callable[[str, int], Findings], *, everywhere: bool = True) -> None:
        """A question that the process around the node answers; told the argument, and how many rows are wanted."""
        self._provided[kind] = Question(lambda _broker, _node, argument, most: answer(argument, most), everywhere)

    def ask(
        self, kind: str, argument: str, most: int, answered: Callable[[Gathered], None], within_s: float = ANSWER_S
    ) -> None:
        """`answered` is called once, perhaps before this returns.  ValueError if the question makes no sense."""
        question = self._question(kind)
        if question is None:
            raise KeyError(kind)
        found = question.answer(self._broker, self._node, argument, most)
        self.sharing.compare_regularly()
        gathered = Gathered(found.rows, found.is_cut)
        if not question.everywhere:
            answered(gathered)
            return
        reachable = self._others.reachable()
        if reachable and len(self._waiting) >= ASKED_MAX:
            gathered.silent = reachable
            answered(gathered)
            return
        self._asked += 1
        body = _encode(_Ask(self._asked, kind, argument, most))
        gathered.silent = [node for node in reachable if self._others.version_of(node) < question.since]
        asked = [node for node in reachable if node not in gathered.silent]
        missing = {node: None for node in asked if self._others.send(node, body)}
        self._waiting[self._asked] = _Waiting(gathered, missing, answered)
        if missing:
            self._broker.deadlines.at(self._broker.now + within_s, partial(self._finish, self._asked))
        else:
            self._finish(self._asked)

    def letter(self, sender: str, body: bytes) -> None:
        """From another node.  May raise LinkProtocolError."""
        try:
            word: _Ask | _Answer | RegisterDigest | RegisterPage | _Ping | _Pong = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise LinkProtocolError(f"neither a question nor an answer of management: {error}") from error
        if isinstance(word, _Ask):
            self._answer(sender, word)
        elif isinstance(word, _Answer):
            self._came(sender, word)
        elif isinstance(word, RegisterDigest):
            self.sharing.digest_came(sender, word)
        elif isinstance(word, RegisterPage):
            self.sharing.page_came(word)
        elif isinstance(word, _Ping):
            self._others.send(sender, _encode(_Pong(word.nonce)))
        else:
            self._echoed(sender, word)

    def ping(self, nodes: Collection[str]) -> None:
        """Measure the round trips to these nodes, and forget those of others."""
        self._round_trips = {node: self._round_trips.get(node) or RoundTrips() for node in nodes}
        self._pinged = {}
        for node in nodes:
            self._pings += 1
            knows = self._others.version_of(node) >= PINGS_SINCE
            if knows and self._others.send(node, _encode(_Ping(self._pings))):
                self._pinged[node] = (self._pings, self._broker.now)

    def round_trip_s(self, node: str) -> float | None:
        """As the last few pings took; None if none came back."""
        found = self._round_trips.get(node)
        return found.smoothed_s if found is not None else None

    def _echoed(self, sender: str, pong: _Pong) -> None:
        nonce, sent_at = self._pinged.get(sender, (0, 0.0))
        if nonce == pong.nonce:
            del self._pinged[sender]
            self._round_trips[sender].sample(max(0.0, self._broker.now - sent_at))

    def _question(self, kind: str) -> Question | None:
        return QUESTIONS.get(kind) or self._provided.get(kind)

    def _answer(self, sender: str, asked: _Ask) -> None:
        question = self._question(asked.kind)
        if question is None:
            raise LinkProtocolError(f"no such question: {asked.kind[:32]!r}")
        try:
            found = question.answer(self._broker, self._node, asked.argument, asked.most)
        except ValueError:
            found = Findings([], is_cut=False)  # limits of this node are narrower than the asker's
        self.sharing.compare_regularly()
        rows = _fitting(found.rows)
        is_cut = found.is_cut or len(rows) < len(found.rows)
        self._others.send(sender, _encode(_Answer(asked.number, rows, is_cut)))

    def _came(self, sender: str, answer: _Answer) -> None:
        waiting = self._waiting.get(answer.number)
        if waiting is None or sender not in waiting.missing:
            return  # too late, or nobody asked
        del waiting.missing[sender]
        waiting.gathered.rows += answer.rows
        waiting.gathered.is_cut |= answer.is_cut
        if not waiting.missing:
            self._finish(answer.number)

    def _finish(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.gathered.silent = sorted([*waiting.gathered.silent, *waiting.missing])
            waiting.answered(waiting.gathered)


def _fitting(rows: list[Row]) -> list[Row]:
    """As many of the rows as go into one letter."""
    room = ANSWER_BYTES_MAX
    for place, row in enumerate(rows):
        room -= len(_encode(row))
        if room < 0:
            return rows[:place]
    return rows
