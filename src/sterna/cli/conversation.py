"""One MQTT connection of `sterna pub` or `sterna sub`: paho does the protocol, this the manners of mosquitto's clients.

A lost connection is taken up again; a refused one ends the command, and so does one that never came about, unless
--keep-trying was asked for.  Exit statuses are Mosquitto's: the CONNACK code if the broker refuses, 7 if it hangs up
before that, 27 if time ran out, else 1, or 8 if TLS failed.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import typer
from paho.mqtt import MQTTException
from paho.mqtt.client import Client, DisconnectFlags, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sterna.cli.mosquitto_flags import PROPERTY_SEPARATOR, ConnectionFlags

FAILED, CONNECTION_LOST, TLS_ERROR, TIMED_OUT = 1, 7, 8, 27
GOODBYE_S = 5
"""How long taking leave may last."""
_V3_CODES = {0x84: 1, 0x85: 2, 0x88: 3, 0x86: 4, 0x87: 5}
"""paho translates the CONNACK codes of MQTT 3.1.1 to those of 5.0; exit statuses are the former."""
_FINAL = frozenset({0x87, 0x8E, 0x98, 0x9C, 0x9D})
"""Reasons for a DISCONNECT after which coming back at once would be wrong: taken over, sent elsewhere, put out."""
_PACKETS = {
    "CONNECT": PacketTypes.CONNECT,
    "PUBLISH": PacketTypes.PUBLISH,
    "SUBSCRIBE": PacketTypes.SUBSCRIBE,
    "UNSUBSCRIBE": PacketTypes.UNSUBSCRIBE,
    "DISCONNECT": PacketTypes.DISCONNECT,
    "WILL": PacketTypes.WILLMESSAGE,
}
_REFUSED_HINT = "; is a broker running there?"
_TLS_HINT = "Is this a TLS port? Try --cafile. A gateway hangs up like this while it reaches no node."
_new_properties: Callable[[int], Properties] = Properties  # paho's constructor carries no types


class Conversation(ABC):
    """A client about to connect.  Subclasses say what to do once it is, in `on_ready` and `talk`."""

    def __init__(self, flags: ConnectionFlags) -> None:
        self.flags = flags
        self.target = flags.target
        self.exit_code = 0
        self.is_finished = False
        self._was_welcome = False
        self.changed = threading.Condition()
        self.client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=flags.id if flags.id_prefix is None else f"{flags.id_prefix}{os.getpid()}",
            clean_session=None if flags.protocol == MQTTv5 else not flags.persistent,
            protocol=MQTTProtocolVersion(flags.protocol),
            transport=cast(Literal["tcp", "websockets", "unix"], self.target.transport),
        )
        self._prepare(self.client)

    @abstractmethod
    def on_ready(self) -> None:
        """The broker took us in; called again after every reconnect."""

    @abstractmethod
    def talk(self) -> None:
        """Run the conversation until it is finished."""

    def _prepare(self, client: Client) -> None:
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.max_inflight_messages_set(self.flags.inflight)
        if self.flags.debug:
            client.on_log = lambda _client, _userdata, _level, text: print(text, file=sys.stderr)
        if self.flags.nodelay:
            client.on_socket_open = lambda _client, _userdata, sock: _set_nodelay(sock)
        if self.target.username is not None or self.target.password is not None:
            client.username_pw_set(self.target.username or "", self.target.password)
        if self.flags.will_topic is not None:
            payload, qos, retain = self.flags.will_payload, self.flags.will_qos, self.flags.will_retain
            client.will_set(self.flags.will_topic, payload, qos, retain, self.properties("WILL"))
        if self.target.is_secure:
            client.tls_set_context(tls_context(self.flags))
            client.tls_insecure_set(self.flags.insecure)

    @property
    def place(self) -> str:
        """Where the broker is, for complaints."""
        host, port = self.target.host, self.target.port
        if self.target.transport == "unix":
            return f"unix:{host}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def properties(self, packet: str) -> Properties | None:
        """The MQTT 5 properties -D gave for this kind of packet."""
        if self.flags.protocol != MQTTv5:
            return None
        found = _new_properties(_PACKETS[packet])
        for text in self.flags.properties:
            command, name, *values = text.split(PROPERTY_SEPARATOR)
            if command.upper() not in _PACKETS:
                raise typer.BadParameter(f"use one of {', '.join(_PACKETS)}, not {command}", param_hint="-D")
            if command.upper() == packet:
                _set_property(found, name, values)
        return found

    def run(self) -> int:
        """Connect, talk, take leave; the exit status.  SIGTERM and Ctrl-C end the talk early."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            failure = self._connect()
            if failure and not self.flags.keep_trying:
                return failure
            self.talk()  # which takes up a connection that is not there as it does one that was lost
        except KeyboardInterrupt:
            self.finish()
        self._take_leave()
        return self.exit_code

    def finish(self, exit_code: int = 0, complaint: str = "") -> None:
        if complaint:
            self.complain(complaint)
        with self.changed:
            self.exit_code = exit_code
            self.is_finished = True
            self.changed.notify_all()

    def complain(self, text: str) -> None:
        if not self.flags.quiet:
            print(text, file=sys.stderr, flush=True)

    def _connect(self) -> int:
        """The exit status to end with, 0 if there is a connection."""
        try:
            self._dial()
        except OSError as error:
            is_over = isinstance(error, ConnectionRefusedError) and not self.flags.keep_trying
            hint = _REFUSED_HINT if is_over else ""
            self.complain(f"Error: {self.place}: {error.strerror or error}{hint}")
            # A peer that hangs up during connect did so because of our handshake.
            return TLS_ERROR if isinstance(error, ssl.SSLError | ConnectionResetError) else FAILED
        return 0

    def _dial(self) -> None:
        how: dict[str, Any] = {"keepalive": self.flags.keep_alive, "bind_address": self.flags.bind_address}
        properties = self.properties("CONNECT")
        if properties is not None:
            if self.flags.session_expiry_s:
                properties.SessionExpiryInterval = self.flags.session_expiry_s
            how |= {"clean_start": not self.flags.persistent, "properties": properties}
        self.client.connect(self.target.host, self.target.port, **how)

    def _take_leave(self) -> None:
        # The alarm's default is to end the process: a broker that does not read must not keep us here.
        signal.alarm(GOODBYE_S)
        self.client.disconnect(properties=self.properties("DISCONNECT"))
        self.client.loop_stop()
        while self.client.socket() is not None and self.client.loop(GOODBYE_S) == 0:
            pass
        signal.alarm(0)

    def _on_connect(self, _client: Client, _userdata: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            is_v5 = self.flags.protocol == MQTTv5
            code = reason.value if is_v5 else _V3_CODES.get(reason.value, FAILED)
            self.finish(code, f"Connection error: {self.place}: {reason}")
        elif not self.is_finished:
            self._was_welcome = True
            self.on_ready()

    def _on_disconnect(
        self, _client: Client, _userdata: Any, flags: DisconnectFlags, reason: ReasonCode, _properties: Any
    ) -> None:
        if flags.is_disconnect_packet_from_server and reason.value in _FINAL:
            self.finish(reason.value, f"Disconnected: {reason}")
        elif not self._was_welcome and not self.is_finished:
            self._hung_up()

    def _hung_up(self) -> None:
        """The connection ended before CONNACK: most likely the other end expected something else of us."""
        hint = "Does it ask for a client certificate? Try --cert and --key." if self.target.is_secure else _TLS_HINT
        complaint = f"Error: {self.place}: The connection was closed before CONNACK. {hint}"
        if self.flags.keep_trying:
            self.complain(complaint)
        else:
            self.finish(CONNECTION_LOST, complaint)


def _set_nodelay(sock: Any) -> None:
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _set_property(properties: Properties, name: str, values: list[str]) -> None:
    known = {spaced.replace(" ", "-").lower(): (spaced, number) for spaced, number in properties.names.items()}
    if name not in known:
        raise typer.BadParameter(f"there is no property {name}", param_hint="-D")
    spaced, number = known[name]
    kind = properties.types[properties.properties[number][0]]
    value: Any = values[0]
    try:
        if kind == "UTF-8 String Pair":
            value = (values[0], values[1])
        elif kind == "Binary Data":
            value = values[0].encode()
        elif "String" not in kind:
            value = int(values[0])
        setattr(properties, spaced.replace(" ", ""), value)
    except (MQTTException, ValueError) as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint="-D") from None


def _check_readable(flag: str, file: Path | None) -> None:
    """OpenSSL does not say which of its files is missing."""
    try:
        if file is not None:
            file.open("rb").close()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint=flag) from None


def tls_context(flags: ConnectionFlags) -> ssl.SSLContext:
    versions = {None: ssl.TLSVersion.TLSv1_2, "tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
    if flags.tls_version not in versions:
        raise typer.BadParameter("use tlsv1.2 or tlsv1.3", param_hint="--tls-version")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = versions[flags.tls_version]
    for flag, file in (("--cafile", flags.cafile), ("--cert", flags.cert), ("--key", flags.key)):
        _check_readable(flag, file)
    try:
        if flags.cafile or flags.capath:
            context.load_verify_locations(flags.cafile, flags.capath)
        if flags.os_certs or not (flags.cafile or flags.capath):
            context.load_default_certs()
        if flags.cert and flags.key:
            context.load_cert_chain(flags.cert, flags.key)
        if flags.ciphers:
            context.set_ciphers(flags.ciphers)
    except OSError as error:
        raise typer.BadParameter(f"the TLS files or ciphers cannot be used: {error}") from None
    if flags.alpn:
        context.set_alpn_protocols([flags.alpn])
    return context
