"""What the admin port of a gateway answers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sterna.gateway.gateway import Gateway
from sterna.runtime.admin.metrics import CONTENT_TYPE
from sterna.runtime.admin.pages import RELOAD, Answer, Asked, Guard, not_json, refusal, reloaded, wrong_method
from sterna.runtime.reloading import Outcome

CLIENTS_SHOWN = 1000

_INDEX = b"""Sterna gateway
/metrics  statistics for Prometheus
/healthz  200 while the process is alive
/readyz   200 while clients are taken in, else 503 and the reason
/clients  who is connected, through which node, and what is not answered yet (JSON)
/reload   POST {} reads certificates again
"""

#: What the admin port of a node has and this one has not.
_OF_NODES = ("/network", "/neighbours", "/migrations", "/move", "/evacuate", "/sessions")

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


class Observed(Protocol):
    gateway: Gateway

    def why_not_ready(self) -> str | None: ...

    async def reload(self) -> Outcome: ...


class ClientView(msgspec.Struct, frozen=True):
    client: str
    address: str
    version: int
    #: None while there is none.
    node: str | None
    unanswered: int
    waiting_bytes: int


class _Snapshot(Collector):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        gateway = self._gateway
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"sterna_gateway_{name}", text, value=getattr(gateway.counters, name))
        refused = CounterMetricFamily(
            "sterna_gateway_connections_refused", "Clients refused, by reason.", labels=["reason"]
        )
        for reason, number in sorted(gateway.counters.connections_refused.items()):
            refused.add_metric([reason], number)
        yield refused
        yield GaugeMetricFamily("sterna_gateway_clients", "Clients connected now.", value=len(gateway.clients))
        yield GaugeMetricFamily("sterna_gateway_attached", "Clients that have a node now.", value=gateway.attached)


def answer(asked: Asked, observed: Observed, guard: Guard) -> Answer | Awaitable[Answer]:
    page = asked.target.partition("?")[0]
    if page in _OF_NODES:
        return Answer(404, b"this is the admin port of a gateway; ask that of a node\n")
    refused = wrong_method(asked, page, ()) or refusal(asked, page, guard)
    if refused is not None:
        return refused
    if page == RELOAD:
        return not_json(asked) or reloaded(observed)
    match page:
        case "/":
            return Answer(200, _INDEX)
        case "/healthz":
            return Answer(200, b"alive\n")
        case "/readyz":
            reason = observed.why_not_ready()
            return Answer(200, b"ready\n") if reason is None else Answer(503, f"not ready: {reason}\n".encode())
        case "/metrics":
            registry = CollectorRegistry()
            registry.register(_Snapshot(observed.gateway))
            ProcessCollector(registry=registry)
            return Answer(200, generate_latest(registry), CONTENT_TYPE)
        case "/clients":
            return Answer(200, msgspec.json.encode(_clients(observed.gateway)) + b"\n", "application/json")
    return Answer(404, b"no such page; / lists them\n")


def _clients(gateway: Gateway) -> list[Any]:
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
