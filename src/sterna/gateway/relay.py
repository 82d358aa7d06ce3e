"""Packets on their way between one client and its node: passed on whole, looked at in passing.

What is at QoS 0 is not even looked at; of the rest it is noted who owes whom an answer (`ledger`, `deliveries`), so
that the next node is told what the last one may have missed, and the client nothing twice.
"""

from __future__ import annotations

from typing import Final

from sterna.gateway.client import Client, State
from sterna.gateway.connecting import goodbye
from sterna.gateway.deliveries import ANSWER, HOLD, PASS, SWALLOW
from sterna.gateway.framing import packet_end
from sterna.gateway.node_words import hear_control, hear_disconnect
from sterna.gateway.upstream import Upstream
from sterna.mqtt import packets, wire
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_5, PUBACK, PUBCOMP, PUBREC, PUBREL
from sterna.mqtt.reasons import Reason
from sterna.mqtt.server_packets import decode_granted
from sterna.vocabulary.errors import ProtocolError

SUBACK: Final = 9
UNSUBACK: Final = 11
PINGRESP: Final = 13


class Relay(Client):
    __slots__ = ()

    # -- bytes of the client --

    def _from_client(self, data: bytes) -> None:
        """HOT.  All whole packets in `data`; those that need no look go on in one piece."""
        position = start = 0
        end = len(data)
        while True:
            body, stop = packet_end(data, position, self._size_max)
            if not body:
                break
            first = data[position]
            if first == 0xE0 and start < position:
                self._to_node(data[start:position])  # nothing follows a DISCONNECT
                start = position
            # QoS 0 goes by unseen while there is somebody to take it.
            if not (first & 0xF6 == 0x30 and self._direct) and not self._take(first, data, position, body, stop):
                if start < position:
                    self._to_node(data[start:position])
                start = stop
                if self.state != State.OPEN:
                    return
            position = stop
        if start < position:
            self._to_node(data[start:position] if start or position < end else data)
        if position < end:
            self._incoming.keep(data[position:], stop)
        ledger = self.ledger
        if len(ledger.entries) >= self._limits.unacknowledged or ledger.bytes_held >= self._limits.buffer_bytes:
            self._listen()

    def _to_node(self, data: bytes) -> None:
        """HOT."""
        if self._up is not None:
            self._spoken = True
            self._gateway.counters.bytes_up += len(data)
            self._up.write(data)

    def _take(self, first: int, data: bytes, position: int, body: int, stop: int) -> bool:
        """HOT.  A packet that needs a look; False if it does not go on from here as it is."""
        kind = first >> 4
        if kind == packets.PUBLISH:
            if not first & 0x06:
                self._keep_loose(data[position:stop])
                return False
            at = body + 2 + (data[body] << 8) + data[body + 1] if stop - body >= 2 else stop
            if at + 2 > stop:
                raise wire.malformed("packet ends before its identifier")
            return self._ask(data[at] << 8 | data[at + 1], data[position:stop])
        if kind in (packets.PINGREQ, packets.DISCONNECT, packets.AUTH):
            return self._speak(kind, data, position, body, stop)
        if stop - body < 2:
            raise wire.malformed("packet ends before its identifier")
        packet_id = data[body] << 8 | data[body + 1]
        if kind in (PUBACK, PUBREC, PUBCOMP):
            return self._acknowledge(kind, packet_id, stop - body > 2 and data[body + 2] >= 0x80)
        if kind == PUBREL and self._up is not None and not self._restoring:
            # It frees a place in the node's window, so it does not wait behind what waits for one.
            self.ledger.add(packet_id, data[position:stop])
            return True
        if kind in (PUBREL, packets.SUBSCRIBE, packets.UNSUBSCRIBE):
            return self._ask(packet_id, data[position:stop])
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} is not expected here")

    def _ask(self, packet_id: int, packet: bytes) -> bool:
        """HOT.  Something an answer will come to; kept until it does."""
        if not packet_id:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "packet identifier 0")
        if self._direct:
            self.ledger.add(packet_id, packet)
            return True
        self.ledger.add_unsent(packet_id, packet)
        return False

    def _keep_loose(self, packet: bytes) -> None:
        """QoS 0 while there is no node for it."""
        if self.ledger.bytes_held + len(packet) > self._limits.buffer_bytes // 2:
            self._gateway.counters.dropped += 1
        else:
            self.ledger.add_unsent(0, packet)

    def _acknowledge(self, kind: int, packet_id: int, refused: bool) -> bool:
        verdict = self.deliveries.acknowledge(kind, packet_id, refused=refused)
        if verdict == PASS:
            return self._up is not None  # else the node will ask again, and be answered from memory
        self._settle_orphans()
        if self._held and self._up is not None:
            self._held = False
            self._hear()
            self.from_node(self._up, self._up.incoming.take())
        return False

    def _speak(self, kind: int, data: bytes, position: int, body: int, stop: int) -> bool:
        if kind == packets.PINGREQ:
            self._answer_ping()
            return False
        if kind == packets.AUTH:
            return self._direct
        assert self.wish is not None
        code, expiry_s = 0, self.wish.expiry_s
        if self.wish.version == MQTT_5:
            code, found = packets.decode_ending(data, body, stop, "DISCONNECT", self._limits.user_properties)
            asked = found.get(prop.SESSION_EXPIRY, expiry_s)
            if asked and not expiry_s:
                # [MQTT-3.1.2-23], which the node cannot see
                raise ProtocolError(Reason.PROTOCOL_ERROR, "a session that was to end cannot be kept")
            expiry_s = asked
            self._ends = expiry_s == 0
        self._leave(goodbye(self.wish.version, code, expiry_s), graceful=code == 0)
        return False

    # -- bytes of the node --

    def from_node(self, upstream: Upstream, data: bytes) -> None:
        """HOT.  All whole packets in `data`; those that need no look go on in one piece."""
        if upstream is not self._up:
            return
        if self._held:
            upstream.incoming.add(data)
            return
        try:
            self._relay_down(upstream, data)
        except ProtocolError as error:
            self._gateway.counters.nonsense += 1
            self.fail(Reason.SERVER_BUSY, f"the node {upstream.server} said: {error.reason}")

    def _relay_down(self, upstream: Upstream, data: bytes) -> None:
        position = start = 0
        end = len(data)
        while True:
            body, stop = packet_end(data, position, self._size_max)
            if not body:
                break
            first = data[position]
            if first & 0xF6 != 0x30:
                verdict = self._weigh(first, data, body, stop)
                if verdict != PASS:
                    if start < position:
                        self.to_client(data[start:position])
                    start = stop
                    if verdict == HOLD:
                        upstream.incoming.keep(data[position:], 0)
                        self._held = True
                        self._settle_orphans()
                        self._hear()
                        return
                    if verdict == ANSWER:
                        self._answer(first, data, body, stop)
                        if upstream is not self._up:
                            return
            position = stop
        if start < position:
            self.to_client(data[start:position] if start or position < end else data)
        if position < end:
            upstream.incoming.keep(data[position:], stop)

    def _weigh(self, first: int, data: bytes, body: int, stop: int) -> int:
        """HOT.  What to do with a packet of the node."""
        kind = first >> 4
        if kind == packets.PUBLISH:
            at = body + 2 + (data[body] << 8) + data[body + 1] if stop - body >= 2 else stop
            if at + 2 > stop:
                raise wire.malformed("packet ends before its identifier")
            verdict = self.deliveries.publish(first, data[at] << 8 | data[at + 1])
            if verdict != PASS:
                self._gateway.counters.repetitions += verdict != HOLD
            return verdict
        if kind in (PINGRESP, packets.DISCONNECT, packets.AUTH, 0):
            return PASS if kind == packets.AUTH else SWALLOW if kind == PINGRESP else ANSWER
        if stop - body < 2:
            raise wire.malformed("packet ends before its identifier")
        packet_id = data[body] << 8 | data[body + 1]
        if kind == PUBREL:
            return self.deliveries.release(packet_id)
        if kind in (PUBACK, PUBCOMP):
            return self._answered(packet_id)
        if kind == PUBREC:
            if stop - body > 2 and data[body + 2] >= 0x80:
                return self._answered(packet_id)
            return PASS if self.ledger.received(packet_id) else SWALLOW
        if kind in (SUBACK, UNSUBACK):
            return self._granted(packet_id, data, body, stop)
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} is not expected here")

    def _answered(self, packet_id: int) -> int:
        """HOT.  An exchange of the client's has ended; a node's word about something else is none."""
        if self.ledger.answered(packet_id) is None:
            return SWALLOW
        self._fruitful = True
        if self.ledger.unsent or not self._reading or self.state == State.LEAVING:
            self._send_more()
        return PASS

    def _granted(self, packet_id: int, data: bytes, body: int, stop: int) -> int:
        assert self.wish is not None
        if packet_id in self._restoring:
            self._restoring.discard(packet_id)
            _, codes = decode_granted(data, body, stop, self.wish.version)
            self._gateway.counters.subscriptions_lost += sum(code >= 0x80 for code in codes)
            if not self._restoring:
                self._go_on()
            return SWALLOW
        request = self.ledger.answered(packet_id)
        if request is None:
            return SWALLOW
        self.subscriptions.answered(request, data[body:stop], self.wish.version, self._limits.user_properties)
        self._send_more()
        return PASS

    def _answer(self, first: int, data: bytes, body: int, stop: int) -> None:
        """A packet that is not for the client: we have the answer, or it is for us."""
        kind = first >> 4
        if kind == 0:
            hear_control(self, data, body, stop)
        elif kind == packets.DISCONNECT:
            hear_disconnect(self, data, body, stop)
        elif self._up is not None:
            if kind == PUBREL:
                answer, at = PUBCOMP, body
            else:
                answer = PUBACK if first & 0x02 else PUBREC
                at = body + 2 + (data[body] << 8) + data[body + 1]
            self._up.write(bytes((answer << 4, 2, data[at], data[at + 1])))
