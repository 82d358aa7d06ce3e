"""A client in front of a foreign broker to whom the node itself serves what that broker may lack.

Shared subscriptions and expressions go to a *companion*: a session of the same client at the node's own broker.  All
other subscriptions go to the foreign broker, as everything else does.  One SUBSCRIBE may ask for both; its answer is
put together of both answers.

Packet identifiers of both meet at the client.  Those of the companion are mirrored (1 is 65535), so that they seldom
meet those of the foreign broker, and mean the same after a new connection.  Where they do meet, one side waits.

A client of MQTT 5 in front of a broker of 3.1.1 is served by its companion alone.  The foreign broker judges its name
and password, in its own version of MQTT, and the connection that it has let in stays as long as the client does.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from sterna.gateway.client import ClientRegistry, ClientState
from sterna.gateway.connecting import Wish
from sterna.gateway.context import GatewayContext
from sterna.gateway.deliveries import HOLD, SWALLOW
from sterna.gateway.ending import SessionEndings
from sterna.gateway.kept_publications import RelayJournal
from sterna.gateway.tether import Tether
from sterna.gateway.upstream import PeerTransport, Upstream
from sterna.gateway.watched_client import WatchedClient, Watcher
from sterna.gateway.welcome import for_client
from sterna.mqtt import packets, wire
from sterna.mqtt.framing import packet_end
from sterna.mqtt.packets import MQTT_5, PUBLISH, PUBREC, PUBREL, SUBSCRIBE, UNSUBSCRIBE
from sterna.mqtt.reasons import Reason
from sterna.mqtt.server_packets import Connack, decode_connack, decode_granted

_CONNACK: Final = 2
_SUBACK: Final = 9
_UNSUBACK: Final = 11
_PACKET_BYTES_MAX: Final = 268_435_460
_MIRROR: Final = 65536


class CompanionConnection(Protocol):
    """The companion's connection to the node's own broker."""

    def feed(self, data: bytes) -> None: ...
    def lost(self) -> None: ...
    def congested(self) -> None: ...
    def writable(self) -> None: ...


class RelayBroker(Protocol):
    """The node's own broker, as relayed clients use it."""

    def is_served_here(self, topic_filter: bytes) -> bool:
        """Is this a subscription for the node's own broker?"""

    def has_companion(self, client_id: bytes) -> bool:
        """Is there a session from an earlier connection?"""

    def is_spoken(self, version: int) -> bool:
        """Does the foreign broker speak this version of MQTT?"""

    def open(self, wish: Wish, output: ExtendedClient, *, clean: bool) -> CompanionConnection:
        """A connection for some of what this client asks for; CONNECT has been said, packets come to `output`."""

    def open_wholly(self, wish: Wish, output: ExtendedClient) -> CompanionConnection:
        """A connection for everything that this client does."""


class _RelayedRequest:
    """A SUBSCRIBE or UNSUBSCRIBE that goes both ways."""

    __slots__ = ("codes", "here", "is_subscribe", "there")

    def __init__(self, is_subscribe: bool, here: list[int], there: list[int]) -> None:
        """`here`, `there`: the places of filters that the node, and the foreign broker, are asked for."""
        self.is_subscribe = is_subscribe
        self.here = here
        self.there = there
        self.codes: dict[int, int] = {}


