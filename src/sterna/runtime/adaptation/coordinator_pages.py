"""The pages of a coordinator's admin port.  A new page is a handler and a row of `COORDINATOR`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sterna.adaptation.picture import RUNNING, Picture, PictureRoundTrips
from sterna.adaptation.reasons import Judgement, Left, Move
from sterna.adaptation.scaling import pressures_of, thresholds
from sterna.runtime.admin.metrics import CONTENT_TYPE, LabelledMetric, LabelReader, single, table_exposition, two_labels
from sterna.runtime.admin.site import AdminPage, AdminSite, Answer, Request, Right, alive, as_json, ready, reload, text

if TYPE_CHECKING:
    from sterna.runtime.adaptation.coordinator_server import CoordinatorServer

GATEWAYS_SHOWN = 1000


class FreezeOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /freeze."""

    frozen: bool


def _picture(server: CoordinatorServer) -> Picture:
    return server.core.observations.picture(time.monotonic())


def status(server: CoordinatorServer) -> dict[str, Any]:
    core, now = server.core, time.monotonic()
    leading, picture = core.leadership, _picture(server)
    return {
        "coordinator": leading.name,
        "region": core.region,
        "leads": leading.is_leading,
        "leader": leading.leader,
        "term": leading.term,
        "acts": core.settings.act and leading.may_act(now),
        "dry_run": not core.settings.act,
        "frozen": leading.frozen,
        "control_line": {"node": server.line.node, "trouble": server.line.trouble},
        "workers": [
            {
                "worker": one.name,
                "site": one.site,
                "state": one.state.value,
                "fixed": one.fixed,
                "gateways": len(one.serves),
                "others": one.others,
                "cpu": round(one.load.cpu, 3),
                "error": round(one.coordinate.error, 3),
                "trouble": core.trouble().get(one.name, ""),
            }
            for one in picture.workers.values()
        ],
        "lost": sorted(picture.lost),
        "gateways": len(picture.gateways),
        "unserved": sum(not one.node for one in picture.gateways.values()),
        "orders": core.orders.view(),
        "decisions": [
            {"seconds_ago": round(now - made.at, 1), "decision": told(made.decision), "not_ordered": made.ordered}
            for made in reversed(core.made[-20:])
        ],
        "refused": refusals(server),
    }


def refusals(server: CoordinatorServer) -> dict[str, dict[str, int]]:
    core = server.core
    return {
        "words": {str(reason): number for reason, number in server.mail.refusals.items()},
        "reports": {str(reason): number for reason, number in core.observations.refusals.items()},
        "orders": dict(core.orders.refusals),
    }


def told(judgement: Judgement) -> str:
    match judgement:
        case Move(gateway=gateway, source=source, target=target, reason=reason):
            return f"move {gateway} from {source} to {target} ({reason.sentence})"
        case Left(subject=subject, reason=reason):
            return f"leave {subject} as it is ({reason.sentence})"
        case _:
            return f"{type(judgement).__name__.lower()} {judgement.worker} ({judgement.reason.sentence})"


def pressure(server: CoordinatorServer) -> dict[str, Any]:
    settings = server.core.tuning
    found = pressures_of(PictureRoundTrips(_picture(server)), settings)
    used = thresholds(settings)
    return {
        "model": settings.pressure,
        "up": used.up,
        "down": used.down,
        "workers": {name: _number(one.value) for name, one in found.of_workers().items()},
        "nodes": {name: _number(one.value) for name, one in found.of_nodes().items()},
    }


def _number(value: float) -> float | None:
    """JSON has no infinity: the last node's worth is none."""
    return round(value, 3) if isfinite(value) else None


