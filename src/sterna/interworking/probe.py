"""Asks a foreign broker what it can do, on a connection and under topics of its own.

The levels of MQTT are tried from the best to the plainest (`LADDER`), until one is found on which our messages can be
told from others.  Nothing is assumed from what is granted: messages are published, and what comes back is looked at.
All topics are below the fence topic of this node; retained messages are cleared again, those of an earlier time that
was broken off, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sterna.interworking.abilities import LADDER, Abilities
from sterna.interworking.foreign_line import CONNACK, PINGRESP, SUBACK, ForeignLine
from sterna.interworking.greeting import is_level_refused, refusal
from sterna.interworking.ports import ForeignTimer, ForeignWorld
from sterna.mqtt import client_packets as encode
from sterna.mqtt import properties as prop
from sterna.mqtt import wire
from sterna.mqtt.packets import MQTT_3_1_1, MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, encode_acknowledgement
from sterna.mqtt.properties import Properties
from sterna.mqtt.server_packets import Connack, decode_connack, decode_granted

#: After PINGRESP, for messages that a broker with several threads sends later.
GRACE_S = 0.5
PACKET_BYTES = 64 * 1024
_KEPT_ID, _SUBSCRIBE_ID, _LIVE_ID = 1, 2, 3
_KEPT_CLEAR_ID, _LIVE_CLEAR_ID = 4, 5
REFUSED = 0x80
_PROPERTY = encode.user_property(b"sterna-probe", b"1")


@dataclass(frozen=True, slots=True)
class Caller:
    """The session that asks."""

    client_id: bytes
    topic: bytes
    """Below it all questions are asked."""
    username: bytes | None
    password: bytes | None
    keep_alive_s: int
    answer_s: float

    def greet(self, line: ForeignLine, level: int, *, clean: bool, values: Properties | None = None) -> None:
        """Say CONNECT on this line and await CONNACK; `values`: its properties, on MQTT 5."""
        line.write(
            encode.encode_connect(
                level,
                self.client_id,
                clean=clean,
                keep_alive_s=self.keep_alive_s,
                username=self.username,
                password=self.password,
                values=values,
            )
        )
        line.await_answer(self.answer_s, "CONNACK")


class Ladder:
    """Tries one level after the other; `done` is told the abilities, or why there are none."""

    def __init__(
        self, world: ForeignWorld, caller: Caller, done: Callable[[Abilities], None], failed: Callable[[str], None]
    ) -> None:
        self._world = world
        self._caller = caller
        self._done = done
        self._failed = failed
        self._levels = list(LADDER)
        self._why: list[str] = []
        self._probe: Probe | None = None

    def begin(self) -> None:
        level = self._levels.pop(0)
        self._probe = Probe(
            self._world, self._caller, level, self._found, partial(self._ended, level), self._next_level
        )
        self._world.dial(self._probe)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()

    def _found(self, abilities: Abilities) -> None:
        if abilities.is_loop_free or not self._levels:
            self._done(abilities)
        else:
            self.begin()

    def _next_level(self, why: str) -> None:
        """The broker does not speak this one, or hung up on it."""
        self._why.append(why)
        if self._levels:
            self.begin()
        else:
            self._failed("; ".join(dict.fromkeys(self._why)))

    def _ended(self, level: int, reason: str) -> None:
        probe = self._probe
        if probe is not None and probe.is_greeted_with_silence:
            # RabbitMQ hangs up without a word on levels that it does not know.
            self._next_level(f"the broker hung up on CONNECT at level {level} without an answer: {reason}")
        else:
            self._failed(reason)


class Probe(ForeignLine):
    """One level."""

    def __init__(
        self,
        world: ForeignWorld,
        caller: Caller,
        level: int,
        found: Callable[[Abilities], None],
        ended: Callable[[str], None],
        refused: Callable[[str], None],
    ) -> None:
        super().__init__(world, PACKET_BYTES, ended)
        self._caller = caller
        self._level = level
        self._version = encode.version_of(level)
        self._found = found
        self._refused = refused
        self._grace: ForeignTimer | None = None
        self._connack: Connack | None = None
        self._topic = caller.topic
        self._granted = 0
        self._qos = 2
        self._delivered_qos = 0
        self._heard: Counter[bytes] = Counter()
        self._retain_kept = self._user_properties = False
        self._is_asked = self._is_over = False
        self._cleared: set[int] = set()
        #: Connected, and hung up on before CONNACK.
        self.is_greeted_with_silence = False

    def begin(self) -> None:
        self.is_greeted_with_silence = True
        self._caller.greet(self, self._level, clean=True)

    def timed_out(self, reason: str) -> None:
        self.is_greeted_with_silence = False  # nobody hung up
        super().timed_out(reason)

    def close(self, farewell: bytes = b"") -> None:
        if self._grace is not None:
            self._grace.cancel()
        super().close(farewell)

    def packet(self, first: int, data: bytes, start: int, body: int, stop: int) -> None:
        kind = first >> 4
        if kind == CONNACK:
            self._greeted(decode_connack(data, body, stop, self._version))
        elif kind == SUBACK:
            self._subscribed(decode_granted(data, body, stop, self._version)[1])
        elif kind == PUBLISH:
            self._message(first, data, body, stop)
        elif kind in (PUBACK, PUBREC, PUBCOMP):
            code = data[body + 2] if stop - body > 2 else 0
            self._acknowledged(kind, data[body] << 8 | data[body + 1], code)
        elif kind == PUBREL:
            packet_id = data[body] << 8 | data[body + 1]
            self.write(encode_acknowledgement(PUBCOMP, packet_id, 0, self._version))
        elif kind == PINGRESP and self._is_asked and self._grace is None:
            self._grace = self._world.later(GRACE_S, self._clean_up)

    def _greeted(self, answer: Connack) -> None:
        self.is_greeted_with_silence = False
        self.answered()
        if is_level_refused(answer, self._version):
            self.close()
            self._refused(refusal(answer, self._version))
        elif answer.code:
            self.fail(refusal(answer, self._version))
        else:
            self._connack = answer
            self.await_answer(self._caller.answer_s, "an answer to a publication at QoS 1")
            self._publish(b"kept", qos=1, packet_id=_KEPT_ID, retain=True)

    def _publish(
        self, name: bytes, *, qos: int, packet_id: int = 0, retain: bool = False, payload: bytes | None = None
    ) -> None:
        topic = self._topic + b"/heard/" + name if name != b"quiet" else self._topic + b"/quiet"
        payload = self._caller.client_id if payload is None else payload
        self.write(
            encode.encode_publish(
                topic, payload, self._version, qos=qos, packet_id=packet_id, retain=retain, properties=_PROPERTY
            )
        )

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        if code >= REFUSED:
            self.fail(
                f"the broker refuses publications on {self._topic.decode()} (0x{code:02x}): "
                "let the account publish and subscribe below sterna/interwork/"
            )
        elif packet_id == _KEPT_ID:
            self._subscribe()
        elif packet_id == _LIVE_ID and kind == PUBREC:
            self.write(encode_acknowledgement(PUBREL, packet_id, 0, self._version))
        elif packet_id == _LIVE_ID:
            # RabbitMQ answers QoS 2 with PUBACK, and means QoS 1.
            self._qos = 2 if kind == PUBCOMP else 1
            self._ask_for_echo()
        elif packet_id in (_KEPT_CLEAR_ID, _LIVE_CLEAR_ID) and kind != PUBREC:
            self._cleared.add(packet_id)
            if len(self._cleared) == 2:
                self._conclude()

    def _subscribe(self) -> None:
        """Two filters that both match, and one that is No Local where there is such a thing."""
        heard = 2 | encode.RETAIN_AS_PUBLISHED
        filters = [(self._topic + b"/heard/+", heard), (self._topic + b"/heard/#", heard)]
        if self._version == MQTT_5:
            filters.append((self._topic + b"/quiet", heard | encode.NO_LOCAL))
        self.await_answer(self._caller.answer_s, "SUBACK")
        self.write(encode.encode_subscribe(_SUBSCRIBE_ID, filters, self._version))

    def _subscribed(self, codes: bytes) -> None:
        if not codes or max(codes) >= REFUSED:
            code = max(codes, default=0)
            self.fail(
                f"the broker refuses the subscription to {self._topic.decode()}/# (SUBACK 0x{code:02x}): "
                "let the account publish and subscribe below sterna/interwork/"
            )
            return
        self._granted = min(codes)
        self.await_answer(self._caller.answer_s, "an answer to a publication at QoS 2")
        self._publish(b"live", qos=2, packet_id=_LIVE_ID, retain=True)

    def _ask_for_echo(self) -> None:
        """Earlier messages come back before those published now; where nothing comes back, PINGRESP must do."""
        self.await_answer(
            self._caller.answer_s,
            f"a message published below {self._topic.decode()} (is the broker alive, and may the account read there?)",
        )
        if self._version == MQTT_5:
            self._publish(b"quiet", qos=0)
        self._publish(b"end", qos=1, packet_id=_SUBSCRIBE_ID)
        self._is_asked = True
        if self._level not in (MQTT_5, MQTT_3_1_1):
            self.write(encode.PINGREQ_BYTES)

    def _message(self, first: int, data: bytes, body: int, stop: int) -> None:
        topic, place = wire.read_binary(data, body, stop)
        qos = first >> 1 & 3
        if qos:
            packet_id, place = wire.read_two(data, place, stop)
            self.write(encode_acknowledgement(PUBACK if qos == 1 else PUBREC, packet_id, 0, self._version))
        if self._is_over or not data[place:stop].endswith(self._caller.client_id):
            return
        name = topic.rpartition(b"/")[2]
        self._heard[name] += 1
        if name == b"live":
            self._delivered_qos = max(self._delivered_qos, qos)
            self._retain_kept = bool(first & 1)
            if self._version == MQTT_5:
                self._user_properties = _PROPERTY in data[place:stop]
        elif name == b"end" and self._is_asked and self._grace is None:
            self._grace = self._world.later(GRACE_S, self._clean_up)

    def _clean_up(self) -> None:
        self._is_over = True
        self.await_answer(self._caller.answer_s, "an answer to the end of the questions")
        for name, packet_id in ((b"kept", _KEPT_CLEAR_ID), (b"live", _LIVE_CLEAR_ID)):
            self._publish(name, qos=1, packet_id=packet_id, retain=True, payload=b"")

    def _conclude(self) -> None:
        answer = self._connack
        assert answer is not None
        values = answer.properties
        was_heard = self._heard[b"live"] > 0
        echoes = self._heard[b"quiet"] > 0 if self._version == MQTT_5 else was_heard
        qos = min(self._qos, self._granted, values.get(prop.MAXIMUM_QOS, 2))
        if was_heard:
            qos = min(qos, max(1, self._delivered_qos))
        abilities = Abilities(
            level=self._level,
            echoes=echoes,
            user_properties=self._user_properties,
            # A bridge does not hear itself; all brokers that know the bit keep the flag for it.
            retain_kept=self._retain_kept if was_heard else not echoes,
            retained_for_wildcards=self._heard[b"kept"] > 0,
            qos=qos,
            copies=self._heard[b"live"],
            receive_maximum=values.get(prop.RECEIVE_MAXIMUM, 65535),
            packet_bytes=values.get(prop.MAXIMUM_PACKET_SIZE, 0),
            keep_alive_s=values.get(prop.SERVER_KEEP_ALIVE, 0),
            retain_available=bool(values.get(prop.RETAIN_AVAILABLE, 1)),
        )
        self.close(encode.DISCONNECT_BYTES)
        self._found(abilities)
