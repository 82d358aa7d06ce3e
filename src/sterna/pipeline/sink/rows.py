"""Rows that become messages: the columns a sink accepts, checked before any message of a batch is published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sterna.mqtt.topics import is_control, is_reserved, is_topic_name
from sterna.pipeline.errors import BadRow
from sterna.vocabulary.errors import ConfigurationError

REQUIRED = ("topic", "payload")
OPTIONAL = ("qos", "retain", "properties", "content_type", "user_properties", "expiry_time")

_TOPIC_LEVELS_MAX, _TOPIC_BYTES_MAX = 128, 65535


class Outgoing(NamedTuple):
    """One message to publish, and which row of its partition it is."""

    row: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Sequence[tuple[str, str]]
    content_type: str | None
    expires_s: float | None = None
    """After this instant nobody may have it any more."""


def check_columns(columns: Sequence[str]) -> None:
    """Refuse a table that is none of messages before any task runs."""
    missing = [name for name in REQUIRED if name not in columns]
    unknown = [name for name in columns if name not in REQUIRED + OPTIONAL]
    if missing or unknown:
        problem = f"there is no column {missing[0]}" if missing else f"there is no use for column {unknown[0]}"
        raise ConfigurationError(
            f"{problem}: select {', '.join(REQUIRED)} and, if needed, {', '.join(OPTIONAL)} before writing"
        )


def outgoing(batch: Any, first_row: int) -> list[Outgoing]:
    """The messages of one record batch; BadRow if one of its rows is none."""
    return [_checked(message) for message in _messages(batch, first_row)]


def _messages(batch: Any, first_row: int) -> Iterator[Outgoing]:
    names = batch.schema.names
    columns = {name: batch.column(name).to_pylist() for name in names}
    nothing = [None] * batch.num_rows
    lists = [columns.get(name, nothing) for name in REQUIRED + OPTIONAL]
    for number, row in enumerate(zip(*lists, strict=True)):
        topic, payload, qos, retain, properties, content_type, pairs, expiry = row
        yield Outgoing(
            first_row + number,
            topic,
            payload.encode() if isinstance(payload, str) else payload,
            1 if qos is None else qos,
            bool(retain),
            _pairs(properties) if pairs is None else tuple((pair["key"], pair["value"]) for pair in pairs),
            content_type,
            _instant(expiry, first_row + number),
        )


def _instant(value: Any, row: int) -> float | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise BadRow(f"row {row} of the partition is no message: its expiry_time is no timestamp")
    return value.timestamp()


def _pairs(properties: Any) -> tuple[tuple[str, str], ...]:
    return tuple(properties.items() if isinstance(properties, dict) else properties or ())


def _checked(message: Outgoing) -> Outgoing:
    problem = _problem(message)
    if problem:
        raise BadRow(f"row {message.row} of the partition is no message: {problem}")
    return message


def _problem(message: Outgoing) -> str:
    if message.topic is None or message.payload is None:
        return f"its {'topic' if message.topic is None else 'payload'} is null"
    topic = message.topic.encode()
    if not is_topic_name(topic, _TOPIC_LEVELS_MAX, _TOPIC_BYTES_MAX) or "\0" in message.topic:
        return f'"{message.topic}" is no topic to publish to (empty, too long, or with a wildcard)'
    if is_reserved(topic) or is_control(topic):
        return f'"{message.topic}" is the broker\'s own'
    if message.qos not in (1, 2):
        return f"its qos is {message.qos}; what is to arrive needs 1 or 2"
    if any(name is None or value is None for name, value in message.properties):
        return "a property is null"
    return ""
