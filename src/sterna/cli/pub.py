"""`sterna pub`: publish with mosquitto_pub's flags."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from paho.mqtt.reasoncodes import ReasonCode

from sterna.cli.conversation import CONNECTION_LOST, Conversation
from sterna.cli.mosquitto_flags import ConnectionFlags, MosquittoCommand, command_of

UNDER_WAY_MAX = 1000
"""Messages handed over and not yet sent (QoS 0) or acknowledged (QoS 1, 2); beyond it reading more input waits."""


@dataclass(frozen=True, kw_only=True)
class PubFlags(ConnectionFlags):
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Topic.")] = None
    message: Annotated[str | None, typer.Option("-m", "--message", help="Payload.")] = None
    file: Annotated[Path | None, typer.Option("-f", "--file", help="The payload is this file.")] = None
    stdin_line: Annotated[bool, typer.Option("-l", "--stdin-line", help="One message per line of stdin.")] = False
    stdin_file: Annotated[bool, typer.Option("-s", "--stdin-file", help="The payload is stdin.")] = False
    null_message: Annotated[bool, typer.Option("-n", "--null-message", help="No payload.")] = False
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Publish so many times.")] = 1
    repeat_delay: Annotated[float, typer.Option("--repeat-delay", min=0, help="Seconds between two times.")] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        modes = self.message is not None, self.file is not None, self.stdin_line, self.stdin_file, self.null_message
        if sum(modes) != 1:
            raise typer.BadParameter("say what to send with exactly one of -f, -l, -m, -n, -s")
        if not self.chosen_topic or "+" in self.chosen_topic or "#" in self.chosen_topic:
            raise typer.BadParameter("name one topic, without wildcards", param_hint="-t")

    @property
    def chosen_topic(self) -> str:
        return self.topic or self.target.topic or ""


def payloads(flags: PubFlags) -> Iterator[bytes]:
    """Payloads to publish, in order; a file that cannot be read is refused before anything is sent."""
    if flags.stdin_line:
        return (line.removesuffix(b"\n") for line in sys.stdin.buffer)
    payload = given_payload(flags.message, flags.file, from_stdin=flags.stdin_file)
    return itertools.repeat(payload, flags.repeat)


def given_payload(message: str | None, file: Path | None, *, from_stdin: bool) -> bytes:
    """The one payload that the flags name."""
    if from_stdin:
        return sys.stdin.buffer.read()
    if file is None:
        # Arguments that are not UTF-8 come in with surrogates and leave as the bytes they were.
        return (message or "").encode(errors="surrogateescape")
    try:
        return file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint="-f") from None


class PubConversation(Conversation):
    """The network runs in paho's thread while this one reads, publishes and waits."""

    def __init__(self, flags: PubFlags, messages: Iterator[bytes]) -> None:
        super().__init__(flags)
        self._how = flags
        self._messages = messages
        self._properties = self.properties("PUBLISH")
        self._is_ready = False
        self._under_way = 0
        self.client.on_publish = lambda _client, _userdata, mid, reason, found: self._on_publish(mid, reason, found)

    def on_ready(self) -> None:
        if self._is_ready and self._under_way and self._how.qos == 0:
            self.finish(CONNECTION_LOST, "Error: The connection was lost, and messages with it.")
        with self.changed:
            self._is_ready = True
            self.changed.notify_all()

    def talk(self) -> None:
        self.client.loop_start()
        self._wait_for(lambda: self._is_ready)
        if self.is_finished:
            return  # without waiting for input that nobody will take
        for number, payload in enumerate(self._messages):
            if number and self._how.repeat_delay:
                time.sleep(self._how.repeat_delay)
            if self.is_finished:
                return
            self._publish(payload)
        self._wait_for(lambda: self._under_way == 0)

    def _publish(self, payload: bytes) -> None:
        self._wait_for(lambda: self._under_way < UNDER_WAY_MAX)
        with self.changed:
            self._under_way += 1
        how = self._how
        self.client.publish(how.chosen_topic, payload, how.qos, how.retain, self._properties)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.is_finished or condition())

    def _on_publish(self, mid: int, reason: ReasonCode, properties: Any) -> None:
        if reason.is_failure:
            why = getattr(properties, "ReasonString", "")
            self.complain(f"Warning: Publish {mid} failed: {reason}{f' ({why})' if why else ''}.")
        with self.changed:
            self._under_way -= 1
            self.changed.notify_all()


def pub(flags: PubFlags) -> int:
    """Publish one message, or one per line.  The flags are mosquitto_pub's."""
    return PubConversation(flags, payloads(flags)).run()


app = typer.Typer()
app.command("pub", cls=MosquittoCommand)(command_of(PubFlags, pub))
