"""The pages of a worker's admin port.  A new page is a handler and a row of `WORKER`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sterna.adaptation.picture import WorkerNodeState
from sterna.runtime.admin.metrics import CONTENT_TYPE, LabelledMetric, single, table_exposition, two_labels
from sterna.runtime.admin.site import AdminPage, AdminSite, Answer, Request, Right, alive, as_json, ready, reload

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
        "deliveries_per_s": {one.gateway: one.deliveries_per_s for one in keeper.seen.gateways},
        "bytes_per_s": keeper.seen.bytes_per_s,
        "topics": [one.topic for one in keeper.seen.flows],
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


def _states(server: WorkerServer) -> Iterator[tuple[Sequence[str], float]]:
    return (((state.value,), float(server.keeper.state is state)) for state in WorkerNodeState)


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily
WORKER_METRICS = (
    LabelledMetric("worker_node_state", "1 for the state that its node is in.", _GAUGE, ("state",), _states),
    single("worker_error", "Relative error of its coordinate.", _GAUGE, lambda one: one.client.coordinate.error),
    single("worker_line_up", "1 while it has a control line.", _GAUGE, lambda one: not one.line.trouble),
    single("worker_cycles", "Measuring cycles.", _COUNTER, lambda one: one.client.measuring.cycles),
    single("worker_pings_answered", "Echoes answered.", _COUNTER, lambda one: one.answerer.answered),
    single(
        "worker_readers_left_behind",
        "Stops that went on though a named reader had not read to the end.",
        _COUNTER,
        lambda one: one.keeper.life.readers_left_behind,
    ),
    LabelledMetric(
        "worker_refused",
        "Refused, by kind and reason.",
        _COUNTER,
        ("kind", "reason"),
        lambda one: two_labels(refusals(one)),
    ),
)


def _status(_asked: Request, server: WorkerServer) -> Answer:
    return as_json(status(server))


def _metrics(_asked: Request, server: WorkerServer) -> Answer:
    return Answer(200, table_exposition(WORKER_METRICS, server), CONTENT_TYPE)


WORKER: AdminSite[WorkerServer] = AdminSite(
    "Sterna worker",
    [
        AdminPage("/metrics", _metrics, "statistics for Prometheus"),
        AdminPage("/healthz", alive, "200 while the process is alive", Right.NOTHING),
        AdminPage("/readyz", ready, "200 while it has a control line, else 503 and the reason", Right.NOTHING),
        AdminPage("/status", _status, "its node, its coordinate, what it refused (JSON)"),
        AdminPage("/reload", reload, "POST {} reads [admin] and [log] again", Right.CHANGE),
    ],
)
