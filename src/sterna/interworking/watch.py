"""The connection of a node that stands by: it only hears fences, to know whether the other node still is there."""

from __future__ import annotations

from collections.abc import Callable

from sterna.interworking import fences
from sterna.interworking.foreign_line import CONNACK, ForeignLine
from sterna.interworking.greeting import refusal
from sterna.interworking.ports import Timer, World
from sterna.interworking.probe import PACKET_BYTES, Caller
from sterna.mqtt import client_packets as encode
from sterna.mqtt import wire
from sterna.mqtt.packets import PUBLISH
from sterna.mqtt.server_packets import decode_connack


class Watch(ForeignLine):
    def __init__(
        self,
        world: World,
        caller: Caller,
        level: int,
        heard: Callable[[fences.Fence], None],
        ended: Callable[[str], None],
    ) -> None:
        super().__init__(world, PACKET_BYTES, ended)
        self._caller = caller
        self._level = level
        self._version = encode.version_of(level)
        self._heard = heard
        self._ping: Timer | None = None

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

    def close(self, farewell: bytes = b"") -> None:
        if self._ping is not None:
            self._ping.cancel()
        super().close(farewell)
