"""How `sterna sub` prints a message: mosquitto_sub's plain, verbose and -F forms, and one JSON object per message.

A format is read once and refused at once if it is wrong.  Where Mosquitto 2.0.11 departs from its own manual (a field
width that cuts the payload off, a stray Z in the time) the manual is followed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from paho.mqtt.client import MQTTMessage

_SEQUENCE = re.compile(
    r"%(?P<flag>[-0]?)(?P<width>\d{0,6})(?:\.(?P<most>\d{1,6}))?(?P<field>\D)"
    r"|@(?P<time>.)|\\(?P<escape>.)|(?P<text>[^%@\\]+)|(?P<wrong>.)",
    re.DOTALL,
)
_ESCAPES = {"\\": b"\\", "0": b"\0", "a": b"\a", "e": b"\x1b", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v"}
_ZERO_PADDED = frozenset("AEFlmSxX")
_CUT = frozenset("CIRt")
_JSON_NAMES = {
    "content-type": "ContentType",
    "correlation-data": "CorrelationData",
    "response-topic": "ResponseTopic",
    "payload-format-indicator": "PayloadFormatIndicator",
    "message-expiry-interval": "MessageExpiryInterval",
    "topic-alias": "TopicAlias",
    "subscription-identifier": "SubscriptionIdentifier",
}


class ReceivedMessage(NamedTuple):
    message: MQTTMessage
    at_ns: int

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.at_ns // 1_000_000_000).astimezone()

    @property
    def nanoseconds(self) -> int:
        return self.at_ns % 1_000_000_000

    def named(self, name: str) -> Any:
        """An MQTT 5 property of the message, or None."""
        value = getattr(self.message.properties, name, None)
        return ",".join(map(str, value)) if name == "SubscriptionIdentifier" and value else value


Part = Callable[[ReceivedMessage], bytes]


def _bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _property(name: str) -> Part:
    return lambda received: _bytes(received.named(name))


def _user_properties(received: ReceivedMessage) -> bytes:
    return b" ".join(_bytes(f"{key}:{value}") for key, value in received.named("UserProperty") or ())


def _described(received: ReceivedMessage, pretty: bool, payload: object) -> bytes:
    separators = (",", ":\t") if pretty else (",", ":")
    document = description(received) | {"payload": payload}
    text = json.dumps(document, ensure_ascii=False, separators=separators, indent="\t" if pretty else None)
    return text.encode("utf-8", "surrogateescape")


def description(received: ReceivedMessage) -> dict[str, Any]:
    """Everything about a message but its payload, under mosquitto_sub's names."""
    message = received.message
    known: dict[str, Any] = {
        "tst": f"{received.moment:%Y-%m-%dT%H:%M:%S}.{received.nanoseconds // 1000:06d}{received.moment:%z}",
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        known["mid"] = message.mid
    properties: dict[str, Any] = {}
    if pairs := received.named("UserProperty"):
        properties["user-properties"] = dict(pairs)
    for shown, name in _JSON_NAMES.items():
        value = received.named(name)
        if value is not None:
            properties[shown] = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    return known | ({"properties": properties} if properties else {})


_FIELDS: dict[str, Part] = {
    "%": lambda received: b"%",
    "A": _property("TopicAlias"),
    "C": _property("ContentType"),
    "D": _property("CorrelationData"),
    "E": _property("MessageExpiryInterval"),
    "F": _property("PayloadFormatIndicator"),
    "I": lambda received: _bytes(f"{received.moment:%Y-%m-%dT%H:%M:%S%z}"),
    "l": lambda received: _bytes(len(received.message.payload)),
    "m": lambda received: _bytes(received.message.mid if received.message.qos else 0),
    "P": _user_properties,
    "p": lambda received: bytes(received.message.payload),
    "q": lambda received: _bytes(received.message.qos),
    "R": _property("ResponseTopic"),
    "r": lambda received: _bytes(int(received.message.retain)),
    "S": _property("SubscriptionIdentifier"),
    "t": lambda received: _bytes(received.message.topic),
    "U": lambda received: _bytes(f"{received.at_ns // 1_000_000_000}.{received.nanoseconds:09d}"),
    "x": lambda received: _bytes(received.message.payload.hex()),
    "X": lambda received: _bytes(received.message.payload.hex().upper()),
}


class MessageFormat:
    """A -F format, ready to print with."""

    def __init__(self, text: str, *, pretty: bool = False) -> None:
        self._pretty = pretty
        self._parts = [self._part(found) for found in _SEQUENCE.finditer(text)]

    def __call__(self, received: ReceivedMessage) -> bytes:
        return b"".join(part(received) for part in self._parts)

    def _part(self, found: re.Match[str]) -> Part:
        if found["wrong"]:
            raise ValueError(f"the format ends within a sequence, at {found.string[found.start() :]!r}")
        if (field := found["field"]) is not None:
            return self._field(field, found)
        if (time := found["time"]) is not None:
            return _time(time)
        if (escape := found["escape"]) is not None:
            if escape not in _ESCAPES:
                raise ValueError(f"there is no escape \\{escape}")
            return lambda received: _ESCAPES[escape]
        return lambda received: _bytes(found["text"])

    def _field(self, field: str, found: re.Match[str]) -> Part:
        if field == "j":
            return lambda received: _described(received, self._pretty, _text(received))
        if field == "J":
            return lambda received: _described(received, self._pretty, _parsed(received))
        if field not in _FIELDS:
            raise ValueError(f"there is no field %{field}")
        read = _FIELDS[field]
        width = int(found["width"] or 0)
        most = int(found["most"]) if found["most"] and field in _CUT else None
        if found["flag"] == "-":
            return lambda received: read(received)[:most].ljust(width)
        fill = b"0" if found["flag"] == "0" and field in _ZERO_PADDED else b" "
        return lambda received: read(received)[:most].rjust(width, fill)


def _time(letter: str) -> Part:
    if letter == "@":
        return lambda received: b"@"
    if letter == "N":
        return lambda received: _bytes(f"{received.nanoseconds:09d}")
    return lambda received: _bytes(received.moment.strftime(f"%{letter}"))


def _text(received: ReceivedMessage) -> str:
    return received.message.payload.decode("utf-8", "surrogateescape")


def _parsed(received: ReceivedMessage) -> object:
    try:
        return json.loads(received.message.payload)
    except ValueError:
        raise ValueError(f"Error: Message payload is not valid JSON on topic {received.message.topic}") from None


def plain(received: ReceivedMessage) -> bytes:
    return bytes(received.message.payload)


def verbose(received: ReceivedMessage) -> bytes:
    return _bytes(received.message.topic) + b" " + (bytes(received.message.payload) or b"(null)")


def as_json(received: ReceivedMessage) -> bytes:
    """One object, always valid JSON: a payload that is not UTF-8 comes as `payload_base64`."""
    payload = bytes(received.message.payload)
    try:
        shown = {"payload": payload.decode()}
    except UnicodeDecodeError:
        shown = {"payload_base64": base64.b64encode(payload).decode()}
    return json.dumps(description(received) | shown, separators=(",", ":")).encode()
