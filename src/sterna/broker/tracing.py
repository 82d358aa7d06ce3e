"""Traces: the packets of one client, or the messages on some topics, shown to an operator while they pass; or counted
by topic.

A trace begins with the first question for it and ends when nobody asks any more, or after `TRACE_S_MAX`.  It keeps a
bounded number of rows for the next question; the oldest go, and are counted.  While no trace is on, connections know
nothing of them; a trace of one client watches that client's connection and those that come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from sterna.broker.clock import BrokerClock
from sterna.broker.deadlines import Deadlines
from sterna.broker.packets.traced_packets import TracedPackets
from sterna.broker.session.connection import ClientHandler, Connection
from sterna.broker.session.outbox import Transport
from sterna.broker.session.session import Session
from sterna.mqtt.packet_text import PacketDescriber, PacketSpeaker
from sterna.mqtt.topics import Levels, levels_of, matches

TRACES_MAX = 4
ROWS_KEPT = 1000
"""By each trace, for the next question."""
COUNTED_MAX = 1000
"""Different beginnings of topics that are counted at a node; messages on others are counted together."""
OTHER_TOPICS = "..."
LEASE_S = 10.0
"""After the last question for it a trace ends."""
TRACE_S_MAX = 3600.0

Row = dict[str, Any]


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The argument of the question `trace`, as JSON."""

    id: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    """Chosen by who asks: the same in every question for one trace."""
    client: str | None = None
    topic: str | None = None
    """A filter.  With a client, both must fit; with neither, everything is traced."""
    payload: bool = False
    after: dict[str, int] = {}
    """By node: the number of the last row that is known."""
    levels: Annotated[int, msgspec.Meta(ge=0, le=128)] = 0
    """Not 0: count the messages that clients publish, by so many levels of their topics, instead of showing them."""


class WatchedTransport:
    """A transport whose writes are watched; everything else is its own."""

    __slots__ = ("_see", "_write", "abort", "close", "get_write_buffer_size", "pause_reading", "raw", "resume_reading")

    def __init__(self, transport: Transport, see: Callable[[bytes], None]) -> None:
        self.raw = transport
        self._see = see
        self._write = transport.write
        self.close = transport.close
        self.abort = transport.abort
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        self._see(data)
        self._write(data)


class PacketTrace:
    """One trace at one node."""

    def __init__(self, request: TraceRequest, now: float) -> None:
        self.client = request.client
        self.topic: Levels | None = levels_of(request.topic.encode()) if request.topic is not None else None
        self.shows_payload = request.payload
        self.asked_at = self.began_at = now
        self.rows: deque[Row] = deque(maxlen=ROWS_KEPT)
        self._number = 0

    def is_over(self, now: float) -> bool:
        return now - self.asked_at >= LEASE_S or now - self.began_at >= TRACE_S_MAX

    def may_want(self, client: str | None) -> bool:
        return self.client is None or client is None or client == self.client

    def wants(self, client: str | None, row: Row) -> bool:
        if self.client is not None and client != self.client:
            return False
        if self.topic is None:
            return True
        topic = row.get("topic")
        return isinstance(topic, str) and matches(self.topic, topic.encode().split(b"/"))

    def saw(self, client: str | None, row: Row) -> None:
        if not self.wants(client, row):
            return
        self._number += 1
        shown = row if self.shows_payload else {key: value for key, value in row.items() if key != "payload"}
        self.rows.append({**shown, "number": self._number})

    def after(self, number: int) -> list[Row]:
        """Rows with greater numbers; the first says how many are missing before it."""
        found = [row for row in self.rows if row["number"] > number]
        if found and (missing := found[0]["number"] - number - 1):
            found[0] = {**found[0], "missing": missing}
        return found


class TopicCount(PacketTrace):
    """A trace that counts."""

    def __init__(self, request: TraceRequest, now: float) -> None:
        super().__init__(request, now)
        self._levels = request.levels
        self._counts: dict[str, list[int]] = {}

    def saw(self, client: str | None, row: Row) -> None:
        if row["direction"] == "received" and row["packet"] == "PUBLISH" and self.wants(client, row):
            levels = str(row.get("topic", "")).split("/")
            name = "/".join(levels[: self._levels]) + ("/#" if len(levels) > self._levels else "")
            if name not in self._counts and len(self._counts) >= COUNTED_MAX:
                name = OTHER_TOPICS
            count = self._counts.setdefault(name, [0, 0])
            count[0] += 1
            count[1] += row["size"]

    def after(self, number: int) -> list[Row]:
        return [{"topic": name, "messages": one[0], "bytes": one[1]} for name, one in sorted(self._counts.items())]


