"""The node's statistics as Prometheus reads them.

A snapshot goes in, the text format comes out.  Nothing is kept between two calls.  Metrics of the broker are the marked
fields of its statistics, others are rows of tables here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from sterna.broker.statistics import Statistics
from sterna.runtime.feed.view import FeedView
from sterna.runtime.links.network_view import LinkView, NetworkView
from sterna.runtime.process_view import ListenerCounters, ProcessView, Timings
from sterna.vocabulary.histogram import Histogram
from sterna.vocabulary.metrics import Counted

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


class Metric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[Statistics], float | Mapping[str, int]]
    """A number, or numbers by reason."""


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily


LabelReader = Callable[[Any], Iterable[tuple[Sequence[str], float]]]
"""Values of the labels, and the number that belongs to them."""


class LabelledMetric(NamedTuple):
    """A metric that has a number for each set of values of its labels."""

    name: str
    help: str
    family: _Family
    labels: tuple[str, ...]
    read: LabelReader

    def of(self, subject: object) -> CounterMetricFamily | GaugeMetricFamily:
        family = self.family(f"sterna_{self.name}", self.help, labels=self.labels)
        for values, number in self.read(subject):
            family.add_metric(values, number)
        return family


def single(name: str, text: str, family: _Family, read: Callable[[Any], float]) -> LabelledMetric:
    """A metric without labels."""
    return LabelledMetric(name, text, family, (), lambda subject: [((), float(read(subject)))])


def two_labels(numbers: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[Sequence[str], float]]:
    return (((outer, inner), number) for outer, found in numbers.items() for inner, number in found.items())


class TableCollector(Collector):
    """The metrics of one table, about one subject."""

    def __init__(self, table: Iterable[LabelledMetric], subject: object) -> None:
        self._table = table
        self._subject = subject

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in self._table:
            yield metric.of(self._subject)


def table_exposition(table: Iterable[LabelledMetric], subject: object) -> bytes:
    """Such a table as a page, the process's own CPU, memory and files included."""
    registry = CollectorRegistry()
    registry.register(TableCollector(table, subject))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _shown(kind: type[Any]) -> Iterator[Metric]:
    for field, hint in get_type_hints(kind, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            family = _COUNTER if isinstance(mark, Counted) else _GAUGE
            yield Metric(mark.name or field, mark.help, family, attrgetter(field))


METRICS = tuple(_shown(Statistics))


class FeedMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[FeedView], int]


FEED_METRICS = (
    FeedMetric("feed_connections", "Readers of the feed connected now.", _GAUGE, lambda v: v.connections),
    FeedMetric("feed_readers", "Registered readers of the feed.", _GAUGE, lambda v: v.readers),
    FeedMetric("feed_lag", "Messages the slowest registered reader has not committed.", _GAUGE, lambda v: v.lag),
    FeedMetric("feed_rows_sent", "Rows sent to readers.", _COUNTER, lambda v: v.rows_sent),
    FeedMetric("feed_bytes_sent", "Bytes of rows sent to readers.", _COUNTER, lambda v: v.bytes_sent),
    FeedMetric("feed_lost", "Messages retention took before their reader committed.", _COUNTER, lambda v: v.lost),
    FeedMetric("feed_parquet_files", "Sealed segments kept as Parquet files.", _GAUGE, lambda v: v.parquet_files),
)


class NetworkMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[NetworkView], float | Mapping[str, int]]
    """A number, or numbers by reason."""


