"""Subscriptions that compute, in a broker: who feeds which expression, and what becomes of its results.

An expression such as `$AVG/room/+/temp` is computed once, however many sessions subscribe to it, from the first
subscription to the last.  What is delivered here on a topic its filter matches is given to its engine, and a result is
published under a name of its own, which clients cannot publish to and which never leaves the node.

Results at QoS 1 and 2 are numbered (`sterna-sequence`) and journalled.  After a crash the messages since the last
checkpoint make the same results again, and those whose number the journal does not have are published then.

Expressions with a data processing function get numbers that were computed elsewhere, a little later (`calls`); their
windows end when the numbers of all messages that belong to them are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec

from sterna.broker.calls import Call, CallingBroker, Calls, Saved
from sterna.broker.deadlines import Deadlines
from sterna.broker.endings import EndingBroker, Endings
from sterna.broker.limits import Limits
from sterna.broker.repeats import number_of, numbered
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import FilterTree, is_reserved, overlap
from sterna.operators.engine import Engine
from sterna.operators.errors import ExpressionError, StateError
from sterna.operators.expression import WILDCARD_NAMES, Expression, Family
from sterna.operators.functions import Functions
from sterna.operators.grammar import parse
from sterna.operators.settings import Settings

_SNAPSHOT = tuple[int, bytes]
RESULT_LEVELS = frozenset(WILDCARD_NAMES.values())


class ComputingBroker(CallingBroker, EndingBroker, Protocol):
    """What expressions need of the broker around them, once it runs."""

    now: float
    deadlines: Deadlines

    @property
    def wall(self) -> float: ...
    def publish_result(self, message: Message) -> None: ...
    def result_qos(self, topic: bytes) -> int:
        """The highest QoS anybody wants what is published there at."""


class Computation:
    """One expression and those who want it."""

    __slots__ = (
        "calls",
        "due_us",
        "engine",
        "expression",
        "function",
        "held_us",
        "made",
        "missed",
        "published",
        "subscribers",
        "told",
    )

    def __init__(self, expression: Expression, engine: Engine) -> None:
        self.expression = expression
        self.engine = engine
        self.subscribers = 0
        #: The data processing function it begins with, if it does, and the messages whose numbers it waits for.
        self.function = function_of(expression)
        self.calls: deque[Call] = deque()
        #: The deadline that is on its way, 0 if there is none; and the one that waits for the numbers before it.
        self.due_us = 0
        self.held_us = 0
        #: Results made, at QoS 1 and 2; the last one the journal is known to have; and those it may not have.
        self.made = 0
        self.published = 0
        self.missed: deque[tuple[int, bytes, bytes, int]] = deque()
        #: The operator knows that it has stopped.
        self.told = False

    @property
    def results(self) -> bytes:
        """The filter that matches its results, and no other expression's; see `result_topic`."""
        return self.expression.text if self.expression.forwards else self.expression.result_topic

    def result_topic(self, topic: bytes) -> bytes:
        """Behind nothing but rules it is the message that goes on: then one sees which topic it had."""
        if self.expression.forwards:
            return self.expression.text.partition(b"/")[0] + b"/" + topic
        return self.expression.result_topic

    def snapshot(self) -> bytes:
        waiting = [call.saved() for call in self.calls if call.offset >= 0]
        return msgspec.msgpack.encode((self.made, self.engine.snapshot(), waiting))

    def restore(self, snapshot: bytes) -> None:
        """May raise StateError."""
        try:
            fields = msgspec.msgpack.decode(snapshot, type=list[Any])
            self.made, engine = msgspec.convert(fields[:2], _SNAPSHOT)
            # Those of an earlier release have none.
            waiting = msgspec.convert(fields[2], list[Saved]) if len(fields) > 2 else []
        except msgspec.MsgspecError as error:
            raise StateError(f"a damaged state of {self.expression.text!r}: {error}") from None
        self.published = self.made
        self.engine.restore(engine)
        for offset, topic, time_us in waiting:
            self.calls.append(Call(self.function, topic, time_us, offset, again=True))

    def may_miss(self, topic: bytes, payload: bytes, qos: int) -> None:
        """A result made again, after a crash: the journal may have it."""
        if qos:
            self.made += 1
            self.missed.append((self.made, topic, payload, qos))

    def has(self, number: int) -> None:
        """The journal holds the result of this number, so it holds all before it."""
        self.published = max(self.published, number)
        while self.missed and self.missed[0][0] <= number:
            self.missed.popleft()


