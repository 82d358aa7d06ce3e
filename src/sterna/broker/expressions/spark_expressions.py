"""Expressions that Spark computes: which there are, and how the broker takes their results.

Each result has a greater number than the one before it, and always goes through the journal: so the broker recognises a
result that was handed in before, also after a crash.  An expression of nothing but rules passes messages on.  Two such
expressions with the same rules on the same topic are one publication for the subscribers of either; so they share their
numbers (`Numbering`), and a message that passed is published once, in the name of any of them that is still wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from sterna.broker.expressions.computation import Computation, Numbering
from sterna.broker.session.publisher_sequence import numbered
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import FilterTree


class PassedMessage(NamedTuple):
    """Of a message that goes on by itself: all but its payload."""

    topic: bytes
    qos: int
    properties: bytes
    expires_at: float


class _Alike:
    """Expressions with the same rules."""

    def __init__(self) -> None:
        self.numbering = Numbering()
        self.by_text: dict[bytes, Computation] = {}
        self.tree: FilterTree[bytes, Computation] = FilterTree()


class SparkExpressions:
    def __init__(self) -> None:
        #: Changes with every expression that comes or goes.
        self.edition = 0
        self._alike: dict[bytes, _Alike] = {}

    def joins(self, computation: Computation) -> None:
        """It is new, and knows nothing yet."""
        if computation.passes_on:
            alike = self._alike.setdefault(computation.known_as, _Alike())
            alike.by_text[computation.expression.text] = computation
            alike.tree.add(computation.expression.topic_filter, computation.expression.text, computation)
            computation.numbering = alike.numbering

    def leaves(self, computation: Computation) -> Computation | None:
        """One that has to remember from now on what this one did, if there is any."""
        self.edition += 1
        if not computation.passes_on:
            return None
        alike = self._alike[computation.known_as]
        del alike.by_text[computation.expression.text]
        alike.tree.remove(computation.expression.topic_filter, computation.expression.text)
        if not alike.by_text:
            del self._alike[computation.known_as]
        return next(iter(alike.by_text.values()), None)

    def wanted(self, computations: Iterable[Computation]) -> list[tuple[bytes, int]]:
        """Expressions that Spark is to compute, and since when."""
        return [
            (one.expression.text, one.engine.newest_us) for one in computations if one.outside and not one.is_awaited
        ]

    def taker(self, text: bytes, named: Computation | None, passed: PassedMessage | None) -> Computation | None:
        """Whose result this is, if anybody still wants it."""
        if passed is None:
            fits = named is not None and named.outside and not named.is_awaited and not named.passes_on
            return named if fits else None
        alike = self._alike.get(text.partition(b"/")[0])
        wanting = [] if alike is None else [one for one in alike.tree.match(passed.topic) if not one.is_awaited]
        return named if named in wanting else next(iter(wanting), None)


def result_of(
    computation: Computation,
    number: int,
    payload: bytes,
    passed: PassedMessage | None,
    wall: float,
    qos_of: Callable[[bytes], int],
) -> Message:
    """At QoS 0 nothing would remember that it was here."""
    text = computation.expression.text
    if passed is None:
        topic = computation.expression.result_topic
        return Message(topic, payload, max(1, qos_of(topic)), False, numbered(0, number), NEVER, text, wall)
    properties = numbered(0, number) + passed.properties
    topic = computation.result_topic(passed.topic)
    return Message(topic, payload, max(1, passed.qos), False, properties, passed.expires_at, text, wall)