NETWORK_METRICS = (
    NetworkMetric("links", "Links with a connection now.", _GAUGE, lambda v: sum(one.connected for one in v.links)),
    NetworkMetric(
        "network_messages_forwarded",
        "Messages sent on to neighbours.",
        _COUNTER,
        lambda v: v.forwarded,
    ),
    NetworkMetric("network_messages_taken", "Messages from other nodes for clients here.", _COUNTER, lambda v: v.taken),
    NetworkMetric("network_messages_refused", "Messages that came again or astray.", _COUNTER, lambda v: v.refused),
    NetworkMetric(
        "network_nonsense",
        "Frames of neighbours that made no sense: their links ended.",
        _COUNTER,
        lambda v: v.nonsense,
    ),
    NetworkMetric(
        "network_spoilt",
        "Words of nodes further away that made no sense and were left out.",
        _COUNTER,
        lambda v: v.spoilt,
    ),
    NetworkMetric(
        "network_messages_dropped",
        "QoS 0 messages that did not go on to another node, by reason.",
        _COUNTER,
        lambda v: v.loose_dropped,
    ),
    NetworkMetric(
        "network_ways",
        "With strategy mobile: claims made, false ones contradicted, nodes asked where they are, words refused.",
        _COUNTER,
        lambda v: v.ways,
    ),
    NetworkMetric(
        "network_gaps", "Nodes known to have published more than was read here.", _GAUGE, lambda v: len(v.gaps)
    ),
    NetworkMetric(
        "network_gap_messages",
        "Messages of those that are missing, at most.",
        _GAUGE,
        lambda v: sum(gap["messages_at_most"] for gap in v.gaps.values()),
    ),
    NetworkMetric(
        "network_gap_seconds",
        "Age of the oldest gap.",
        _GAUGE,
        lambda v: max((gap["age_s"] for gap in v.gaps.values()), default=0),
    ),
    NetworkMetric(
        "network_carried",
        "Messages carried for nodes that are away.",
        _GAUGE,
        lambda v: v.carried.get("messages", 0),
    ),
    NetworkMetric(
        "network_carried_dropped",
        "Messages that a carrier had no room or no time for.",
        _COUNTER,
        lambda v: v.carried.get("evicted", 0),
    ),
    NetworkMetric(
        "network_unconfirmed", "Times SUBACK went out before every node answered.", _COUNTER, lambda v: v.unconfirmed
    ),
)


class LinkMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[LinkView], int]


LINK_METRICS = (
    LinkMetric("up", "1 while a neighbour is connected.", _GAUGE, lambda one: one.connected),
    LinkMetric("congested", "1 while a neighbour reads too slowly.", _GAUGE, lambda one: one.congested),
    LinkMetric(
        "unacknowledged_bytes",
        "Bytes that a neighbour has not said it has.",
        _GAUGE,
        lambda one: one.unacknowledged_bytes,
    ),
    LinkMetric("protocol_version", "Of the protocol of a link; 0 without one.", _GAUGE, lambda one: one.version),
    LinkMetric("messages", "Frames given to a link.", _COUNTER, lambda one: one.messages),
    LinkMetric("bytes", "Bytes sent to a neighbour.", _COUNTER, lambda one: one.bytes_sent),
    LinkMetric("received_bytes", "Bytes from a neighbour.", _COUNTER, lambda one: one.bytes_received),
    LinkMetric(
        "control_bytes", "Bytes sent to a neighbour that carry no message.", _COUNTER, lambda one: one.control_bytes
    ),
    LinkMetric("resends", "Frames sent again on another connection.", _COUNTER, lambda one: one.resends),
    LinkMetric("resumptions", "Connections that carried on a link session.", _COUNTER, lambda one: one.resumptions),
    LinkMetric("sessions", "Link sessions begun.", _COUNTER, lambda one: one.sessions),
)

_STREAM_STATES = ("synced", "fetching", "unsynced", "doubtful")


def _streams(view: NetworkView) -> Iterator[tuple[Sequence[str], float]]:
    found = Counter(view.streams.values())
    return (((state,), found[state]) for state in _STREAM_STATES)


OTHER_NETWORK_METRICS = (
    LabelledMetric("streams", "Other nodes by how their messages come in.", _GAUGE, ("state",), _streams),
    LabelledMetric(
        "session_moves",
        "Sessions that changed their node.",
        _COUNTER,
        ("outcome",),
        lambda view: (((outcome.replace("_", "-"),), number) for outcome, number in view.moves.items()),
    ),
)


