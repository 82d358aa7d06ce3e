"""The CONNACK for the client: the node's answer, within what the gateway itself can do."""

from __future__ import annotations

from sterna.gateway.connecting import Wish
from sterna.gateway.settings import GatewayLimits
from sterna.mqtt import packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.properties import Properties, write_properties
from sterna.mqtt.server_packets import Connack

#: Said by the gateway, or, for aliases and servers, by nobody.
_OURS = frozenset(
    {
        prop.SESSION_EXPIRY,
        prop.RECEIVE_MAXIMUM,
        prop.MAXIMUM_PACKET_SIZE,
        prop.TOPIC_ALIAS_MAXIMUM,
        prop.ASSIGNED_CLIENT_ID,
        prop.SERVER_REFERENCE,
    }
)


def for_client(welcome: Connack, wish: Wish, limits: GatewayLimits) -> bytes:
    if wish.version != MQTT_5:
        # A client that asked for a clean session has none, even if the gateway keeps one for it.
        # And in 3.1 the place of this word is reserved.
        is_told = welcome.session_present and not wish.clean and not wish.is_3_1
        return packets.encode_connack(wish.version, is_told, 0)
    said = welcome.properties
    ours: Properties = {
        prop.RECEIVE_MAXIMUM: min(said.get(prop.RECEIVE_MAXIMUM, 65535), limits.unacknowledged),
        prop.MAXIMUM_PACKET_SIZE: min(said.get(prop.MAXIMUM_PACKET_SIZE, limits.packet_bytes), limits.packet_bytes),
    }
    granted = said.get(prop.SESSION_EXPIRY, wish.expiry_s)
    if granted < wish.expiry_s:
        ours[prop.SESSION_EXPIRY] = granted
    if wish.assigned:
        ours[prop.ASSIGNED_CLIENT_ID] = wish.client_id
    _, start = wire.read_variable(written := write_properties(ours), 0, 4)
    section = written[start:] + b"".join(raw for known, raw in welcome.raw.items() if known not in _OURS)
    present = b"\x01" if welcome.session_present else b"\x00"
    return packets.packet(0x20, present + b"\x00" + wire.variable(len(section)) + section)
