"""A span for each hop of a message that carries W3C trace context: entered, forwarded over a link, delivered.

A publisher puts `traceparent` among the user properties of a message.  The standard has user properties go on
unaltered, so a node cannot put its own span there for the next one.  Instead the identifier of a span follows from the
context, the hop and the nodes' names: whoever comes next knows the identifier of its parent without being told.

    publisher's span -> entered at a -> forwarded a to b -> forwarded b to c -> delivered at c

Contexts that are not sampled are left alone, and so is all but a share of the others: the same at every node.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

from sterna.broker.clock import BrokerClock
from sterna.mqtt.message import Message

#: The user property as it lies in a packet: identifier, name and length.
MARK: Final = b"\x26\x00\x0btraceparent\x00\x37"
VALUE_BYTES: Final = 55
_VALUE: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 0x01


class TraceContext(NamedTuple):
    value: bytes
    trace: int
    parent: int

    def span(self, hop: str, *nodes: str) -> int:
        """The identifier of a hop's span."""
        told = "\0".join((hop, *nodes)).encode()
        return int.from_bytes(blake2b(told, digest_size=8, key=self.value).digest()) or 1


class HopSpan(NamedTuple):
    name: str
    trace: int
    span: int
    parent: int
    start_s: float
    """By the wall clock of the node where the message entered; what comes after it, by this one's."""
    end_s: float
    attributes: dict[str, str | int]


def context_in(data: bytes, position: int = 0) -> tuple[TraceContext | None, int]:
    """The first context from this position on, and where it ends; None and -1 if there is none.  The bytes may be
    anything: what looks like a context and is none is passed over."""
    at = data.find(MARK, position)
    if at < 0:
        return None, -1
    start = at + len(MARK)
    value = bytes(data[start : start + VALUE_BYTES])
    found = _VALUE.fullmatch(value)
    if found is None or not int(found[3], 16) & _SAMPLED:
        return None, start
    trace, parent = int(found[1], 16), int(found[2], 16)
    return (TraceContext(value, trace, parent) if trace and parent else None), start + VALUE_BYTES


class MessageTracing:
    def __init__(self, node: str, clock: BrokerClock, share: float, export: Callable[[HopSpan], None]) -> None:
        """`share` of the sampled traces is told."""
        self._node = node
        self._clock = clock
        self._below = int(share * 2**64)
        self._export = export
        #: The neighbour through which an origin's messages come; None of a lone node, and of unknown origins.
        self.link_to: Callable[[str], str | None] = lambda _origin: None

    def entered(self, message: Message) -> None:
        """At this node, from a client; it is safe if it is to be."""
        context = self._context(message)
        if context is not None:
            span, attributes = context.span("entered", self._node), _attributes(message)
            self._tell("entered", context, span, context.parent, message.received_at or self._clock.wall, attributes)

    def delivered(self, message: Message) -> None:
        """To subscribers at this node."""
        context = self._context(message)
        if context is not None:
            origin = message.identity.origin if message.identity is not None else self._node
            span, attributes = context.span("delivered", self._node), _attributes(message)
            begun = min(message.received_at or self._clock.wall, self._clock.wall)
            self._tell("delivered", context, span, self._parent(context, origin), begun, attributes)

    def sent(self, link: str, origin: str, body: bytes) -> None:
        """Messages of one origin go over a link."""
        position = 0
        while position >= 0:
            context, position = context_in(body, position)
            if context is not None and self._is_told(context):
                span, parent = context.span("forwarded", self._node, link), self._parent(context, origin)
                attributes: dict[str, str | int] = {"sterna.link": link, "sterna.origin": origin}
                self._tell("forwarded", context, span, parent, self._clock.wall, attributes)

    def _context(self, message: Message) -> TraceContext | None:
        if MARK not in message.properties:
            return None
        context, _ = context_in(message.properties)
        return context if context is not None and self._is_told(context) else None

    def _is_told(self, context: TraceContext) -> bool:
        return context.trace % 2**64 < self._below

    def _parent(self, context: TraceContext, origin: str) -> int:
        """The span of the hop that brought it here."""
        if origin == self._node:
            return context.span("entered", self._node)
        link = self.link_to(origin)
        return context.parent if link is None else context.span("forwarded", link, self._node)

    def _tell(
        self,
        name: str,
        context: TraceContext,
        span: int,
        parent: int,
        start_s: float,
        attributes: dict[str, str | int],
    ) -> None:
        told = {"sterna.node": self._node, **attributes}
        self._export(HopSpan(name, context.trace, span, parent, start_s, max(start_s, self._clock.wall), told))


def _attributes(message: Message) -> dict[str, str | int]:
    return {
        "messaging.system": "mqtt",
        "messaging.destination.name": message.topic.decode("utf-8", "replace"),
        "messaging.client.id": message.publisher.decode("utf-8", "replace"),
        "messaging.message.body.size": len(message.payload),
        "mqtt.qos": message.qos,
    }
