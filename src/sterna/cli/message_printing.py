"""Prints messages to stdout as the flags of `sterna sub` and `sterna rr` ask for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer
from paho.mqtt.client import MQTTMessage

from sterna.cli.message_format import MessageFormat, ReceivedMessage, as_json, plain, verbose


@dataclass(frozen=True, kw_only=True)
class PrintFlags:
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic too.")] = False
    format: Annotated[str | None, typer.Option("-F", help="Format: %t topic, %p payload, %j JSON, ...")] = None
    pretty: Annotated[bool, typer.Option("--pretty", help="Indent the JSON of %j and %J.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per message.")] = False
    no_newline: Annotated[bool, typer.Option("-N", help="No newline after a message.")] = False


class MessagePrinter:
    def __init__(self, flags: PrintFlags, complain: Callable[[str], None]) -> None:
        """May raise typer.BadParameter."""
        self._end = b"" if flags.no_newline else b"\n"
        self._complain = complain
        self._shown = _shown_as(flags)
        #: Of a message without payload there is nothing to print, and no empty line either.
        self._is_silent = self._shown is plain or (self._shown is verbose and flags.no_newline)

    def print(self, message: MQTTMessage) -> bool:
        """False if nobody reads any more."""
        try:
            text = self._shown(ReceivedMessage(message, time.time_ns())) + self._end
        except ValueError as error:
            self._complain(str(error))
            text = self._end
        if self._is_silent and not message.payload:
            return True
        try:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # The reader has gone.  Python would flush once more on its way out, so there must be somewhere to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
        return True


def _shown_as(flags: PrintFlags) -> Callable[[ReceivedMessage], bytes]:
    if flags.as_json:
        return as_json
    if flags.format is None:
        return verbose if flags.verbose else plain
    try:
        return MessageFormat(flags.format, pretty=flags.pretty)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-F") from None
