"""The connection that carries the session: CONNECT to SUBACK, then everything that passes the joint; keep-alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sterna.interworking.abilities import Abilities
from sterna.interworking.foreign_line import CONNACK, PINGRESP, SUBACK, UNSUBACK, ForeignLine
from sterna.interworking.greeting import refusal
from sterna.interworking.joint import Joint
from sterna.interworking.ports import ForeignTimer, ForeignWorld
from sterna.interworking.probe import REFUSED, Caller
from sterna.mqtt import client_packets as encode
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import DISCONNECT, MQTT_5
from sterna.mqtt.properties import Properties
from sterna.mqtt.reasons import Reason
from sterna.mqtt.server_packets import Connack, decode_connack, decode_disconnect, decode_granted
from sterna.mqtt.wire import malformed

FOREVER: Final = 0xFFFFFFFF
#: A broker that has said nothing for so many keep-alives is gone.
SILENT_KEEP_ALIVES: Final = 2


class Attached(Protocol):
    """The listener that hears of events on the line."""

    def greeted(self, *, session_present: bool) -> None:
        """The foreign broker has let us in."""

    def subscribed(self) -> None: ...
    def is_writable(self, *, now: bool) -> None:
        """Its socket is full, or has room again."""


class SessionLine(ForeignLine):
    def __init__(
        self,
        world: ForeignWorld,
        caller: Caller,
        abilities: Abilities,
        joint: Joint,
        attached: Attached,
        ended: Callable[[str], None],
        *,
        clean: bool,
        packet_bytes: int,
        receive_maximum: int,
    ) -> None:
        super().__init__(world, packet_bytes, ended)
        self._caller = caller
        self._abilities = abilities
        self._version = abilities.version
        self._joint = joint
        self._attached = attached
        self._clean = clean
        self._receive_maximum = receive_maximum
        self._ping: ForeignTimer | None = None
        self._heard_at = world.now
        self._subscribing = self._requests = 0
        self._asked: Sequence[bytes] = ()

    def begin(self) -> None:
        values: Properties = {
            prop.SESSION_EXPIRY: 0 if self._clean else FOREVER,
            prop.RECEIVE_MAXIMUM: self._receive_maximum,
            prop.MAXIMUM_PACKET_SIZE: self._packet_bytes,
        }
        self._caller.greet(self, self._abilities.level, clean=self._clean, values=values)

    def feed(self, data: bytes) -> None:
        """HOT."""
        self._heard_at = self._joint.now = self._world.now
        super().feed(data)

    def congested(self) -> None:
        self._attached.is_writable(now=False)

    def writable(self) -> None:
        self._attached.is_writable(now=True)

    def packet(self, first: int, data: bytes, start: int, body: int, stop: int) -> None:
        """HOT."""
        if self._joint.from_broker(first, data, start, body, stop):
            return
        kind = first >> 4
        if kind == CONNACK:
            self._greeted(decode_connack(data, body, stop, self._version))
        elif kind == SUBACK:
            self._granted(*decode_granted(data, body, stop, self._version))
        elif kind == DISCONNECT and self._version == MQTT_5:
            self._sent_away(data, body, stop)
        elif kind not in (PINGRESP, UNSUBACK):
            raise malformed(f"packet type {kind} is not expected from a broker")

    def taken(self) -> None:
        """HOT."""
        self._joint.flush()

    def _greeted(self, answer: Connack) -> None:
        self.answered()
        if answer.code:
            self.fail(refusal(answer, self._version))
            return
        self._keep_alive(answer.properties.get(prop.SERVER_KEEP_ALIVE, self._caller.keep_alive_s))
        self._attached.greeted(session_present=answer.session_present)

    def _sent_away(self, data: bytes, body: int, stop: int) -> None:
        code, found = decode_disconnect(data, body, stop)
        why = found.get(prop.REASON_STRING, b"")[:200].decode()
        if code == Reason.SESSION_TAKEN_OVER:
            why = "another client has the same client_id: give each node its own in [interworking]"
        self.fail(f"the broker sent us away (DISCONNECT 0x{code:02x}{', ' + why if why else ''})")

    # -- requests --

    def subscribe(self, filters: Sequence[tuple[bytes, int]]) -> None:
        self._subscribing = self.free_packet_id()
        self._asked = [topic_filter for topic_filter, _ in filters]
        self.await_answer(self._caller.answer_s, "SUBACK")
        self.write(encode.encode_subscribe(self._subscribing, filters, self._version))

    def free_packet_id(self) -> int:
        """Our own broker counts upwards and has few in flight: one that is far away from these."""
        self._requests = (self._requests + 1) % 256
        last = next(reversed(self._joint.outstanding), 0)
        return (last + 32768 + self._requests) % 65535 + 1

    def _granted(self, packet_id: int, codes: bytes) -> None:
        if packet_id != self._subscribing:
            return
        self.answered()
        refused = [self._asked[place].decode() for place, code in enumerate(codes) if code >= REFUSED]
        if refused or len(codes) != len(self._asked):
            names = ", ".join(refused) or "a filter"
            self.fail(
                f"the broker refuses the subscription to {names} (SUBACK 0x{max(codes, default=0):02x}): "
                "give the account the right to read it, or change from_broker in [interworking]"
            )
            return
        self._attached.subscribed()

    # -- keep-alive --

    def _keep_alive(self, keep_alive_s: int) -> None:
        period = max(keep_alive_s, 1) * 0.75
        world = self._world

        def look() -> None:
            if not self.is_open:
                return
            silent_s = world.now - self._heard_at
            if silent_s > SILENT_KEEP_ALIVES * max(keep_alive_s, 1):
                self.fail(f"the broker has said nothing for {silent_s:.0f} s")
                return
            self.write(encode.PINGREQ_BYTES)
            self._ping = world.later(period, look)

        self._ping = world.later(period, look)

    def close(self, farewell: bytes = b"") -> None:
        if self._ping is not None:
            self._ping.cancel()
        super().close(farewell)
