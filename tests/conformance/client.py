"""A raw MQTT client over a blocking socket: it sends what it is told and compares what comes back.

It answers nothing by itself and checks every packet it reads.  Nothing waits longer than `PATIENCE_S`, and
nothing sleeps: "no packet" means that the very next packet is the answer to a PINGREQ.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import TypeVar, Unpack

from .packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Received,
    Sent,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    decode,
)
from .properties import Properties

PATIENCE_S = 60.0
PacketT = TypeVar("PacketT", bound=Received)


class Client:
    def __init__(self, address: tuple[str, int], version: int, client_id: str, says_why: bool) -> None:
        self.version = version
        self.client_id = client_id
        self.connack = Connack()
        self._socket = socket.create_connection(address, PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._early: deque[Received] = deque()  # read while waiting for something else
        self._last_packet_id = 0
        self._says_why = says_why

    # Packets in, packets expected

    def send(self, *packets: Sent | bytes) -> None:
        """Everything in one write; bytes go out as they are."""
        self._socket.sendall(b"".join(p if isinstance(p, bytes) else p.encode(self.version) for p in packets))

    def receive(self) -> Received:
        """The next packet; a closed connection raises EOFError."""
        return self._early.popleft() if self._early else self._read()

    def expect(self, expected: PacketT) -> PacketT:
        """The next packet, which must equal `expected`."""
        found = self.receive()
        assert found == expected
        assert isinstance(found, type(expected))
        return found

    def expect_nothing(self) -> None:
        """Everything that the broker had to send before now is already read."""
        self.send(Pingreq())
        self.expect(Pingresp())

    def expect_close(self, *codes: int, patience_s: float = PATIENCE_S) -> None:
        """The broker ends the connection; given `codes`, an MQTT 5 client is first told one of them."""
        self._socket.settimeout(patience_s)
        self._expect_end(Disconnect, codes)

    def expect_refusal(self, *codes: int) -> None:
        """The broker answers CONNECT with one of these codes and ends the connection."""
        self._expect_end(Connack, codes)

    def _expect_end(self, kind: type[Connack | Disconnect], codes: tuple[int, ...]) -> None:
        told = False
        with suppress(EOFError):
            while True:
                farewell = self.receive()
                assert isinstance(farewell, kind), f"expected the end, got {farewell}"
                assert farewell.code in codes or not codes, f"closed with 0x{farewell.code:02X}"
                assert not told, "a packet after the last one [MQTT-3.14.4-1]"
                told = True
        # Section 4.13 lets a server close without a word; ours always says why.
        assert told or not codes or self.version == 4 or not self._says_why, "closed without saying why"

    def receive_bytes(self) -> bytes:
        """The next bytes, undecoded, for answers whose form is part of the question; nothing at the end."""
        try:
            return self._stream.read1(1024)
        except ConnectionResetError:
            return b""

    # Whole exchanges, for tests about something else

    def connect(self, packet: Connect) -> Connack:
        self.send(packet)
        connack = self.receive()
        assert isinstance(connack, Connack)
        assert connack.code == 0, f"refused: {connack}"
        self.connack = connack
        return connack

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **properties: Unpack[Properties]
    ) -> int:
        """Publish, and come back with the reason code when the broker has dealt with it."""
        packet_id = self.next_packet_id()
        self.send(Publish(topic, payload, qos, retain, packet_id=packet_id, properties=properties))
        if qos == 0:
            self.send(Pingreq())
            self.wait_for(Pingresp)
            return 0
        if qos == 1:
            return self.wait_for(Puback).code
        code = self.wait_for(Pubrec).code
        if code < 0x80:
            self.send(Pubrel(packet_id))
            assert self.wait_for(Pubcomp) == Pubcomp(packet_id)
        return code

    def subscribe(self, topic_filter: str, options: int = 0, **properties: Unpack[Properties]) -> int:
        """Subscribe to one filter; the result is the granted QoS or the reason code."""
        packet_id = self.next_packet_id()
        self.send(Subscribe(packet_id, [(topic_filter, options)], properties))
        suback = self.wait_for(Suback)
        assert suback.packet_id == packet_id
        (code,) = suback.codes
        return code

    def unsubscribe(self, topic_filter: str) -> None:
        packet_id = self.next_packet_id()
        self.send(Unsubscribe(packet_id, [topic_filter]))
        assert self.wait_for(Unsuback).packet_id == packet_id

    def acknowledge(self, message: Publish) -> None:
        """Take a received message through its QoS 1 or 2 exchange."""
        if message.qos == 1:
            self.send(Puback(message.packet_id))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id))
            assert self.wait_for(Pubrel) == Pubrel(message.packet_id)
            self.send(Pubcomp(message.packet_id))

    def messages(self, count: int) -> list[Publish]:
        """The next `count` messages, each acknowledged."""
        taken = []
        for _ in range(count):
            message = self.wait_for(Publish)
            self.acknowledge(message)
            taken.append(message)
        return taken

    def waiting_messages(self, acknowledged: bool = True) -> list[Publish]:
        """Every message the broker has sent by now."""
        self.send(Pingreq())
        self.wait_for(Pingresp)
        count = sum(isinstance(packet, Publish) for packet in self._early)
        return self.messages(count) if acknowledged else [self.wait_for(Publish) for _ in range(count)]

    def leave(self, code: int = 0, **properties: Unpack[Properties]) -> None:
        """Disconnect in good order, and come back when the broker has seen it."""
        self.send(Disconnect(code, properties))
        self.expect_close()

    def drop(self) -> None:
        """Vanish without DISCONNECT."""
        self._stream.close()
        self._socket.close()

    # Parts

    def next_packet_id(self) -> int:
        self._last_packet_id += 1
        return self._last_packet_id

    def wait_for(self, kind: type[PacketT]) -> PacketT:
        """The next packet of this kind; others are kept for later, in order."""
        for position, packet in enumerate(self._early):
            if isinstance(packet, kind):
                del self._early[position]
                return packet
        while not isinstance(packet := self._read(), kind):
            self._early.append(packet)
        return packet

    def _read(self) -> Received:
        first_byte = self._exactly(1)[0]
        length, shift = 0, 0
        while True:
            byte = self._exactly(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return decode(first_byte, self._exactly(length), self.version)

    def _exactly(self, count: int) -> bytes:
        try:
            found = self._stream.read(count)
        except ConnectionResetError:
            found = b""
        if len(found) < count:
            raise EOFError("the broker closed the connection")
        return found