def explained(server: CoordinatorServer, name: str) -> dict[str, Any] | None:
    core, picture = server.core, _picture(server)
    gateway, worker = picture.gateways.get(name), picture.workers.get(name)
    if gateway is None and worker is None and name not in picture.lost:
        return None
    judgements = [told(one) for one in core.outcome.about(name)] if core.outcome is not None else []
    view: dict[str, Any] = {
        "name": name,
        "judgements": judgements,
        "waits": core.orders.waits(name, time.monotonic()),
        "decisions": [told(one.decision) for one in core.made if name in told(one.decision).split()],
    }
    if gateway is not None:
        row = sorted(picture.workers.values(), key=lambda one: picture.distance_s(gateway, one))
        view |= {
            "kind": "gateway",
            "node": gateway.node,
            "error": round(gateway.coordinate.error, 3),
            "clients": gateway.weight.clients,
            "subscriptions": gateway.weight.subscriptions,
            "nearest": [
                {
                    "worker": one.name,
                    "state": one.state.value,
                    "ms": round(1000 * picture.distance_s(gateway, one), 3),
                    "measured": picture.measured_s(gateway, one.name) is not None,
                }
                for one in row[:10]
            ],
        }
    elif worker is not None:
        view |= {"kind": "worker", "state": worker.state.value, "serves": sorted(worker.serves)[:GATEWAYS_SHOWN]}
    else:
        view |= {"kind": "worker", "state": "lost"}
    return view


def distance(server: CoordinatorServer, one: str, other: str) -> dict[str, Any] | str:
    """The estimate, and the measured round trip if there is one; or why not."""
    picture = _picture(server)
    found = [picture.gateways.get(name) or picture.workers.get(name) for name in (one, other)]
    for name, participant in zip((one, other), found, strict=True):
        if participant is None:
            return f"nothing was heard lately of a worker or gateway {name!r}"
    first, second = found
    assert first is not None
    assert second is not None
    measured = None
    for name, far in ((one, other), (other, one)):
        gateway = picture.gateways.get(name)
        if gateway is not None and measured is None:
            measured = picture.measured_s(gateway, far)
    return {
        "from": one,
        "to": other,
        "estimated_ms": round(1000 * first.coordinate.distance_s(second.coordinate), 3),
        "measured_ms": None if measured is None else round(1000 * measured, 3),
        "errors": [round(first.coordinate.error, 3), round(second.coordinate.error, 3)],
    }


class _Scrape:
    """The coordinator, with the picture that all metrics of one answer are of."""

    def __init__(self, server: CoordinatorServer) -> None:
        self.server = server
        self.core = server.core
        self.picture = _picture(server)

    @property
    def acts(self) -> bool:
        return self.core.settings.act and self.core.leadership.may_act(time.monotonic())

    def running(self) -> Counter[str]:
        """By site; every site that has a worker is there."""
        found = Counter({one.site: 0 for one in self.picture.workers.values()})
        found.update(one.site for one in self.picture.workers.values() if one.state in RUNNING)
        return found

    def desired(self) -> Counter[str]:
        wanted, outcome = self.running(), self.core.outcome
        for decision in outcome.decisions if outcome is not None else ():
            kind, worker = type(decision).__name__, getattr(decision, "worker", "")
            if worker in self.picture.workers:
                wanted[self.picture.workers[worker].site] += {"Start": 1, "Stop": -1}.get(kind, 0)
        return wanted

    def pressures(self) -> dict[str, float]:
        found = pressure(self.server)
        both = {**found["workers"], **found["nodes"]}
        return {name: float("inf") if value is None else value for name, value in both.items()}


def _one_label(read: Callable[[Any], Mapping[str, float]]) -> LabelReader:
    return lambda scrape: (((key,), number) for key, number in sorted(read(scrape).items()))


