"""Packets of a node that are for the gateway, not for the client: where the session goes, or why it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.gateway.connecting import PASSING
from sterna.gateway.servers import reference
from sterna.mqtt import gateway_packets
from sterna.mqtt import properties as prop
from sterna.mqtt.gateway_packets import Cancel, Farewell, GatewayStopped, Prepare, Redirect
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.reasons import Reason
from sterna.mqtt.server_packets import decode_disconnect
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from sterna.gateway.client import GatewayClient


def hear_control(client: GatewayClient, data: bytes, body: int, stop: int) -> None:
    """A packet of type 0."""
    tether = client.tether
    assert tether is not None
    word = gateway_packets.decode(data, body, stop)
    if isinstance(word, Prepare):
        if tether.may_follow(server := reference(word.server)):
            tether.prepare(server)
    elif isinstance(word, Cancel):
        tether.stays()
    elif isinstance(word, GatewayStopped):
        tether.stopped()
    elif isinstance(word, Redirect):
        _redirected(client, word.server, Reason.USE_ANOTHER_SERVER)
    elif isinstance(word, Farewell):
        _ended(client, word.code)
    else:
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"{type(word).__name__.upper()} is not for a gateway")


def hear_disconnect(client: GatewayClient, data: bytes, body: int, stop: int) -> None:
    """DISCONNECT of a node, which only MQTT 5 has."""
    assert client.tether is not None
    assert client.wish is not None
    if client.wish.version != MQTT_5:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "DISCONNECT from a server of 3.1.1")
    code, found = decode_disconnect(data, body, stop)
    target = found.get(prop.SERVER_REFERENCE)
    if code in (Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED) and target is not None:
        _redirected(client, target.decode(), code)
    else:
        _ended(client, code)


def _redirected(client: GatewayClient, target: str, code: int) -> None:
    """Where it must not be followed, it is as if the node had not said where to."""
    assert client.tether is not None
    server = reference(target)
    if client.tether.may_follow(server):
        client.tether.redirect(server)
    else:
        _ended(client, code)


def _ended(client: GatewayClient, code: int) -> None:
    """Another node may take the session on, or there is a reason that holds everywhere."""
    assert client.tether is not None
    upstream = client.tether.upstream
    if code in PASSING and upstream is not None:
        client.tether.unwelcome = code in (Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED)
        upstream.lost(f"the node says 0x{code:02x}")
    else:
        client.dismiss(code, "a node has ended the connection")
