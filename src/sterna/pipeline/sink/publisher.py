"""Publishes numbered messages to a node and returns when all of them are acknowledged.

Every message carries its number, "batch.row", in the user property `sterna-sequence`.  A node remembers the last
number of each client id, and acknowledges a repeated message without publishing it again.  So a task that runs again
under the same client id adds nothing.  Another broker publishes repeated messages: there, delivery is at least once.
"""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sterna.pipeline.errors import PublishFailed
from sterna.pipeline.options import WriteOptions
from sterna.pipeline.sink.rows import Outgoing
from sterna.vocabulary.errors import ConfigurationError

SEQUENCE = "sterna-sequence"

UNDER_WAY_MAX = 1000
"""Messages sent and not acknowledged."""
KEEP_ALIVE_S = 30
EXPIRY_MAX_S = (1 << 32) - 1
RELEASED_BEFORE = 0x92
"""Packet identifier not found: the answer to a PUBREL that comes again."""


class NumberedPublisher:
    """`with Publisher(options, client_id, batch) as publisher: publisher.publish(messages)`."""

    def __init__(self, options: WriteOptions, client_id: str, batch: int) -> None:
        self._options = options
        self._batch = batch
        self._changed = threading.Condition()
        self._window = UNDER_WAY_MAX
        self._under_way: dict[int, Outgoing] = {}
        self._early: set[int] = set()
        self._refusal = ""
        self._heard_at = time.monotonic()
        self._connected = False
        self.published = 0
        """Acknowledged so far."""
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5, reconnect_on_failure=True
        )
        self._client.max_inflight_messages_set(UNDER_WAY_MAX)
        self._client.reconnect_delay_set(1, 2)
        if options.user is not None:
            self._client.username_pw_set(options.user, options.password)
        if options.ca_file is not None:
            self._client.tls_set_context(_authorities(options.ca_file))
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish

    def __enter__(self) -> Self:
        lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho has no types here
        lasting.SessionExpiryInterval = self._options.remember_s
        host, port = self._options.host, self._options.port
        deadline = time.monotonic() + self._options.patience_s
        while True:
            try:
                self._client.connect(host, port, KEEP_ALIVE_S, clean_start=False, properties=lasting)
                break
            except ssl.SSLError as error:
                why = getattr(error, "verify_message", "") or error.reason or error
                raise PublishFailed(f"no TLS with node {host}:{port}: {why}") from None
            except OSError as error:
                if time.monotonic() > deadline:
                    raise PublishFailed(f"node {host}:{port} cannot be reached: {error.strerror or error}") from None
                time.sleep(0.25)
        self._client.loop_start()
        try:
            self._wait_for(lambda: self._connected)
        except PublishFailed:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # paho closes its sockets when nothing refers to the client any more, which these did.
        self._client.on_connect = self._client.on_disconnect = self._client.on_publish = None

    def publish(self, messages: Iterable[Outgoing]) -> None:
        for message in messages:
            if message.expires_s is not None and message.expires_s <= time.time():
                continue  # nobody may have it any more
            self._wait_for(lambda: len(self._under_way) < self._window)
            self._send(message)

    def finish(self) -> None:
        """Come back when everything has been acknowledged."""
        self._wait_for(lambda: not self._under_way)

    def _send(self, message: Outgoing) -> None:
        told = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho has no types here
        told.UserProperty = [(SEQUENCE, f"{self._batch}.{message.row}"), *message.properties]
        if message.content_type is not None:
            told.ContentType = message.content_type
        if message.expires_s is not None:
            left_s = math.ceil(message.expires_s - time.time())
            told.MessageExpiryInterval = min(max(left_s, 1), EXPIRY_MAX_S)
        with self._changed:
            if not self._under_way:
                self._heard_at = time.monotonic()  # it had nothing to answer: its silence begins now
        sent = self._client.publish(message.topic, message.payload, message.qos, message.retain, told)
        with self._changed:
            if sent.mid in self._early:
                self._early.remove(sent.mid)  # acknowledged before we knew its number
                self.published += 1
            else:
                self._under_way[sent.mid] = message

    def _wait_for(self, holds: Any) -> None:
        """Patience is counted from the last word of the node."""
        with self._changed:
            while not holds():
                left_s = self._heard_at + self._options.patience_s - time.monotonic()
                if self._refusal or left_s <= 0:
                    break
                self._changed.wait(left_s)
            if self._refusal or not holds():
                raise PublishFailed(self._refusal or self._silence())

    def _silence(self) -> str:
        return (
            f"node {self._options.host}:{self._options.port} did not answer for {self._options.patience_s:g} s; "
            f"{self.published} messages were published, {len(self._under_way)} wait"
        )

    # -- told by paho, in its thread --

    def _on_connect(self, _client: Any, _userdata: Any, _flags: Any, reason: ReasonCode, told: Any) -> None:
        with self._changed:
            if reason.is_failure:
                self._refusal = f"node {self._options.host}:{self._options.port} does not let us in: {reason}"
            self._connected = not reason.is_failure
            self._window = min(UNDER_WAY_MAX, getattr(told, "ReceiveMaximum", UNDER_WAY_MAX))
            self._heard_at = time.monotonic()
            self._changed.notify_all()

    def _on_disconnect(self, _client: Any, _userdata: Any, _flags: Any, reason: ReasonCode, _told: Any) -> None:
        with self._changed:
            if reason.getName() == "Session taken over":
                self._refusal = "another attempt at this task publishes in its place"
                self._changed.notify_all()

    def _on_publish(self, _client: Any, _userdata: Any, mid: int, reason: ReasonCode, _told: Any) -> None:
        # A release that is repeated after a crash finds nothing to release: the message was passed on before.
        refused = reason.is_failure and reason.value != RELEASED_BEFORE
        with self._changed:
            message = self._under_way.pop(mid, None)
            if message is None:
                self._early.add(mid)
            elif not refused:
                self.published += 1
            if refused:
                what = f'row {message.row} of the partition, to "{message.topic}"' if message else "a row"
                self._refusal = f"the node refused {what}: {reason}; {self.published} messages were published"
            self._heard_at = time.monotonic()
            self._changed.notify_all()


def _authorities(file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise ConfigurationError(f"caFile: {file} holds no authorities: {error.strerror or error}") from None
