"""Calls of data processing functions: messages go elsewhere, and their numbers come back in order.

A function (`$COUNTPEOPLE/camera/+`) may take its time, fail, or take its process down with it.  So the world runs it
(`World.compute_elsewhere`), and a message is computed once for all expressions that want the same number.  An
expression takes the numbers in the order of their messages, no matter which is ready first, and each as of the time its
message came.  A call that failed leaves a gap and is counted with the reason.

While the world has no room messages wait: at QoS 1 and 2 as journal offsets, `function_calls` of them, at QoS 0 with
their payload, up to `function_bytes`.  One more is not computed, and counted (`functions-busy`).

After `kill -9`: an event in the journal says that a number (or a failure) went into an expression; it is in the same
group as the result it led to.  So replay takes from the journal what was computed before.  A message without such an
event is computed after the replay; nobody can have its result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sterna.broker.limits import Limits
from sterna.broker.session.session_log import SessionLog
from sterna.mqtt.message import Message
from sterna.operators.functions import Functions
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import Identity

if TYPE_CHECKING:
    from sterna.broker.expressions.computation import Computation

#: The number, or None and why there is none.
Done = Callable[[float | None, str], None]

#: A call as a checkpoint has it: journal offset, topic, microsecond its message came.
Saved = tuple[int, bytes, int]


class FunctionCallHost(Protocol):
    log: SessionLog

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool: ...
    def identity_of(self, message: Message) -> Identity | None: ...
    def read_back(self, offset: int) -> Message | None: ...
    def tell(self, event: str, fields: dict[str, Any]) -> None: ...


class FunctionCall:
    """One message on its way through one function."""

    __slots__ = ("again", "done", "function", "made_of", "offset", "payload", "takers", "time_us", "topic", "value")

    def __init__(self, function: str, topic: bytes, time_us: int, offset: int, *, again: bool = False) -> None:
        self.function = function
        self.topic = topic
        self.time_us = time_us
        #: In the journal; -1 if a crash takes the message.
        self.offset = offset
        #: Of one that waits: None if it has to be read back.
        self.payload: bytes | None = None
        self.takers: list[Computation] = []
        #: The identity of its message at every node; None if it has none, or it was before a crash.
        self.made_of: Identity | None = None
        self.done = False
        self.value: float | None = None
        #: From before a crash: subscribers at QoS 0 may have had the result.
        self.again = again

    def saved(self) -> Saved:
        return self.offset, self.topic, self.time_us


class FunctionCalls:
    def __init__(
        self,
        limits: Limits,
        functions: Functions,
        publish: Callable[[Computation, bytes, FunctionCall], None],
        settled: Callable[[Computation], None],
    ) -> None:
        """`publish`: a result of this expression, which this call led to; `settled`: it has taken all the numbers it
        can."""
        self._limits = limits
        self._functions = functions
        self._publish = publish
        self._settled = settled
        self._broker: FunctionCallHost | None = None
        self._waiting: deque[FunctionCall] = deque()
        #: Of payloads that wait.
        self._bytes = 0
        #: Why messages led to no number, and how many.
        self.failures: dict[str, int] = {}

    def attach(self, broker: FunctionCallHost) -> None:
        self._broker = broker

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, computations: Iterable[Computation], message: Message, time_us: int) -> None:
        """A message for these expressions, all of which have a function."""
        assert self._broker is not None
        offset = message.offset if message.qos else -1
        calls: dict[str, FunctionCall] = {}
        for computation in computations:
            call = calls.get(computation.function)
            if call is None:
                call = calls[computation.function] = FunctionCall(computation.function, message.topic, time_us, offset)
                call.made_of = self._broker.identity_of(message)
            self.join(call, computation)
        for call in calls.values():
            self._admit(call, message.payload)

    def join(self, call: FunctionCall, computation: Computation) -> None:
        call.takers.append(computation)
        computation.calls.append(call)

    def under_way(self, computation: Computation) -> Iterator[tuple[FunctionCall, Message]]:
        """Messages at QoS 1 and 2 whose numbers this expression waits for, in their order."""
        assert self._broker is not None
        for call in computation.calls:
            if call.offset >= 0:
                with suppress(JournalError):
                    message = self._broker.read_back(call.offset)
                    if message is not None:
                        yield call, message

    def go_on(self, computations: Iterable[Computation]) -> None:
        """After a replay: compute what was not.  However many there are, the journal since the checkpoint has them."""
        found: dict[tuple[str, int], FunctionCall] = {}
        for computation in computations:
            calls = [found.setdefault((call.function, call.offset), call) for call in computation.calls]
            computation.calls.clear()
            for call in calls:
                self.join(call, computation)
        self._waiting.extend(found[key] for key in sorted(found, key=lambda key: key[1]))
        self._pump()

    def _admit(self, call: FunctionCall, payload: bytes) -> None:
        if self._functions.get(call.function) is None:
            self._finish(call, None, "no-function")
        elif not self._waiting and self._start(call, payload):
            return
        elif len(self._waiting) >= self._limits.function_calls or not self._has_room(call, payload):
            self._finish(call, None, "functions-busy")
        else:
            if call.offset < 0:
                call.payload = payload
                self._bytes += len(payload)
            self._waiting.append(call)

    def _has_room(self, call: FunctionCall, payload: bytes) -> bool:
        return call.offset >= 0 or self._bytes + len(payload) <= self._limits.function_bytes

    def _start(self, call: FunctionCall, payload: bytes) -> bool:
        assert self._broker is not None
        return self._broker.compute_elsewhere(call.function, payload, partial(self._done, call))

    def _done(self, call: FunctionCall, value: float | None, reason: str) -> None:
        self._finish(call, value, reason)
        self._pump()

    def _pump(self) -> None:
        """Start what waits, as far as there is room."""
        waiting = self._waiting
        while waiting:
            call = waiting[0]
            payload, reason = self._payload_of(call)
            if payload is not None and not self._start(call, payload):
                return
            waiting.popleft()
            if call.payload is not None:
                self._bytes -= len(call.payload)
                call.payload = None
            if payload is None:
                self._finish(call, None, reason)

    def _payload_of(self, call: FunctionCall) -> tuple[bytes | None, str]:
        """Of one that waits; or why it is not to be computed."""
        assert self._broker is not None
        if not any(computation.subscribers for computation in call.takers):
            return None, ""  # nobody wants it any more
        if self._functions.get(call.function) is None:
            return None, "no-function"
        if call.payload is not None:
            return call.payload, ""
        try:
            message = self._broker.read_back(call.offset)
        except JournalError:
            return None, "unreadable"
        if message is None:
            return None, "retention"
        call.made_of = call.made_of or self._broker.identity_of(message)
        return message.payload, ""

    def _finish(self, call: FunctionCall, value: float | None, reason: str) -> None:
        call.done = True
        call.value = value
        if reason:
            self.count(call.function, reason)
        for computation in call.takers:
            self._settle(computation)

    def _settle(self, computation: Computation) -> None:
        """Have an expression take the numbers that are there, up to the first that is not."""
        assert self._broker is not None
        calls = computation.calls
        while calls and calls[0].done:
            call = calls.popleft()
            if call.offset >= 0:
                # In one group with the result: either both outlive a crash, or the message is computed again.
                self._broker.log.computed(computation.expression.text, call.offset, call.value)
            if call.value is not None:
                payload = computation.engine.computed(call.topic, call.value, call.time_us)
                if payload is not None:
                    self._publish(computation, payload, call)
        if computation.subscribers:
            self._settled(computation)

    def replay(self, computation: Computation, offset: int, value: float | None) -> None:
        """The number of the message at `offset` had gone into this expression, and those of all before it."""
        calls = computation.calls
        if calls and calls[0].offset != offset and not any(call.offset == offset for call in calls):
            return  # of before the checkpoint
        while calls:
            call = calls.popleft()
            if call.offset == offset and value is not None:
                computation.engine.computed(call.topic, value, call.time_us)  # its result stands in the same group
            if call.offset == offset:
                return

    def count(self, function: str, reason: str) -> None:
        if reason not in self.failures and self._broker is not None:
            fields = {"function": function, "reason": reason, "counted": "sterna_expression_values_total"}
            self._broker.tell("messages are not computed", fields)
        self.failures[reason] = self.failures.get(reason, 0) + 1