class _WatchedConnection:
    """One connection that is watched."""

    def __init__(self, connection: Connection, saw: Callable[[str | None, Row], None], clock: BrokerClock) -> None:
        session = connection.session
        self._connection = connection
        self._saw = saw
        self._clock = clock
        known = session.name() if session is not None else None
        self._speaker = PacketSpeaker(known, connection.version, shows_payload=True)
        sent = {alias: topic for topic, alias in (session.aliases or {}).items()} if session is not None else {}
        self.received = PacketDescriber(self._speaker, partial(self._tell, "received"), dict(connection.aliases or {}))
        self.sent = PacketDescriber(self._speaker, partial(self._tell, "sent"), sent)

    def _tell(self, direction: str, fields: Row) -> None:
        client, connection = self._speaker.client, self._connection
        if connection.session is not None:
            client = connection.session.name()  # whole, and as assigned
        row = {"time": self._clock.wall, "client": client, "address": connection.peer.address, "direction": direction}
        self._saw(client, row | fields)


class Tracing:
    def __init__(self, sessions: dict[bytes, Session], clock: BrokerClock, deadlines: Deadlines) -> None:
        self._sessions = sessions
        self._clock = clock
        self._deadlines = deadlines
        self._traces: dict[str, PacketTrace] = {}
        #: Handler and transport of each, whose place ours took.
        self._watched: dict[Connection, tuple[ClientHandler, Transport]] = {}

    @property
    def is_on(self) -> bool:
        return bool(self._traces)

    def read(self, request: TraceRequest, node: str, most: int) -> tuple[list[Row], bool]:
        """The next rows, and whether there are more; begins the trace if it is new.  ValueError if there is no room."""
        trace = self._traces.get(request.id)
        if trace is None:
            if len(self._traces) >= TRACES_MAX:
                raise ValueError(f"{TRACES_MAX} traces are on already; wait until one has ended")
            kind = TopicCount if request.levels else PacketTrace
            trace = self._traces[request.id] = kind(request, self._clock.now)
            self._watch_all(trace)
            self._look_again()
        trace.asked_at = self._clock.now
        found = trace.after(request.after.get(node, 0))
        ran_s = round(self._clock.now - trace.began_at, 3)
        more: Row = {"node": node, "seconds": ran_s} if request.levels else {"node": node}
        return [row | more for row in found[:most]], len(found) > most

    def accepted(self, connection: Connection) -> None:
        """A connection has come while a trace is on: nobody knows yet whose it is."""
        self._watch(connection)

    def _watch_all(self, trace: PacketTrace) -> None:
        for session in self._sessions.values():
            if session.connection is not None and trace.may_want(session.name()):
                self._watch(session.connection)

    def _watch(self, connection: Connection) -> None:
        if connection in self._watched:
            return
        watch = _WatchedConnection(connection, self._saw, self._clock)
        transport = connection.transport
        watched = WatchedTransport(transport, watch.sent.feed)
        outbox = connection.session.outbox if connection.session is not None else None
        if outbox is not None and outbox.transport is transport:
            outbox.transport = watched
        connection.transport = watched
        self._watched[connection] = connection.handler, transport
        connection.handler = TracedPackets(connection.handler, watch.received.feed, self._gone)

    def _saw(self, client: str | None, row: Row) -> None:
        for trace in self._traces.values():
            trace.saw(client, row)

    def _gone(self, connection: Connection) -> None:
        self._watched.pop(connection, None)

    def _look_again(self) -> None:
        self._deadlines.at(self._clock.now + LEASE_S, self._end_idle)

    def _end_idle(self) -> None:
        self._traces = {name: one for name, one in self._traces.items() if not one.is_over(self._clock.now)}
        if self._traces:
            self._look_again()
            return
        watched, self._watched = self._watched, {}
        for connection, (handler, transport) in watched.items():
            _unwatch(connection, handler, transport)


def _unwatch(connection: Connection, handler: ClientHandler, transport: Transport) -> None:
    outbox = connection.session.outbox if connection.session is not None else None
    if outbox is not None and outbox.transport is connection.transport:
        outbox.transport = transport
    connection.transport = transport
    connection.handler = handler
