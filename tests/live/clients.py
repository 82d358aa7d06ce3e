"""Real clients for live tests: paho-mqtt wrapped so that every call waits for its answer, and Mosquitto's commands.

Nothing waits longer than `PATIENCE_S`; a client that is not answered fails its test and says what it waited for.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiomqtt
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

PATIENCE_S = 60.0

_PROTOCOLS = {3: MQTTProtocolVersion.MQTTv31, 4: MQTTProtocolVersion.MQTTv311, 5: MQTTProtocolVersion.MQTTv5}
#: paho makes their attributes up as it goes, so their types are nobody's to know.
_new_properties: Any = Properties
_FLAGS = {3: "mqttv31", 4: "mqttv311", 5: "mqttv5"}


def properties(packet: str, **values: Any) -> Properties:
    """MQTT 5 properties by paho's names: `properties("PUBLISH", MessageExpiryInterval=1)`."""
    made: Properties = _new_properties(getattr(PacketTypes, packet))
    for name, value in values.items():
        setattr(made, name, value)
    return made


def told(message: MQTTMessage | aiomqtt.Message) -> Any:
    """The MQTT 5 properties of a received message, by paho's names."""
    assert message.properties is not None
    return message.properties


@dataclass
class Will:
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass
class Settings:
    """How a client comes in; what is left out is paho's default."""

    version: int = 5
    client_id: str = ""
    persistent: bool = False
    """Keep the session when the connection ends: no clean start, and in MQTT 5 an expiry of 300 s unless `connect`
    says otherwise."""
    username: str | None = None
    password: str | None = None
    will: Will | None = None
    transport: Literal["tcp", "websockets", "unix"] = "tcp"
    tls: ssl.SSLContext | None = None
    connect: dict[str, Any] = field(default_factory=dict)
    """MQTT 5 properties of the CONNECT."""
    manual_ack: bool = False


class Refused(Exception):
    """The CONNECT was answered with an error."""

    def __init__(self, code: int, name: str) -> None:
        super().__init__(f"refused: 0x{code:02x} {name}")
        self.code = code


