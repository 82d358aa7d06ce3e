"""All expressions of a broker: feeds them messages and publishes their results.

An expression such as `$AVG/room/+/temp` is computed once, however many sessions subscribe to it, from the first
subscription to the last.  Each message that is delivered here on a topic its filter matches goes to its engine.  A
result is published under a topic of its own, which clients cannot publish to and which never leaves the node.  In a
network an expression may come in parts (`parts.py`): then it takes only the messages that enter here, and the other
nodes' parts are merged.

An expression assigned to Spark is not computed here: a Spark job asks which expressions there are (`outside`) and hands
in their results (`hand_in`), numbered by the ends of windows or the times of messages, always through the journal.

Results at QoS 1 and 2 are numbered (`sterna-sequence`) and journalled.  After a crash the expression makes those again
that the journal does not have (`expression_recovery.py`).

An expression with a data processing function gets numbers that were computed elsewhere, a little later
(`function_calls`); its windows end when the numbers of all messages that belong to them are there.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from sterna.broker.clock import BrokerClock
from sterna.broker.deadlines import Deadline, Deadlines
from sterna.broker.expressions.admission import Admission
from sterna.broker.expressions.computation import (
    Computation,
    add_troubles,
    add_troubles_of_parts,
    holder_of,
    is_first,
    part_in,
    taken_us,
)
from sterna.broker.expressions.expression_gate import ExpressionGate
from sterna.broker.expressions.expression_recovery import ExpressionRecovery
from sterna.broker.expressions.function_calls import FunctionCall, FunctionCallHost, FunctionCalls
from sterna.broker.expressions.parts import ExpressionPart, ExpressionParts, is_part
from sterna.broker.expressions.result_identity import cause_of, note_recent
from sterna.broker.expressions.spark_expressions import PassedMessage, SparkExpressions, result_of
from sterna.broker.expressions.window_timer import WindowTimer, WindowTimerHost
from sterna.broker.limits import Limits
from sterna.broker.session.publisher_sequence import numbered
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import FilterTree
from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.operators.explain import placed
from sterna.operators.expression import Expression
from sterna.operators.functions import Functions
from sterna.operators.part_merging import OuterEngine
from sterna.operators.settings import OperatorSettings
from sterna.operators.split import halves
from sterna.operators.stages import Outgrown
from sterna.vocabulary.identity import Identity


class ExpressionHost(FunctionCallHost, WindowTimerHost, Protocol):
    """The broker around expressions, as far as they need it, once it runs."""

    clock: BrokerClock
    deadlines: Deadlines
    log: SessionLog

    def publish_result(self, message: Message) -> None: ...
    def result_qos(self, topic: bytes) -> int:
        """The highest QoS anybody wants what is published there at."""


class Computations:
    __slots__ = (
        "_admission",
        "_broker",
        "_by_text",
        "_outside",
        "_settings",
        "_tree",
        "_troubles",
        "_window_timer",
        "calls",
        "changed",
        "gone",
        "parts",
        "recovery",
        "results",
    )

    def __init__(self, limits: Limits, settings: OperatorSettings, functions: Functions) -> None:
        self._admission = Admission(limits, functions)
        self._settings = settings
        self.calls = FunctionCalls(limits, functions, self._computed, self._settled)
        self._by_text: dict[bytes, Computation] = {}
        self._tree: FilterTree[bytes, Computation] = FilterTree()
        self.parts = ExpressionParts(settings)
        #: Of use during a replay.
        self.recovery = ExpressionRecovery(self)
        self._broker: ExpressionHost | None = None
        self._window_timer = WindowTimer(self._end_window)
        #: Changes since the last checkpoint.
        self.changed: dict[bytes, Computation] = {}
        self.gone: dict[bytes, None] = {}
        self.results = 0
        self._outside = SparkExpressions()
        #: Of expressions that have ended.
        self._troubles: dict[str, int] = {}

    @property
    def settings(self) -> OperatorSettings:
        return self._settings

    def __len__(self) -> int:
        return len(self._by_text)

    def attach(self, broker: ExpressionHost) -> None:
        """The replay, if there was one, is over."""
        self._broker = broker
        self.calls.attach(broker)

    # -- subscriptions --

    def refusal(self, text: bytes, session: Session) -> str | None:
        """Why this session can have no subscription to this, if so."""
        if text in self._by_text:
            return None
        return self._admission.refusal(text, len(self._by_text), holder_of(session))

    def refuses_part(self, text: bytes) -> str | None:
        """Why no part of this can be computed for another node, if so."""
        return self._admission.refuses_part(text, self.parts.filters())

    def hold_part(self, name: bytes, holder: str, since_us: int) -> ExpressionPart:
        return self.parts.hold(name, holder, since_us, self._now_us())

    def release_part(self, name: bytes, holder: str) -> ExpressionPart | None:
        part = self.parts.release(name, holder)
        if part is not None and not part.is_wanted:
            self._cancel(part.deadline)
        return part

    def comes_in_parts(self, text: bytes) -> bool:
        """Are other nodes asked for their parts of it, and not for messages?"""
        return self._is_in_parts(self._admission.parsed(text))

    def _is_in_parts(self, expression: Expression) -> bool:
        return self._settings.partials and halves(expression) is not None and not self.is_outside(expression)

    def gained(self, text: bytes, session: Session) -> Computation:
        """One more subscription; `refusal` had nothing against it, here or before the node was started again."""
        found = self._by_text.get(text)
        if found is None:
            found = self._begin(text, holder_of(session))
            if session.is_arriving:
                found.gate = ExpressionGate()
        elif found.gate is not None and found.gate.is_awaited and not session.is_arriving:
            self._wait_no_more(found, "somebody else has subscribed to it")
        found.subscribers += 1
        return found

    def _begin(self, text: bytes, holder: str) -> Computation:
        expression = self._admission.parsed(text)
        computation = self._new(expression)
        computation.holder = holder
        self.recovery.begun(computation)
        self._by_text[text] = computation
        if computation.outside:
            self._outside.edition += 1
            if self._broker is not None:
                self._broker.tell("an expression is left to Spark", {"expression": text.decode()})
        if computation.is_weighed:
            self._admission.admit(expression, holder)
        if not computation.outside and computation.part is None:
            self._tree.add(expression.topic_filter, text, computation)
        self.gone.pop(text, None)
        self.changed[text] = computation
        if self._broker is not None:
            # Since when it is wanted, and where its windows begin, has to be known after a crash, too.
            self._broker.log.state(text, computation.snapshot())
        return computation

    def _new(self, expression: Expression) -> Computation:
        if self._is_in_parts(expression):
            computation = Computation(expression, OuterEngine(expression, self._settings, self._now_us()))
            noted, wanted_us = self._noted_part(expression)
            name = part_in(self.recovery.state_of(expression.text)) or noted
            computation.part = part = self.parts.of(computation, name, wanted_us, self._now_us())
            if self._broker is not None and len(part.computations) == 1:
                self._broker.log.part("", part.name, is_wanted=True, since_us=part.wanted_us)
            return computation
        computation = Computation(expression, Engine(expression, self._settings, self._now_us()))
        computation.outside = self.is_outside(expression)
        self._outside.joins(computation)
        return computation

    def engine_of(self, computation: Computation) -> Engine:
        """One that remembers nothing."""
        kind = Engine if computation.part is None else OuterEngine
        return kind(computation.expression, self._settings, self._now_us())

    def _noted_part(self, expression: Expression) -> tuple[bytes | None, int]:
        """The name of its part, and since when it is wanted: after a crash or a move, as it was."""
        found = halves(expression)
        assert found is not None
        return self.recovery.noted_part(found.inside.text, 0 if self._broker is None else self._now_us())

    def lost(self, text: bytes) -> Computation:
        """One subscription less: with the last one everything the expression remembers goes."""
        found = self._by_text[text]
        found.subscribers -= 1
        if not found.subscribers:
            del self._by_text[text]
            self._take_no_more(found)
            self.changed.pop(text, None)
            self.gone[text] = None
            found.calls.clear()
            self._cancel(found.deadline)
            if found.part is not None and not found.part.is_wanted:
                self._cancel(found.part.deadline)
            add_troubles(self._troubles, found.engine)
        return found

    def _cancel(self, deadline: Deadline | None) -> None:
        """Nobody waits for the end of this window any more, and it may be a day away."""
        if self._broker is not None:
            self._broker.deadlines.cancel(deadline)

    def _take_no_more(self, gone: Computation) -> None:
        if gone.is_weighed:
            self._admission.forget(gone.expression, gone.holder)
        if gone.outside:
            heir = self._outside.leaves(gone)
            if heir is not None:
                self.changed[heir.expression.text] = heir
        elif gone.part is not None:
            self.parts.left(gone)
        else:
            self._tree.remove(gone.expression.topic_filter, gone.expression.text)

    def is_sparks(self, text: bytes) -> bool:
        """So that no message for it need come here."""
        return self.is_outside(self._admission.parsed(text))

    def is_outside(self, expression: Expression) -> bool:
        return placed(expression, self._settings)[0] == "spark"

    def troubles(self) -> dict[str, int]:
        """Messages that did not count as they were sent since the node was started, by reason."""
        found = {**self._troubles, **self.calls.failures}
        for computation in self._by_text.values():
            add_troubles(found, computation.engine)
        add_troubles_of_parts(found, self.parts)
        return found

    def get(self, text: bytes) -> Computation | None:
        return self._by_text.get(text)

    def every(self) -> list[Computation]:
        return list(self._by_text.values())

    @property
    def is_idle(self) -> bool:
        """There is nothing to compute, so nothing takes any message."""
        return not self._by_text and self.parts.is_idle

    def takes(self, topic: bytes) -> bool:
        return (bool(self._by_text) and bool(self._tree.match(topic))) or bool(self.parts.matching(topic))

    def matching(self, topic: bytes) -> list[Computation]:
        """Those that take messages of this topic."""
        return self._tree.match(topic) if self._by_text else []

    def sources(self) -> list[bytes]:
        """Every filter whose messages are wanted."""
        return self._tree.filters()

    def _now_us(self) -> int:
        return self.recovery.moment_us if self._broker is None else int(self._broker.clock.wall * 1e6)

    # -- messages --

    def take(self, computations: list[Computation], message: Message) -> None:
        """HOT.  A message that is delivered here."""
        time_us = taken_us(message) or self._now_us()
        said: list[bytes] = []
        elsewhere: list[Computation] | None = None
        for computation in computations:
            if computation.gate is not None and not self._is_let_in(computation, message):
                continue
            if computation.function:
                elsewhere = [computation] if elsewhere is None else [*elsewhere, computation]
                continue
            if message.qos:
                computation.taken = message.offset
            payload = computation.engine.message(message.topic, message.payload, time_us)
            if payload is not None and is_first(computation, message, said):
                self._publish(computation, message, payload)
            self.changed[computation.expression.text] = computation
            self._look_after(computation)
        if elsewhere is not None:
            for computation in elsewhere:
                self.changed[computation.expression.text] = computation
            self.calls.take(elsewhere, message, time_us)

    def _is_let_in(self, computation: Computation, message: Message) -> bool:
        gate = computation.gate
        assert gate is not None
        is_let_in = gate.admits(message)
        if gate.is_awaited and gate.is_full:
            self._wait_no_more(computation, "too much has come before what it remembered did")
        return is_let_in

    def _wait_no_more(self, computation: Computation, reason: str) -> None:
        gate, computation.gate = computation.gate, None
        assert gate is not None
        self.tell_anew(computation, reason)
        for message in gate.held:
            self.take([computation], message)
        self.settled_down(computation, gate.ended)

    def settled_down(self, computation: Computation, ended: list[tuple[int, bytes]]) -> None:
        """It waits for nothing any more.  Publish these windows, which have ended meanwhile."""
        for _, payload in ended:
            self._publish(computation, None, payload)
        if computation.part is not None and computation.part.merge is not None:
            computation.owed = True
            self.merge(computation.part)
        if computation.outside:
            self._outside.edition += 1
        self.changed[computation.expression.text] = computation
        self._look_after(computation)

    def tell_anew(self, computation: Computation, reason: str) -> None:
        assert self._broker is not None
        expression = computation.expression.text.decode()
        self._broker.tell("an expression starts empty", {"expression": expression, "reason": reason})

    def _computed(self, computation: Computation, payload: bytes, call: FunctionCall) -> None:
        """A result, of numbers from elsewhere; at QoS 0 it may have been delivered before a crash."""
        assert self._broker is not None
        if not call.again or self._broker.result_qos(computation.expression.result_topic):
            self._publish(computation, None, payload, call.made_of)

    def _settled(self, computation: Computation) -> None:
        """It has taken the numbers that are there."""
        self.changed[computation.expression.text] = computation
        calls, held_us = computation.calls, computation.held_us
        if held_us and not (calls and calls[0].time_us < held_us):
            computation.held_us = 0
            self._window_over(computation, held_us)
        self._look_after(computation)

    def take_own(self, parts: list[ExpressionPart], message: Message) -> None:
        """HOT.  A message that entered the network here."""
        time_us = taken_us(message) or self._now_us()
        for part in parts:
            if message.qos:
                part.taken = message.offset
            if self.parts.take(part, message.topic, message.payload, time_us):
                for computation in part.computations:
                    computation.owed = True
                    if part.is_settled:
                        self._say_merged(computation, time_us, always=True)

    def merge(self, part: ExpressionPart) -> None:
        """Something has come from other nodes: say what is new."""
        if part.is_settled:
            for computation in list(part.computations):
                # Nothing is owed of nothing, which a sum or a count would say after a restart.
                if computation.owed and part.merge is not None and (computation.said or part.merge.has_topics):
                    self._say_merged(computation, self._now_us(), always=False)

    def away_changed(self, part: ExpressionPart) -> None:
        """Of nodes that cannot be reached, what they said last is to outlive a crash of this one."""
        assert self._broker is not None
        self._broker.log.away(part.name, part.away)
        for computation in part.computations:
            self.changed[computation.expression.text] = computation

    def close_window(self, part: ExpressionPart, end_us: int) -> None:
        """All there is of it has come."""
        assert part.gathered is not None
        for computation in list(part.computations):
            engine = computation.engine
            assert isinstance(engine, OuterEngine)
            try:
                payload = engine.closed(end_us, part.gathered.values(end_us, engine.counts))
            except (Outgrown, StateError) as error:
                engine.stop(str(error))
                payload = None
            gate = computation.gate
            if payload is not None and gate is not None and gate.is_awaited:
                gate.ended.append((end_us, payload))
            elif payload is not None and end_us > computation.closed_us:
                self._publish(computation, None, payload)
            self.changed[computation.expression.text] = computation
            self._look_after(computation)

    def _say_merged(self, computation: Computation, time_us: int, *, always: bool) -> None:
        if computation.is_awaited:
            return
        payload = computation.merged(time_us)
        if payload is not None and (always or payload != computation.said):
            self._publish(computation, None, payload)
        computation.said = payload or b""
        self.changed[computation.expression.text] = computation
        self._look_after(computation)

    def _publish(
        self, computation: Computation, message: Message | None, payload: bytes, made_of: Identity | None = None
    ) -> None:
        assert self._broker is not None
        if message is not None and not computation.is_timed:
            made_of = self._broker.identity_of(message)
        text, result_us = computation.expression.text, computation.engine.result_us
        topic = computation.result_topic(b"" if message is None else message.topic)
        if message is not None and computation.expression.forwards:
            qos, properties, expires_at = message.qos, message.properties, message.expires_at
        else:
            qos, properties, expires_at = self._broker.result_qos(topic), b"", NEVER
        if qos:
            computation.made += 1
            properties = numbered(0, computation.made) + properties
            self._broker.log.result(text, computation.made, computation.taken, result_us, made_of)
        result = Message(topic, payload, qos, False, properties, expires_at, text, result_us / 1e6)
        self._say(computation, result, made_of, computation.made if qos else 0)

    def _say(self, computation: Computation, result: Message, made_of: Identity | None, number: int) -> None:
        assert self._broker is not None
        self.results += 1
        computation.given += 1
        result.made_of = cause_of(computation, result, number) if computation.is_timed else made_of
        self._broker.publish_result(result)
        note_recent(computation, result)

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
            wait_s = max(0.0, due_us / 1e6 - broker.clock.wall)
            computation.deadline = broker.deadlines.replace(
                computation.deadline, broker.clock.now + wait_s, partial(self._window_over, computation, due_us)
            )

    def _window_over(self, computation: Computation, due_us: int) -> None:
        if not computation.subscribers or computation.due_us != due_us:
            return
        if computation.calls and computation.calls[0].time_us < due_us:
            computation.held_us = due_us
            return
        assert self._broker is not None
        self._window_timer.add(self._broker, computation, due_us)

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

    # -- Spark's --

    @property
    def edition(self) -> int:
        """Changes with every expression of Spark's that comes or goes."""
        return self._outside.edition

    def outside(self) -> list[tuple[bytes, int]]:
        """Expressions that Spark is to compute, and since when."""
        return self._outside.wanted(self._by_text.values())

    def hand_in(self, text: bytes, number: int, payload: bytes, passed: PassedMessage | None = None) -> None:
        """Takes a result of Spark for a window or a message, or a message that passed, if anybody still wants it; a
        number that is not greater than the last one has been here before."""
        computation = self._outside.taker(text, self._by_text.get(text), passed)
        if computation is not None and number > computation.published:
            assert self._broker is not None
            computation.made = computation.published = number
            self.changed[computation.expression.text] = computation
            result = result_of(computation, number, payload, passed, self._broker.clock.wall, self._broker.result_qos)
            self._say(computation, result, None, number)

    # -- coming back --

    def saved(self) -> tuple[dict[str, bytes], list[str]]:
        """Changes since the last checkpoint, and entries that are to go from it."""
        changed = {f"\0{text.decode()}": one.snapshot() for text, one in self.changed.items()}
        changed |= {f"\0{name.decode()}": part.snapshot() for name, part in self.parts.changed.items()}
        gone = [f"\0{name.decode()}" for name in (*self.gone, *self.parts.gone)]
        for noted in (self.changed, self.gone, self.parts.changed, self.parts.gone):
            noted.clear()
        return changed, gone

    def not_saved(self, text: bytes) -> None:
        """The next checkpoint has to write it too, or to remove it."""
        if is_part(text):
            self.parts.not_saved(text)
            return
        if text in self._by_text:
            self.changed[text] = self._by_text[text]
        else:
            self.gone[text] = None

    def recovered(self) -> None:
        """Publish what was not made, or not written down, before the crash; windows go on."""
        assert self._broker is not None
        for text, reason in (*self.recovery.forgotten, *self.parts.forgotten):
            self._broker.tell("an expression starts empty", {"expression": text.decode(), "reason": reason})
        self.parts.forgotten.clear()
        self.parts.recovered()
        self.gone.update(dict.fromkeys(self.recovery.end()))
        for computation in list(self._by_text.values()):
            while computation.coming:
                self._take_again(computation, computation.coming.popleft())
            if computation.part is not None:
                # Its answer may have waited for other nodes, or theirs have come meanwhile.  None is said twice.
                computation.owed = True
                computation.said = computation.said or b""
            self._look_after(computation)
        self.calls.go_on([computation for computation in self._by_text.values() if computation.calls])

    def _take_again(self, computation: Computation, message: Message) -> None:
        assert self._broker is not None
        payload = computation.engine.message(message.topic, message.payload, taken_us(message))
        computation.taken = message.offset
        # At QoS 0 the result may have been delivered before.
        is_kept = computation.expression.forwards or self._broker.result_qos(computation.expression.result_topic)
        if payload is not None and is_kept:
            self._publish(computation, message, payload)
        self.changed[computation.expression.text] = computation
