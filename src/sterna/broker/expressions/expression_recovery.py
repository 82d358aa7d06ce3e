"""Restores expressions after a crash: the state of the last checkpoint, and the messages since.

Live, an expression takes a message when the message's group is safe.  Meanwhile a window may have ended, or a message
at QoS 0 may have led to a result, and that result stands behind the message in the journal.  So a replay does not give
an expression a message where it finds it.  Every result at QoS 1 and 2 names the messages that had been taken by then
(`SessionLog.result`): the replay gives the expression these messages at that point, and their results are in the
journal.  Without a result to tell, the messages of one group were taken before anything was put into the next group but
one: only one group is written at a time.

The messages left at the end had not been taken, or led to results that were not written down.  The expression takes
them when the node runs again, and publishes their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sterna.broker.expressions.computation import Computation, is_first, taken_us
from sterna.broker.expressions.function_calls import FunctionCall
from sterna.broker.expressions.parts import ExpressionPart, is_part
from sterna.broker.expressions.result_identity import cause_of, note_recent
from sterna.broker.session.publisher_sequence import number_of
from sterna.mqtt.message import Message
from sterna.mqtt.topics import is_reserved
from sterna.operators.errors import StateError
from sterna.operators.part_merging import AwayPart
from sterna.vocabulary.identity import Identity

if TYPE_CHECKING:
    from sterna.broker.expressions.computations import Computations


class ExpressionRecovery:
    def __init__(self, computations: Computations) -> None:
        self._computations = computations
        #: States, until their expressions come.
        self._states: dict[bytes, bytes] = {}
        #: Those that could not be gone on from, and why.
        self.forgotten: list[tuple[bytes, str]] = []
        #: Inner half -> how its part was called last, and since when it was wanted.
        self._part_names: dict[bytes, tuple[bytes, int]] = {}
        #: Expressions with messages that may not have been taken, and where the group began that is being read.
        self._waiting: dict[bytes, Computation] = {}
        self._parts: dict[bytes, ExpressionPart] = {}
        self._group = 0
        #: (expression, number) of results -> what they are made of.
        self._made_of: dict[tuple[bytes, int], Identity] = {}
        #: How late it is in the replay.
        self.moment_us = 0

    # -- states --

    def load(self, text: bytes, snapshot: bytes) -> None:
        """Of an expression, or of a part; its subscription may come before or after it."""
        computations = self._computations
        if is_part(text):
            computations.parts.load(text, snapshot, self.moment_us)
            return
        computation = computations.get(text)
        if computation is None:
            self._states[text] = snapshot
        else:
            self.restore(computation, snapshot)

    def state_of(self, text: bytes) -> bytes | None:
        return self._states.get(text)

    def begun(self, computation: Computation) -> None:
        """It is here: it goes on from its state, if there is one."""
        snapshot = self._states.pop(computation.expression.text, None)
        if snapshot is not None:
            self.restore(computation, snapshot)

    def restore(self, computation: Computation, snapshot: bytes) -> None:
        try:
            computation.restore(snapshot)
        except StateError as error:
            # Of another release, or damaged: the node is worth more than what one expression remembered.
            computation.engine = self._computations.engine_of(computation)
            self.forgotten.append((computation.expression.text, str(error)))

    def remember_part(self, name: bytes, wanted_us: int) -> None:
        """A subscription follows that comes in parts of this name."""
        self._part_names[name.partition(b"\0")[0]] = (name, wanted_us)

    def noted_part(self, inside: bytes, wanted_us: int) -> tuple[bytes | None, int]:
        """The name of the part, and since when it is wanted, unless nobody knows."""
        return self._part_names.get(inside, (None, wanted_us))

    def forget_parts(self) -> None:
        self._part_names.clear()

    # -- messages --

    def begin_group(self, base: int) -> None:
        """The events that follow are of the group whose first message has this offset."""
        if base != self._group:
            for computation in list(self._waiting.values()):
                self._take(computation, self._group - 1)
            for part in list(self._parts.values()):
                self._take_own(part, self._group - 1)
            self._group = base

    def message(self, message: Message, computations: list[Computation]) -> None:
        self.moment_us = max(self.moment_us, taken_us(message))
        said: list[bytes] = []
        for computation in computations:
            if computation.gate is not None and not computation.gate.admits(message):
                continue
            if computation.function:
                call = FunctionCall(computation.function, message.topic, taken_us(message), message.offset, again=True)
                computation.calls.append(call)
            elif not computation.expression.forwards or self._is_for(computation, message, said):
                computation.coming.append(message)
                self._waiting[computation.expression.text] = computation
        # Only what the broker itself has published there: any client may carry the name of an expression.
        made_by = self._computations.get(message.publisher) if is_reserved(message.topic) else None
        number = number_of(message.properties) if made_by is not None else None
        if made_by is not None and number is not None:
            if number[1] > made_by.published:
                # Spark's; or of a release that noted nothing with its results.
                self._said(made_by, number[1], message.offset - 1, taken_us(message))
            made_by.has(message)
            message.made_of = self._made_of.pop((message.publisher, number[1]), None)
            if made_by.is_timed:
                message.made_of = cause_of(made_by, message, number[1])
                note_recent(made_by, message)

    def _is_for(self, computation: Computation, message: Message, said: list[bytes]) -> bool:
        """Is it this expression that lets it pass?  It remembers nothing, so it can be asked twice."""
        passes = computation.engine.message(message.topic, message.payload, taken_us(message)) is not None
        return passes and is_first(computation, message, said)

    def own_message(self, message: Message, parts: list[ExpressionPart]) -> None:
        for part in parts:
            part.coming.append(message)
            self._parts[part.name] = part

    def windows_ended(self, name: bytes, taken: int, upto_us: int) -> None:
        """By the clock, when the part had taken so much."""
        part = self._computations.parts.get(name)
        if part is not None and part.windows is not None:
            self._take_own(part, taken)
            part.windows.advance(upto_us)
            self._computations.parts.changed[name] = part

    def nodes_away(self, name: bytes, away: list[AwayPart]) -> None:
        """They said this last of a part of clients here."""
        part = self._computations.parts.get(name)
        if part is not None:
            part.remember(away)
            for computation in part.computations:
                self._computations.changed[computation.expression.text] = computation

    def _take_own(self, part: ExpressionPart, upto: int) -> None:
        coming = part.coming
        while coming and coming[0].offset <= upto:
            message = coming.popleft()
            part.take(message.topic, message.payload, taken_us(message))
            part.taken = message.offset
            self._computations.parts.changed[part.name] = part
        if not coming:
            self._parts.pop(part.name, None)

    def said(self, text: bytes, number: int, taken: int, time_us: int, made_of: list[Any] | None = None) -> None:
        """A result of this number is in this group of the journal: the expression had taken so much of it."""
        computation = self._computations.get(text)
        if computation is not None:
            if made_of is not None:
                self._made_of[text, number] = Identity(*made_of)
            self._said(computation, number, taken, time_us)

    def _said(self, computation: Computation, number: int, taken: int, time_us: int) -> None:
        self._take(computation, taken)
        computation.made = computation.published = max(computation.published, number)
        is_here = computation.part is None and not computation.outside
        if is_here and computation.expression.periodic is not None and computation.engine.newest_us < time_us:
            computation.engine.advance(time_us)  # a window that ended by itself

    def _take(self, computation: Computation, upto: int) -> None:
        coming = computation.coming
        while coming and coming[0].offset <= upto:
            message = coming.popleft()
            computation.engine.message(message.topic, message.payload, taken_us(message))
            computation.taken = message.offset
        if not coming:
            self._waiting.pop(computation.expression.text, None)

    def end(self) -> list[bytes]:
        """Names of states that nobody has come for."""
        for part in list(self._parts.values()):
            self._take_own(part, part.coming[-1].offset)
        nobodys = list(self._states)
        for noted in (self._states, self._part_names, self._waiting, self._made_of):
            noted.clear()
        self.forgotten.clear()
        return nobodys
