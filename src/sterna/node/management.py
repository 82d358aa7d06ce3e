"""Questions of operators to all nodes: asked at any node, answered by each, gathered there.

A question goes to every node that can be reached, and its answers come back by the same letters that moves use.  The
asker has an answer after `ANSWER_S` at the latest; it says which nodes were silent.  A new question is a function of
`broker/inspection.py` and a row of `QUESTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec

from sterna.broker import inspection
from sterna.broker.broker import Broker
from sterna.broker.inspection import Findings, Row
from sterna.vocabulary.errors import LinkProtocolError

ANSWER_S = 3.0
"""How long a node waits for the others."""
ROWS_MAX = 1000
ANSWER_BYTES_MAX = 256 * 1024
"""Of the rows of one node."""
ASKED_MAX = 64
"""Questions that wait for answers; of a further one only this node's own answer comes."""
ARGUMENT_BYTES_MAX = 65535 + 64
"""The longest client identifier or filter."""


class Question(NamedTuple):
    answer: Callable[[Broker, str, str, int], Findings]
    """Told the broker, the node's name, the argument, and how many rows are wanted."""
    everywhere: bool = True
    """Other nodes are asked too."""


QUESTIONS: dict[str, Question] = {
    "client": Question(inspection.client),
    "clients": Question(inspection.clients),
    "subscriptions": Question(inspection.subscriptions),
    "retained": Question(inspection.retained, everywhere=False),  # every node has them
    "kick": Question(inspection.kick),
}


class _Ask(msgspec.Struct, tag=1, array_like=True, frozen=True):
    number: Annotated[int, msgspec.Meta(ge=0)]
    kind: str
    argument: Annotated[str, msgspec.Meta(max_length=ARGUMENT_BYTES_MAX)]
    most: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]


class _Answer(msgspec.Struct, tag=2, array_like=True, frozen=True):
    number: int
    rows: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=ROWS_MAX)]
    is_cut: bool


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Ask | _Answer)


@dataclass(slots=True)
class Gathered:
    """The answers of all nodes."""

    rows: list[Row]
    is_cut: bool
    """Some node has more than it told."""
    silent: list[str] = field(default_factory=list)
    """Nodes that could be reached and did not answer in time."""


class _Waiting(NamedTuple):
    gathered: Gathered
    missing: dict[str, None]
    answered: Callable[[Gathered], None]


class OtherNodes(Protocol):
    """The rest of the network."""

    def reachable(self) -> list[str]: ...

    def send(self, to: str, body: bytes) -> bool:
        """False if there is no way to it."""


class NoOtherNodes:
    """Those of a lone node."""

    def reachable(self) -> list[str]:
        return []

    def send(self, to: str, body: bytes) -> bool:
        return False


class Management:
    def __init__(self, node: str, broker: Broker, others: OtherNodes) -> None:
        self._node = node
        self._broker = broker
        self._others = others
        self._asked = 0
        self._waiting: dict[int, _Waiting] = {}

    def ask(self, kind: str, argument: str, most: int, answered: Callable[[Gathered], None]) -> None:
        """`answered` is called once, perhaps before this returns.  May raise `inspection.NotAFilter`."""
        question = QUESTIONS[kind]
        found = question.answer(self._broker, self._node, argument, most)
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
        missing = {node: None for node in reachable if self._others.send(node, body)}
        self._waiting[self._asked] = _Waiting(gathered, missing, answered)
        if missing:
            self._broker.deadlines.at(self._broker.now + ANSWER_S, partial(self._finish, self._asked))
        else:
            self._finish(self._asked)

    def letter(self, sender: str, body: bytes) -> None:
        """From another node.  May raise LinkProtocolError."""
        try:
            word: _Ask | _Answer = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise LinkProtocolError(f"neither a question nor an answer of management: {error}") from error
        if isinstance(word, _Ask):
            self._answer(sender, word)
        else:
            self._came(sender, word)

    def _answer(self, sender: str, asked: _Ask) -> None:
        question = QUESTIONS.get(asked.kind)
        if question is None:
            raise LinkProtocolError(f"no such question: {asked.kind[:32]!r}")
        try:
            found = question.answer(self._broker, self._node, asked.argument, asked.most)
        except inspection.NotAFilter:
            found = Findings([], is_cut=False)  # limits of this node are narrower than the asker's
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
            waiting.gathered.silent = sorted(waiting.missing)
            waiting.answered(waiting.gathered)


def _fitting(rows: list[Row]) -> list[Row]:
    """As many of the rows as go into one letter."""
    room = ANSWER_BYTES_MAX
    for place, row in enumerate(rows):
        room -= len(_encode(row))
        if room < 0:
            return rows[:place]
    return rows
