"""Abilities of a foreign broker, as found by asking it (`probe.py`), never by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sterna.mqtt.client_packets import version_of
from sterna.mqtt.packets import BRIDGE, MQTT_3_1_1, MQTT_5

#: Levels in the order in which they are tried.
LADDER: Final = (MQTT_5, BRIDGE | MQTT_3_1_1, MQTT_3_1_1)

EXPECTED_ECHOES: Final = "expected echoes"
LEVEL_NAMES: Final = {MQTT_5: "5", BRIDGE | MQTT_3_1_1: "3.1.1 with the bridge bit", MQTT_3_1_1: "3.1.1"}


@dataclass(frozen=True, slots=True)
class Abilities:
    level: int
    """Of CONNECT: 5, 4, or 4 with the bridge bit."""
    echoes: bool
    """A client is sent its own messages, also if it asked for No Local or is a bridge."""
    user_properties: bool
    """User properties of MQTT 5 arrive with the message."""
    retain_kept: bool
    """A live message arrives with the retain flag it was published with."""
    retained_for_wildcards: bool
    """A subscription with a wildcard brings retained messages."""
    qos: int
    """The highest QoS at which the broker takes and delivers messages."""
    copies: int
    """Copies of one message for two filters of one client that both match."""
    receive_maximum: int = 65535
    packet_bytes: int = 0
    """Largest packet it takes; 0: any."""
    keep_alive_s: int = 0
    """The keep-alive it insists on; 0: ours."""
    retain_available: bool = True

    @property
    def version(self) -> int:
        return version_of(self.level)

    @property
    def is_loop_free(self) -> bool:
        """Can its own messages be told from ours without guessing?"""
        return not self.echoes or self.user_properties

    @property
    def loop_prevention(self) -> str:
        if self.level == MQTT_5 and self.is_loop_free:
            ways = (["No Local"] if not self.echoes else []) + (["identity"] if self.user_properties else [])
            return " and ".join(ways)
        return EXPECTED_ECHOES if self.echoes else "bridge bit"

    def shown(self) -> dict[str, object]:
        """For people and programs."""
        return {
            "mqtt": LEVEL_NAMES[self.level],
            "loop_prevention": self.loop_prevention,
            "retain_flag_kept": self.retain_kept,
            "retained_for_wildcards": self.retained_for_wildcards,
            "qos": self.qos,
            "copies_for_overlapping_filters": self.copies,
            "user_properties": self.user_properties,
            "receive_maximum": self.receive_maximum,
            "packet_bytes": self.packet_bytes,
        }
