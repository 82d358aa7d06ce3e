"""The bridges of a mosquitto.conf (`connection` and the lines behind it) as a named list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sterna.runtime.mosquitto.conf_lines import SECRETS, ConfLine, Untranslated

ADDRESSES = ("address", "addresses")
KEYS = frozenset(
    {
        *ADDRESSES,
        *SECRETS,
        *("topic", "username", "remote_username", "local_username", "clientid", "remote_clientid", "local_clientid"),
        *("cleansession", "local_cleansession", "keepalive_interval", "restart_timeout", "idle_timeout", "start_type"),
        *("threshold", "round_robin", "try_private", "notifications", "notifications_local_only"),
        "notification_topic",
    }
)
DIRECTIONS = ("out", "in", "both")


def is_key(key: str) -> bool:
    return key in KEYS or key.startswith("bridge_")


@dataclass(frozen=True, slots=True)
class BridgedTopic:
    pattern: str
    direction: str = "out"
    qos: int = 0
    local_prefix: str = ""
    remote_prefix: str = ""

    def __str__(self) -> str:
        text = f"{self.direction} {self.pattern} at QoS {self.qos}"
        if self.local_prefix or self.remote_prefix:
            text += f", prefixes {self.local_prefix or '-'} here and {self.remote_prefix or '-'} there"
        return text


@dataclass(slots=True)
class Bridge:
    line: ConfLine
    addresses: list[str] = field(default_factory=list)
    topics: list[tuple[ConfLine, BridgedTopic]] = field(default_factory=list)
    lines: dict[str, ConfLine] = field(default_factory=dict)
    """All others, by option; the last of two counts."""

    @property
    def name(self) -> str:
        return self.line.value

    def take(self, line: ConfLine) -> Untranslated | None:
        if line.key in ADDRESSES:
            self.addresses += line.value.split()
        elif line.key == "topic":
            topic = _topic(line.value)
            if topic is None:
                return Untranslated(line, "it is no topic line", "write topic PATTERN [out|in|both [QOS [HERE THERE]]]")
            self.topics.append((line, topic))
        else:
            self.lines[line.key] = line
        return None

    @property
    def settings(self) -> dict[str, str]:
        """Without secrets."""
        return {key: "(secret)" if key in SECRETS else line.value for key, line in self.lines.items()}

    def as_plain(self) -> dict[str, Any]:
        topics = [
            {
                "pattern": one.pattern,
                "direction": one.direction,
                "qos": one.qos,
                "local_prefix": one.local_prefix,
                "remote_prefix": one.remote_prefix,
            }
            for _, one in self.topics
        ]
        return {
            "name": self.name,
            "place": self.line.place,
            "addresses": self.addresses,
            "topics": topics,
            "settings": self.settings,
        }


def _topic(value: str) -> BridgedTopic | None:
    """`pattern [direction [qos [local-prefix [remote-prefix]]]]`; `""` is an empty pattern or prefix."""
    words = ["" if word == '""' else word for word in value.split()]
    if not 1 <= len(words) <= 5:
        return None
    pattern, direction, qos, here, there = (*words, *("", "out", "0", "", "")[len(words) :])
    if direction not in DIRECTIONS or qos not in ("0", "1", "2"):
        return None
    return BridgedTopic(pattern, direction, int(qos), here, there)
