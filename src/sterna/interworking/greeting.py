"""CONNACK: what a refusal of the foreign broker means, and what to do about it."""

from __future__ import annotations

from typing import Final

from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.reasons import Reason
from sterna.mqtt.server_packets import Connack

#: Return codes of 3.1.1 and reason codes of 5 -> what it is about.
_CREDENTIALS = "the broker refuses the user name or password: check user and password_file in [interworking]"
_NOT_ALLOWED = "the broker does not let us in: check user and password_file in [interworking], and the account's rights"
_IDENTIFIER = "the broker refuses the client identifier: set client_id in [interworking]"
_UNAVAILABLE = "the broker says that it is not available"
_LEVEL = "the broker does not speak this level of MQTT"

_3_1_1: Final = {1: _LEVEL, 2: _IDENTIFIER, 3: _UNAVAILABLE, 4: _CREDENTIALS, 5: _NOT_ALLOWED}
_5: Final = {
    int(Reason.UNSUPPORTED_PROTOCOL_VERSION): _LEVEL,
    int(Reason.CLIENT_IDENTIFIER_NOT_VALID): _IDENTIFIER,
    int(Reason.BAD_USER_NAME_OR_PASSWORD): _CREDENTIALS,
    int(Reason.NOT_AUTHORIZED): _NOT_ALLOWED,
    int(Reason.SERVER_UNAVAILABLE): _UNAVAILABLE,
    int(Reason.SERVER_BUSY): _UNAVAILABLE,
}


def is_level_refused(answer: Connack, version: int) -> bool:
    """A broker of 3.1.1 may answer a CONNECT of level 5 with its own code."""
    return answer.code == 1 or (version == MQTT_5 and answer.code == Reason.UNSUPPORTED_PROTOCOL_VERSION)


def refusal(answer: Connack, version: int) -> str:
    meaning = (_5 if version == MQTT_5 and answer.code >= 0x80 else _3_1_1).get(answer.code, "the broker refuses us")
    said = answer.properties.get(prop.REASON_STRING, b"")
    reason = f", {said[:200].decode()}" if said else ""
    return f"{meaning} (CONNACK 0x{answer.code:02x}{reason})"
