"""One connection to the foreign broker: bytes in, whole packets out, and a time by which an answer must have come.

The foreign broker's bytes are trusted no more than a client's: anything that is not MQTT ends the line with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sterna.interworking.ports import ForeignTimer, ForeignWorld, Output
from sterna.mqtt.framing import Incoming, packet_end
from sterna.vocabulary.errors import ProtocolError

CONNACK: Final = 2
SUBACK: Final = 9
UNSUBACK: Final = 11
PINGRESP: Final = 13


class ForeignLine:
    def __init__(self, world: ForeignWorld, packet_bytes: int, ended: Callable[[str], None]) -> None:
        """`ended` is told once why the line has ended, unless `close` ended it."""
        self._world = world
        self._packet_bytes = packet_bytes
        self._ended: Callable[[str], None] | None = ended
        self._incoming = Incoming()
        self._answer: ForeignTimer | None = None
        self._is_silent = True
        self.output: Output | None = None
        #: No packet is taken for the time being.
        self.is_held = False

    # -- what the world tells --

    def connected(self, output: Output) -> None:
        if self._ended is None:
            output.abort()
            return
        self.output = output
        self.begin()

    def feed(self, data: bytes) -> None:
        """HOT."""
        if self._ended is None:
            return
        if self._is_silent:
            self._is_silent = False
            if data[0] != CONNACK << 4:
                self.fail(_not_mqtt(data))
                return
        if self.is_held:
            self._incoming.add(data)
            return
        data = self._incoming.with_more(data)
        if data:
            self._take(data)

    def lost(self, reason: str) -> None:
        """The connection has ended, or there never was one."""
        self.output = None
        self.fail(reason)

    def congested(self) -> None:
        """Its socket is full."""

    def writable(self) -> None:
        """There is room again."""

    # -- what it does --

    def begin(self) -> None:
        """Connected: say CONNECT."""
        raise NotImplementedError

    def packet(self, first: int, data: bytes, start: int, body: int, stop: int) -> None:
        """HOT.  One whole packet, `data[start:stop]`.  May raise ProtocolError."""
        raise NotImplementedError

    def taken(self) -> None:
        """All packets of a piece of input were taken."""

    def _take(self, data: bytes) -> None:
        position, end = 0, len(data)
        try:
            while position < end and not self.is_held:
                body, stop = packet_end(data, position, self._packet_bytes)
                if not body:
                    self._incoming.keep(data[position:], stop)
                    break
                self.packet(data[position], data, position, body, stop)
                position = stop
                if self._ended is None:
                    return
            else:
                if position < end:
                    self._incoming.keep(data[position:], 0)
            self.taken()
        except ProtocolError as error:
            self.fail(f"the broker broke the protocol: {error.reason}")

    def go_on(self) -> None:
        """Take packets again, those first that came meanwhile."""
        self.is_held = False
        if self._incoming.size:
            self._take(self._incoming.take())

    def write(self, data: bytes) -> None:
        if self.output is not None:
            self.output.write(data)

    def await_answer(self, seconds: float, missing: str) -> None:
        """Unless `answered` is called in time the line ends; `missing` says what did not come."""
        self.answered()
        self._answer = self._world.later(seconds, lambda: self.timed_out(f"{missing} did not come in {seconds:g} s"))

    def timed_out(self, reason: str) -> None:
        self.fail(reason)

    def answered(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
            self._answer = None

    def fail(self, reason: str) -> None:
        ended = self._ended
        self.close()
        if ended is not None:
            ended(reason)

    def close(self, farewell: bytes = b"") -> None:
        """End it from here; nobody is told."""
        self._ended = None
        self.answered()
        output, self.output = self.output, None
        if output is None:
            return
        if farewell:
            output.write(farewell)
            output.close()
        else:
            output.abort()

    @property
    def is_open(self) -> bool:
        return self._ended is not None


def _not_mqtt(data: bytes) -> str:
    what = "HTTP" if data.startswith(b"HTTP/") else f"something else than MQTT ({data[:16]!r})"
    return f"the port speaks {what}; name the port on which the broker takes MQTT clients"
