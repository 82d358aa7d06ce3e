"""A client that does what the standard says, and no more; it finds fault with everything it should not have seen."""

from __future__ import annotations

from sterna.mqtt import packets, wire
from sterna.mqtt.packets import packet
from sterna.simulation.client_packets import (
    Delivered,
    LastWords,
    PacketReader,
    decode_publish,
    encode_connect,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)

from .town import End, Town


class ModelClient:
    def __init__(self, town: Town, version: int = 5, name: str = "c") -> None:
        self._town = town
        self.version = version
        self.name = name
        self.end = End()
        self.client = town.accept(self.end)
        self._reader = PacketReader()
        #: Everything it was sent, by first byte and body.
        self.heard: list[tuple[int, bytes]] = []
        self.received: list[tuple[bytes, int]] = []
        self._known: set[tuple[bytes, int]] = set()
        self.repeated = 0
        self._next_id = 0
        #: Identifiers in use, and what for.
        self.pending: dict[int, str] = {}
        self._unreleased: set[int] = set()
        #: Acknowledgements it has not sent yet; None: it sends them at once.
        self.owed: list[bytes] | None = None

    def connect(
        self,
        *,
        persistent: bool = False,
        will: LastWords | None = None,
        keep_alive_s: int = 60,
        receive_maximum: int = 65535,
        raw: bytes = b"",
    ) -> None:
        self.send(
            raw
            or encode_connect(
                self.name,
                self.version,
                persistent=persistent,
                keep_alive_s=keep_alive_s,
                receive_maximum=receive_maximum,
                will=will,
            )
        )
        self._town.pass_time(0.1)
        self.hear()

    def send(self, data: bytes) -> None:
        self.client.feed(data)

    def take_id(self, use: str) -> int:
        self._next_id = self._next_id % 65535 + 1
        while self._next_id in self.pending:
            self._next_id = self._next_id % 65535 + 1
        self.pending[self._next_id] = use
        return self._next_id

    def publish(self, payload: bytes, qos: int, topic: bytes = b"up") -> None:
        packet_id = self.take_id(f"publish {qos}") if qos else 0
        self.send(encode_publish(topic, payload, qos, packet_id, self.version, retain=False, dup=False))

    def subscribe(self, topic_filter: bytes, qos: int = 2) -> None:
        self.send(encode_subscribe(self.take_id("subscribe"), topic_filter, qos, self.version))

    def unsubscribe(self, topic_filter: bytes) -> None:
        self.send(encode_unsubscribe(self.take_id("unsubscribe"), topic_filter, self.version))

    def hear(self) -> list[tuple[int, bytes]]:
        """Packets that have come since the last time."""
        data = bytes(self.end.sent)
        self.end.sent.clear()
        fresh = list(self._reader.feed(data))
        for first, body in fresh:
            self.heard.append((first, body))
            self._take(first, body)
        return fresh

    def _take(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == packets.PUBLISH:
            self._delivered(decode_publish(first, body, self.version))
        elif kind in (packets.PUBACK, packets.PUBCOMP):
            use = self.pending.pop(wire.read_two(body, 0, 2)[0])
            assert use == ("publish 1" if kind == packets.PUBACK else "released"), use
        elif kind == packets.PUBREC:
            packet_id, _ = wire.read_two(body, 0, 2)
            assert self.pending[packet_id] == "publish 2", self.pending[packet_id]
            self.pending[packet_id] = "released"
            self.send(b"\x62\x02" + body[:2])
        elif kind == packets.PUBREL:
            packet_id, _ = wire.read_two(body, 0, 2)
            assert packet_id in self._unreleased, "released what it does not hold"
            self._unreleased.discard(packet_id)
            self._acknowledge(b"\x70\x02" + body[:2])
        elif kind in (9, 11):
            use = self.pending.pop(wire.read_two(body, 0, 2)[0])
            assert use == ("subscribe" if kind == 9 else "unsubscribe"), use
        else:
            assert kind in (2, 13, 14), f"packet type {kind} from a server"

    def _delivered(self, message: Delivered) -> None:
        self.repeated += (message.payload, message.qos) in self._known
        self._known.add((message.payload, message.qos))
        if message.qos == 2:
            assert message.packet_id not in self._unreleased, "sent again on the same connection"
            self._unreleased.add(message.packet_id)
        self.received.append((message.payload, message.qos))
        if message.qos:
            kind = packets.PUBACK if message.qos == 1 else packets.PUBREC
            self._acknowledge(packet(kind << 4, wire.two(message.packet_id)))

    def _acknowledge(self, data: bytes) -> None:
        if self.owed is None:
            self.send(data)
        else:
            self.owed.append(data)

    def pay(self, count: int = 1 << 30) -> None:
        """Send acknowledgements it owes."""
        assert self.owed is not None
        now, self.owed = self.owed[:count], self.owed[count:]
        for data in now:
            self.send(data)

    def talk(self, seconds: float = 0.0) -> None:
        """Until nobody has anything left to say."""
        for _ in range(20):
            self._town.pass_time(seconds / 20)
            self.hear()
