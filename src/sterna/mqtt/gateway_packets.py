"""Packets between a gateway and a node on the connection of a client: they use MQTT's reserved packet type 0.

A connection whose first packet is HELLO comes from a gateway; the client's own CONNECT follows it.  From then on the
node may send PREPARE, STOPPED, CANCEL, REDIRECT and FAREWELL between MQTT packets, and the gateway DRAINED.  HELLO
gives no privilege: it says only that whoever is there can follow a redirection without its client noticing.

On the wire: 0x00, the remaining length, and a MessagePack array [kind, fields...] of at most `BODY_MAX` bytes.  Fields
that a later version adds at the end are skipped; anything else that does not fit is a `ProtocolError`.

Not among the compiled modules: msgspec reads the annotations of these records, and mypyc does not keep them as they
are.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from sterna.mqtt import wire
from sterna.mqtt.reasons import Reason
from sterna.vocabulary.errors import ProtocolError

#: The first byte of every packet here.
CONTROL: Final = 0x00
BODY_MAX: Final = 1024
VERSION: Final = 1

#: "host:port", with an IPv6 address in brackets, as in MQTT's Server Reference.
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Name = Annotated[str, msgspec.Meta(max_length=128)]


class GatewayHello(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Gateway to node, before CONNECT: I am a gateway."""

    gateway: Name
    version: int
    #: Where the client itself connects from, for the node's log; empty: unknown.
    address: Annotated[str, msgspec.Meta(max_length=300)]
    #: The client is still served through a connection to another node: it comes here only with its session.
    is_second: bool = False
    #: At PREPARE the gateway connects its client to the other node too, and stays here until the session has left.
    leads: bool = False


class Prepare(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Node to gateway: this client is to go there; connect it there too, and go on here until its session has come."""

    server: Address


class Cancel(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Node to gateway: the client stays here after all."""


class GatewayStopped(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """Node to gateway: all that this node had for the client has been sent, and of what the client sends from now on
    only acknowledgements are heard.  CANCEL takes it back."""


class Redirect(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Node to gateway, after the last MQTT packet of this connection: the session is there now."""

    server: Address


class Drained(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Gateway to node, after a REDIRECT: nothing more will come on this connection."""


class Farewell(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Node to gateway, last of all: why this connection ends, for clients of MQTT 3.1.1, which has no word for it.

    Without it a gateway cannot tell a session taken over from a node that died, and would fetch the session back.
    """

    #: The reason code that DISCONNECT would carry in MQTT 5.
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]


Control = GatewayHello | Prepare | Cancel | GatewayStopped | Redirect | Drained | Farewell

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Control)


def encode(control: Control) -> bytes:
    """The whole packet."""
    body = _encoder.encode(control)
    assert len(body) <= BODY_MAX, "names and addresses are bounded well below this"
    return bytes((CONTROL,)) + wire.variable(len(body)) + body


def decode(data: bytes, position: int, end: int) -> Control:
    """The packet whose body is `data[position:end]`."""
    if end - position > BODY_MAX:
        raise ProtocolError(Reason.PACKET_TOO_LARGE, f"control packet of {end - position} bytes")
    try:
        control: Control = _decoder.decode(data[position:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise wire.malformed(f"control packet that cannot be read: {problem}") from None
    if isinstance(control, GatewayHello) and control.version != VERSION:
        raise ProtocolError(
            Reason.UNSUPPORTED_PROTOCOL_VERSION, f"gateway speaks version {control.version}, not {VERSION}"
        )
    return control