class Paho:
    """One connection of one paho client.  Messages pile up in `messages`."""

    def __init__(self, host: str, port: int, settings: Settings) -> None:
        self.settings = settings
        self.messages: list[MQTTMessage] = []
        self.session_present = False
        self.disconnect_code: int | None = None
        self.connack: Properties | None = None
        self._news = threading.Condition()
        self._connack: ReasonCode | None = None
        self._answers: dict[int, list[ReasonCode]] = {}
        self.acknowledged: dict[int, int] = {}
        self._ended = False
        self.client = self._made(settings)
        self._connect(host, port)

    def _made(self, settings: Settings) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            settings.client_id,
            clean_session=None if settings.version == 5 else not settings.persistent,
            protocol=_PROTOCOLS[settings.version],
            transport=settings.transport,
            reconnect_on_failure=False,
            manual_ack=settings.manual_ack,
        )
        client.max_inflight_messages_set(100)
        if settings.username is not None:
            client.username_pw_set(settings.username, settings.password)
        if settings.tls is not None:
            client.tls_set_context(settings.tls)
        if settings.will is not None:
            client.will_set(settings.will.topic, settings.will.payload, settings.will.qos, settings.will.retain)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_answer
        client.on_unsubscribe = self._on_answer
        return client

    def _connect(self, host: str, port: int) -> None:
        settings, client = self.settings, self.client
        if settings.version == 5:
            wanted = {"SessionExpiryInterval": 300} if settings.persistent else {}
            asked = properties("CONNECT", **(wanted | settings.connect))
            client.connect(host, port or 1, clean_start=not settings.persistent, properties=asked)
        else:
            client.connect(host, port or 1)
        client.loop_start()
        self._wait(lambda: self._connack is not None or self._ended, "an answer to CONNECT")
        if self._connack is None or self._connack.is_failure:
            self.close()
            code = self._connack or ReasonCode(PacketTypes.DISCONNECT, identifier=0x80)
            raise Refused(code.value, str(code))

    # -- what paho tells, in its own thread --

    def _on_connect(
        self, _client: Client, _data: object, flags: ConnectFlags, code: ReasonCode, found: Properties | None
    ) -> None:
        with self._news:
            self._connack, self.session_present, self.connack = code, flags.session_present, found
            self._news.notify_all()

    def _on_disconnect(
        self, _client: Client, _data: object, flags: DisconnectFlags, code: ReasonCode, _found: Properties | None
    ) -> None:
        with self._news:
            self._ended = True
            self.disconnect_code = code.value if flags.is_disconnect_packet_from_server else None
            self._news.notify_all()

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify_all()

    def _on_publish(self, _client: Client, _data: object, mid: int, code: ReasonCode, _found: Properties) -> None:
        with self._news:
            self.acknowledged[mid] = code.value
            self._news.notify_all()

    def _on_answer(
        self, _client: Client, _data: object, mid: int, codes: list[ReasonCode], _found: Properties | None
    ) -> None:
        with self._news:
            self._answers[mid] = codes
            self._news.notify_all()

    # -- what tests ask --

    def _wait(self, holds: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
        with self._news:
            assert self._news.wait_for(holds, within_s), f"{self.settings.client_id or 'a client'} waits for {what}"

    def subscribe(self, topic_filter: str, qos: int = 0, **values: Any) -> int:
        """The granted QoS, or the reason code."""
        if self.settings.version == 5:
            asked = properties("SUBSCRIBE", **values)
            _, mid = self.client.subscribe(topic_filter, options=SubscribeOptions(qos), properties=asked)
        else:
            _, mid = self.client.subscribe(topic_filter, qos)
        assert mid is not None
        self._wait(lambda: mid in self._answers, f"an answer to SUBSCRIBE {topic_filter}")
        return int(self._answers[mid][0].value)

    def unsubscribe(self, topic_filter: str) -> None:
        _, mid = self.client.unsubscribe(topic_filter)
        assert mid is not None
        self._wait(lambda: mid in self._answers, f"an answer to UNSUBSCRIBE {topic_filter}")

    def send(self, topic: str, payload: bytes | str = b"", qos: int = 0, retain: bool = False, **values: Any) -> int:
        """Publish without waiting; the number to ask `code_of` for."""
        asked = properties("PUBLISH", **values) if values else None
        return self.client.publish(topic, payload, qos, retain, asked).mid

    def code_of(self, mid: int) -> int:
        """The reason code a publication was acknowledged with."""
        self._wait(lambda: mid in self.acknowledged, "the acknowledgement of a PUBLISH")
        return self.acknowledged[mid]

    def publish(self, topic: str, payload: bytes | str = b"", qos: int = 0, retain: bool = False, **values: Any) -> int:
        """Publish, and come back with the reason code when the node has dealt with it."""
        mid = self.send(topic, payload, qos, retain, **values)
        if not qos:
            self.unsubscribe("nothing/of/the/kind")  # packets are dealt with in order, and this one is answered
        return self.code_of(mid)

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        """Many at once, each acknowledged."""
        mids = [self.send(topic, payload, qos) for payload in payloads]
        self._wait(lambda: all(mid in self.acknowledged for mid in mids), f"{len(mids)} acknowledgements")

    def receive(self, count: int = 1, within_s: float = PATIENCE_S) -> list[MQTTMessage]:
        """The messages so far, once there are this many."""
        self._wait(lambda: len(self.messages) >= count, f"{count} messages", within_s)
        return list(self.messages)

    def payloads(self, count: int = 1, within_s: float = PATIENCE_S) -> list[bytes]:
        return [bytes(message.payload) for message in self.receive(count, within_s)]

    def receive_payload(self, payload: bytes) -> None:
        self._wait(lambda: payload in [bytes(message.payload) for message in self.messages], f"{payload!r}")

    def wait_for_end(self) -> int | None:
        """The node closes the connection; the reason code it gave in a DISCONNECT."""
        self._wait(lambda: self._ended, "the end of the connection")
        return self.disconnect_code

    # -- its end --

    def close(self) -> None:
        """In good order; safe to call twice."""
        self.client.disconnect()
        self._stop()

    def vanish(self) -> None:
        """Without DISCONNECT, as if the power had gone."""
        open_socket = self.client.socket()
        assert isinstance(open_socket, socket.socket)
        open_socket.shutdown(socket.SHUT_RDWR)
        self._stop()

    def _stop(self) -> None:
        self.client.loop_stop()
        # paho closes its sockets only when it is collected, and then in no particular order.
        self.client._reset_sockets()


def mosquitto(command: str, port: int, version: int, *words: str) -> subprocess.Popen[bytes]:
    """`mosquitto_pub`, `mosquitto_sub` or `mosquitto_rr` as a process of its own."""
    target = ["-h", "127.0.0.1", "-p", str(port)] if port else []
    return subprocess.Popen(
        [command, *target, "-V", _FLAGS[version], *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def output(process: subprocess.Popen[bytes], given: bytes = b"") -> bytes:
    """Its output, once it has ended well."""
    try:
        out, err = process.communicate(given, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, err.decode()
    return out
