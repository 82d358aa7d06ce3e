"""Forwards messages that rules alone select: tasks decide which messages pass, the driver puts them in order.

A rule looks at one message, so a task can decide by itself.  A message that passes leaves the task once, whole, with
the names of the rules.  Two expressions of a node with the same rules are one publication to it (`broker.outside`).
So they share one `RuleForwarding` and its numbers, and a message is forwarded in the name of the older expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from sterna.operators.engine import Engine
from sterna.operators.errors import StateError
from sterna.operators.expression import Family
from sterna.pipeline.expressions.columnar_aggregates import numbers_of
from sterna.pipeline.expressions.matching import RELATIONS, TopicMatches
from sterna.pipeline.expressions.registry import Entry

FORWARDED = b"passing"
"""The reading of a message that passes: everything."""
COLUMNS = ("qos", "property_block", "expires_us")
"""Of the feed, besides what everybody needs."""
FORWARDED_BYTES_MAX = 8 * 1024 * 1024
"""Of one message; a longer one would not fit into a request to a node."""
TOO_LONG = f"longer than {FORWARDED_BYTES_MAX} bytes"
_NAME_BYTES = 8


class ForwardedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message, but for its topic, and which rules it passed."""

    payload: bytes
    qos: int
    properties: bytes
    expires_us: int
    rules: list[bytes] = []

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.properties)


def name_of(entry: Entry) -> bytes:
    """The same for all who let the same messages pass under the same name."""
    return blake2b(b"%d%b" % (entry.settings.field_payload_bytes, entry.rules), digest_size=_NAME_BYTES).digest()


class _Rules:
    def __init__(self, entry: Entry) -> None:
        self.name = name_of(entry)
        self._engine = Engine(entry.expression, entry.settings, 0)
        operators = entry.expression.operators
        self.is_numeric = not operators[-1].field and all(one.family is Family.RULE for one in operators)
        self._relations = [(RELATIONS[one.name], one.number) for one in operators] if self.is_numeric else []

    def hold_for(self, numbers: Any) -> Any:
        """Of payloads that are nothing but numbers: a mask."""
        held = ~np.isnan(numbers)
        for relation, number in self._relations:
            held &= relation(numbers, number)
        return held

    def let_pass(self, topic: bytes, payload: bytes) -> bool:
        return self._engine.message(topic, payload, 0) is not None


class RuleFilter:
    """All rules of a batch."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._matches: TopicMatches[_Rules] = TopicMatches()
        rules: dict[bytes, _Rules] = {}
        for entry in entries:
            name = name_of(entry)
            one = rules[name] if name in rules else rules.setdefault(name, _Rules(entry))
            self._matches.add(entry.expression.topic_filter, name, one)

    def passed(self, topics: list[bytes], codes: Any, rows: Any) -> tuple[Any, list[ForwardedMessage], dict[str, int]]:
        """Places of rows that pass, what they are, and how many are left out for which reason."""
        names: dict[int, list[bytes]] = {}
        for rules, places in self._wanted(topics, codes).items():
            for place in self._those(rules, places, topics, codes, rows):
                names.setdefault(place, []).append(rules.name)
        if not names:
            return np.zeros(0, np.int64), [], {}
        places = sorted(names)
        columns = [rows.column(name).take(places).to_pylist() for name in ("payload", *COLUMNS)]
        whole = zip(places, *columns, strict=True)
        found = [
            (place, ForwardedMessage(payload, qos, properties, expires_us, names[place]))
            for place, payload, qos, properties, expires_us in whole
        ]
        kept = [(place, one) for place, one in found if one.size <= FORWARDED_BYTES_MAX]
        left_out = {TOO_LONG: len(found) - len(kept)} if len(kept) < len(found) else {}
        return np.array([place for place, _ in kept], np.int64), [one for _, one in kept], left_out

    def _wanted(self, topics: list[bytes], codes: Any) -> dict[_Rules, Any]:
        """Rules -> places of the rows whose topics they are about."""
        chosen: dict[_Rules, Any] = {}
        for code, topic in enumerate(topics):
            for rules in self._matches.of(topic):
                chosen.setdefault(rules, np.zeros(len(topics), bool))[code] = True
        return {rules: np.flatnonzero(those[codes]) for rules, those in chosen.items()}

    def _those(self, rules: _Rules, places: Any, topics: list[bytes], codes: Any, rows: Any) -> list[int]:
        payloads = rows.column("payload").take(places)
        if rules.is_numeric:
            found: list[int] = places[rules.hold_for(numbers_of(payloads))].tolist()
            return found
        return [
            place
            for place, code, payload in zip(places.tolist(), codes[places].tolist(), payloads.to_pylist(), strict=True)
            if rules.let_pass(topics[code], payload)
        ]


class RuleForwarding:
    """The common part of expressions of one node with the same rules."""

    def __init__(self) -> None:
        #: The last message's: its time in microseconds, or one more than the one before it.
        self.number = 0
        self._made: list[tuple[bytes, int, bytes, ForwardedMessage]] = []

    def add(self, text: bytes, time_us: int, topic: bytes, message: ForwardedMessage) -> None:
        self.number = max(self.number + 1, time_us)
        self._made.append((text, self.number, topic, message))

    def take(self) -> list[tuple[bytes, int, bytes, ForwardedMessage]]:
        """(expression, number, topic, message), in order."""
        made, self._made = self._made, []
        return made


class ForwardingEntry:
    """One expression."""

    def __init__(self, entry: Entry, forwarding: RuleForwarding) -> None:
        self.forwarding = forwarding
        self.reading = name_of(entry)
        self.topic_filter = entry.expression.topic_filter
        self.text = entry.text
        self.since_us = max(entry.since_us, entry.beginning.complete_us)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.forwarding.number)

    def restore(self, snapshot: bytes) -> None:
        """May raise StateError."""
        try:
            number = msgspec.msgpack.decode(snapshot, type=int)
        except msgspec.DecodeError as error:
            raise StateError(f"a damaged state: {error}") from None
        self.forwarding.number = max(self.forwarding.number, number)
