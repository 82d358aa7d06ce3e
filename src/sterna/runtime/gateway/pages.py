"""The pages of a gateway's admin port.  A new page is a handler and a row of `GATEWAY`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sterna.gateway.gateway import Gateway
from sterna.runtime.admin.metrics import CERTIFICATES, CONTENT_TYPE, LabelledMetric, single, table_exposition
from sterna.runtime.admin.pages import NODE
from sterna.runtime.admin.site import (
    AdminPage,
    AdminProcess,
    AdminSite,
    Answer,
    Guard,
    Request,
    Right,
    alive,
    as_json,
    ready,
    reload,
    text,
)

CLIENTS_SHOWN = 1000

#: counter -> what it counts
_COUNTERS = {
    "bytes_up": "Bytes from clients to nodes.",
    "bytes_down": "Bytes from nodes to clients.",
    "connections": "Connections of clients taken in.",
    "dropped": "QoS 0 messages for which there was no room while there was no node.",
    "failures": "Nodes that could not be reached or did not take a client in.",
    "losses": "Connections to nodes lost while in use.",
    "nonsense": "Nodes that spoke no MQTT.",
    "redirections": "Clients taken to another node because a node said so.",
    "references_refused": "Servers that nodes named and that clients were not taken to.",
    "repetitions": "Messages a node sent again and the client was spared.",
    "resent": "Publications sent again to another node.",
    "sessions_ended": "Sessions ended in the place of their clients.",
    "sessions_left": "Sessions that could not be ended; nodes let them expire.",
    "sessions_lost": "Sessions a node had lost.",
    "subscriptions_lost": "Subscriptions a node did not grant again.",
}


class ObservedGateway(AdminProcess, Protocol):
    gateway: Gateway

    @property
    def certificates(self) -> dict[str, float]:
        """Address of a listener, or "upstream" -> second of the wall clock at which its certificate expires."""

    def measuring_view(self) -> dict[str, Any] | None:
        """None for a gateway that does not measure."""


class ClientView(msgspec.Struct, frozen=True):
    client: str
    address: str
    version: int
    #: None while there is none.
    node: str | None
    unanswered: int
    waiting_bytes: int


def _counter(name: str, meaning: str) -> LabelledMetric:
    return single(f"gateway_{name}", meaning, CounterMetricFamily, lambda it: getattr(it.gateway.counters, name))


GATEWAY_METRICS = (
    *(_counter(name, meaning) for name, meaning in _COUNTERS.items()),
    LabelledMetric(
        "gateway_connections_refused",
        "Clients refused, by reason.",
        CounterMetricFamily,
        ("reason",),
        lambda it: (((why,), number) for why, number in sorted(it.gateway.counters.connections_refused.items())),
    ),
    single("gateway_clients", "Clients connected now.", GaugeMetricFamily, lambda it: len(it.gateway.clients)),
    single("gateway_attached", "Clients that have a node now.", GaugeMetricFamily, lambda it: it.gateway.attached),
    CERTIFICATES,
)


def _metrics(_asked: Request, observed: ObservedGateway) -> Answer:
    return Answer(200, table_exposition(GATEWAY_METRICS, observed), CONTENT_TYPE)


def _clients(_asked: Request, observed: ObservedGateway) -> Answer:
    return as_json(_views(observed.gateway))


def _views(gateway: Gateway) -> list[Any]:
    shown = []
    for client in list(gateway.clients)[:CLIENTS_SHOWN]:
        if client.wish is None:
            continue
        shown.append(
            ClientView(
                client.wish.client_id.decode(),
                client.address,
                client.wish.version,
                client.node,
                len(client.ledger.entries),
                client.ledger.bytes_held,
            )
        )
    return shown


def _measuring(_asked: Request, observed: ObservedGateway) -> Answer:
    return as_json(observed.measuring_view() or {"phase": None})


class GatewaySite(AdminSite[ObservedGateway]):
    def answer(self, asked: Request, subject: ObservedGateway, guard: Guard) -> Answer | Awaitable[Answer]:
        if asked.target.partition("?")[0] in NODE.paths - self.paths:
            return text(404, "this is the admin port of a gateway; ask that of a node\n")
        return super().answer(asked, subject, guard)


GATEWAY = GatewaySite(
    "Sterna gateway",
    [
        AdminPage("/metrics", _metrics, "statistics for Prometheus"),
        AdminPage("/healthz", alive, "200 while the process is alive", Right.NOTHING),
        AdminPage("/readyz", ready, "200 while clients are taken in, else 503 and the reason", Right.NOTHING),
        AdminPage("/clients", _clients, "who is connected, through which node, and what is not answered yet (JSON)"),
        AdminPage("/measuring", _measuring, "its coordinate, and the workers it measured (JSON)"),
        AdminPage("/reload", reload, "POST {} reads certificates, limits, [admin] and [log] again", Right.CHANGE),
    ],
)
