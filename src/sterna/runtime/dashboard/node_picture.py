"""The picture of one node: all that the dashboard's map and overview show of it, as one row.

It is made once a second while somebody looks.  Lists in it are bounded, so that it fits into one letter between nodes;
what needs a look at every session is looked up every `SLOW_S` only where they are more than `FEW_SESSIONS`.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any, Protocol

import msgspec

from sterna.adaptation.shown import from_word
from sterna.broker.broker import Broker
from sterna.broker.inspection import is_control_line
from sterna.broker.statistics import WaitingSums
from sterna.node.management import Management
from sterna.runtime.admin.move_api import MoveApi
from sterna.runtime.dashboard.alarms import alarms_of
from sterna.runtime.feed.view import FeedView
from sterna.runtime.links.network_view import LinkView, NetworkView
from sterna.runtime.process_view import ProcessView

LINKS_SHOWN = 100
MOVES_SHOWN = 50
NODES_SHOWN = 100
COMPANIONS_SHOWN = 50
SLOW_S = 5.0
FEW_SESSIONS = 500
CONTROL_PARTIES = ("coordinator", "worker", "gateway")

TOTALS = (
    "publish_received",
    "publish_sent",
    "publish_bytes_received",
    "publish_bytes_sent",
    "connections",
    "sessions_expired",
    "clients_connected",
    "sessions",
    "subscriptions",
    "shared_subscriptions",
    "expressions",
    "expression_results",
    "retained",
    "inflight",
    "queued",
    "journal_next_offset",
    "journal_bytes",
    "journal_lost",
)
"""The fields of `Statistics` that are shown."""

Row = dict[str, Any]


class PicturedNode(Protocol):
    """The questions to the node."""

    broker: Broker

    def process_view(self) -> ProcessView: ...
    def why_not_ready(self) -> str | None: ...
    def network_view(self, *, tables: bool = False) -> NetworkView: ...
    def moves(self) -> MoveApi: ...
    def feed_view(self) -> FeedView | None: ...
    def interworking_view(self) -> dict[str, Any] | None: ...
    def management(self) -> Management: ...


class NodePicture:
    def __init__(self, node: PicturedNode, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._companions: list[Row] = []
        self._sums: WaitingSums | None = None
        self._looked_at = float("-inf")

    def row(self) -> Row:
        node = self._node
        view, process = node.network_view(), node.process_view()
        self._look_at_sessions()
        found = node.broker.statistics(self._sums)
        moves, feed = node.moves().migrations(), node.feed_view()
        known, reachable = set(view.vector) | set(view.streams), set(view.paths)
        row = {
            "node": view.node,
            "network": view.network,
            "epoch": view.epoch,
            "version": process.version,
            "compiled": process.compiled,
            "strategy": view.strategy,
            "overlay": view.overlay.get("overlay"),
            "root": view.overlay.get("root"),
            "parent": view.overlay.get("parent"),
            "uptime_s": round(found.uptime_s, 1),
            "cpu_s": round(time.process_time(), 3),
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "not_ready": node.why_not_ready(),
            "totals": {name: getattr(found, name) for name in TOTALS},
            "dropped": _added(found.publish_dropped, view.loose_dropped),
            "refused": found.connections_refused,
            "links": self._links(view),
            "absent": sorted(known - reachable - {view.node})[:NODES_SHOWN],
            "unsynced": sorted(origin for origin, state in view.streams.items() if state != "synced")[:NODES_SHOWN],
            "away": dict(islice(view.away.items(), NODES_SHOWN)),
            "carried": _carried(view.carried),
            **{name: moves[name][-MOVES_SHOWN:] for name in ("leaving", "arriving", "moved", "not_moved")},
            "evacuation": moves["evacuation"],
            "move_counters": moves["counters"],
            "feed": asdict(feed) if feed is not None else None,
            "foreign": _foreign(node.interworking_view()),
            "companions": self._companions,
            "coordinators": _coordinators(node.broker),
            "certificates": {name: round(at - time.time()) for name, at in process.certificates.items()},
        }
        row["alarms"] = alarms_of(row)
        return row

    def _links(self, view: NetworkView) -> list[Row]:
        measured = view.overlay.get("peers", {})
        links = view.links[:LINKS_SHOWN]
        management = self._node.management()
        management.ping([one.peer for one in links if one.connected and one.peer not in measured])
        return [_link(one, _round_trip_ms(one.peer, measured, management)) for one in links]

    def _look_at_sessions(self) -> None:
        broker, now = self._node.broker, self._clock()
        if len(broker.sessions) > FEW_SESSIONS and now - self._looked_at < SLOW_S:
            return
        self._looked_at = now
        self._companions = _companions(broker)
        self._sums = broker.waiting_sums()


def _link(link: LinkView, round_trip_ms: float | None) -> Row:
    names = ("peer", "connected", "congested", "unacknowledged_bytes", "messages", "bytes_sent", "bytes_received")
    held = bool(link.session)  # a link that the overlay gave up is none
    return {**{name: getattr(link, name) for name in names}, "held": held, "round_trip_ms": round_trip_ms}


def _round_trip_ms(peer: str, measured: dict[str, Row], management: Management) -> float | None:
    if peer in measured:
        found: float | None = measured[peer].get("round_trip_ms")
        return found
    seconds = management.round_trip_s(peer)
    return None if seconds is None else round(seconds * 1000, 3)


def _coordinators(broker: Broker) -> list[Row]:
    """Those that are connected to this node, as they tell it."""
    words = broker.publications.control_notes.fresh(broker.now)
    told = ((seconds, from_word(word)) for seconds, word in words)
    return [{**msgspec.to_builtins(one), "seconds": round(seconds, 1)} for seconds, one in told if one is not None]


def _added(*counts: dict[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for reason, number in one.items():
            total[reason] = total.get(reason, 0) + number
    return total


def _foreign(view: Row | None) -> Row | None:
    if view is None:
        return None
    same = (
        *("broker", "name", "mode", "state", "trouble", "taken", "injected", "round_trip_ms", "sessions_lost"),
        "connections",
    )
    sums = {name: sum(view[name].values()) for name in ("held_back", "not_injected", "in_doubt")}
    return {name: view[name] for name in same} | sums | {"held_topics": len(view["held_topics"])}


def _carried(view: Row) -> Row | None:
    """Messages that the node carries for others; None if it carries nothing for anybody."""
    return {**view, "for": view["for"][:NODES_SHOWN]} if view else None


def _companions(broker: Broker) -> list[Row]:
    """Gateways with their clients, and coordinators and workers, connected to this node."""
    clients: dict[tuple[str, str], int] = {}
    for session in broker.sessions.values():
        connection = session.connection
        if connection is None:
            continue
        if is_control_line(session):
            clients.setdefault(_control_party(session.name()), 0)
        elif connection.gateway:
            party = "gateway", connection.gateway
            clients[party] = clients.get(party, 0) + 1
    shown = [{"kind": kind, "name": name, "clients": number} for (kind, name), number in sorted(clients.items())]
    return shown[:COMPANIONS_SHOWN]


def _control_party(client_id: str) -> tuple[str, str]:
    """Kind and name of who holds a control line; its identifier ends with the number of its start."""
    kind, _, rest = client_id.partition("-")
    name, _, _boot = rest.rpartition("-")
    return (kind, name) if kind in CONTROL_PARTIES and name else ("control", client_id)