class _NetworkSnapshot(Collector):
    def __init__(self, view: NetworkView) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in NETWORK_METRICS:
            yield _family(metric, metric.read(self._view))
        for of_link in LINK_METRICS:
            links = of_link.family(f"sterna_link_{of_link.name}", of_link.help, labels=["peer"])
            for link in self._view.links:
                links.add_metric([link.peer], of_link.read(link))
            yield links
        yield from TableCollector(OTHER_NETWORK_METRICS, self._view).collect()


class _FeedSnapshot(Collector):
    def __init__(self, view: FeedView) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in FEED_METRICS:
            yield metric.family(f"sterna_{metric.name}", metric.help, value=metric.read(self._view))


class InterworkingMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[Mapping[str, Any]], float | Mapping[str, int]]
    """A number, or numbers by reason."""


INTERWORKING_METRICS = (
    InterworkingMetric(
        "interworking_attached", "1 while attached to the foreign broker.", _GAUGE, lambda v: v["state"] == "attached"
    ),
    InterworkingMetric("interworking_taken", "Messages from the foreign broker.", _COUNTER, lambda v: v["taken"]),
    InterworkingMetric("interworking_injected", "Messages to the foreign broker.", _COUNTER, lambda v: v["injected"]),
    InterworkingMetric(
        "interworking_held_back",
        "Messages of the foreign broker that did not go into the network, by reason.",
        _COUNTER,
        lambda v: v["held_back"],
    ),
    InterworkingMetric(
        "interworking_not_injected",
        "Messages of the network that the foreign broker did not get, by reason.",
        _COUNTER,
        lambda v: v["not_injected"],
    ),
    InterworkingMetric(
        "interworking_in_doubt",
        "Messages in flight when the foreign broker lost its session, by what became of them.",
        _COUNTER,
        lambda v: v["in_doubt"],
    ),
    InterworkingMetric(
        "interworking_sessions_lost", "Sessions the foreign broker lost.", _COUNTER, lambda v: v["sessions_lost"]
    ),
    InterworkingMetric("interworking_failures", "Connections that failed or ended.", _COUNTER, lambda v: v["failures"]),
    InterworkingMetric(
        "interworking_round_trip_seconds",
        "The way of the last fence through the foreign broker and back.",
        _GAUGE,
        lambda v: (v["round_trip_ms"] or 0.0) / 1000,
    ),
    InterworkingMetric(
        "interworking_storms", "Topics held because messages went round.", _COUNTER, lambda v: v["storms"]
    ),
    InterworkingMetric(
        "interworking_clients",
        "Clients of the foreign broker that are relayed to it now.",
        _GAUGE,
        lambda v: v.get("proxy", {}).get("relayed", 0),
    ),
    InterworkingMetric(
        "interworking_witnessed",
        "Publications of relayed clients that the foreign broker passed on.",
        _COUNTER,
        lambda v: v.get("proxy", {}).get("witnessed", 0),
    ),
    InterworkingMetric(
        "interworking_not_witnessed",
        "Publications of relayed clients that the foreign broker acknowledged and passed on to nobody.",
        _COUNTER,
        lambda v: v.get("proxy", {}).get("not_witnessed", 0),
    ),
    InterworkingMetric(
        "interworking_publications_in_doubt",
        "Publications at QoS 2 of relayed clients whose session the foreign broker lost, by what became of them.",
        _COUNTER,
        lambda v: v.get("proxy", {}).get("in_doubt", {}),
    ),
    InterworkingMetric(
        "interworking_not_kept",
        "Publications at QoS 2 and subscriptions of relayed clients that the node did not keep for want of room.",
        _COUNTER,
        lambda v: v.get("proxy", {}).get("not_kept", {}),
    ),
)