class Computations:
    __slots__ = (
        "_broker",
        "_by_text",
        "_endings",
        "_filters",
        "_forgotten",
        "_functions",
        "_limits",
        "_settings",
        "_snapshots",
        "_tree",
        "_troubles",
        "calls",
        "changed",
        "gone",
        "moment_us",
        "results",
    )

    def __init__(self, limits: Limits, settings: Settings, functions: Functions) -> None:
        self._limits = limits
        self._settings = settings
        #: What this node can compute of a payload.
        self._functions = functions
        self.calls = Calls(limits, functions, self._computed, self._settled)
        self._by_text: dict[bytes, Computation] = {}
        #: Topic filter -> how many expressions have it.
        self._filters: dict[bytes, int] = {}
        self._tree: FilterTree[bytes, Computation] = FilterTree()
        self._broker: ComputingBroker | None = None
        self._endings = Endings(self._end_window)
        #: States from the last checkpoint, until their expressions come.
        self._snapshots: dict[bytes, bytes] = {}
        #: Those that could not be gone on from, and why.
        self._forgotten: list[tuple[bytes, str]] = []
        #: What differs from it.
        self.changed: dict[bytes, Computation] = {}
        self.gone: dict[bytes, None] = {}
        #: During a replay, how late it is in it.
        self.moment_us = 0
        self.results = 0
        #: Of expressions that have ended.
        self._troubles: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._by_text)

    def __iter__(self) -> Iterator[Computation]:
        return iter(self._by_text.values())

    def attach(self, broker: ComputingBroker) -> None:
        """The replay, if there was one, is over."""
        self._broker = broker
        self.calls.attach(broker)

    # -- subscriptions --

    def refusal(self, text: bytes) -> str | None:
        """Why there can be no subscription to this, if so."""
        if text in self._by_text:
            return None
        try:
            expression = parse(text, self._functions)
        except ExpressionError as error:
            return str(error)
        if len(self._by_text) >= self._limits.expressions:
            return f"this node computes {self._limits.expressions} expressions, and no more"
        if self._overlapping(expression.topic_filter) >= self._limits.overlapping_expressions:
            return f"{self._limits.overlapping_expressions} other expressions take messages of the same topics"
        if RESULT_LEVELS.intersection(expression.topic_filter.split(b"/")):
            return "levels named $A and $ALL stand for wildcards in the topics of results; choose another filter"
        function = function_of(expression)
        if function and self._functions.get(function) is None:
            return f"no function computes ${function} here; see $SYS/capabilities"
        return None

    def _overlapping(self, topic_filter: bytes) -> int:
        """Expressions that may take the same message as one of this filter."""
        levels = topic_filter.split(b"/")
        return sum(overlap(one.split(b"/"), levels) * count for one, count in self._filters.items())

    def gained(self, text: bytes) -> Computation:
        """One more subscription; `refusal` had nothing against it, here or before the node was started again."""
        found = self._by_text.get(text)
        if found is None:
            found = self._begin(text)
        found.subscribers += 1
        return found

    def _begin(self, text: bytes) -> Computation:
        expression = self._parsed(text)
        computation = Computation(expression, Engine(expression, self._settings, self._now_us()))
        snapshot = self._snapshots.pop(text, None)
        if snapshot is not None:
            self._restore(computation, snapshot)
        self._by_text[text] = computation
        self._filters[expression.topic_filter] = self._filters.get(expression.topic_filter, 0) + 1
        self._tree.add(expression.topic_filter, text, computation)
        self.gone.pop(text, None)
        self.changed[text] = computation
        return computation

    def _parsed(self, text: bytes) -> Expression:
        try:
            return parse(text, self._functions)
        except ExpressionError:
            # Subscribed to before a restart, with a function that has been taken away since.
            return parse(text, self._functions.assuming(text))

    def lost(self, text: bytes) -> Computation:
        """One subscription less: with the last one everything the expression remembers goes."""
        found = self._by_text[text]
        found.subscribers -= 1
        if not found.subscribers:
            del self._by_text[text]
            self._filters[found.expression.topic_filter] -= 1
            if not self._filters[found.expression.topic_filter]:
                del self._filters[found.expression.topic_filter]
            self._tree.remove(found.expression.topic_filter, text)
            self.changed.pop(text, None)
            self.gone[text] = None
            found.calls.clear()
            add_troubles(self._troubles, found)
        return found

    def troubles(self) -> dict[str, int]:
        """What did not count as it was sent since the node was started, by reason."""
        found = {**self._troubles, **self.calls.failures}
        for computation in self._by_text.values():
            add_troubles(found, computation)
        return found

    def get(self, text: bytes) -> Computation | None:
        return self._by_text.get(text)

    def takes(self, topic: bytes) -> bool:
        return bool(self._by_text) and bool(self._tree.match(topic))

    def matching(self, topic: bytes) -> list[Computation]:
        """Those that take messages of this topic."""
        return self._tree.match(topic) if self._by_text else []

    def sources(self) -> list[bytes]:
        """Every filter whose messages are wanted."""
        return self._tree.filters()

    def _now_us(self) -> int:
        return self.moment_us if self._broker is None else int(self._broker.wall * 1e6)

    # -- messages --

    def take(self, computations: list[Computation], message: Message) -> None:
        """HOT.  A message that is delivered here."""
        time_us = taken_us(message) or self._now_us()
        said: list[bytes] = []
        elsewhere: list[Computation] | None = None
        for computation in computations:
            if computation.function:
                elsewhere = [computation] if elsewhere is None else [*elsewhere, computation]
                continue
            payload = computation.engine.message(message.topic, message.payload, time_us)
            if payload is not None and is_first(computation, message, said):
                self._publish(computation, message, payload)
            self.changed[computation.expression.text] = computation
            self._look_after(computation)
        if elsewhere is not None:
            for computation in elsewhere:
                self.changed[computation.expression.text] = computation
            self.calls.take(elsewhere, message, time_us)

    def _computed(self, computation: Computation, payload: bytes, again: bool) -> None:
        """A result, of numbers from elsewhere; `again`: at QoS 0 it may have been delivered before a crash."""
        assert self._broker is not None
        if not again or self._broker.result_qos(computation.expression.result_topic):
            self._publish(computation, None, payload)

    def _settled(self, computation: Computation) -> None:
        """It has taken the numbers that are there."""
        self.changed[computation.expression.text] = computation
        calls, held_us = computation.calls, computation.held_us
        if held_us and not (calls and calls[0].time_us < held_us):
            computation.held_us = 0
            self._window_over(computation, held_us)
        self._look_after(computation)

    def _publish(self, computation: Computation, message: Message | None, payload: bytes) -> None:
        assert self._broker is not None
        topic = computation.result_topic(b"" if message is None else message.topic)
        if message is not None and computation.expression.forwards:
            qos, properties, expires_at = message.qos, message.properties, message.expires_at
        else:
            qos, properties, expires_at = self._broker.result_qos(topic), b"", NEVER
        if qos:
            computation.made += 1
            if computation.made <= computation.published:
                return  # the journal has had it since before the crash
            properties = numbered(0, computation.made) + properties
        text = computation.expression.text
        self._say(Message(topic, payload, qos, False, properties, expires_at, text, computation.engine.result_us / 1e6))

    def _say(self, message: Message) -> None:
        assert self._broker is not None
        self.results += 1
        self._broker.publish_result(message)

    def _look_after(self, computation: Computation) -> None:
        """See that its window ends in time, and that nobody wonders why it is silent."""
        broker = self._broker
        assert broker is not None
        if computation.engine.stopped and not computation.told:
            computation.told = True
            expression = computation.expression.text.decode()
            broker.tell("an expression has stopped", {"expression": expression, "reason": computation.engine.stopped})
        due_us = computation.engine.next_deadline() or 0
        if due_us and due_us != computation.due_us:
            computation.due_us = due_us
            wait_s = max(0.0, due_us / 1e6 - broker.wall)
            broker.deadlines.at(broker.now + wait_s, partial(self._window_over, computation, due_us))

    def _window_over(self, computation: Computation, due_us: int) -> None:
        if not computation.subscribers or computation.due_us != due_us:
            return
        if computation.calls and computation.calls[0].time_us < due_us:
            computation.held_us = due_us
            return
        assert self._broker is not None
        self._endings.add(self._broker, computation, due_us)

    def _end_window(self, computation: Computation, due_us: int) -> int:
        if not computation.subscribers or computation.due_us != due_us:
            return 0
        computation.due_us = 0
        payload = computation.engine.advance(due_us)
        if payload is not None:
            self._publish(computation, None, payload)
        self.changed[computation.expression.text] = computation
        self._look_after(computation)
        return 0 if payload is None else len(payload)

    # -- coming back --

    def load(self, text: bytes, snapshot: bytes) -> None:
        """From the checkpoint; the subscription may come before or after it."""
        computation = self._by_text.get(text)
        if computation is None:
            self._snapshots[text] = snapshot
        else:
            self._restore(computation, snapshot)

    def _restore(self, computation: Computation, snapshot: bytes) -> None:
        try:
            computation.restore(snapshot)
        except StateError as error:
            # Of another release, or damaged: the node is worth more than what one expression remembered.
            expression = computation.expression
            computation.engine = Engine(expression, self._settings, self._now_us())
            self._forgotten.append((expression.text, str(error)))

    def not_saved(self, text: bytes) -> None:
        """The next checkpoint has to write it too, or to remove it."""
        computation = self._by_text.get(text)
        if computation is None:
            self.gone[text] = None
        else:
            self.changed[text] = computation

    def replay(self, message: Message, computations: list[Computation], result_qos: Callable[[bytes], int]) -> None:
        self.moment_us = max(self.moment_us, taken_us(message))
        said: list[bytes] = []
        for computation in computations:
            if computation.function:
                call = Call(computation.function, message.topic, taken_us(message), message.offset, again=True)
                computation.calls.append(call)
                continue
            payload = computation.engine.message(message.topic, message.payload, taken_us(message))
            if payload is not None and is_first(computation, message, said):
                topic = computation.result_topic(message.topic)
                computation.may_miss(
                    topic, payload, message.qos if computation.expression.forwards else result_qos(topic)
                )
        # Only what the broker itself has published there: any client may carry the name of an expression.
        made_by = self._by_text.get(message.publisher) if is_reserved(message.topic) else None
        number = number_of(message.properties) if made_by is not None else None
        if made_by is not None and number is not None:
            made_by.has(number[1])
            if made_by.made < number[1]:
                # Of what is not replayed: a window that ended by itself, or messages at QoS 0.
                if made_by.expression.periodic is not None:
                    made_by.engine.advance(taken_us(message))
                made_by.made = number[1]

    def recovered(self) -> None:
        """Publish what was made and not written down before the crash; windows go on."""
        assert self._broker is not None
        for text, reason in self._forgotten:
            self._broker.tell("an expression begins anew", {"expression": text.decode(), "reason": reason})
        self._forgotten.clear()
        for text in self._snapshots:
            self.gone[text] = None
        self._snapshots.clear()
        for computation in list(self._by_text.values()):
            text = computation.expression.text
            for number, topic, payload, qos in computation.missed:
                if number > computation.published:
                    self._say(
                        Message(topic, payload, qos, False, numbered(0, number), NEVER, text, self._now_us() / 1e6)
                    )
            computation.missed.clear()
            self._look_after(computation)
        self.calls.go_on([computation for computation in self._by_text.values() if computation.calls])


def is_first(computation: Computation, message: Message, said: list[bytes]) -> bool:
    """Two expressions with the same rules may let the same message pass; who wants it gets it by either."""
    if not computation.expression.forwards:
        return True
    topic = computation.result_topic(message.topic)
    if topic in said:
        return False
    said.append(topic)
    return True


def add_troubles(to: dict[str, int], computation: Computation) -> None:
    counts = computation.engine.counts
    of_one = {
        "not-a-number": counts.ignored,
        "late": counts.clamped,
        "not-finite": counts.not_finite,
        "outgrown": counts.overflow,
    }
    for reason, count in of_one.items():
        if count:
            to[reason] = to.get(reason, 0) + count


def taken_us(message: Message) -> int:
    return int(message.received_at * 1e6 + 0.5)


def function_of(expression: Expression) -> str:
    """The data processing function its messages go through; only the innermost operator can be one."""
    innermost = expression.operators[-1]
    return innermost.name if innermost.family is Family.FUNCTION else ""