class ExtendedClient(WatchedClient):
    __slots__ = (
        "_companion",
        "_has_split",
        "_host",
        "_is_whole",
        "_open_here",
        "_owed_here",
        "_releases_here",
        "_requests",
    )

    def __init__(
        self,
        context: GatewayContext,
        registry: ClientRegistry,
        endings: SessionEndings,
        client: PeerTransport,
        address: str,
        watcher: Watcher,
        keeper: RelayJournal,
        host: RelayBroker,
    ) -> None:
        super().__init__(context, registry, endings, client, address, watcher, keeper)
        self._host = host
        self._companion: CompanionConnection | None = None
        self._requests: dict[int, _RelayedRequest] = {}
        #: Identifiers, as the client knows them, of messages from the companion that it has not acknowledged.
        self._open_here: set[int] = set()
        #: Packets of the companion that wait because the foreign broker uses their identifier.
        self._owed_here: deque[bytes] = deque()
        self._releases_here: deque[bytes] = deque()
        #: A request was split, and its rest waits to be sent.
        self._has_split = False
        #: The companion serves the client alone.
        self._is_whole = False

    # -- a client whom the companion serves alone --

    def _connect(self, data: bytes, body: int, stop: int) -> None:
        super()._connect(data, body, stop)
        wish, tether = self.wish, self.tether
        if self.state != ClientState.CONNECTING or wish is None or tether is None:
            return
        if not self._host.is_spoken(wish.version) and not wish.exchanges:
            self._is_whole = True
            tether.stop()
            self.tether = Tether(self._context, self._endings, self, wish.in_3_1_1())

    def feed(self, data: bytes) -> None:
        """HOT."""
        if self._is_whole and self.state == ClientState.OPEN:
            self._heard_at = self._context.now
            if self._companion is not None:
                self._companion.feed(self._incoming.with_more(data))
        else:
            super().feed(data)

    def _admitted_wholly(self, upstream: Upstream, welcome: Connack) -> None:
        assert self.wish is not None
        self._timer.cancel()
        self.state = ClientState.OPEN
        self._settle_charge()
        self._registry.admitted(self)
        self._look_later()
        self._attach(upstream, welcome)
        self._companion = self._host.open_wholly(self.wish, self)
        if self._incoming.size:
            self.feed(b"")

    def attached(self, upstream: Upstream, welcome: Connack) -> None:
        if self._is_whole:
            self._attach(upstream, welcome)
        else:
            super().attached(upstream, welcome)

    def _leave(self, parting: bytes, *, graceful: bool) -> None:
        if self._is_whole:
            companion, self._companion = self._companion, None
            if companion is not None:
                companion.lost()
            self._end(b"")
        else:
            super()._leave(parting, graceful=graceful)

    # -- the companion comes and goes --

    def admitted(self, upstream: Upstream, welcome: Connack) -> None:
        assert self.wish is not None
        if self._is_whole:
            self._admitted_wholly(upstream, welcome)
            return
        is_clean = self.wish.clean or not welcome.session_present
        if self._host.has_companion(self.wish.client_id):
            # It goes on where it was, or an older one ends.
            self._open_companion(clean=is_clean)
        super().admitted(upstream, welcome)

    def _open_companion(self, *, clean: bool) -> CompanionConnection:
        assert self.wish is not None
        self._companion = companion = self._host.open(self.wish, self, clean=clean)
        return companion

    def _end(self, farewell: bytes, *, departing: bool = False) -> None:
        super()._end(farewell, departing=departing)
        companion, self._companion = self._companion, None
        if companion is not None:
            companion.feed(b"\xe0\x00")
            companion.lost()

    # -- requests of the client --

    def _from_client(self, data: bytes) -> None:
        super()._from_client(data)
        if self._has_split:
            self._has_split = False
            self._send_more()

    def _ask(self, packet_id: int, packet: bytes) -> bool:
        """HOT."""
        kind = packet[0] >> 4
        if kind in (SUBSCRIBE, UNSUBSCRIBE) and packet_id:
            rest = self._served_here(packet_id, packet, kind == SUBSCRIBE)
            if rest != packet:
                if rest:
                    # Packets that follow must not overtake it.
                    self.ledger.add_unsent(packet_id, rest)
                    self._direct = False
                    self._has_split = True
                return False
        return super()._ask(packet_id, packet)

    def _served_here(self, packet_id: int, packet: bytes, is_subscribe: bool) -> bytes:
        """Ask the companion for what is its; the request for the rest, empty if there is none."""
        assert self.wish is not None
        end = len(packet)
        _, start = wire.remaining_length(packet, 1, end)
        place = start + 2
        if self.wish.version == MQTT_5:
            length, place = wire.read_variable(packet, place, end)
            place += length
        head = packet[start:place]
        here: list[bytes] = []
        there: list[bytes] = []
        request = _RelayedRequest(is_subscribe, [], [])
        while place < end:
            line = place
            topic_filter, place = wire.read_binary(packet, place, end)
            place += is_subscribe
            number = len(here) + len(there)
            if self._host.is_served_here(topic_filter):
                here.append(packet[line:place])
                request.here.append(number)
            else:
                there.append(packet[line:place])
                request.there.append(number)
        if not here:
            return packet
        self._requests[packet_id] = request
        companion = self._companion or self._open_companion(clean=True)
        companion.feed(packets.packet(packet[0], head + b"".join(here)))
        return packets.packet(packet[0], head + b"".join(there)) if there else b""

    def _granted(self, packet_id: int, data: bytes, body: int, stop: int) -> int:
        request = self._requests.get(packet_id)
        if request is None or packet_id in self._restoring:
            return super()._granted(packet_id, data, body, stop)
        assert self.wish is not None
        super()._granted(packet_id, data, body, stop)
        self._grant(packet_id, request, request.there, decode_granted(data, body, stop, self.wish.version)[1])
        return SWALLOW

    def _grant(self, packet_id: int, request: _RelayedRequest, places: list[int], codes: bytes) -> None:
        for number, place in enumerate(places):
            request.codes[place] = codes[number] if number < len(codes) else 0
        if len(request.codes) < len(request.here) + len(request.there):
            return
        del self._requests[packet_id]
        assert self.wish is not None
        body = wire.two(packet_id) + (b"\0" if self.wish.version == MQTT_5 else b"")
        if request.is_subscribe or self.wish.version == MQTT_5:
            body += bytes(request.codes[place] for place in range(len(request.codes)))
        self.to_client(packets.packet((_SUBACK if request.is_subscribe else _UNSUBACK) << 4, body))

    # -- messages of the foreign broker, and of the companion --

    def _weigh(self, first: int, data: bytes, body: int, stop: int) -> int:
        """HOT."""
        if self._open_here and first >> 4 == PUBLISH and stop - body >= 2:
            at = body + 2 + (data[body] << 8) + data[body + 1]
            packet_id = data[at] << 8 | data[at + 1] if at + 2 <= stop else 0
            if packet_id in self._open_here or (self._has_no_room() and packet_id not in self.deliveries.open):
                return HOLD
        return super()._weigh(first, data, body, stop)

    def write(self, data: bytes) -> None:
        """HOT.  Packets of the companion: whole ones."""
        position, end = 0, len(data)
        if self._is_whole and data[0] >> 4 != _CONNACK:
            self.to_client(data)
            return
        while position < end and self.state < ClientState.LEAVING:
            body, stop = packet_end(data, position, _PACKET_BYTES_MAX)
            assert body, "our own broker writes whole packets"
            self._from_companion(data[position], data, position, body, stop)
            position = stop

    def _from_companion(self, first: int, data: bytes, position: int, body: int, stop: int) -> None:
        kind = first >> 4
        if kind == PUBLISH and not first & 0x06:
            self.to_client(data[position:stop])
        elif kind == PUBLISH:
            at = body + 2 + (data[body] << 8) + data[body + 1]
            self._owed_here.append(_mirrored(data, position, at, stop))
            self._pay(self._owed_here)
        elif kind == PUBREL:
            # It waits for no message, or the two sides might wait for each other.
            self._releases_here.append(_mirrored(data, position, body, stop))
            self._pay(self._releases_here)
        elif kind in (_SUBACK, _UNSUBACK):
            packet_id, codes = data[body] << 8 | data[body + 1], b""
            assert self.wish is not None
            if kind == _SUBACK or self.wish.version == MQTT_5:
                codes = decode_granted(data, body, stop, self.wish.version)[1]
            request = self._requests.get(packet_id)
            if request is not None:
                self._grant(packet_id, request, request.here, codes)
        elif kind == _CONNACK and data[body + 1]:
            if self._is_whole:
                self.to_client(data[position:stop])
            self._companion = None
            self.fail(Reason.QUOTA_EXCEEDED, f"the node does not serve it (0x{data[body + 1]:02x})")
        elif kind == _CONNACK and self._is_whole:
            assert self.wish is not None
            welcome = decode_connack(data, body, stop, self.wish.version)
            self.to_client(for_client(welcome, self.wish, self._limits))
        elif self._is_whole:
            self.to_client(data[position:stop])
        # Others are answers to what the companion was told, or its end, which `close` tells.

    def _pay(self, owed: deque[bytes]) -> None:
        """Send what waited for identifiers, in order."""
        while owed:
            packet = owed[0]
            packet_id = _identifier(packet)
            if packet_id in self.deliveries.open or (packet[0] >> 4 == PUBLISH and self._has_no_room()):
                return
            owed.popleft()
            self._open_here.add(packet_id)
            self.to_client(packet)

    def _has_no_room(self) -> bool:
        """Is as much under way to the client as it takes from both?"""
        assert self.wish is not None
        return len(self._open_here) + len(self.deliveries.open) >= self.wish.receive_maximum

    def _acknowledge(self, kind: int, packet_id: int, refused: bool) -> bool:
        if packet_id not in self._open_here:
            passes = super()._acknowledge(kind, packet_id, refused)
            if self._owed_here or self._releases_here:
                self._pay(self._releases_here)
                self._pay(self._owed_here)
            return passes
        if kind != PUBREC or refused:
            self._open_here.discard(packet_id)
        if self._companion is not None:
            code = b"\x80" if refused else b""
            self._companion.feed(packets.packet(kind << 4, wire.two(_MIRROR - packet_id) + code))
        if self._held and self._up is not None:
            self._held = False
            self._hear()
            self.from_node(self._up, self._up.incoming.take())
        if self._owed_here:
            self._pay(self._owed_here)
        return False

    # -- what the node's own broker asks of a transport --

    def close(self) -> None:
        """The node ends the companion."""
        if self._companion is not None:
            self._companion = None
            if self._is_whole:
                self._end(b"")
                return
            self.fail(Reason.SERVER_BUSY, "the node has ended the session that serves it")

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """It has enough of what it was fed, which is the client's only if it serves it alone."""
        if self._is_whole:
            self._client.pause_reading()

    def resume_reading(self) -> None:
        if self._is_whole:
            self._client.resume_reading()

    def get_write_buffer_size(self) -> int:
        return 0

    def congested(self) -> None:
        super().congested()
        if self._companion is not None:
            self._companion.congested()

    def writable(self) -> None:
        super().writable()
        if self._companion is not None:
            self._companion.writable()


def _identifier(packet: bytes) -> int:
    _, body = wire.remaining_length(packet, 1, len(packet))
    at = body
    if packet[0] >> 4 == PUBLISH:
        at += 2 + (packet[body] << 8) + packet[body + 1]
    return packet[at] << 8 | packet[at + 1]


def _mirrored(data: bytes, position: int, at: int, stop: int) -> bytes:
    """The packet, with the other identifier in the place of that at `at`."""
    return data[position:at] + wire.two(_MIRROR - (data[at] << 8 | data[at + 1])) + data[at + 2 : stop]
