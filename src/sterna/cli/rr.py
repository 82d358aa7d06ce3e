"""`sterna rr`: publish a request and print the response, with mosquitto_rr's flags."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from sterna.cli.conversation import CONNECTION_LOST, FAILED, TIMED_OUT, Conversation
from sterna.cli.message_printing import MessagePrinter, PrintFlags
from sterna.cli.mosquitto_flags import ConnectionFlags, MosquittoCommand, command_of
from sterna.cli.pub import given_payload

LOOK_S = 1.0
CORRELATION_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class RrFlags(PrintFlags, ConnectionFlags):
    version: Annotated[str, typer.Option("-V", "--protocol-version", help="5, 311 or 31, or mqttv5 ...")] = "5"
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Topic of the request.")] = None
    response_topic: Annotated[str, typer.Option("-e", help="Topic on which the response comes.")] = ""
    message: Annotated[str | None, typer.Option("-m", "--message", help="Payload of the request.")] = None
    file: Annotated[Path | None, typer.Option("-f", "--file", help="The payload is this file.")] = None
    stdin_file: Annotated[bool, typer.Option("-s", "--stdin-file", help="The payload is stdin.")] = False
    null_message: Annotated[bool, typer.Option("-n", "--null-message", help="No payload.")] = False
    timeout_s: Annotated[int | None, typer.Option("-W", min=1, help="End after so many seconds, with 27.")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum((self.message is not None, self.file is not None, self.stdin_file, self.null_message)) != 1:
            raise typer.BadParameter("say what to send with exactly one of -f, -m, -n, -s")
        for topic, flag in ((self.chosen_topic, "-t"), (self.response_topic, "-e")):
            if not topic or "+" in topic or "#" in topic:
                raise typer.BadParameter("name one topic, without wildcards", param_hint=flag)

    @property
    def chosen_topic(self) -> str:
        return self.topic or self.target.topic or ""


class Requester(Conversation):
    """Subscribes, then asks, then waits for the first answer that is ours."""

    def __init__(self, flags: RrFlags, payload: bytes) -> None:
        super().__init__(flags)
        self._how = flags
        self._payload = payload
        self._printer = MessagePrinter(flags, self.complain)
        self._request = self.properties("PUBLISH")
        self._mark: bytes | None = None
        if self._request is not None:
            self._request.ResponseTopic = flags.response_topic
            self._mark = getattr(self._request, "CorrelationData", None) or secrets.token_bytes(CORRELATION_BYTES)
            self._request.CorrelationData = self._mark
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = self._on_message

    def on_ready(self) -> None:
        topic, qos = self._how.response_topic, self._how.qos
        if self.flags.protocol == MQTTv5:
            self.client.subscribe(topic, options=SubscribeOptions(qos), properties=self.properties("SUBSCRIBE"))
        else:
            self.client.subscribe(topic, qos)

    def talk(self) -> None:
        end = time.monotonic() + (self._how.timeout_s or math.inf)
        while not self.is_finished:
            left = end - time.monotonic()
            if left <= 0:
                self.finish(TIMED_OUT, "Timed out")
            elif self.client.loop(min(left, LOOK_S)) != 0 and not self.is_finished:
                self.finish(CONNECTION_LOST, f"Error: {self.place}: The connection was lost.")

    def _on_subscribe(
        self, client: Client, _userdata: Any, _mid: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        if reasons[0].is_failure:
            self.finish(FAILED, f"Subscribing to {self._how.response_topic} failed: {reasons[0]}")
            return
        client.publish(self._how.chosen_topic, self._payload, self._how.qos, properties=self._request)

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        """One that answers somebody else says so; old retained ones answer nobody."""
        mark = getattr(message.properties, "CorrelationData", None)
        if self.is_finished or message.retain or (mark is not None and mark != self._mark):
            return
        self._printer.print(message)
        self.finish()


def rr(flags: RrFlags) -> int:
    """Publish a request and print the response.  The flags are mosquitto_rr's."""
    return Requester(flags, given_payload(flags.message, flags.file, from_stdin=flags.stdin_file)).run()


app = typer.Typer()
app.command("rr", cls=MosquittoCommand)(command_of(RrFlags, rr))
