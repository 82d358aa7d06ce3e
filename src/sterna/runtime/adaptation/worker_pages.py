"""The pages of a worker's admin port.  A new page is a handler and a row of `WORKER`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sterna.adaptation.picture import NodeState
from sterna.runtime.admin.metrics import CONTENT_TYPE
from sterna.runtime.admin.site import AdminPage, AdminSite, Answer, Request, Right, alive, as_json, ready

if TYPE_CHECKING:
    from sterna.runtime.adaptation.worker_server import WorkerServer


def status(server: WorkerServer) -> dict[str, Any]:
    keeper, client, now = server.keeper, server.client, time.monotonic()
    place = client.coordinate
    return {
        "worker": server.name,
        "state": keeper.state.value,
        "in_state_s": round(now - keeper.life.since, 1),
        "trouble": keeper.trouble,
        "barred_s": round(max(0.0, keeper.life.barred_until - now), 1),
        "owed": sorted(keeper.life.owed),
        "pid": keeper.saved.process.pid,
        "term": server.desk.highest.term,
        "leader": server.desk.highest.leader,
        "coordinator_heard_s": round(now - keeper.coordinator_heard_at, 1),
        "control_line": {"node": server.line.node, "trouble": server.line.trouble},
        "gateways": [one.gateway for one in keeper.seen.gateways],
        "clients": keeper.seen.connections,
        "coordinate": {"vector": place.vector, "height": place.height, "error": place.error},
        "measured_ms": {name: round(1000 * trip, 3) for name, trip in client.measuring.measured.items()},
        "refused": refusals(server),
    }


def refusals(server: WorkerServer) -> dict[str, dict[str, int]]:
    return {
        "words": {str(reason): number for reason, number in server.mail.refusals.items()},
        "orders": {str(reason): number for reason, number in server.desk.refusals.items()},
        "pings": {str(reason): number for reason, number in server.answerer.refusals.items()},
        "pongs": {str(reason): number for reason, number in server.client.asker.refusals.items()},
        "samples": {str(reason): number for reason, number in server.client.vivaldi.refusals.items()},
    }


class _WorkerCollector(Collector):
    def __init__(self, server: WorkerServer) -> None:
        self._server = server

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        server = self._server
        states = GaugeMetricFamily("sterna_worker_node_state", "1 for the state that its node is in.", labels=["state"])
        for state in NodeState:
            states.add_metric([state.value], float(server.keeper.state is state))
        yield states
        yield GaugeMetricFamily(
            "sterna_worker_error", "Relative error of its coordinate.", value=server.client.coordinate.error
        )
        yield GaugeMetricFamily(
            "sterna_worker_line_up", "1 while it has a control line.", value=not server.line.trouble
        )
        yield CounterMetricFamily("sterna_worker_cycles", "Measuring cycles.", value=server.client.measuring.cycles)
        yield CounterMetricFamily("sterna_worker_pings_answered", "Echoes answered.", value=server.answerer.answered)
        yield CounterMetricFamily(
            "sterna_worker_readers_left_behind",
            "Stops that went on though a named reader had not read to the end.",
            value=server.keeper.life.readers_left_behind,
        )
        refused = CounterMetricFamily(
            "sterna_worker_refused", "Refused, by kind and reason.", labels=["kind", "reason"]
        )
        for kind, reasons in refusals(server).items():
            for reason, number in reasons.items():
                refused.add_metric([kind, reason], number)
        yield refused


def _status(_asked: Request, server: WorkerServer) -> Answer:
    return as_json(status(server))


def _metrics(_asked: Request, server: WorkerServer) -> Answer:
    registry = CollectorRegistry()
    registry.register(_WorkerCollector(server))
    ProcessCollector(registry=registry)
    return Answer(200, generate_latest(registry), CONTENT_TYPE)


WORKER: AdminSite[WorkerServer] = AdminSite(
    "Sterna worker",
    [
        AdminPage("/metrics", _metrics, "statistics for Prometheus"),
        AdminPage("/healthz", alive, "200 while the process is alive", Right.NOTHING),
        AdminPage("/readyz", ready, "200 while it has a control line, else 503 and the reason", Right.NOTHING),
        AdminPage("/status", _status, "its node, its coordinate, what it refused (JSON)"),
    ],
)