class _InterworkingSnapshot(Collector):
    def __init__(self, view: Mapping[str, Any]) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in INTERWORKING_METRICS:
            yield _family(metric, metric.read(self._view))
        if abilities := self._view["abilities"]:
            told = {name: str(abilities[name]) for name in ("mqtt", "qos", "loop_prevention")}
            about = "1; its labels say what the foreign broker was found able to do."
            family = GaugeMetricFamily("sterna_interworking_info", about, labels=list(told))
            family.add_metric(list(told.values()), 1.0)
            yield family


class TimingMetric(NamedTuple):
    name: str
    help: str
    read: Callable[[Timings], Histogram]


TIMING_METRICS = (
    TimingMetric("journal_write_seconds", "Writing a group to the journal, sync included.", lambda t: t.journal_write),
    TimingMetric("commit_seconds", "From closing a group to delivering what it holds.", lambda t: t.commit),
    TimingMetric("event_loop_lag_seconds", "How late the event loop calls back.", lambda t: t.loop_lag),
    TimingMetric(
        "delivery_latency_seconds",
        "From entering the network to being given to subscribers here, of some messages at QoS 1 and 2.",
        lambda t: t.delivery,
    ),
    TimingMetric("move_duration_seconds", "Moves of sessions to other nodes, begun to gone.", lambda t: t.move),
)


class ListenerMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[ListenerCounters], int]


LISTENER_METRICS = (
    ListenerMetric("connections", "Connections of a listener now.", _GAUGE, lambda one: one.open),
    ListenerMetric("accepted", "Connections that a listener has accepted.", _COUNTER, lambda one: one.accepted),
    ListenerMetric(
        "failed", "Connections that did not get through TLS or a proxy's header.", _COUNTER, lambda one: one.failed
    ),
)


CERTIFICATES = LabelledMetric(
    "certificate_expiry_timestamp_seconds",
    "When a certificate expires: that of a listener, by its address, of links, feed, interworking, upstream.",
    _GAUGE,
    ("listener",),
    lambda view: (((listener,), instant) for listener, instant in view.certificates.items()),
)

PROCESS_METRICS = (
    LabelledMetric(
        "build_info",
        "1, with the build.",
        _GAUGE,
        ("version", "python", "compiled"),
        lambda view: [((view.version, view.python, str(view.compiled).lower()), 1)],
    ),
    CERTIFICATES,
)


class _ProcessSnapshot(Collector):
    def __init__(self, view: ProcessView) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        view = self._view
        yield from TableCollector(PROCESS_METRICS, view).collect()
        for metric in TIMING_METRICS:
            timing = metric.read(view.timings)
            yield HistogramMetricFamily(f"sterna_{metric.name}", metric.help, timing.buckets(), timing.sum)
        for of_listener in LISTENER_METRICS:
            family = of_listener.family(f"sterna_listener_{of_listener.name}", of_listener.help, labels=["listener"])
            for listener, counters in view.listeners.items():
                family.add_metric([listener], of_listener.read(counters))
            yield family


class _Snapshot(Collector):
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in METRICS:
            yield _family(metric, metric.read(self._statistics))


def _family(
    metric: Metric | NetworkMetric | InterworkingMetric, value: float | Mapping[str, int]
) -> CounterMetricFamily | GaugeMetricFamily:
    name = f"sterna_{metric.name}"
    if not isinstance(value, Mapping):
        return metric.family(name, metric.help, value=value)
    family = metric.family(name, metric.help, labels=["reason"])
    for reason, number in sorted(value.items()):
        family.add_metric([reason], number)
    return family


def exposition(
    statistics: Statistics,
    view: NetworkView | None = None,
    feed: FeedView | None = None,
    interworking: Mapping[str, Any] | None = None,
    process: ProcessView | None = None,
) -> bytes:
    """The page served under /metrics, the process's own CPU, memory and files included."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(statistics))
    if view is not None and view.network:
        registry.register(_NetworkSnapshot(view))
    if feed is not None:
        registry.register(_FeedSnapshot(feed))
    if interworking is not None:
        registry.register(_InterworkingSnapshot(interworking))
    if process is not None:
        registry.register(_ProcessSnapshot(process))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