def _orders(scrape: _Scrape) -> Iterator[tuple[Sequence[str], float]]:
    outcomes = sorted(scrape.core.orders.outcomes.items())
    return (((order, str(outcome)), number) for (order, outcome), number in outcomes)


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily
_FIGURES: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    ("leading", "1 while this coordinator leads its region.", lambda one: one.core.leadership.is_leading),
    ("acting", "1 while it gives orders.", lambda one: one.acts),
    ("term", "The highest term it has heard of.", lambda one: one.core.leadership.term),
    ("gateways", "Gateways heard lately.", lambda one: len(one.picture.gateways)),
    ("workers_lost", "Workers not heard lately.", lambda one: len(one.picture.lost)),
    ("orders_under_way", "Orders that were given and are not over.", lambda one: len(one.core.orders)),
)
_LABELLED: tuple[tuple[str, str, Any, tuple[str, ...], LabelReader], ...] = (
    ("nodes_running", "Nodes that run, by site.", _GAUGE, ("site",), _one_label(_Scrape.running)),
    (
        "nodes_desired",
        "Nodes that are to run, by site, for external scalers.",
        _GAUGE,
        ("site",),
        _one_label(_Scrape.desired),
    ),
    ("pressure", "Pressure on a worker or node.", _GAUGE, ("worker",), _one_label(_Scrape.pressures)),
    ("decisions", "Decisions, by kind.", _COUNTER, ("kind",), _one_label(lambda one: one.core.counts)),
    ("orders", "Orders that are over.", _COUNTER, ("order", "outcome"), _orders),
    ("refused", "Refused, by reason.", _COUNTER, ("kind", "reason"), lambda one: two_labels(refusals(one.server))),
)
COORDINATOR_METRICS = (
    *(single(f"coordinator_{name}", text, _GAUGE, read) for name, text, read in _FIGURES),
    *(LabelledMetric(f"coordinator_{name}", *rest) for name, *rest in _LABELLED),
)


def _metrics(_asked: Request, server: CoordinatorServer) -> Answer:
    return Answer(200, table_exposition(COORDINATOR_METRICS, _Scrape(server)), CONTENT_TYPE)


def _status(_asked: Request, server: CoordinatorServer) -> Answer:
    return as_json(status(server))


def _pressure(_asked: Request, server: CoordinatorServer) -> Answer:
    return as_json(pressure(server))


def _query(asked: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(asked.target.partition("?")[2]).items()}


def _explain(asked: Request, server: CoordinatorServer) -> Answer:
    name = _query(asked).get("name", "")
    found = explained(server, name)
    return text(404, f"nothing was heard lately of a worker or gateway {name!r}\n") if found is None else as_json(found)


def _distance(asked: Request, server: CoordinatorServer) -> Answer:
    query = _query(asked)
    found = distance(server, query.get("from", ""), query.get("to", ""))
    return text(404, f"{found}\n") if isinstance(found, str) else as_json(found)


def _picture_page(_asked: Request, server: CoordinatorServer) -> Answer:
    """Without times, so that two coordinators with the same knowledge say the same."""
    picture = _picture(server)
    return as_json(
        {
            "workers": {
                name: {"state": one.state.value, "site": one.site, "serves": sorted(one.serves)}
                for name, one in picture.workers.items()
            },
            "gateways": {name: {"node": one.node} for name, one in list(picture.gateways.items())[:GATEWAYS_SHOWN]},
            "lost": sorted(picture.lost),
        }
    )


def _freeze(asked: Request, server: CoordinatorServer) -> Answer:
    leading = server.core.leadership
    try:
        order = msgspec.json.decode(asked.body, type=FreezeOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return text(400, f'{error}; send {{"frozen": true}} or {{"frozen": false}}\n')
    if not leading.is_leading:
        who = f"coordinator {leading.leader} leads" if leading.leader else "nobody leads yet"
        return text(409, f"{who}: give the order there\n")
    server.say(server.core.freeze(order.frozen))
    return as_json(status(server))


COORDINATOR: AdminSite[CoordinatorServer] = AdminSite(
    "Sterna coordinator",
    [
        AdminPage("/metrics", _metrics, "statistics for Prometheus"),
        AdminPage("/healthz", alive, "200 while the process is alive", Right.NOTHING),
        AdminPage("/readyz", ready, "200 while it has a control line, else 503 and the reason", Right.NOTHING),
        AdminPage("/status", _status, "who leads, workers, orders, the last decisions (JSON)"),
        AdminPage("/picture", _picture_page, "workers and gateways, and who serves whom (JSON)"),
        AdminPage("/pressure", _pressure, "pressure on every worker and node (JSON)"),
        AdminPage("/explain", _explain, "?name=NAME: why a gateway or worker is where it is (JSON)"),
        AdminPage("/distance", _distance, "?from=A&to=B: the round trip between two of them (JSON)"),
        AdminPage("/freeze", _freeze, 'POST {"frozen": true}: nothing changes until it is taken back', Right.CHANGE),
        AdminPage("/reload", reload, "POST {} reads [admin] and [log] again", Right.CHANGE),
    ],
)
