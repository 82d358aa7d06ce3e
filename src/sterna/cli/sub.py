"""`sterna sub`: subscribe with mosquitto_sub's flags, and print what comes."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from paho.mqtt.client import Client, MQTTMessage, MQTTv5, topic_matches_sub
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from sterna.cli.conversation import FAILED, TIMED_OUT, Conversation
from sterna.cli.message_printing import MessagePrinter, PrintFlags
from sterna.cli.mosquitto_flags import ConnectionFlags, MosquittoCommand, command_of
from sterna.mqtt.topics import is_topic_filter

RECONNECT_S = 1.0
_LEVELS_MAX, _BYTES_MAX = 65535, 65535


@dataclass(frozen=True, kw_only=True)
class SubFlags(PrintFlags, ConnectionFlags):
    topics: Annotated[list[str], typer.Option("-t", "--topic", help="Topic filter; may be repeated.")] = field(
        default_factory=list
    )
    unsubscribe: Annotated[list[str], typer.Option("-U", "--unsubscribe", help="Unsubscribe from this first.")] = field(
        default_factory=list
    )
    filter_out: Annotated[list[str], typer.Option("-T", "--filter-out", help="Do not print these topics.")] = field(
        default_factory=list
    )
    count: Annotated[int | None, typer.Option("-C", min=1, help="End after so many messages.")] = None
    timeout_s: Annotated[int | None, typer.Option("-W", min=1, help="End after so many seconds, with 27.")] = None
    exit_when_subscribed: Annotated[bool, typer.Option("-E", help="End as soon as subscribed.")] = False
    no_retain: Annotated[bool, typer.Option("-R", help="Do not print retained messages.")] = False
    retained_only: Annotated[bool, typer.Option("--retained-only", help="End at the first fresh message.")] = False
    remove_retained: Annotated[bool, typer.Option("--remove-retained", help="Clear what is received.")] = False
    retain_as_published: Annotated[bool, typer.Option("--retain-as-published", help="MQTT 5.")] = False
    random_filter: Annotated[float, typer.Option("--random-filter", min=0.1, max=100, help="Print so many %.")] = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.chosen_topics and not self.unsubscribe:
            raise typer.BadParameter("name a topic filter", param_hint="-t")
        for topic in (*self.chosen_topics, *self.unsubscribe, *self.filter_out):
            if not is_topic_filter(topic.encode(), _LEVELS_MAX, _BYTES_MAX):
                raise typer.BadParameter(f"{topic!r} is no topic filter; + is a whole level, # the last")

    @property
    def chosen_topics(self) -> list[str]:
        return [*self.topics, *([self.target.topic] if self.target.topic else [])]


class Subscriber(Conversation):
    def __init__(self, flags: SubFlags) -> None:
        super().__init__(flags)
        self._how = flags
        self._printer = MessagePrinter(flags, self.complain)
        self._left = flags.count or math.inf
        self._clearing = 0
        self._dice = random.Random()
        self._is_enough = False
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_cleared

    def on_ready(self) -> None:
        if self._how.unsubscribe:
            self.client.unsubscribe(self._how.unsubscribe, self.properties("UNSUBSCRIBE"))
        topics = self._how.chosen_topics
        if not topics:
            self.finish()
        elif self.flags.protocol == MQTTv5:
            options = SubscribeOptions(self._how.qos, retainAsPublished=self._how.retain_as_published)
            wanted = [(topic, options) for topic in topics]
            self.client.subscribe(wanted, properties=self.properties("SUBSCRIBE"))
        else:
            self.client.subscribe([(topic, self._how.qos) for topic in topics])

    def talk(self) -> None:
        """Runs the network in this thread: when a message ends the talk, its acknowledgement is already out."""
        end = time.monotonic() + (self._how.timeout_s or math.inf)
        while not self.is_finished:
            left = end - time.monotonic()
            if left <= 0:
                self.finish(TIMED_OUT, "Timed out")
            elif self.client.loop(min(left, RECONNECT_S)) != 0 and not self.is_finished:
                self._come_back(min(left, RECONNECT_S))
            elif self._is_enough and not self._clearing:
                self.finish()

    def _come_back(self, delay_s: float) -> None:
        time.sleep(delay_s)
        try:
            self.client.reconnect()
        except OSError as error:
            self.complain(f"Error: {self.place}: {error.strerror or error}")

    def _on_subscribe(
        self, _client: Client, _userdata: Any, _mid: int, reasons: list[ReasonCode], properties: Any
    ) -> None:
        why = getattr(properties, "ReasonString", "")  # one for all of them, whichever it was
        for topic, reason in zip(self._how.chosen_topics, reasons, strict=False):
            if reason.is_failure:
                self.complain(f"Warning: Subscribing to {topic} failed: {reason}" + (f": {why}" if why else ""))
        if all(reason.is_failure for reason in reasons):
            self.finish(FAILED, "All subscription requests were denied.")
        elif self._how.exit_when_subscribed:
            self.finish()

    def _on_message(self, client: Client, _userdata: Any, message: MQTTMessage) -> None:
        how = self._how
        if self._is_enough:
            return
        if how.retained_only and not message.retain:
            self._is_enough = True
            return
        if (how.no_retain and message.retain) or any(topic_matches_sub(out, message.topic) for out in how.filter_out):
            return
        if how.remove_retained and message.retain:
            self._clearing += 1
            client.publish(message.topic, None, qos=1, retain=True)
        if how.random_filter == 100 or self._dice.random() * 100 < how.random_filter:
            self._is_enough = not self._printer.print(message)
        self._left -= 1
        self._is_enough = self._is_enough or self._left <= 0

    def _on_cleared(self, _client: Client, _userdata: Any, _mid: int, _reason: ReasonCode, _properties: Any) -> None:
        self._clearing -= 1


def sub(flags: SubFlags) -> int:
    """Subscribe and print messages.  The flags are mosquitto_sub's."""
    return Subscriber(flags).run()


app = typer.Typer()
app.command("sub", cls=MosquittoCommand)(command_of(SubFlags, sub))
