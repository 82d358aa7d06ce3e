"""AODV (RFC 3561), which the thesis compares with: routes to one node each, found by flooding when they are needed.

HELLO, RREQ with expanding ring, RREP, RERR to precursors, sequence numbers.  Constants are those of RFC 3561 as ns-3
has them.  A hop that is not acknowledged breaks its link at once, as a missed HELLO does later.  The origin keeps a
packet until a route is found or the search has failed; a node on the way drops one it cannot send on.  Left out: local
repair, gratuitous RREP (data flow one way only) and the blacklist (acknowledged hops find one-way links).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sterna.simulation.papers.messages import EVENT_BYTES, HEADER_BYTES, Name, PaperEvent
from sterna.simulation.radio.medium import RadioMessage
from sterna.simulation.radio.port import RadioPort

HELLO_INTERVAL_S = 1.0
HELLO_LIFETIME_S = 2.0
"""ALLOWED_HELLO_LOSS intervals."""
ACTIVE_ROUTE_S = 3.0
MY_ROUTE_S = 6.0
NODE_TRAVERSAL_S = 0.04
NET_DIAMETER = 35
NET_TRAVERSAL_S = 2 * NODE_TRAVERSAL_S * NET_DIAMETER
RREQ_RETRIES = 2
RREQ_A_SECOND_MAX = 10
TTL_INCREMENT = 2
TTL_THRESHOLD = 7
TIMEOUT_BUFFER = 2
SEEN_S = 2 * NET_TRAVERSAL_S
QUEUE_PACKETS_MAX = 64
QUEUE_S = 30.0
JITTER_S = 0.01
ROUTING_HEADER_BYTES = 10


class AodvHello(msgspec.Struct, frozen=True):
    sequence: int

    @property
    def size(self) -> int:
        return ROUTING_HEADER_BYTES + 20


class Rreq(msgspec.Struct, frozen=True):
    origin: Name
    origin_sequence: int
    number: int
    destination: Name
    sequence: int
    """The newest known of the destination, 0 if there is none."""
    hops: int
    ttl: int

    @property
    def size(self) -> int:
        return ROUTING_HEADER_BYTES + 24


class Rrep(msgspec.Struct, frozen=True):
    origin: Name
    destination: Name
    sequence: int
    hops: int
    lifetime: float

    @property
    def size(self) -> int:
        return ROUTING_HEADER_BYTES + 20


class Rerr(msgspec.Struct, frozen=True):
    unreachable: tuple[tuple[Name, int], ...]

    @property
    def size(self) -> int:
        return ROUTING_HEADER_BYTES + 4 + 8 * len(self.unreachable)


class AodvPacket(msgspec.Struct, frozen=True):
    origin: Name
    destination: Name
    event: PaperEvent

    @property
    def size(self) -> int:
        return HEADER_BYTES + EVENT_BYTES


class AodvRoute:
    __slots__ = ("expires", "hops", "is_valid", "next_hop", "precursors", "sequence")

    def __init__(self) -> None:
        self.next_hop: Name = ""
        self.hops = 0
        self.sequence = 0
        self.expires = 0.0
        self.is_valid = False
        self.precursors: dict[Name, None] = {}


@dataclass(slots=True)
class Search:
    """For a destination: how far the last RREQ went, and how often it went all the way."""

    ttl: int
    tries: int = 0


class AodvNode:
    def __init__(self, port: RadioPort, take: Callable[[PaperEvent], object], first_ttl: int = 1) -> None:
        self.routes: dict[Name, AodvRoute] = {}
        self.searched = 0
        """RREQs that it originated."""
        self.dropped = 0
        self._port = port
        self._take = take
        self._first_ttl = first_ttl
        self._sequence = 1
        self._number = 0
        self._seen: dict[tuple[Name, int], float] = {}
        self._neighbours: dict[Name, float] = {}
        self._waiting: dict[Name, deque[tuple[PaperEvent, float]]] = {}
        self._searches: dict[Name, Search] = {}
        self._second = (0, 0)
        """The current second, and RREQs originated in it."""

    def start(self) -> None:
        self._port.after(self._port.random() * HELLO_INTERVAL_S, self._tick)

    def send(self, event: PaperEvent, destination: Name) -> None:
        """An event for one node."""
        route = self._route(destination)
        if route is not None:
            self._forward(AodvPacket(self._port.name, destination, event), route)
            return
        self._keep(event, destination, self._port.now)
        self._search(destination)

    def heard(self, message: RadioMessage, sender: Name) -> None:
        self._neighbours[sender] = self._port.now
        match message:
            case AodvHello(sequence=sequence):
                self._learn(sender, sender, 1, sequence, HELLO_LIFETIME_S)
            case Rreq():
                self._asked(message, sender)
            case Rrep():
                self._answered(message, sender)
            case Rerr():
                self._broken_elsewhere(message, sender)
            case AodvPacket():
                self._received(message, sender)

    def undelivered(self, message: RadioMessage, to: Name) -> None:
        self._link_broke(to)
        if isinstance(message, AodvPacket):
            if message.origin == self._port.name:
                self._keep(message.event, message.destination, self._port.now)
                self._search(message.destination)
            else:
                self.dropped += 1

    def _tick(self) -> None:
        now = self._port.now
        self._port.after(HELLO_INTERVAL_S, self._tick)
        self._port.broadcast(AodvHello(self._sequence))
        for name in [one for one, at in self._neighbours.items() if now - at > HELLO_LIFETIME_S + JITTER_S]:
            self._link_broke(name)
        for key in [one for one, at in self._seen.items() if now - at > SEEN_S]:
            del self._seen[key]

    def _route(self, destination: Name) -> AodvRoute | None:
        """The route to it, if it may be used."""
        route = self.routes.get(destination)
        if route is None or not route.is_valid:
            return None
        if route.expires < self._port.now:
            route.is_valid = False
            return None
        return route

    def _learn(self, destination: Name, next_hop: Name, hops: int, sequence: int, lifetime: float) -> AodvRoute:
        """Take a route if it is newer, or as new and shorter, or if there is none that works."""
        route = self.routes.get(destination)
        if route is None:
            route = self.routes[destination] = AodvRoute()
        works = route.is_valid and route.expires >= self._port.now
        newer = sequence > route.sequence or (sequence == route.sequence and hops < route.hops)
        if newer or not works:
            route.next_hop, route.hops = next_hop, hops
            route.sequence = max(route.sequence, sequence)
            route.is_valid = True
            route.expires = self._port.now + lifetime
        elif route.next_hop == next_hop:
            route.expires = max(route.expires, self._port.now + lifetime)
        return route

    # Searching.

    def _search(self, destination: Name) -> None:
        if destination in self._searches:
            return
        self._searches[destination] = Search(self._first_ttl)
        self._ask(destination)

    def _ask(self, destination: Name) -> None:
        search = self._searches.get(destination)
        if search is None:
            return
        now = self._port.now
        second, asked = self._second
        if second == int(now) and asked >= RREQ_A_SECOND_MAX:
            self._port.after(int(now) + 1 - now + self._port.random() * 0.1, self._ask, destination)
            return
        self._second = (int(now), asked + 1 if second == int(now) else 1)
        self._sequence += 1
        self._number += 1
        self.searched += 1
        known = self.routes.get(destination)
        sequence = 0 if known is None else known.sequence
        name = self._port.name
        self._seen[name, self._number] = now
        self._port.broadcast(Rreq(name, self._sequence, self._number, destination, sequence, 0, search.ttl))
        wide = search.ttl >= NET_DIAMETER
        patience = 2 * NODE_TRAVERSAL_S * (search.ttl + TIMEOUT_BUFFER)
        self._port.after(NET_TRAVERSAL_S * 2**search.tries if wide else patience, self._look, destination, search)

    def _look(self, destination: Name, search: Search) -> None:
        """Whether the search has an answer by now."""
        if self._searches.get(destination) is not search:
            return
        if self._route(destination) is not None:
            self._found(destination)
        elif search.ttl < NET_DIAMETER:
            wider = search.ttl + TTL_INCREMENT
            search.ttl = wider if wider <= TTL_THRESHOLD else NET_DIAMETER
            self._ask(destination)
        elif search.tries < RREQ_RETRIES:
            search.tries += 1
            self._ask(destination)
        else:
            del self._searches[destination]
            self.dropped += len(self._waiting.pop(destination, ()))

    def _found(self, destination: Name) -> None:
        self._searches.pop(destination, None)
        waiting = self._waiting.pop(destination, ())
        for event, since in waiting:
            route = self._route(destination)
            if self._port.now - since > QUEUE_S or route is None:
                self.dropped += 1
            else:
                self._forward(AodvPacket(self._port.name, destination, event), route)

    def _keep(self, event: PaperEvent, destination: Name, now: float) -> None:
        if sum(map(len, self._waiting.values())) >= QUEUE_PACKETS_MAX:
            oldest = min((queue[0][1], name) for name, queue in self._waiting.items() if queue)[1]
            self._waiting[oldest].popleft()
            self.dropped += 1
        self._waiting.setdefault(destination, deque()).append((event, now))

    def _asked(self, message: Rreq, sender: Name) -> None:
        key = (message.origin, message.number)
        if key in self._seen:
            return
        now, name = self._port.now, self._port.name
        self._seen[key] = now
        self._learn(sender, sender, 1, 0, ACTIVE_ROUTE_S)
        back = 2 * NET_TRAVERSAL_S - 2 * message.hops * NODE_TRAVERSAL_S
        self._learn(message.origin, sender, message.hops + 1, message.origin_sequence, back)
        if message.destination == name:
            self._sequence = max(self._sequence, message.sequence)
            self._port.send(Rrep(message.origin, name, self._sequence, 0, MY_ROUTE_S), sender)
            return
        route = self._route(message.destination)
        if route is not None and route.sequence >= max(message.sequence, 1):
            route.precursors[sender] = None
            lifetime = route.expires - now
            self._port.send(Rrep(message.origin, message.destination, route.sequence, route.hops, lifetime), sender)
        elif message.ttl > 1:
            onward = msgspec.structs.replace(message, hops=message.hops + 1, ttl=message.ttl - 1)
            self._port.after(self._port.random() * JITTER_S, self._port.broadcast, onward)

    def _answered(self, message: Rrep, sender: Name) -> None:
        route = self._learn(message.destination, sender, message.hops + 1, message.sequence, message.lifetime)
        if message.origin == self._port.name:
            if self._route(message.destination) is not None:
                self._found(message.destination)
            return
        back = self._route(message.origin)
        if back is not None and route.next_hop == sender:
            route.precursors[back.next_hop] = None
            self._port.send(msgspec.structs.replace(message, hops=message.hops + 1), back.next_hop)

    # Data and errors.

    def _received(self, packet: AodvPacket, sender: Name) -> None:
        moved = msgspec.structs.replace(packet, event=packet.event.one_hop_on())
        if packet.destination == self._port.name:
            self._take(moved.event)
            return
        route = self._route(packet.destination)
        if route is None or moved.event.hops > NET_DIAMETER:
            self.dropped += 1
            known = self.routes.get(packet.destination)
            self._port.send(Rerr(((packet.destination, known.sequence if known else 0),)), sender)
            return
        route.precursors[sender] = None
        self._forward(moved, route)

    def _forward(self, packet: AodvPacket, route: AodvRoute) -> None:
        until = self._port.now + ACTIVE_ROUTE_S
        for name in (packet.destination, route.next_hop, packet.origin):
            used = self.routes.get(name)
            if used is not None and used.is_valid:
                used.expires = max(used.expires, until)
        self._port.send(packet, route.next_hop)

    def _link_broke(self, neighbour: Name) -> None:
        self._neighbours.pop(neighbour, None)
        through = [(name, one) for name, one in self.routes.items() if one.is_valid and one.next_hop == neighbour]
        self._lose([(name, route.sequence + 1) for name, route in through])

    def _broken_elsewhere(self, message: Rerr, sender: Name) -> None:
        known = [(name, sequence, self.routes.get(name)) for name, sequence in message.unreachable]
        self._lose(
            [(name, sequence) for name, sequence, one in known if one and one.is_valid and one.next_hop == sender]
        )

    def _lose(self, routes: list[tuple[Name, int]]) -> None:
        """These do not work any more: tell those who use them through this node."""
        lost: list[tuple[Name, int]] = []
        told: dict[Name, None] = {}
        for name, sequence in routes:
            route = self.routes[name]
            route.is_valid = False
            route.sequence = max(route.sequence, sequence)
            if route.precursors:
                lost.append((name, route.sequence))
                told.update(route.precursors)
                route.precursors = {}
        self._report(tuple(lost), told)

    def _report(self, lost: tuple[tuple[Name, int], ...], told: dict[Name, None]) -> None:
        told.pop(self._port.name, None)
        if not lost or not told:
            return
        if len(told) == 1:
            self._port.send(Rerr(lost), next(iter(told)))
        else:
            self._port.broadcast(Rerr(lost))
