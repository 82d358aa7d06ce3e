"""The connection of a node that stands by: it only hears fences, to know whether the other node still is there.

If it relays clients nevertheless it sends fences, too: the other node does not know what these want.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.interworking import fences
from sterna.interworking.foreign_line import CONNACK, ForeignLine
from sterna.interworking.greeting import refusal
from sterna.interworking.ports import ForeignTimer, ForeignWorld
from sterna.interworking.probe import PACKET_BYTES, Caller
from sterna.mqtt import client_packets as encode
from sterna.mqtt import wire
from sterna.mqtt.packets import PUBLISH
from sterna.mqtt.server_packets import decode_connack


class DoubleWatch(ForeignLine):
    def __init__(
        self,
        world: ForeignWorld,
        caller: Caller,
        level: int,
        heard: Callable[[fences.Fence], None],
        ended: Callable[[str], None],
        new_fence: Callable[[], bytes] | None,
        fence_s: float,
    ) -> None:
        """`new_fence`: the payload of one of our own; None: it only hears those of others."""
        super().__init__(world, PACKET_BYTES, ended)
        self._new_fence = new_fence
        self._fence_s = fence_s
        self._next_fence: ForeignTimer | None = None
        self._caller = caller
        self._level = level
        self._version = encode.version_of(level)
        self._heard = heard
        self._ping: ForeignTimer | None = None

    def begin(self) -> None:
        self._caller.greet(self, self._level, clean=True)

    def packet(self, first: int, data: bytes, start: int, body: int, stop: int) -> None:
        if first >> 4 == CONNACK:
            self.answered()
            answer = decode_connack(data, body, stop, self._version)
            if answer.code:
                self.fail(refusal(answer, self._version))
                return
            self.write(encode.encode_subscribe(1, [(fences.FILTER, 0)], self._version))
            self._keep_alive()
            self._send_fence()
        elif first >> 4 == PUBLISH:
            topic, place = wire.read_binary(data, body, stop)
            if first & 0x06:
                place += 2
            if self._version == 5:
                length, place = wire.read_variable(data, place, stop)
                place += length
            fence = fences.decode(topic, data[place:stop])
            if fence is not None:
                self._heard(fence)

    def _keep_alive(self) -> None:
        self.write(encode.PINGREQ_BYTES)
        self._ping = self._world.later(self._caller.keep_alive_s * 0.75, self._keep_alive)

    def _send_fence(self) -> None:
        if self._new_fence is not None:
            self.write(encode.encode_publish(self._caller.topic, self._new_fence(), self._version))
            self._next_fence = self._world.later(self._fence_s, self._send_fence)

    def close(self, farewell: bytes = b"") -> None:
        for timer in (self._ping, self._next_fence):
            if timer is not None:
                timer.cancel()
        super().close(farewell)
